"""A program that reads as training with torchvision's ImageFolder does. Started and asked as reader.py is."""

from __future__ import annotations

import os
import time
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image
from reader import serve  # type: ignore[import-not-found]  # beside this file, which is run as a script
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

CLASSES = 10
SIDE = 256
QUALITIES = (30, 60, 90)  # of noise: some 30, 50 and 80 kB


def make(folder: str, images: int) -> list[int]:
    """Write JPEGs of noise, in folders of classes."""
    written = []
    for number in range(images):
        content = BytesIO()
        picture = Image.frombytes("RGB", (SIDE, SIDE), os.urandom(SIDE * SIDE * 3))
        picture.save(content, "JPEG", quality=QUALITIES[number % len(QUALITIES)])
        path = Path(folder) / f"class{number % CLASSES}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        written.append(path.write_bytes(content.getvalue()))
    return written


def tensor(image: Image.Image) -> torch.Tensor:
    """The decoded pixels."""
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)


def epoch(folder: str) -> dict[str, float]:
    """List, start two workers, and decode everything."""
    began = time.perf_counter()
    loader = DataLoader(ImageFolder(folder, tensor), batch_size=32, shuffle=True, num_workers=2)
    images = sum(len(labels) for _, labels in loader)
    return {"images": images, "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    serve({"make": make, "epoch": epoch})
