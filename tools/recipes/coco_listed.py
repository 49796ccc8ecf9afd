"""Train on images with annotations in a single COCO file, filtered for each epoch by the images that are listed.

    growfs mount s3://bucket/coco /mnt/coco --cache-size 500GB --freeze 'annotations/**'
    python tools/recipes/coco_listed.py /mnt/coco --split train2017 --epochs 20

The annotations are frozen, so the file is there before the mount returns, and stays. Look for "files", which grows
until the cache is full, and for "new". `growfs status` counts no misses.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import CocoDetection

BATCH = 16


def listed(annotations: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """The part of a COCO file about these images. file_name: relative to the folder of the images."""
    images = [image for image in annotations["images"] if image["file_name"] in names]
    ids = {image["id"] for image in images}
    boxes = [box for box in annotations["annotations"] if box["image_id"] in ids]
    return {**annotations, "images": images, "annotations": boxes}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on the listed images of a COCO dataset.")
    parser.add_argument("folder", type=Path, help="the mountpoint")
    parser.add_argument("--split", default="train2017", help="its images are in the folder SPLIT")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    if not any(options.folder.iterdir()):
        raise SystemExit(f"{options.folder} lists no file; growfs status says why")
    folder = options.folder / options.split
    file_of_all = options.folder / f"annotations/instances_{options.split}.json"
    annotations = json.loads(file_of_all.read_text())  # once: COCO's has 450 MB
    seen: set[str] = set()
    for epoch in range(1, options.epochs + 1):
        began = time.perf_counter()
        names = {str(path.relative_to(folder)) for path in folder.rglob("*")}  # a listing
        part = listed(annotations, names)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file, redirect_stdout(None):  # because COCO prints
            json.dump(part, file)
            file.flush()
            dataset = CocoDetection(str(folder), file.name, transforms.ToTensor())
        # A batch is a list: images differ in size and in the number of their objects.
        loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=options.workers, collate_fn=list)
        samples = boxes = 0
        for batch in loader:  # here the model learns
            samples += len(batch)
            boxes += sum(len(found) for _, found in batch)
        seconds = time.perf_counter() - began
        files = {image["file_name"] for image in part["images"]}
        new = len(files - seen)
        seen |= files
        print(
            f"epoch {epoch}: {len(files)} files, {samples} samples, {samples / seconds:.0f} samples/s,"
            f" {boxes} boxes, {new} new, {len(seen)} of {len(annotations['images'])} images so far",
            flush=True,
        )


if __name__ == "__main__":
    main()
