"""The model and data for the experiments: a small convolutional network on scikit-learn's digits (1,797 images).

A run takes the samples of its steps as input and knows nothing about caches. So two runs with the same seed and number
of steps differ only in the order of the samples: split and initial weights are the same.
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
"""Divides RESIDENT, so that a batch never spans two epochs of a reader that sees a full cache."""
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


def train(split: Split, samples: Numbers, seed: int) -> float:
    """Accuracy on the held-out images, in percent, after training on these samples, in this order.

    samples: indices of the split's images. The learning rate falls to zero along a cosine.
    """
    steps = len(samples) // BATCH
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, CLASSES)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    images, held_out = (torch.from_numpy(some).unsqueeze(1) for some in (split.images, split.held_out_images))
    labels = torch.from_numpy(split.labels)
    for batch in torch.from_numpy(samples[: steps * BATCH]).view(steps, BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        predicted = model(held_out).argmax(1).numpy()
    return float(np.mean(predicted == split.held_out_labels) * 100)
