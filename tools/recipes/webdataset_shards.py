"""WebDataset on tar shards that do not fit the disk, for PyTorch.

    growfs mount s3://bucket/shards /mnt/shards --cache-size 500GB
    python tools/recipes/webdataset_shards.py /mnt/shards --epochs 10 --workers 8

For *.tar shards of images (`0001.jpg`, `0001.cls`, ...). WebDataset never lists, so list the cached shards with glob,
again for each epoch, and pass that list.

Look for: files grow from epoch to epoch until the cache is full, then some are new each time; samples are the total of
the shards, because WebDataset divides the list among the workers, and no two read the same shard.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from PIL import Image


def loader(shards: list[str], batch: int, workers: int, size: int) -> wds.WebLoader:
    """Batches of (images, labels) from these shards, in a different order each time it is created."""

    def as_tensor(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image.resize((size, size)))).permute(2, 0, 1)

    dataset = (
        # A worker without a shard (in the first epochs) is not an error: hence no check for empty ones.
        wds.WebDataset(shards, shardshuffle=len(shards), workersplitter=wds.split_by_worker, empty_check=False)
        .shuffle(1000)
        .decode("pilrgb")
        .to_tuple("jpg;jpeg;png", "cls")
        .map_tuple(as_tensor, int)
        .batched(batch)
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=workers)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with WebDataset on the *.tar shards of a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=224, help="size of the images, in pixels")
    options = parser.parse_args()

    ever: set[str] = set()
    for epoch in range(1, options.epochs + 1):
        shards = sorted(map(str, options.folder.glob("*.tar")))  # lists again: the epoch's growth
        if not shards:
            raise SystemExit(f"{options.folder} lists no *.tar; growfs status says why")
        began, samples = time.perf_counter(), 0
        for images, _labels in loader(shards, options.batch, options.workers, options.size):
            samples += len(images)  # the model would learn here
        rate = samples / (time.perf_counter() - began)
        fresh = len(set(shards) - ever)
        ever.update(shards)
        print(
            f"epoch {epoch}: {len(shards)} files, {samples} samples, {rate:.0f} samples/s, "
            f"{fresh} files new, {len(ever)} so far",
            flush=True,
        )


if __name__ == "__main__":
    main()
