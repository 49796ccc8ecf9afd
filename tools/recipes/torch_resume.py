"""Train with checkpoints from which a run can continue in the middle of an epoch, with the same files.

For jobs that are preempted. A resumed program lists a different set of files from the one that was ended, because the
cache has changed. A position alone ("skip the first 5,000 samples") is then meaningless, without any error. So the
checkpoint also has the list of the epoch's files, in order, and the resumed epoch takes its files from there.

    growfs mount s3://bucket/train /mnt/train --cache-size 500GB
    python tools/recipes/torch_resume.py /mnt/train --epochs 20 --checkpoint /checkpoints/run.pt

Files of the old list that are still cached open at once; the others are fetched when they are opened, with priority.
Look for "before": the samples that the epoch had before it was resumed. Together with the rest they are all of its
files, each once. `--stop-after 3` ends the program after three batches, as a preemption would.
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
    parser = argparse.ArgumentParser(description="Train on folders of images, and go on where it was ended.")
    parser.add_argument("folder", help="a folder for each class; the mountpoint")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--every", type=int, default=100, help="batches between two checkpoints")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stop-after", type=int, help="end after so many batches, as if preempted")
    options = parser.parse_args()

    saved: dict[str, Any] = torch.load(options.checkpoint) if options.checkpoint.exists() else {}
    classes = sum(entry.is_dir() for entry in os.scandir(options.folder))
    if not classes:
        raise SystemExit(f"{options.folder} lists no folder; growfs status says why")
    model = network(classes)
    optimizer = torch.optim.AdamW(model.parameters())
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    batches = 0

    for epoch in range(saved.get("epoch", 1), options.epochs + 1):
        began = time.perf_counter()
        images = ImageFolder(options.folder, PREPARE)
        if saved:
            images.samples, done = saved["samples"], saved["done"]  # the files of the epoch, not of this listing
            saved = {}
        else:
            images.samples = [images.samples[number] for number in torch.randperm(len(images.samples))]
            done = 0
        before, total = done, 0.0
        rest = Subset(images, range(before, len(images)))
        for batch, labels in DataLoader(rest, options.batch, num_workers=options.workers):  # in the saved order
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done, batches, total = done + len(labels), batches + 1, total + loss.item() * len(labels)
            if batches % options.every == 0 or batches == options.stop_after:
                state = {"epoch": epoch, "samples": images.samples, "done": done}
                state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, partial := options.checkpoint.with_suffix(".partial"))
                partial.replace(options.checkpoint)
            if batches == options.stop_after:
                return
        samples, seconds = done - before, time.perf_counter() - began
        print(
            f"epoch {epoch}: {len(images)} files, {samples} samples, {samples / seconds:.0f} samples/s,"
            f" {before} before, loss {total / max(1, samples):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
