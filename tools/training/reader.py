"""Reads a mounted folder with torchvision's ImageFolder: `python -m tools.training.reader FOLDER all|again|parts S`.

all: it lists once, before the time begins, and reads everything again and again. again: it lists in each epoch. parts:
it reads the parts of a mount with --exact. It reads for S seconds, at most OPENS_PER_S images a second: the accelerator
is a pause for each batch. Threads decode images ahead of it, up to AHEAD. It prints "ready", waits for a line of
input, and at the end prints JSON: the images that were read, in order, and the time of each.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Thread

from torchvision.datasets import ImageFolder

import growfs
from tools.peers.trainer import in_parallel
from tools.training.mnist import BATCH, SIDE
from tools.training.orders import AHEAD, OPENS_PER_S


def data_sets(folder: Path, how: str, everything: ImageFolder | None) -> Iterator[ImageFolder]:
    """The dataset of each epoch, or of each part of one."""
    while everything:
        yield everything
    while True:
        for part in growfs.epoch(folder) if how == "parts" else [folder]:
            yield ImageFolder(part, allow_empty=True)


def read(sets: Iterator[ImageFolder], images: Queue[int]) -> None:
    """Decode the images in random order, and put their numbers into a queue."""
    for images_of in sets:

        def decode(place: int, images_of: ImageFolder = images_of) -> int:
            image, label = images_of[place]
            path = Path(images_of.samples[place][0])
            assert image.size == (SIDE, SIDE)
            assert str(label) == path.parent.name
            return int(path.stem)

        places = list(range(len(images_of)))
        random.shuffle(places)
        for number in in_parallel(decode, iter(places)):
            images.put(number)


def main() -> None:
    folder, how, until_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    images = Queue[int](AHEAD)
    everything = ImageFolder(folder) if how == "all" else None
    print("ready", flush=True)
    sys.stdin.readline()
    began, ready_s = time.monotonic(), 0.0
    Thread(target=read, args=(data_sets(folder, how, everything), images), daemon=True).start()
    samples, at_s = list[int](), list[float]()
    while ready_s <= until_s:
        batch = [images.get() for _ in range(BATCH)]
        # A step ends in a fixed time after it began, so that a late wake-up does not slow training down.
        ready_s = max(ready_s, time.monotonic() - began) + BATCH / OPENS_PER_S
        time.sleep(max(0.0, began + ready_s - time.monotonic()))
        samples += batch
        at_s += [ready_s] * BATCH
    print(json.dumps({"samples": samples, "at_s": at_s}), flush=True)
    os._exit(0)  # the thread still reads


if __name__ == "__main__":
    main()
