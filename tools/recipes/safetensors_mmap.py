"""Tensors in mapped safetensors files that do not fit the disk: latents, embeddings, activations.

    growfs mount s3://bucket/latents /mnt/latents --cache-size 500GB
    python tools/recipes/safetensors_mmap.py /mnt/latents --epochs 10

A tensor's bytes are read when they are touched. A mapped file never changes: the program keeps the tensors of the first
file from epoch 1 (as one keeps a codebook, or a fixed batch to look at), although that file may later be delisted,
evicted, or replaced at the remote. Look for: files that are new in each epoch once the cache is full, and "kept tensors
whole" in every epoch.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import torch
from safetensors import safe_open


def mapped(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file, as views of its pages: nothing is read yet."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is not a dict


def digest(tensors: dict[str, torch.Tensor]) -> dict[str, int]:
    """A sum of the bytes of each tensor, which reads all of them."""
    return {name: int(tensor.view(torch.uint8).sum(dtype=torch.int64)) for name, tensor in tensors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on slices of the *.safetensors files of a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--tensor", default="latents", help="the tensor to train on, samples along its first axis")
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()

    ever: set[Path] = set()
    kept: dict[str, torch.Tensor] = {}
    kept_of, kept_sum = options.folder, {}
    for epoch in range(1, options.epochs + 1):
        files = sorted(options.folder.rglob("*.safetensors"))  # lists again: the epoch's growth
        if not files:
            raise SystemExit(f"{options.folder} lists no *.safetensors; growfs status says why")
        if not kept:
            kept, kept_of = mapped(files[0]), files[0]
            kept_sum = digest(kept)
        began, samples = time.perf_counter(), 0
        for path in random.sample(files, len(files)):
            with safe_open(path, framework="pt") as file:
                latents = file.get_slice(options.tensor)
                for start in range(0, latents.get_shape()[0], options.batch):
                    batch = latents[start : start + options.batch].float()  # this reads it
                    samples += len(batch)  # the model would learn here
        rate = samples / (time.perf_counter() - began)
        fresh = len(set(files) - ever)
        ever.update(files)
        listed = "listed" if kept_of in files else "no longer listed"
        print(
            f"epoch {epoch}: {len(files)} files, {samples} samples, {rate:.0f} samples/s, {fresh} files new, "
            f"{len(ever)} so far; {kept_of.name} {listed}, "
            f"kept tensors {'whole' if digest(kept) == kept_sum else 'DIFFER'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
