"""A program that reads as training with torchvision's ImageFolder does. It takes commands as reader.py does."""

from __future__ import annotations

import time

import torch
from PIL import Image
from reader import serve  # type: ignore[import-not-found]  # beside this file, which runs as a script
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

SIDE = 224


def tensor(image: Image.Image) -> torch.Tensor:
    """The decoded pixels, resized to a network's usual input."""
    return torch.frombuffer(bytearray(image.resize((SIDE, SIDE)).tobytes()), dtype=torch.uint8)


def epoch(folder: str, workers: int) -> dict[str, float]:
    """List the folder, start the workers, and decode everything."""
    began = time.perf_counter()
    loader = DataLoader(ImageFolder(folder, tensor), batch_size=32, shuffle=True, num_workers=workers)
    images = sum(len(labels) for _, labels in loader)
    return {"images": images, "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    serve({"epoch": epoch})
