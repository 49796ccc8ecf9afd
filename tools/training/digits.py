"""The model and data that the experiments train: a small convolutional network on scikit-learn's digits (1,797 images).

A run takes the samples of its steps as input and knows nothing of caches. So two runs with the same seed and number of
steps differ only in the order of the samples: split and initial weights are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

TRAIN = 1200
"""Images to train on; the other 597 are held out."""
RESIDENT = TRAIN // 10
BATCH = 24
"""It divides RESIDENT: a batch never spans two epochs of a reader that sees a full cache."""
CLASSES = 10
LEARNING_RATE = 3e-3

Images = NDArray[np.float32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """A random split, stratified by class. Images are (n, 8, 8), from 0 to 1."""

    images: Images
    labels: Numbers
    held_out_images: Images
    held_out_labels: Numbers


def split(seed: int) -> Split:
    """The split for a seed."""
    digits = load_digits()
    images, labels = (digits.images / 16).astype(np.float32), digits.target.astype(np.int64)
    parts = train_test_split(images, labels, train_size=TRAIN, stratify=labels, random_state=seed)
    return Split(parts[0], parts[2], parts[1], parts[3])


class Training:
    """A model in training. steps: their number; the learning rate falls to zero over them along a cosine."""

    def __init__(self, seed: int, steps: int) -> None:
        torch.manual_seed(seed)
        self._model = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(128, CLASSES)),
        )
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=LEARNING_RATE, fused=True)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, steps)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One step with a batch: (n, 1, 8, 8) and (n,)."""
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._model(images), labels).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._schedule.step()

    def accuracy(self, split: Split) -> float:
        """Accuracy on the held-out images, in percent."""
        with torch.no_grad():
            predicted = self._model(tensor(split.held_out_images)).argmax(1).numpy()
        return float(np.mean(predicted == split.held_out_labels) * 100)


def tensor(images: Images) -> torch.Tensor:
    """Images as the model takes them: with a channel dimension."""
    return torch.from_numpy(images).unsqueeze(1)


def train(split: Split, samples: Numbers, seed: int) -> float:
    """Accuracy in percent after training on these samples, in this order. samples: indices of the split's images."""
    steps = len(samples) // BATCH
    training = Training(seed, steps)
    images, labels = tensor(split.images), torch.from_numpy(split.labels)
    for batch in torch.from_numpy(samples[: steps * BATCH]).view(steps, BATCH):
        training.step(images[batch], labels[batch])
    return training.accuracy(split)
