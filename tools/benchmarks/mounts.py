"""The mounts that are measured: growfs with each engine, and peers that mount the same files."""

from __future__ import annotations

import contextlib
import os
import subprocess
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
from tools.benchmarks.measure import ENGINES, BenchError, cpu_s, run, wait_until
from tools.benchmarks.servers import rclone_binary, running

GROWFS = [sys.executable, "-c", "import growfs; growfs.main()"]
PEERS = ("rclone", "folder")
CACHE_SIZE = "8GB"


@dataclass(slots=True)
class Mount:
    """A mount. files: the folder of the cached files. returned_s: how long the mount command took."""

    mountpoint: Path
    files: Path
    pid: int = 0
    engine: str = ""
    returned_s: float = 0.0

    def status(self) -> dict[str, Any]:
        """The status of a growfs mount."""
        return self._call("status")

    def set(self, **options: object) -> None:
        """Change options of a growfs mount."""
        self._call("set", options={name: str(value) for name, value in options.items()})

    def _call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Call the daemon as the command does, but without a new process."""
        try:
            return dict(call(find_living(self.mountpoint).cache, command, **arguments))
        except GrowfsError as error:
            raise BenchError(str(error)) from None

    def all_cached(self) -> bool:
        """Whether every file of the remote is cached. Raises BenchError where that can never be."""
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
def filled(remote: Path, folder: Path) -> Iterator[Mount]:
    """A generation of a folder that `growfs fill` keeps filled, with all files, in the place of a mountpoint."""
    at = Mount(folder / "fill", folder)
    run([*GROWFS, "fill", remote, at.mountpoint, "--no-wait", "--cache-size", CACHE_SIZE, "--refresh", 0])
    try:
        wait_until(at.all_cached, "filling the cache")
        run([*GROWFS, "next", at.mountpoint])
        status = at.status()
        tree = (at.mountpoint / "current").resolve()
        yield Mount(tree, Path(status["cache_dir"]) / "files", status["pid"])
    finally:
        stop(at.mountpoint)


@contextlib.contextmanager
def fully_cached(contender: str, remote: Path, folder: Path) -> Iterator[Mount]:
    """A fresh mount of `remote` by an engine or a peer, with all files cached. `folder` keeps the cache."""
    if contender == "rclone":
        if not (folder / "rclone-cache").exists():
            with rclone_mount(remote, folder) as mount:
                for path in mount.mountpoint.rglob("*"):
                    if path.is_file():
                        path.read_bytes()
        with rclone_mount(remote, folder) as mount:
            yield mount
    elif contender == "folder":
        with filled(remote, folder) as mount:
            yield mount
    else:
        with mounted(
            remote, folder, "--engine", contender, "--no-wait", "--cache-size", CACHE_SIZE, "--refresh", 0
        ) as mount:
            if mount.engine != contender:
                raise BenchError(f"{mount.engine} was used instead")
            wait_until(mount.all_cached, "filling the cache")
            yield mount


def working_engines(folder: Path) -> tuple[tuple[str, ...], list[str]]:
    """The engines that work on this machine, and why each of the others does not."""
    remote = folder / "remote"
    remote.mkdir()
    (remote / "file").write_text("a file\n")
    engines, others = [], []
    for engine in ENGINES:
        try:
            with fully_cached(engine, remote, folder):
                engines.append(engine)
        except BenchError as error:
            others.append(f"the {engine} engine does not work here: {error}")
    return tuple(engines), others


# Peers.


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


@contextlib.contextmanager
def rclone_mount(source: object, folder: Path, **variables: str) -> Iterator[Mount]:
    """The same files through `rclone mount`, with the fastest flags found. `folder` keeps its cache.

    variables: for its environment.
    """
    mountpoint = folder / "rclone-mnt"
    mountpoint.mkdir(exist_ok=True)
    flags = ["--config", os.devnull, "--cache-dir", folder / "rclone-cache"]
    flags += [f"--{name}={value}" for name, value in RCLONE_TUNED.items()]
    try:
        command = [rclone_binary(), "mount", source, mountpoint, *flags]
        with running(command, folder / "rclone.log", "()", **variables) as process:
            wait_until(lambda: os.path.ismount(mountpoint), "rclone mount", every_s=0.01)
            yield Mount(mountpoint, Path(f"{folder}/rclone-cache/vfs/local{source}"), process.pid)
    finally:
        if os.path.ismount(mountpoint):
            subprocess.run(["fusermount3", "-u", "-z", mountpoint], timeout=10, check=False)
