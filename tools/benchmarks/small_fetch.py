"""Many small files from S3 on loopback to the local disk: growfs compared with copy programs."""

from __future__ import annotations

import os
from pathlib import Path

from tools.benchmarks import bucket_copy
from tools.benchmarks.bucket_copy import COPIERS, NAME, Source, compare, growfs_mount, s5cmd_cp
from tools.benchmarks.measure import Figure, Setting, need_space
from tools.benchmarks.servers import rclone_server

DIRECTORIES = 10
SIZE = 100_000
ROUNDS_MAX = 3
TARGET = 1.0


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """s5cmd also runs with fewer than its 256 workers, which is faster on a machine with few cores."""
    files = 100 if setting.quick else 10_000
    make(setting.folder / "remote", files)
    with rclone_server(setting.folder / "remote", setting.folder / "rclone.log", low_priority=True) as server:
        source = Source(server, files, files * SIZE)
        contenders = {
            "growfs": growfs_mount(setting.contenders[0]),
            **COPIERS,
            "s5cmd cp, 64": s5cmd_cp("--numworkers", 64),
        }
        results = compare(source, setting.folder, min(setting.rounds, ROUNDS_MAX), contenders)
    found = bucket_copy.figures(results, files, "files", "us/file", TARGET, scale=1e6)
    return f"{files:,} files of 100 kB in {DIRECTORIES} directories from S3 on loopback", found


def make(remote: Path, files: int) -> None:
    """Write the bucket, after a check that the disk has space for a copy too."""
    need_space(remote.parent, 2 * files * SIZE)
    for number in range(files):
        path = remote / NAME / f"class{number % DIRECTORIES}" / f"{number:06}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(SIZE))
