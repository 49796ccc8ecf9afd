"""The training of a ResNet on one GPU, over a slow link, on four times as much data as the cache holds.

The images are raw bytes, so that the GPU, and not their decoding, decides how fast data is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tools.benchmarks.child import ReaderProcess
from tools.benchmarks.filling import NAME
from tools.benchmarks.measure import Figures, Setting, need_modules, need_space, temporary_folder
from tools.benchmarks.mounts import mounted, rclone_mounted
from tools.benchmarks.servers import behind_link, rclone_server

PROGRAM = Path(__file__).with_name("gpu_trainer.py")
IMAGE_BYTES = 224 * 224 * 3
RTT_S, RATE = 0.02, 100_000_000
PLAIN, RCLONE = "plain files", "rclone mount"


def gpu(setting: Setting, found: Figures) -> str:
    """In turn on plain files, and through each mount from an empty cache."""
    need_modules("torch", "torchvision")
    model = "resnet18" if setting.quick else "resnet50"
    shards, batch, loaders, seconds = (8, 2, 1, 0.5) if setting.quick else (200, 256, 8, 40.0)
    images, bytes = shards * batch, shards * batch * IMAGE_BYTES
    plain = setting.folder / "remote" / NAME
    with ReaderProcess(PROGRAM, CUDA_VISIBLE_DEVICES="0") as trainer:
        device = trainer.call("device")["gpu"]
        if not (device or setting.quick):
            return "there is no GPU that PyTorch can use"
        need_space(setting.folder, 2 * bytes)
        make_images(plain, shards, batch)
        with (
            rclone_server(plain.parent, hashes=False, etags="crc32") as server,
            behind_link(server.endpoint, RTT_S, RATE) as link,
        ):
            trainer.call("warm_up", model, batch)
            for _ in range(setting.rounds):
                rates = {}
                for name in (PLAIN, *setting.engines, RCLONE):
                    began = time.monotonic()
                    with temporary_folder() as at, shown(name, plain, at, link.endpoint, bytes // 4) as folder:
                        done = trainer.call("train", model, folder, loaders, began, seconds)
                    rates[name] = done["per_s"]
                    found.add(f"{model}, {name}", rates[name], unit="images/s")
                    if name != PLAIN:
                        target = None if name == RCLONE else 0.95
                        found.add(f"{model}, {name}, of {PLAIN}", rates[name] / rates[PLAIN], at_least=target)
                        found.add(f"{model}, {name}, waited", done["waited"], unit="of the time")
                        found.add(f"{model}, {name}, first batch", done["first_s"], unit="s")
                        found.add(f"{model}, {name}, of the dataset seen", done["different"] / images)
    about = f"{bytes / 1e9:.1f} GB of raw images, a quarter cached, {RATE // 1_000_000} MB/s"
    return f"{device or 'the CPU'}; {about}"


def make_images(folder: Path, shards: int, batch: int) -> None:
    """Write shards of random images that begin with their numbers. A shard is a batch."""
    folder.mkdir(parents=True)
    images = np.random.default_rng(5).integers(0, 256, (batch, IMAGE_BYTES), np.uint8)
    for shard in range(shards):
        numbers = np.arange(shard * batch, (shard + 1) * batch, dtype=np.int64)
        images[:, :8] = numbers.view(np.uint8).reshape(batch, 8)
        images.tofile(folder / f"{shard:03}.raw")


@contextmanager
def shown(name: str, plain: Path, folder: Path, endpoint: str, cache_bytes: int) -> Iterator[Path]:
    """The folder with the images: the plain files, a mount of rclone, or one of growfs with that engine."""
    if name == PLAIN:
        yield plain
    elif name == RCLONE:
        with rclone_mounted(endpoint, NAME, folder, cache_bytes) as mountpoint:
            yield mountpoint
    else:
        flags = ["--engine", name, "--endpoint-url", endpoint, "--cache-size", cache_bytes]
        with mounted(f"s3://{NAME}", folder, *flags) as mount:
            yield mount.mountpoint
