"""Training with torchvision's ImageFolder: `imagefolder_loader.py FOLDER`. A line on standard input begins an epoch.

Prints a line of JSON for each epoch: class_to_idx, and the class and a digest of each image.
"""

import hashlib
import json
import sys

import torch
from PIL.Image import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder


def as_tensor(image: Image) -> torch.Tensor:
    return torch.frombuffer(bytearray(hashlib.sha256(image.tobytes()).digest()), dtype=torch.uint8)


folder = sys.argv[1]
for _ in sys.stdin:
    dataset = ImageFolder(folder, transform=as_tensor)
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2)
    images = [
        [dataset.classes[label], bytes(image.tolist()).hex()]
        for batch, labels in loader
        for image, label in zip(batch, labels.tolist(), strict=True)
    ]
    print(json.dumps({"class_to_idx": dataset.class_to_idx, "images": images}), flush=True)
