"""Nodes that feed each other (`--peers`): how often they read the bucket."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.servers import free_port
from tools.benchmarks.measure import Figures, Setting, make_files
from tools.benchmarks.mounts import Mount, mounted
from tools.benchmarks.servers import rclone_server

NODES, CACHE = 4, 0.3
"""The number of nodes, and the share of the data that each can cache."""
PASS_S = 13
"""How long a node takes to download the data, so that filling takes some seconds: real nodes fill for hours."""
EPOCH_S = 1.0
"""A pause between epochs: readers that only read leave no core for fetching."""


def nodes(setting: Setting, found: Figures) -> str:
    """How often the bucket is read until each of the nodes has seen every file."""
    count, files, size = (2, 80, 16 << 10) if setting.quick else (NODES, 800, 64 << 10)
    data = setting.folder / "buckets/data"
    make_files(data, files, size, directories=4)
    (setting.folder / "token").write_text("bench\n")
    with rclone_server(setting.folder / "buckets", etags="MD5") as server:
        for feeds in (True, False):
            reads = _reads(setting, server.endpoint, count, files, files * size, feeds)
            name = "the bucket is read, by nodes " + ("that feed one another" if feeds else "that do not")
            found.add(name, reads, unit="times", at_most=1.15 if feeds else None)
    return f"{count} nodes, each with a cache of {CACHE:.0%} of {files} files"


def _reads(setting: Setting, endpoint: str, nodes: int, files: int, bytes: int, feeds: bool) -> float:
    """Bytes read from the bucket until each node had seen every file, in multiples of the bucket's size."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(nodes)]
    known = ("--peers", ",".join(addresses), "--peer-token-file", setting.folder / "token")
    flags: list[object] = ["--cache-size", int(bytes * CACHE), "--endpoint-url", endpoint, "--refresh", 0]
    flags += ("--engine", setting.engines[0], "--bandwidth", bytes // (1 if setting.quick else PASS_S))
    with contextlib.ExitStack() as stack:

        def start(number: int) -> Mount:
            folder = setting.folder / f"{'feeding' if feeds else 'alone'}-{number}"
            more = (*known, "--peer-addr", addresses[number]) if feeds else ()
            return stack.enter_context(mounted("s3://data", folder, *flags, *more))

        with ThreadPoolExecutor(nodes) as pool:
            mounts = list(pool.map(start, range(nodes)))
        read_side_by_side([mount.mountpoint for mount in mounts], files, EPOCH_S / 5 if setting.quick else EPOCH_S)
        return float(sum(mount.status()["fetch"]["bytes_total"] for mount in mounts)) / bytes


def read_side_by_side(mountpoints: Sequence[Path], files: int, epoch_s: float) -> None:
    """Train on each node in epochs, until all nodes have seen every file, or one of them fails. Raises its error."""
    seen, stop = [set[str]() for _ in mountpoints], threading.Event()

    def read(mountpoint: Path, names: set[str]) -> None:
        try:
            while not (stop.is_set() or all(len(each) == files for each in seen)):
                for path in list(mountpoint.rglob("*.bin")):
                    path.read_bytes()
                    names.add(path.name)
                stop.wait(epoch_s)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(len(mountpoints)) as pool:
        list(pool.map(read, mountpoints, seen))
