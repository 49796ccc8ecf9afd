"""Hugging Face `datasets` on Parquet files or class folders of images that do not fit the disk.

    growfs mount hf://datasets/owner/name /mnt/data --cache-size 500GB          # or s3://, gs://, ...
    python tools/recipes/hf_datasets.py /mnt/data --epochs 10                   # *.parquet, at any depth
    python tools/recipes/hf_datasets.py /mnt/data --epochs 10 --format imagefolder

`load_dataset` reads the files that it is given, with streaming=True in place. Look for: more files and samples in each
epoch until the cache is full; "0 bytes copied"; and with imagefolder the same number of classes in every epoch,
including the first, because growfs has a file of each folder before it mounts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

# `datasets` reads both when it is imported. The folder is only here to show that streaming leaves it empty.
scratch = tempfile.TemporaryDirectory()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["HF_DATASETS_CACHE"] = scratch.name

import datasets  # noqa: E402

SUFFIXES = {"parquet": {".parquet"}, "imagefolder": {".jpg", ".jpeg", ".png"}}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with load_dataset(..., streaming=True) on a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--format", choices=["parquet", "imagefolder"], default="parquet")
    parser.add_argument("--mix", type=int, default=10, help="Parquet files to read at a time and mix")
    options = parser.parse_args()

    for epoch in range(1, options.epochs + 1):
        # Lists again: the epoch's growth. With imagefolder, a label is the number of a folder, in the order of names.
        files = [str(path) for path in options.folder.rglob("*") if path.suffix in SUFFIXES[options.format]]
        if not files:
            raise SystemExit(f"{options.folder} lists no file of that format; growfs status says why")
        dataset = datasets.load_dataset(options.format, data_files=files, split="train", streaming=True)
        # The files in a different order each time, with the rows of `mix` of them at a time.
        shuffled = dataset.shuffle(seed=epoch, buffer_size=1000, max_buffer_input_shards=options.mix)
        began, samples = time.perf_counter(), 0
        for batch in shuffled.iter(batch_size=options.batch):
            samples += len(next(iter(batch.values())))  # a dict of columns; here the model learns
        rate = samples / (time.perf_counter() - began)
        label = (dataset.features or {}).get("label")
        classes = f"{label.num_classes} classes, " if isinstance(label, datasets.ClassLabel) else ""
        copied = sum(path.stat().st_size for path in Path(scratch.name).rglob("*") if path.is_file())
        print(
            f"epoch {epoch}: {len(files)} files, {samples} samples, {rate:.0f} samples/s, "
            f"{classes}{copied} bytes copied",
            flush=True,
        )
    scratch.cleanup()


if __name__ == "__main__":
    main()
