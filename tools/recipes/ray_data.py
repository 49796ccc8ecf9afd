"""Read images and tables with Ray Data, on a Ray cluster each of whose nodes reads its own mount.

For a bucket with images/ and tables/ (Parquet), on a cluster with `pip install growfs[ray] "ray[data]" pillow`:

    python tools/recipes/ray_data.py s3://bucket/data /mnt/data

Ray Data lists the mount of this node once for each dataset, so a new one is made in each epoch. Its tasks open the
files on any node. A node that has not cached a file gets it from one that has.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import ray
import ray.data

import growfs.ray


def brightness(batch: dict[str, Any]) -> dict[str, Any]:
    """The mean of each image; replace this by your computation."""
    return {"mean": np.array([image.mean() for image in batch["image"]])}


def main() -> None:
    parser = argparse.ArgumentParser(description="Read with Ray Data.")
    parser.add_argument("url", help="of a folder with images/ and tables/")
    parser.add_argument("mountpoint")
    parser.add_argument("--cache-dir", default="~/.cache/growfs")
    parser.add_argument("--cache-size", default="80%")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    ray.init()
    mount = growfs.ray.mount(
        options.url, options.mountpoint, cache_dir=options.cache_dir, cache_size=options.cache_size
    )
    try:
        for epoch in range(1, options.epochs + 1):
            images = ray.data.read_images(f"{mount.path}/images", size=(224, 224), mode="RGB")
            means = images.map_batches(brightness).mean("mean")
            tables = ray.data.read_parquet(f"{mount.path}/tables")
            print(f"epoch {epoch}: {images.count()} images, mean {means:.1f}; {tables.count()} rows")
    finally:
        mount.unmount()


if __name__ == "__main__":
    main()
