"""Epochs over the files of a folder: `python epochs.py decode|read`.

It runs in the peers' own environment and imports nothing from growfs. After its imports it prints "ready", and waits
for a line of JSON: the folder (under the key `at`), how many files it should see, the number of reading processes, and
the number of passes after that. An epoch lists the folder, and then decodes or reads each file. It prints a line of
JSON when it has seen all files, and one for each pass.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

BLOCK = 1 << 20


def read(path: str) -> int:
    """Read a whole file; returns its length."""
    fd = os.open(path, os.O_RDONLY)
    try:
        length = 0
        while piece := os.read(fd, BLOCK):
            length += len(piece)
        return length
    finally:
        os.close(fd)


class Images:
    """The dataset of a list of images."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> int:
        from PIL import Image

        with open(self._paths[number], "rb") as file:
            image = Image.open(file).convert("RGB").resize((224, 224))
        return int(image.size[0])


def epoch(paths: list[str], processes: int, decodes: bool) -> int:
    random.shuffle(paths)
    if not decodes:
        return sum(map(read, paths))
    from torch.utils.data import DataLoader

    for _ in DataLoader(Images(paths), batch_size=64, num_workers=processes):
        pass
    return 0


def main() -> None:
    decodes = sys.argv[1] == "decode"
    if decodes:
        import torch.utils.data  # noqa: F401
    print("ready", flush=True)
    spec: dict[str, Any] = json.loads(sys.stdin.readline())
    seen: set[str] = set()
    epochs = images = 0
    while len(seen) < spec["files"]:
        paths = [str(path) for path in Path(spec[spec["at"]]).rglob("*.*") if path.is_file()]
        epoch(paths, spec["processes"], decodes)
        seen.update(paths)
        epochs, images = epochs + 1, images + len(paths)
    all_seen_s = time.monotonic() - spec["began"]
    print(json.dumps({"all_seen_s": all_seen_s, "epochs": epochs, "images": images}), flush=True)
    for _ in range(spec["passes"]):
        began = time.monotonic()
        paths = [str(path) for path in Path(spec[spec["at"]]).rglob("*.*") if path.is_file()]
        length = epoch(paths, spec["processes"], decodes)
        seconds = time.monotonic() - began
        print(json.dumps({"files_per_s": len(paths) / seconds, "bytes_per_s": length / seconds}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
