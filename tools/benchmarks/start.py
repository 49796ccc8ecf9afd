"""Time until `growfs mount --wait-files 1` returns, compared with a download of one file alone."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tools.benchmarks.formula_s3 import key
from tools.benchmarks.measure import ACCESS_KEY, SECRET_KEY, Figure, Setting, figure, need_space, run
from tools.benchmarks.mounts import mounted
from tools.benchmarks.servers import formula_server, rclone_binary, rclone_server

FACTOR = 1.5
MORE_S = 1.5
FEW = 10
CACHE_SIZE = "4GB"


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Few shards on a real server, and many keys on a synthetic one."""
    size = (2 if setting.quick else 200) * 10**6
    many = 2_000 if setting.quick else 100_000
    need_space(setting.folder, 4 * 10**9)
    bucket = setting.folder / "remote" / "bucket"
    bucket.mkdir(parents=True)
    names = [f"shard-{number:02}.bin" for number in range(FEW)]
    with (bucket / names[0]).open("wb") as file:
        for _ in range(size // 10**6):
            file.write(os.urandom(10**6))
    for name in names[1:]:
        os.link(bucket / names[0], bucket / name)
    with rclone_server(bucket.parent, setting.folder / "rclone.log") as server:
        few = compare(setting, "s3://bucket", server.endpoint, names[0], f"{FEW} keys", peer=True)
    with formula_server(many, size, setting.folder / "formula.log") as endpoint:
        lots = compare(setting, "s3://formula", endpoint, key(0), f"{many:,} keys", peer=False)
    return f"shards of {size // 10**6} MB from S3 on loopback, an empty cache", few + lots


def compare(setting: Setting, url: str, endpoint: str, path: str, what: str, peer: bool) -> list[Figure]:
    """Alternate between a download and a mount."""
    alone: list[float] = []
    start: list[float] = []
    copied: list[float] = []
    for number in range(setting.rounds):
        target = setting.folder / "download"
        command = [sys.executable, "-m", "tools.benchmarks.download", url, endpoint, path, target]
        alone.append(json.loads(run(command))["fetch_s"])
        target.unlink()
        if peer:
            copied.append(rclone_copy(url, endpoint, path, target))
            target.unlink()
        folder = setting.folder / f"{what.split()[0]}-{number}"
        folder.mkdir()
        flags = ["--endpoint-url", endpoint, "--cache-size", CACHE_SIZE, "--wait-files", 1]
        with mounted(url, folder, *flags) as mount:
            start.append(mount.returned_s)
        run(["rm", "-r", folder])
    allowed = [FACTOR * seconds + MORE_S for seconds in alone]
    found = [
        figure(f"{what}: download of one shard alone", alone, "s"),
        figure(f"{what}: mount returns", start, "s"),
        figure(
            f"{what}: mount, of what it may take",
            [a / b for a, b in zip(start, allowed, strict=True)],
            "",
            f"1 ({FACTOR:g} downloads + {MORE_S:g} s)",
            lambda ratio: ratio <= 1,
        ),
    ]
    return found + ([figure(f"{what}: rclone copy of one shard", copied, "s")] if copied else [])


def rclone_copy(url: str, endpoint: str, path: str, target: Path) -> float:
    """Seconds, including the start of the process."""
    options = f"access_key_id='{ACCESS_KEY}',secret_access_key='{SECRET_KEY}',endpoint='{endpoint}'"
    source = f":s3,provider=Other,{options}:{url.partition('://')[2]}/{path}"
    began = time.monotonic()
    run([rclone_binary(), "copyto", "--config", os.devnull, source, target])
    return time.monotonic() - began
