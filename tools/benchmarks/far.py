"""A bucket at the other end of a long link: how much of the link growfs fills, and how programs that copy do."""

from __future__ import annotations

from tools.benchmarks import shards, small_fetch
from tools.benchmarks.measure import Figure, Setting, at_least, figure
from tools.benchmarks.populate import PEERS, Source, Taken, compare, growfs
from tools.benchmarks.servers import linked, rclone_serving

RTT_S = 0.1
RATE = 125_000_000
ROUNDS_MAX = 2
TARGET = 0.9


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Shards, for which the link's rate is the limit; then small files, for which it is the round trips."""
    count, mib = (4, 8) if setting.quick else (shards.SHARDS, 128)
    bytes = shards.make(setting.folder / "large", count, mib)
    large = brought(setting, "large", count, bytes)
    files = 50 if setting.quick else 500
    small_fetch.make(setting.folder / "small", files)
    small = brought(setting, "small", files, files * small_fetch.SIZE)
    found = []
    for who in large.rounds:
        shares = [rate / RATE for rate in large.per_s(who, bytes)]
        found.append(at_least(f"shards, {who}, of the link's rate", shares, "", TARGET if who == "growfs" else None))
    found += [figure(f"small files, {who}", small.per_s(who, files), "files/s") for who in small.rounds]
    what = f"{count} shards of {mib} MiB, {files} files of 100 kB"
    return f"{what}, over a link of {RTT_S * 1e3:g} ms and {RATE / 1e6:g} MB/s", found


def brought(setting: Setting, name: str, files: int, bytes: int) -> Taken:
    """The bucket in a folder of this name, by all contenders."""
    contenders = {"growfs": growfs(setting.contenders[0]), **PEERS}
    with (
        rclone_serving(setting.folder / name, setting.folder / f"{name}-rclone.log") as server,
        linked(server.said, RTT_S, RATE, setting.folder / f"{name}-link.log") as link,
    ):
        return compare(
            Source(link, files, bytes), setting.folder / f"{name}-targets", min(setting.rounds, ROUNDS_MAX), contenders
        )
