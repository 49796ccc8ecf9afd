"""Train with Hugging Face's Trainer on folders of images, listed anew for each epoch.

    growfs mount s3://bucket/train /mnt/train --cache-size 500GB
    python tools/recipes/hf_trainer.py /mnt/train --epochs 20

Look for "files", which grows until the cache is full, and for "new", the files that no epoch saw before. To resume,
pass `ignore_data_skip=True`: otherwise Trainer skips as many batches as the epoch had already had, but of other files
(see torch_imagefolder.py for the same files).
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor, nn
from torch.utils.data import IterableDataset, get_worker_info
from torchvision import transforms
from transformers import Trainer, TrainerCallback, TrainingArguments

SIDE = 224
BATCH = 32
PREPARE = transforms.Compose(
    [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)
SUFFIXES = {".jpg", ".jpeg", ".png"}


class Images(IterableDataset[dict[str, Any]]):
    """The images of the class folders, as they are when an epoch begins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.files: list[Path] = []

    def set_epoch(self, epoch: int) -> None:
        """List the folder, in an order of this epoch. Trainer calls it, in the training process."""
        self.files = sorted(path for path in self.folder.rglob("*") if path.suffix.lower() in SUFFIXES)
        random.Random(epoch).shuffle(self.files)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        for path in self.files[number::count]:
            with Image.open(path) as image:
                pixels = PREPARE(image.convert("RGB"))
            yield {"pixels": pixels, "labels": self.classes.index(path.parent.name)}


class Classifier(nn.Module):
    """A small network. Put yours here."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(nn.Conv2d(3, 32, 16, stride=16), nn.ReLU()),  # patches, as in a vision transformer
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, classes)),
        )
        self.samples = 0

    def forward(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.samples += len(labels)
        return {"loss": nn.functional.cross_entropy(self.network(pixels), labels)}


class Lines(TrainerCallback):
    """Prints a line for each epoch, and ends the training after the last one."""

    def __init__(self, images: Images, model: Classifier, epochs: int) -> None:
        self.images, self.model, self.epochs = images, model, epochs
        self.epoch = 0
        self.seen: set[Path] = set()
        self.began = time.perf_counter()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.epoch += 1
        seconds, files = time.perf_counter() - self.began, set(self.images.files)
        new = len(files - self.seen)
        self.seen |= files
        print(
            f"epoch {self.epoch}: {len(files)} files, {self.model.samples} samples,"
            f" {self.model.samples / seconds:.0f} samples/s, {new} new, {len(self.seen)} seen in all",
            flush=True,
        )
        self.model.samples, self.began = 0, time.perf_counter()
        control.should_training_stop = self.epoch >= self.epochs


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on folders of images with Hugging Face's Trainer.")
    parser.add_argument("folder", type=Path, help="a folder for each class; the mountpoint")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10_000, help="end after so many, whatever the epoch")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    images = Images(options.folder)
    if not images.classes:
        raise SystemExit(f"{options.folder} lists no folder; growfs status says why")
    model = Classifier(len(images.classes))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            max_steps=options.steps,  # needed for a dataset without a length; the learning rate decreases until then
            dataloader_num_workers=options.workers,
            remove_unused_columns=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer = Trainer(model, arguments, train_dataset=images)
        trainer.add_callback(Lines(images, model, options.epochs))
        trainer.train()


if __name__ == "__main__":
    main()
