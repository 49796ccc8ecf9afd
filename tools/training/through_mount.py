"""Trains through a real mount: each image is a file, and each epoch lists the mount again.

Only the mount's flags mention rotation; the reader is ordinary training code.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tools.benchmarks.mounts import mounted
from tools.training.digits import BATCH, RESIDENT, Images, Split, Training, tensor
from tools.training.orders import FILE_BYTES, Reading, path, turnover

SCALE = 8
"""A pixel becomes 8 x 8 bytes: a file of 4,224 bytes takes two blocks on any disk, so the cache size is exact."""
EPOCH_S_MIN = 0.3
"""So small a network finishes an epoch before a few files are fetched; a real one takes minutes."""


def write(split: Split, folder: Path) -> None:
    """Write the remote: a file for each training image, in class folders."""
    for sample, (image, label) in enumerate(zip(split.images, split.labels, strict=True)):
        file = folder / path(sample, int(label))
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, np.kron(image * 16, np.ones((SCALE, SCALE))).astype(np.uint8))


def train_mounted(split: Split, fetches_per_open: float, opens: int, seed: int, folder: Path) -> tuple[float, Reading]:
    """Train with a cache of a tenth of the data; return accuracy in percent and what was read. folder: empty."""
    remote = folder / "remote"
    write(split, remote)
    flags = ["--cache-size", RESIDENT * FILE_BYTES, "--seed", seed, "--settle", 0, "--wait-files", RESIDENT]
    flags += ["--turnover", turnover(fetches_per_open)]
    steps = opens // BATCH
    training = Training(seed, steps)
    with mounted(remote, folder, *flags) as mount:
        fill = mount.status()["fetch"]["files_total"]
        examples = read(mount.mountpoint, seed)
        samples = []
        for _ in range(steps):
            files, images = zip(*itertools.islice(examples, BATCH), strict=True)
            training.step(tensor(np.stack(images)), torch.tensor([int(file.parent.name) for file in files]))
            samples += [int(file.stem) for file in files]
        status = mount.status()
    fetches = status["fetch"]["files_total"] - fill
    return training.accuracy(split), Reading(np.array(samples), fill, fetches, status["miss"]["files_total"])


def read(mountpoint: Path, seed: int) -> Iterator[tuple[Path, Images]]:
    """Yield files and their images, epoch after epoch. Each epoch lists again and reads in random order."""
    rng = random.Random(seed)
    while True:
        began = time.monotonic()
        files = list(mountpoint.glob("*/*.npy"))
        rng.shuffle(files)
        for file in files:
            # Load before the yield: a batch may span two listings, and the second releases the holds of the first.
            yield file, np.load(file)[::SCALE, ::SCALE] / np.float32(16)
        time.sleep(max(0.0, began + EPOCH_S_MIN - time.monotonic()))
