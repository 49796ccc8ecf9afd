"""Train on a tree of images, a folder for each class, with torchvision's ImageFolder, created again for each epoch.

For an ImageFolder with more images than fit the disk. ImageFolder lists its folder only when it is created. So the
program creates it at the start of each epoch, and it sees the files that have arrived since the last one.

    growfs mount s3://bucket/train /mnt/train --cache-size 500GB
    python tools/recipes/torch_imagefolder.py /mnt/train --epochs 20

Look for "files", which grows until the cache is full, and for "new", the files that no epoch saw before; new files keep
coming after that. Classes keep their numbers, because every folder has a file before the mount returns.

With --once it is created only once, as in most scripts. Then "files" stays the same, and "new" is 0 from the second
epoch on. growfs keeps all of these files on the disk, because the process may open any of them at any time, and so
cannot fetch others instead. `cat /mnt/train/.growfs/status` has a line about such a process.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

SIDE = 224
BATCH = 32
PREPARE = transforms.Compose(
    [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)


def network(classes: int) -> nn.Sequential:
    """A small network. Put yours here."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 16, stride=16), nn.ReLU()),  # patches, as in a vision transformer
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, classes)),
    )


def main() -> None:
    """Train, and print a line for each epoch."""
    parser = argparse.ArgumentParser(description="Train on folders of images, listed anew for each epoch.")
    parser.add_argument("folder", help="a folder for each class; the mountpoint")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--once", action="store_true", help="list the folder once, to see what that costs")
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not any(os.scandir(options.folder)):
        raise SystemExit(f"{options.folder} lists no folder; growfs status says why")
    images = ImageFolder(options.folder, PREPARE)
    model = network(len(images.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    seen: set[str] = set()

    for epoch in range(1, options.epochs + 1):
        began = time.perf_counter()
        if epoch > 1 and not options.once:
            images = ImageFolder(options.folder, PREPARE)  # lists the folder, and so sees more than before
        # Its workers end with the epoch. They list nothing, and open the files that this process was shown.
        loader = DataLoader(images, BATCH, shuffle=True, num_workers=options.workers, pin_memory=device.type == "cuda")
        samples, total = 0, torch.zeros((), device=device)
        for batch, labels in loader:
            batch, labels = batch.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(labels)
            total += loss.detach() * len(labels)
        seconds = time.perf_counter() - began

        files = {path for path, _ in images.samples}
        new = len(files - seen)
        seen |= files
        print(
            f"epoch {epoch}: {len(files)} files, {samples} samples, {samples / seconds:.0f} samples/s,"
            f" {new} new, {len(seen)} seen in all, {len(images.classes)} classes, loss {total.item() / samples:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
