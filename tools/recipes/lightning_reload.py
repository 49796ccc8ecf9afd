"""Train with Lightning: reload_dataloaders_every_n_epochs=1 makes it ask for a new loader, and so a new listing.

    growfs mount s3://bucket/train /mnt/train --cache-size 500GB
    python tools/recipes/lightning_reload.py /mnt/train --epochs 20

Look for "files", which grows until the cache is full, and for "new", the files that no epoch saw before.

Three things to know. Leave persistent_workers off, because Lightning creates the loader again. Lightning iterates over
a reloaded loader twice and drops the first iterator, so a few files are opened twice per epoch, and `growfs status`
counts these opens too. On several nodes with `--partition`, pass use_distributed_sampler=False and your own
DistributedSampler over the ranks of the node (see torch_nodes.py).
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from lightning import Callback, LightningDataModule, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

SIDE = 224
BATCH = 32
PREPARE = transforms.Compose(
    [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)


class Images(LightningDataModule):
    """The images of a folder, as listed when a loader is requested. files: those of the last one."""

    def __init__(self, folder: str, workers: int) -> None:
        super().__init__()
        self.folder = folder
        self.workers = workers
        self.files: set[str] = set()
        self.began = 0.0

    def train_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        self.began = time.perf_counter()
        images = ImageFolder(self.folder, PREPARE)
        self.files = {path for path, _ in images.samples}
        return DataLoader(images, BATCH, shuffle=True, num_workers=self.workers)


class Classifier(LightningModule):
    """A small network. Put yours here."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(nn.Conv2d(3, 32, 16, stride=16), nn.ReLU()),  # patches, as in a vision transformer
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, classes)),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class Lines(Callback):
    """Prints a line for each epoch."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.samples = 0
        self.seen: set[str] = set()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: object, batch: list[Tensor], number: int
    ) -> None:
        self.samples += len(batch[1])

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        seconds, files = time.perf_counter() - self.images.began, self.images.files
        new = len(files - self.seen)
        self.seen |= files
        print(
            f"epoch {trainer.current_epoch + 1}: {len(files)} files, {self.samples} samples,"
            f" {self.samples / seconds:.0f} samples/s, {new} new, {len(self.seen)} seen in all",
            flush=True,
        )
        self.samples = 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on folders of images with Lightning.")
    parser.add_argument("folder", help="a folder for each class; the mountpoint")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    images = Images(options.folder, options.workers)
    trainer = Trainer(
        max_epochs=options.epochs,
        reload_dataloaders_every_n_epochs=1,  # this is all it takes
        callbacks=[Lines(images)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # Every class has its folder from the start, so the network already has its final width.
    classes = sum(entry.is_dir() for entry in os.scandir(options.folder))
    if not classes:
        raise SystemExit(f"{options.folder} lists no folder; growfs status says why")
    trainer.fit(Classifier(classes), images)


if __name__ == "__main__":
    main()
