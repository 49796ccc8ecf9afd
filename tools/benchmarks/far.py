"""A bucket behind a long link: how much of the link growfs uses, compared with copy programs."""

from __future__ import annotations

from tools.benchmarks import shards, small_fetch
from tools.benchmarks.bucket_copy import COPIERS, CopyResults, Source, compare, growfs_mount
from tools.benchmarks.measure import Figure, Setting, at_least, figure
from tools.benchmarks.servers import behind_link, rclone_server

RTT_S = 0.1
RATE = 125_000_000
ROUNDS_MAX = 2
TARGET = 0.9


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Shards, which the link's rate limits; then small files, which its round trips limit."""
    count, mib = (4, 1) if setting.quick else (shards.SHARDS, 128)
    bytes = shards.make(setting.folder / "large", count, mib)
    large = copy_bucket(setting, "large", count, bytes)
    files = 20 if setting.quick else 500
    small_fetch.make(setting.folder / "small", files)
    small = copy_bucket(setting, "small", files, files * small_fetch.SIZE)
    found = []
    for contender in large.rounds:
        shares = [rate / RATE for rate in large.per_s(contender, bytes)]
        found.append(
            at_least(f"shards, {contender}, of the link's rate", shares, "", TARGET if contender == "growfs" else None)
        )
    found += [
        figure(f"small files, {contender}", small.per_s(contender, files), "files/s") for contender in small.rounds
    ]
    what = f"{count} shards of {mib} MiB, {files} files of 100 kB"
    return f"{what}, over a link of {RTT_S * 1e3:g} ms and {RATE / 1e6:g} MB/s", found


def copy_bucket(setting: Setting, name: str, files: int, bytes: int) -> CopyResults:
    """Copy the bucket in the folder of this name, with every contender."""
    contenders = {"growfs": growfs_mount(setting.contenders[0]), **COPIERS}
    with (
        rclone_server(setting.folder / name, setting.folder / f"{name}-rclone.log") as server,
        behind_link(server.endpoint, RTT_S, RATE, setting.folder / f"{name}-link.log") as link,
    ):
        return compare(
            Source(link, files, bytes), setting.folder / f"{name}-targets", min(setting.rounds, ROUNDS_MAX), contenders
        )
