"""A program that trains a ResNet on shards of raw images, and measures how long the GPU waits for data.

It takes commands as reader.py does. A shard (.raw) is a batch of images of 224 x 224 pixels as bytes; each begins with
its number.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import get_model

SHAPE = (224, 224, 3)
CLASSES = 1000
WARM_UP_STEPS = 10
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Shards(Dataset[tuple[Tensor, Tensor]]):
    """The shards that a folder lists now. Each is a batch: (images, numbers)."""

    def __init__(self, folder: str) -> None:
        self._shards = list(Path(folder).glob("*.raw"))

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(np.fromfile(self._shards[index], np.uint8)).view(-1, *SHAPE)
        return images, images.flatten(1)[:, :8].contiguous().view(torch.int64).flatten()


def epochs(folder: str, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches, forever. Each epoch lists the folder again."""
    while True:
        yield from DataLoader(Shards(folder), None, shuffle=True, num_workers=workers, pin_memory=DEVICE.type == "cuda")


@functools.cache
def trained(name: str) -> Callable[[Tensor, Tensor], None]:
    """A function that trains a model of torchvision on a batch."""
    torch.backends.cudnn.benchmark = True
    model = get_model(name, num_classes=CLASSES).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(images: Tensor, numbers: Tensor) -> None:
        pixels = images.to(DEVICE, non_blocking=True).permute(0, 3, 1, 2).float() / 255
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(pixels), numbers.to(DEVICE) % CLASSES)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()  # waits for the GPU: the rest of the time, it has no data

    return step


def device() -> dict[str, str]:
    """The name of the GPU; empty if there is none."""
    return {"gpu": torch.cuda.get_device_name() if DEVICE.type == "cuda" else ""}


def warm_up(name: str, batch: int) -> dict[str, int]:
    """Train on zeros until the GPU has its kernels."""
    for _ in range(WARM_UP_STEPS):
        trained(name)(torch.zeros(batch, *SHAPE, dtype=torch.uint8), torch.zeros(batch, dtype=torch.int64))
    return {"steps": WARM_UP_STEPS}


def train(name: str, folder: str, workers: int, began: float, seconds: float) -> dict[str, float]:
    """Train for that time from the first batch on. began: on the monotonic clock, for `first_s`."""
    batches, step, seen, count, waited = epochs(folder, workers), trained(name), set[int](), 0, 0.0
    images, numbers = next(batches)
    start = now = time.monotonic()
    while now < start + seconds:
        step(images, numbers)
        seen.update(numbers.tolist())
        count += len(numbers)
        asked = time.monotonic()
        images, numbers = next(batches)
        now = time.monotonic()
        waited += now - asked
    taken = now - start
    return {"first_s": start - began, "per_s": count / taken, "waited": waited / taken, "different": len(seen)}


if __name__ == "__main__":
    commands: dict[str, Callable[..., object]] = {each.__name__: each for each in (device, warm_up, train)}
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(commands[command](*arguments)), flush=True)
