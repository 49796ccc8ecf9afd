"""Large shards from S3 on loopback to the local disk: growfs compared with copy programs."""

from __future__ import annotations

from pathlib import Path

from tools.benchmarks import bucket_copy
from tools.benchmarks.bucket_copy import COPIERS, NAME, Source, compare, growfs_mount
from tools.benchmarks.measure import Figure, Setting, make_file, need_space
from tools.benchmarks.servers import Certificate, rclone_server

SHARDS = 16
TARGET = 1.0


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Measure over plain HTTP."""
    return measure_transport(setting, None, TARGET)


def measure_transport(setting: Setting, certificate: Certificate | None, target: float) -> tuple[str, list[Figure]]:
    """certificate: measure over TLS."""
    mib = 1 if setting.quick else 128
    bytes = make(setting.folder / "remote", SHARDS, mib)
    with rclone_server(
        setting.folder / "remote", setting.folder / "rclone.log", certificate, low_priority=True
    ) as server:
        source = Source(server, SHARDS, bytes, certificate)
        contenders = {"growfs": growfs_mount(setting.contenders[0]), **COPIERS}
        results = compare(source, setting.folder, setting.rounds, contenders)
    found = bucket_copy.figures(results, bytes / 1e6, "MB", "s/GB", target, scale=1e3)
    return f"{SHARDS} shards of {mib} MiB from S3 on loopback{', TLS' if certificate else ''}", found


def make(remote: Path, shards: int, mib: int) -> int:
    """Write the bucket, after a check that the disk has space for a copy too; return its size in bytes."""
    need_space(remote.parent, 2 * shards * mib << 20)
    for number in range(shards):
        make_file(remote / NAME / f"shard-{number:02}.bin", mib)
    return shards * mib << 20
