"""Random crops of large raw volumes that do not fit the disk, with numpy.memmap.

    growfs mount s3://bucket/scans /mnt/scans --cache-size 2TB
    python tools/recipes/numpy_volumes.py /mnt/scans --plane 2048 2048 --dtype uint16 --crop 128 --crops 200

For *.raw files of consecutive planes (tomography, microscopy, seismics). numpy maps a volume, and only the pages of the
cubes that are cut from it are read. Processes do the cutting, because a page fault holds the GIL.

Look for: once the cache is full, some volumes are new in each epoch, and "so far" approaches the number of all volumes.
Many small crops of a volume cost little more than a few, so take many while it is cached. Mapping is fast if the kernel
reads the cached files (`growfs status` shows the passthrough engine).
"""

from __future__ import annotations

import argparse
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Crops:
    """Cuts `count` cubes with edges of `edge` voxels, each anywhere in a volume."""

    plane: tuple[int, int]
    dtype: str
    edge: int
    count: int

    def __call__(self, path: Path, seed: int) -> npt.NDArray[Any]:
        """The cubes of one volume: an array (count, edge, edge, edge)."""
        volume = np.memmap(path, self.dtype, mode="r").reshape(-1, *self.plane)  # the file's size determines the depth
        starts = np.random.default_rng(seed).integers(0, np.subtract(volume.shape, self.edge - 1), (self.count, 3))
        edge = self.edge
        return np.stack([volume[z : z + edge, y : y + edge, x : x + edge] for z, y, x in starts])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on random crops of the *.raw volumes of a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--plane", type=int, nargs=2, default=(512, 512), help="rows and columns of a plane")
    parser.add_argument("--dtype", default="uint16")
    parser.add_argument("--crop", type=int, default=64, help="edge of a cube, in voxels")
    parser.add_argument("--crops", type=int, default=100, help="crops of each volume per epoch")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    cut = Crops(tuple(options.plane), options.dtype, options.crop, options.crops)
    ever: set[Path] = set()
    with ProcessPoolExecutor(options.workers) as pool:
        for epoch in range(1, options.epochs + 1):
            volumes = sorted(options.folder.rglob("*.raw"))  # lists again: the epoch's growth
            if not volumes:
                raise SystemExit(f"{options.folder} lists no *.raw; growfs status says why")
            random.shuffle(volumes)
            began, samples = time.perf_counter(), 0
            for crops in pool.map(cut, volumes, random.sample(range(2**32), len(volumes))):
                samples += len(crops)  # the model would learn here
            rate = samples / (time.perf_counter() - began)
            fresh = len(set(volumes) - ever)
            ever.update(volumes)
            print(
                f"epoch {epoch}: {len(volumes)} files, {samples} samples, {rate:.0f} samples/s, "
                f"{fresh} files new, {len(ever)} so far",
                flush=True,
            )


if __name__ == "__main__":
    main()
