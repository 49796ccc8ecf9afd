"""Many small files from S3 on loopback to the local disk: growfs against programs that copy."""

from __future__ import annotations

import os
from pathlib import Path

from tools.benchmarks import populate
from tools.benchmarks.measure import Figure, Setting, need_space
from tools.benchmarks.populate import NAME, PEERS, Source, compare, growfs, s5cmd_cp
from tools.benchmarks.servers import rclone_serving

DIRECTORIES = 10
SIZE = 100_000
ROUNDS_MAX = 3
TARGET = 1.0


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """s5cmd also with fewer requests under way than its 256, which served it better on a machine with few cores."""
    files = 200 if setting.quick else 10_000
    make(setting.folder / "remote", files)
    with rclone_serving(setting.folder / "remote", setting.folder / "rclone.log", yields=True) as server:
        source = Source(server, files, files * SIZE)
        contenders = {"growfs": growfs(setting.contenders[0]), **PEERS, "s5cmd cp, 64": s5cmd_cp("--numworkers", 64)}
        taken = compare(source, setting.folder, min(setting.rounds, ROUNDS_MAX), contenders)
    found = populate.figures(taken, files, "files", "us/file", TARGET, scale=1e6)
    return f"{files:,} files of 100 kB in {DIRECTORIES} directories from S3 on loopback", found


def make(remote: Path, files: int) -> None:
    """The bucket, and room for a copy of it."""
    need_space(remote.parent, 2 * files * SIZE)
    for number in range(files):
        path = remote / NAME / f"class{number % DIRECTORIES}" / f"{number:06}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(SIZE))
