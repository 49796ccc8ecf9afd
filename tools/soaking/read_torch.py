"""A reader: trains on the class folders of a folder by DatasetFolder and a DataLoader.

Arguments: the folder, and how long to wait after each epoch.
"""

import os
import sys
from pathlib import Path

from torch.utils.data import DataLoader
from torchvision.datasets import DatasetFolder

from tools.soaking.content import Part, checked, versions
from tools.soaking.report import run_epochs

FOLDER = sys.argv[1]
Sample = tuple[Part, int]


def load(path: str) -> Sample:
    data = Path(path).read_bytes()
    return checked(data), len(data)


def together(batch: list[tuple[Sample, int]]) -> list[Sample]:
    return [sample for sample, _ in batch]


def read() -> tuple[dict[str, int], int]:
    dataset = DatasetFolder(f"{FOLDER}/classes", load, extensions=(".bin",))
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=1, collate_fn=together)
    samples = [sample for batch in loader for sample in batch]
    names = (os.path.relpath(file, FOLDER) for file, _ in dataset.samples)
    return versions(names, (part for part, _ in samples)), sum(size for _, size in samples)


if __name__ == "__main__":
    run_epochs(read)
