"""Large shards from S3 on loopback to the local disk: growfs against programs that copy."""

from __future__ import annotations

from pathlib import Path

from tools.benchmarks import populate
from tools.benchmarks.measure import Figure, Setting, make_file, need_space
from tools.benchmarks.populate import NAME, PEERS, Source, compare, growfs
from tools.benchmarks.servers import Certificate, rclone_serving

SHARDS = 16
TARGET = 1.0


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Over plain HTTP."""
    return measured(setting, None, TARGET)


def measured(setting: Setting, certificate: Certificate | None, target: float) -> tuple[str, list[Figure]]:
    """certificate: over TLS."""
    mib = 8 if setting.quick else 128
    bytes = make(setting.folder / "remote", SHARDS, mib)
    with rclone_serving(setting.folder / "remote", setting.folder / "rclone.log", certificate, yields=True) as server:
        source = Source(server, SHARDS, bytes, certificate)
        contenders = {"growfs": growfs(setting.contenders[0]), **PEERS}
        taken = compare(source, setting.folder, setting.rounds, contenders)
    found = populate.figures(taken, bytes / 1e6, "MB", "s/GB", target, scale=1e3)
    return f"{SHARDS} shards of {mib} MiB from S3 on loopback{', TLS' if certificate else ''}", found


def make(remote: Path, shards: int, mib: int) -> int:
    """The bucket, and room for a copy of it; returns its bytes."""
    need_space(remote.parent, 2 * shards * mib << 20)
    for number in range(shards):
        make_file(remote / NAME / f"shard-{number:02}.bin", mib)
    return shards * mib << 20
