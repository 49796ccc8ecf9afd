"""Train on a tree of images, a folder for each class, with torchvision's ImageFolder, created again for each epoch.

    growfs mount s3://bucket/train /mnt/train --cache-size 500GB
    python tools/recipes/torch_imagefolder.py /mnt/train --epochs 20 --checkpoint /checkpoints/run.pt

Look for "files", which grows until the cache is full, and for "new", the files that no epoch saw before; new files keep
coming after that. Classes keep their numbers, because every folder has a file before the mount returns.

With --checkpoint, a job that was preempted goes on in the middle of its epoch. The checkpoint has the list of the
epoch's files, in order, because a position alone ("skip the first 5,000 samples") means nothing once the cache has
changed. Look for "before": the samples that the epoch had before it was resumed. Together with the rest they are all of
its files, each once. `--stop-after 3` ends the program after three batches, as a preemption would.

With --once the ImageFolder is created only once, as in most scripts. Then "files" stays the same, and "new" is 0 from
the second epoch on. growfs keeps all of these files on the disk, because the process may open any of them at any time,
and so cannot fetch others instead. `cat /mnt/train/.growfs/status` has a line about such a process.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

SIDE = 224
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
    parser = argparse.ArgumentParser(description="Train on folders of images, listed anew for each epoch.")
    parser.add_argument("folder", help="a folder for each class; the mountpoint")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--once", action="store_true", help="list the folder once, to see what that costs")
    parser.add_argument("--checkpoint", type=Path, help="the file from which to go on, if it is there")
    parser.add_argument("--every", type=int, default=100, help="batches between two checkpoints")
    parser.add_argument("--stop-after", type=int, help="end after so many batches, as if preempted")
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes = sum(entry.is_dir() for entry in os.scandir(options.folder))
    if not classes:
        raise SystemExit(f"{options.folder} lists no folder; growfs status says why")
    model = network(classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    saved: dict[str, Any] = {}
    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    images: ImageFolder | None = None
    seen: set[str] = set()
    batches = 0

    for epoch in range(saved.get("epoch", 1), options.epochs + 1):
        began = time.perf_counter()
        if images is None or not options.once:
            images = ImageFolder(options.folder, PREPARE)  # lists the folder, and so sees more than before
        if saved:
            images.samples, before = saved["samples"], saved["done"]  # the files of that epoch, not of this listing
            saved = {}
        else:
            images.samples, before = [images.samples[place] for place in torch.randperm(len(images))], 0
        rest = Subset(images, range(before, len(images)))
        # Its workers end with the epoch. They list nothing, and open the files that this process was shown.
        loader = DataLoader(rest, options.batch, num_workers=options.workers, pin_memory=device.type == "cuda")
        samples, total = 0, torch.zeros((), device=device)
        for batch, labels in loader:
            batch, labels = batch.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batches += 1
            samples += len(labels)
            total += loss.detach() * len(labels)
            if options.checkpoint and (batches % options.every == 0 or batches == options.stop_after):
                state = {"epoch": epoch, "samples": images.samples, "done": before + samples}
                state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, partial := options.checkpoint.with_suffix(".partial"))
                partial.replace(options.checkpoint)
            if batches == options.stop_after:
                return
        seconds = time.perf_counter() - began

        files = {path for path, _ in images.samples}
        new = len(files - seen)
        seen |= files
        resumed = f" {before} before," if before else ""
        print(
            f"epoch {epoch}: {len(files)} files, {samples} samples, {samples / seconds:.0f} samples/s,{resumed}"
            f" {new} new, {len(seen)} seen in all, {classes} classes, loss {total.item() / max(1, samples):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
