"""Shards from producers: a copying one compared with plain downloads, and a computing one by number of processes."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from typing import BinaryIO

from tools.benchmarks import shards
from tools.benchmarks.bucket_copy import Source, compare, growfs_mount, ratios
from tools.benchmarks.measure import Figure, Setting, at_least, figure
from tools.benchmarks.mounts import mounted
from tools.benchmarks.servers import rclone_server

TARGET = 0.8
GROWTH = 0.8
"""The least speed-up, as a fraction of the number of processes."""
SHARDS = 32
"""Enough that the half second of CPU at each process's start matters little."""
ROUNDS = 200_000
"""Hash rounds per sample: 0.1 s of one core."""


def busy(index: int, rng: random.Random, out: BinaryIO) -> None:
    """A sample that costs only CPU."""
    out.write(hashlib.pbkdf2_hmac("sha256", rng.randbytes(8), b"", ROUNDS))


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Both producers."""
    shard_count, mib, samples = (4, 1, 4) if setting.quick else (SHARDS, 128, 100)
    engine = setting.contenders[0]
    bytes = shards.make(setting.folder / "remote", shard_count, mib)
    with rclone_server(
        setting.folder / "remote", setting.folder / "rclone.log", None, low_priority=True, hashes=False
    ) as server:
        source = Source(server, shard_count, bytes)
        copying = growfs_mount(engine, "--producer", "growfs.producers:copy")
        results = compare(source, setting.folder, setting.rounds, {"growfs": growfs_mount(engine), "producer": copying})
    rates = {contender: results.per_s(contender, bytes / 1e6) for contender in results.rounds}
    found = [
        figure("fetched", rates["growfs"], "MB/s"),
        figure("copied by a producer", rates["producer"], "MB/s"),
        at_least("copied, of fetched", ratios(rates["producer"], rates["growfs"]), "", TARGET),
    ]
    cpu = {contender: results.cpu(contender, bytes / 1e9) for contender in results.rounds}
    if all(cpu.values()):
        found += [
            figure(f"{name}, CPU", cpu[contender], "s/GB")
            for contender, name in (("growfs", "fetched"), ("producer", "copied"))
        ]
    cores = len(os.sched_getaffinity(0))
    made: dict[int, list[float]] = {1: [], cores: []}
    for number in range(setting.rounds):
        for workers, per_s in made.items():
            folder = setting.folder / f"made-{number}-{workers}"
            folder.mkdir()
            per_s.append(_made_per_s(engine, folder, workers, samples))
    found += [figure(f"computed by {workers}", per_s, "files/s") for workers, per_s in made.items()]
    if cores > 1:
        growth = [many / one / cores for one, many in zip(made[1], made[cores], strict=True)]
        found.append(at_least(f"growth from 1 to {cores} processes, of {cores}", growth, "", GROWTH))
    return f"{shard_count} shards of {mib} MiB from S3 on loopback, and samples of 0.1 s of CPU, by producers", found


def _made_per_s(engine: str, folder: Path, workers: int, files: int) -> float:
    """Files per second, from the first file to the last."""
    flags = ["--engine", engine, "--cache-size", "1GB", "--count", files, "--wait-files", files, "--workers", workers]
    with mounted(f"py:{__file__}:busy", folder, *flags) as mount:
        arrived = sorted(path.stat().st_ctime for path in mount.files.rglob("*") if path.is_file())
    return (len(arrived) - 1) / (arrived[-1] - arrived[0])
