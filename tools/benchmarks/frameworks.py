"""Epochs of TensorFlow's TFRecordDataset and of torchvision's ImageFolder, in processes that live through all of them.

As the README says to, each epoch lists the folder anew; that is part of its time.
"""

from __future__ import annotations

from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

from tools.benchmarks.measure import BenchError, Figure, Setting, at_least, figure, need_space
from tools.benchmarks.mounts import all_resident
from tools.benchmarks.readers import Reader

TARGETS = {"passthrough": 0.97}
PAIRS = 3
SHARDS, SHARD_BYTES = 8, 64 << 20
IMAGES = 600
WORKERS = (1, 2)
RECORDS = {"records of 1 MiB": 1 << 20, "records of 100 kB": 100_000}


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """The first epoch of a fresh mount apart; then pairs of an epoch over the plain files and one through the mount."""
    for module in ("tensorflow", "torch", "torchvision"):
        if find_spec(module) is None:
            raise BenchError(f"{module} is not installed; tools/setup test brings it")
    need_space(setting.folder, 6 * SHARDS * SHARD_BYTES)
    shard_bytes, images = (2 << 20, 60) if setting.quick else (SHARD_BYTES, IMAGES)
    found = []
    with Reader("train_tensorflow.py") as reader:
        for what, size in RECORDS.items():
            remote = setting.folder / f"shards of {what}"
            reader.do("make", remote, SHARDS, shard_bytes // size, size)
            found += epochs(setting, reader, remote, f"TFRecordDataset, {what}")
    with Reader("train_torch.py") as reader:
        remote = setting.folder / "images"
        reader.do("make", remote, images)
        for workers in WORKERS:
            found += epochs(setting, reader, remote, f"ImageFolder, workers: {workers}", workers)
    title = f"{SHARDS} shards of {shard_bytes >> 20} MiB; {images:,} JPEGs of 110 kB"
    return title, found


def epochs(setting: Setting, reader: Reader, remote: Path, name: str, *arguments: int) -> list[Figure]:
    """The figures of one data set. arguments: of the program's epoch."""
    folder = setting.folder / f"mounts of {remote.name}"
    folder.mkdir(exist_ok=True)
    pairs = 1 if setting.quick else PAIRS
    native: list[float] = []
    first: dict[str, list[float]] = defaultdict(list)
    later: dict[str, list[float]] = defaultdict(list)
    for number in range(setting.rounds):
        for who in setting.contenders:
            with all_resident(who, remote, folder) as mount:
                reader.do("epoch", mount.files, *arguments)  # not timed: brings the cached files into memory
                for turn in range(1 + pairs):
                    seconds = {}
                    for path in (mount.files, mount.mountpoint)[:: -1 if (number + turn) % 2 else 1]:
                        seconds[path] = reader.do("epoch", path, *arguments)["seconds"]
                    native.append(seconds[mount.files])
                    (later if turn else first)[who].append(seconds[mount.files] / seconds[mount.mountpoint])
    found = [figure(f"{name}, plain files", native, "s")]
    for who in setting.contenders:
        found.append(figure(f"{name}, {who}, first epoch, of plain", first[who], ""))
        found.append(at_least(f"{name}, {who}, later epochs, of plain", later[who], "", TARGETS.get(who)))
    return found
