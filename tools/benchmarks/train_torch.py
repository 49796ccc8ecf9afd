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
WIDTH, HEIGHT, GRAIN, QUALITY = 500, 375, 3, 90
"""ImageNet's commonest size; noise of that grain and quality makes some 110 kB, its files' average."""
SIDE = 224


def make(folder: str, images: int) -> list[int]:
    """Write JPEGs of noise, in folders of classes."""
    written = []
    for number in range(images):
        content = BytesIO()
        coarse = Image.frombytes(
            "RGB", (WIDTH // GRAIN, HEIGHT // GRAIN), os.urandom((WIDTH // GRAIN) * (HEIGHT // GRAIN) * 3)
        )
        coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(content, "JPEG", quality=QUALITY)
        path = Path(folder) / f"class{number % CLASSES}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        written.append(path.write_bytes(content.getvalue()))
    return written


def tensor(image: Image.Image) -> torch.Tensor:
    """The pixels, decoded and brought to the size that networks take."""
    return torch.frombuffer(bytearray(image.resize((SIDE, SIDE)).tobytes()), dtype=torch.uint8)


def epoch(folder: str, workers: int) -> dict[str, float]:
    """List, start the workers, and decode everything."""
    began = time.perf_counter()
    loader = DataLoader(ImageFolder(folder, tensor), batch_size=32, shuffle=True, num_workers=workers)
    images = sum(len(labels) for _, labels in loader)
    return {"images": images, "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    serve({"make": make, "epoch": epoch})
