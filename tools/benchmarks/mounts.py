"""The mounts to measure: growfs with each engine, and programs that mount the same files."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growfs.daemon.control_client import call
from growfs.daemon.launch import stop
from growfs.daemon.running import find_living
from growfs.errors import GrowfsError
from growfs.fuse.mounting import mounted_at, unmount
from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.child import Child
from tools.benchmarks.measure import BenchError, cpu_s, fault_in_memory, run, size_of, wait_until
from tools.benchmarks.servers import rclone_binary, rclone_source

GROWFS = [sys.executable, "-m", "growfs"]


@dataclass(slots=True)
class Mount:
    """A mount. files: the folder of the cached files. returned_s: how long the mount command took."""

    mountpoint: Path
    files: Path
    pid: int = 0
    engine: str = ""
    returned_s: float = 0.0

    def status(self) -> dict[str, Any]:
        return self.call("status")

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Call the daemon as the command does, but without a new process."""
        try:
            return dict(call(find_living(self.mountpoint).cache, command, **arguments))
        except GrowfsError as error:
            raise BenchError(str(error)) from None

    def all_cached(self) -> bool:
        """Whether every file of the remote is cached. Raises BenchError if that will never happen."""
        state = self.status()["state"]
        if state == "held":
            raise BenchError(f"{self.mountpoint}: no more files will be fetched")
        return bool(state == "complete")

    def cpu_s(self) -> float:
        """CPU time of the daemon and its threads, without its workers."""
        return cpu_s(self.pid)


@contextlib.contextmanager
def mounted(
    url: object, folder: Path, *flags: object, start: Callable[[Sequence[object]], object] = run
) -> Iterator[Mount]:
    """Mount at folder/mnt with the cache in folder/cache. start: runs the command."""
    mount = Mount(folder / "mnt", folder)
    mount.mountpoint.mkdir(parents=True, exist_ok=True)
    command = [*GROWFS, "mount", url, mount.mountpoint, "--cache-dir", folder / "cache", *flags]
    try:
        began = time.monotonic()
        start(command)
        mount.returned_s = time.monotonic() - began
        status = mount.status()
        mount.pid, mount.engine = status["pid"], status["engine"]
        mount.files = Path(status["cache_dir"]) / "files"
        yield mount
        stop(mount.mountpoint)
    finally:
        if mounted_at(mount.mountpoint):
            unmount(mount.mountpoint, lazy=True)


@contextlib.contextmanager
def fully_cached(engine: str, remote: Path, folder: Path) -> Iterator[Mount]:
    """A fresh mount of `remote` by an engine, with all files cached. `folder` keeps the cache."""
    flags = ["--engine", engine, "--no-wait", "--cache-size", "8GB", "--refresh", 0]
    fault_in_memory(2 * size_of(remote))
    with mounted(remote, folder, *flags) as mount:
        if mount.engine != engine:
            raise BenchError(f"{mount.engine} was used instead")
        wait_until(mount.all_cached, "filling the cache")
        yield mount


RCLONE_TUNED = {
    "poll-interval": "0",
    "dir-cache-time": "24h",
    "attr-timeout": "1h",
    "vfs-cache-mode": "full",
    "vfs-cache-max-age": "72h",
    "vfs-read-ahead": "256M",
    "buffer-size": "32M",
    "vfs-read-chunk-size": "16M",
    "vfs-read-chunk-streams": "8",
    "transfers": "8",
    **dict.fromkeys(("read-only", "no-modtime", "vfs-fast-fingerprint", "no-checksum"), "true"),
}
"""The fastest flags found."""


def rclone_limit(size: str) -> dict[str, str]:
    """A limit of the cache, checked ten times a second: the default of once a minute is too rare for a small cache."""
    return {"vfs-cache-max-size": size, "vfs-cache-poll-interval": "100ms"}


@contextlib.contextmanager
def foreground(command: Sequence[object], mountpoint: Path) -> Iterator[None]:
    """Run a mount that stays in the foreground, entering the block when it is mounted; unmount at the block's end."""
    mountpoint.mkdir(parents=True, exist_ok=True)
    with Child(command, name="the mount") as child:
        try:
            child.wait_until(lambda: os.path.ismount(mountpoint), 60.0)
            yield
        finally:
            if f" {mountpoint} " in Path("/proc/self/mounts").read_text(errors="replace"):
                unmount(mountpoint, lazy=True)


@contextlib.contextmanager
def rclone_mounted(
    endpoint: str, path: str, folder: Path, cache_bytes: int | None = None, group: Cgroup | None = None
) -> Iterator[Path]:
    """`rclone mount` at folder/mnt with the cache in folder/cache. path: the bucket, or a folder of it.

    cache_bytes: the limit of the cache. group: counts it.
    """
    mountpoint, flags = folder / "mnt", RCLONE_TUNED
    if cache_bytes is not None:
        flags = flags | rclone_limit(f"{cache_bytes}B")
    words = [rclone_binary(), "mount", rclone_source(endpoint, path), mountpoint, "--config", os.devnull]
    words += ["--cache-dir", folder / "cache", *(f"--{name}={value}" for name, value in flags.items())]
    with foreground(group.command(words) if group else words, mountpoint):
        yield mountpoint
