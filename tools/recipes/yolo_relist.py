"""Train Ultralytics YOLO on images and labels that do not fit the disk, listed anew for each epoch.

For the layout images/SPLIT/NAME.jpg and labels/SPLIT/NAME.txt:

    growfs mount s3://bucket/shapes /mnt/shapes --cache-size 500GB --group '{name}' --freeze '*/val/**'
    python tools/recipes/yolo_relist.py /mnt/shapes --classes 80 --epochs 20

Look for "files" (images), which grows until the cache is full, and for "backgrounds", the images without a label: it
stays the same as in the data. YOLO warns that it cannot write a cache of the labels, because a mount is read-only, so
it reads them in each epoch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("YOLO_OFFLINE", "true")  # ultralytics reads it at import: no check for updates

from ultralytics.models import YOLO


class Relisting:
    """Callbacks of YOLO's trainer: list again when an epoch begins, and print a line when it ends."""

    def __init__(self) -> None:
        self.began = 0.0
        self.seen: set[str] = set()

    def begin(self, trainer: Any) -> None:
        """Create the loader again, which lists the images and labels."""
        self.began = time.perf_counter()
        if trainer.epoch > trainer.start_epoch:
            trainer.train_loader = trainer.get_dataloader(
                trainer.data["train"], batch_size=trainer.batch_size, rank=-1, mode="train"
            )

    def end(self, trainer: Any) -> None:
        dataset = trainer.train_loader.dataset
        files, seconds = set(dataset.im_files), time.perf_counter() - self.began
        backgrounds = sum(not len(label["cls"]) for label in dataset.labels)
        new = len(files - self.seen)
        self.seen |= files
        print(
            f"epoch {trainer.epoch + 1}: {len(files)} files, {len(dataset)} samples,"
            f" {len(dataset) / seconds:.0f} samples/s,"
            f" {backgrounds} backgrounds, {new} new, {len(self.seen)} seen in all",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train YOLO on a folder that grows.")
    parser.add_argument("folder", type=Path, help="with images/train, images/val, labels/train and labels/val")
    parser.add_argument("--model", default="yolo11n.yaml", help="a model that ultralytics has, or a file of weights")
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    if not any(options.folder.iterdir()):
        raise SystemExit(f"{options.folder} lists no folder; growfs status says why")
    with tempfile.TemporaryDirectory() as scratch:
        names = "".join(f"  {number}: class{number}\n" for number in range(options.classes))
        data = Path(scratch, "data.yaml")
        data.write_text(f"path: {options.folder}\ntrain: images/train\nval: images/val\nnames:\n{names}")
        relisting = Relisting()
        model = YOLO(options.model)
        model.add_callback("on_train_epoch_start", relisting.begin)
        model.add_callback("on_train_epoch_end", relisting.end)
        model.train(
            data=str(data),
            imgsz=options.size,
            batch=options.batch,
            epochs=options.epochs,
            workers=options.workers,
            project=scratch,
            val=False,
            plots=False,
            verbose=False,
        )


if __name__ == "__main__":
    main()
