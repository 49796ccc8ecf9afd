"""Epochs of TensorFlow's TFRecordDataset and of torchvision's ImageFolder. Each has one process for all its epochs.

Each epoch lists the folder again, as the README recommends; that is part of its time.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tools.benchmarks import recipe_data
from tools.benchmarks.measure import Figure, Setting, at_least, figure, need_modules, need_space
from tools.benchmarks.mounts import fully_cached
from tools.benchmarks.reader_process import ReaderProcess

TARGETS = {"passthrough": 0.97}
PAIRS = 3
SHARDS, SHARD_BYTES = 8, 64 << 20
IMAGES, CLASSES = 600, 10
WORKERS = (1, 2)
RECORDS = {"records of 1 MiB": 1 << 20, "records of 100 kB": 100_000}


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """The first epoch of a fresh mount; then pairs of an epoch over the plain files and one through the mount."""
    need_modules("tensorflow", "torch", "torchvision")
    need_space(setting.folder, 6 * SHARDS * SHARD_BYTES)
    shard_count, shard_bytes, images = (2, 2 << 20, CLASSES) if setting.quick else (SHARDS, SHARD_BYTES, IMAGES)
    found = []
    with ReaderProcess("train_tensorflow.py") as reader:
        for what, size in RECORDS.items():
            remote = setting.folder / f"shards of {what}"
            recipe_data.random_records(remote, shard_count, shard_bytes // size, size)
            found += epochs(setting, reader, remote, f"TFRecordDataset, {what}")
    with ReaderProcess("train_torch.py") as reader:
        remote = setting.folder / "images"
        recipe_data.images(remote, CLASSES, images // CLASSES)
        for workers in WORKERS:
            found += epochs(setting, reader, remote, f"ImageFolder, workers: {workers}", workers)
    title = f"{shard_count} shards of {shard_bytes >> 20} MiB; {images:,} JPEGs of 110 kB"
    return title, found


def epochs(setting: Setting, reader: ReaderProcess, remote: Path, name: str, *arguments: int) -> list[Figure]:
    """The figures of one data set. arguments: passed to the program's epoch."""
    folder = setting.folder / f"mounts of {remote.name}"
    folder.mkdir(exist_ok=True)
    pairs = 1 if setting.quick else PAIRS
    native: list[float] = []
    first: dict[str, list[float]] = defaultdict(list)
    later: dict[str, list[float]] = defaultdict(list)
    for number in range(setting.rounds):
        for contender in setting.contenders:
            with fully_cached(contender, remote, folder) as mount:
                reader.call("epoch", mount.files, *arguments)  # not timed: brings the cached files into memory
                for turn in range(1 + pairs):
                    seconds = {}
                    for path in (mount.files, mount.mountpoint)[:: -1 if (number + turn) % 2 else 1]:
                        seconds[path] = reader.call("epoch", path, *arguments)["seconds"]
                    native.append(seconds[mount.files])
                    (later if turn else first)[contender].append(seconds[mount.files] / seconds[mount.mountpoint])
    found = [figure(f"{name}, plain files", native, "s")]
    for contender in setting.contenders:
        found.append(figure(f"{name}, {contender}, first epoch, of plain", first[contender], ""))
        found.append(
            at_least(f"{name}, {contender}, later epochs, of plain", later[contender], "", TARGETS.get(contender))
        )
    return found
