"""What the recipes train on, of each kind. Made for the benchmark at full size, and for the recipes' tests very small.

Each function writes below an empty folder, the same each time.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from awscrt.checksums import crc32c
from PIL import Image

CIFAR_BYTES = 1 + 3 * 32 * 32


def images(folder: Path, classes: int, each: int, width: int = 500, height: int = 375, suffix: str = ".jpg") -> None:
    """Class folders of pictures. ImageNet's commonest size, and noise of that grain, make JPEGs of 110 kB, its average.

    8 x 8 pixels, and any suffix, make files of one block.
    """
    generator = random.Random(5)
    for number in range(classes * each):
        coarse = max(width // 3, 1), max(height // 3, 1)
        noise = Image.frombytes("RGB", coarse, generator.randbytes(coarse[0] * coarse[1] * 3))
        path = folder / f"class{number % classes:02}" / f"{number:05}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise.resize((width, height), Image.Resampling.BICUBIC).save(path, quality=90)


def train_and_val(folder: Path, classes: int, train: int, val: int, width: int = 500, height: int = 375) -> None:
    """The same, twice: train/ and val/ with so many pictures of each class."""
    for name, each in (("train", train), ("val", val)):
        images(folder / name, classes, each, width, height)


def shards(folder: Path, count: int, records: int) -> None:
    """TFRecord files of images as in CIFAR-10's binary version."""
    generator = random.Random(6)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        contents = [bytes([generator.randrange(10)]) + generator.randbytes(CIFAR_BYTES - 1) for _ in range(records)]
        (folder / f"train-{number:05}.tfrecord").write_bytes(tfrecord(contents))


def volumes(folder: Path, count: int, side: int) -> None:
    """Cubes of bytes as .npy files, in folders of eight."""
    generator = np.random.default_rng(7)
    for number in range(count):
        path = folder / f"patient{number // 8:03}" / f"{number:05}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, generator.integers(0, 256, (side, side, side), np.uint8))


def tfrecord(records: list[bytes]) -> bytes:
    """A TFRecord file: length, its masked CRC-32C, data, its masked CRC-32C (TensorFlow's record_writer.h)."""
    parts = []
    for record in records:
        length = len(record).to_bytes(8, "little")
        parts += [length, _masked(length), record, _masked(record)]
    return b"".join(parts)


def _masked(data: bytes) -> bytes:
    crc = int(crc32c(data))
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
