"""Train on shards (TFRecord files) with an IterableDataset, split among DataLoader workers that outlive the epochs.

For samples in shards that PyTorch reads, without TensorFlow and without a streaming library.

    growfs mount s3://bucket/shards /mnt/shards --cache-size 500GB
    python tools/recipes/torch_shards.py /mnt/shards --epochs 20

The first worker that lists begins a new generation, and the others see the same one. So they can divide the files among
themselves by position, and each file is read exactly once. Have at least as many shards as workers.

Look for "files", the shards that were read in the epoch, and for "new", those that no epoch read before.

A record here is an image in CIFAR-10's binary version: a byte for the label, and 3 x 32 x 32 for the pixels. For other
records change `sample`. `.growfs/ledger.csv` in the mount has the number of opens of each shard.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

BATCH = 64
MIXED = 1000
"""Records that are kept back for mixing: neighbors in a shard should not be neighbors in a batch."""

Sample = tuple[Tensor, int, str]
"""(pixels, label, the name of the shard)"""


def records(shard: Path) -> Iterator[bytes]:
    """TFRecord: a length of 8 bytes, its CRC (4), the data, its CRC (4). growfs lists a file when it is complete and
    checked, so the CRCs are skipped."""
    with shard.open("rb") as file:
        while head := file.read(12):
            yield file.read(int.from_bytes(head[:8], "little"))
            file.read(4)


def sample(record: bytes, shard: str) -> Sample:
    """The content of a record. The pixels stay bytes until they are on the device: a quarter of the traffic."""
    pixels = torch.frombuffer(bytearray(record), dtype=torch.uint8)
    return pixels[1:].view(3, 32, 32), record[0], shard


class Shards(IterableDataset[Sample]):
    """The samples of all shards that a folder lists; each epoch lists again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # but no list: this object is copied to the workers once

    def __iter__(self) -> Iterator[Sample]:
        shards = sorted(self.folder.rglob("*.tfrecord"))
        if worker := get_worker_info():
            shards = shards[worker.id :: worker.num_workers]
        random.shuffle(shards)  # torch gives each worker its own seed
        samples = (sample(record, shard.name) for shard in shards for record in records(shard))
        mixed = list(itertools.islice(samples, MIXED))
        for following in samples:
            place = random.randrange(MIXED)
            yield mixed[place]
            mixed[place] = following
        random.shuffle(mixed)
        yield from mixed


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on TFRecord shards, listed anew by the workers of each epoch.")
    parser.add_argument("folder", type=Path, help="with *.tfrecord in it; the mountpoint")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, 256)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(  # one for all epochs, as are its workers
        Shards(options.folder),
        BATCH,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        pin_memory=device.type == "cuda",  # by a thread of this process, so copies do not wait for pages
    )
    seen: set[str] = set()

    for epoch in range(1, options.epochs + 1):
        began = time.perf_counter()
        samples, files, total = 0, set[str](), torch.zeros((), device=device)
        for pixels, labels, shards in loader:
            images = pixels.to(device, non_blocking=True).float() / 255
            loss = nn.functional.cross_entropy(model(images), labels.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(shards)
            files.update(shards)
            total += loss.detach() * len(shards)
        seconds = time.perf_counter() - began
        if not files:
            raise SystemExit(f"{options.folder} lists no *.tfrecord; growfs status says why")

        new = len(files - seen)
        seen |= files
        print(
            f"epoch {epoch}: {len(files)} files, {samples} samples, {samples / seconds:.0f} samples/s,"
            f" {new} new, {len(seen)} seen in all, loss {total.item() / max(samples, 1):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
