"""The peers that show a folder: growfs, the disk itself, mounts, and a copy of everything."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import growfs
from tools.benchmarks.measure import ACCESS_KEY, SECRET_KEY, BenchError, run, wait_until
from tools.benchmarks.mounts import RCLONE_TUNED, mounted
from tools.benchmarks.servers import rclone_binary, running, s5cmd_binary
from tools.peers.environment import Environment
from tools.peers.peer import Peer, Remote, Room


class Growfs(Peer):
    """growfs, with its defaults."""

    name = "growfs"
    about = "lists what is local, and rotates it"
    documents = "README.md"
    fills_by_itself = True
    note = "trains on each fetched file several times, so it sees fewer different samples in an epoch"

    def version(self) -> str:
        """The version of this checkout."""
        return growfs.__version__

    def flags(self) -> str:
        """The defaults, but for looking at the remote again: it does not change."""
        return "--cache-size SIZE --refresh 0"

    def unavailable(self) -> str | None:
        """It is what is measured."""
        return None

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        """A mount that returns when training can start."""
        flags = ["--endpoint-url", remote.endpoint, "--cache-size", room.cache_bytes, "--refresh", 0]
        url = f"s3://{remote.bucket}/{prefix}"
        with mounted(url, room.folder, *flags, start=lambda words: run(room.group.command(words))) as mount:
            yield {"folder": str(mount.mountpoint), "cached": str(mount.files)}


class Disk(Peer):
    """The same files on the local disk."""

    name = "local disk"
    about = "everything is on the disk before the clock starts"
    documents = ""
    has_cache = False
    note = "needs room for all the data, and leaves out how it got there"

    def version(self) -> str:
        """The kernel's."""
        return os.uname().release

    def flags(self) -> str:
        """There are none."""
        return ""

    def unavailable(self) -> str | None:
        """There is always a disk."""
        return None

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        """Nothing has to be started."""
        yield {"folder": str(remote.plain / prefix)}


class Rclone(Peer):
    """rclone mount with a limited cache."""

    name = "rclone mount"
    about = "FUSE, LRU cache of file ranges"
    documents = "https://rclone.org/commands/rclone_mount/#vfs-file-caching"
    note = "evicts what the epoch still needs"

    def version(self) -> str:
        """As it says itself."""
        return run([rclone_binary(), "version"]).split()[1]

    def flags(self) -> str:
        """The fastest flags found, and its cache checked ten times a second: by default it is once a minute, too
        seldom for a cache that is this small.
        """
        return " ".join(
            f"--{name} {value}" if value != "true" else f"--{name}" for name, value in self._flags("SIZE").items()
        )

    def _flags(self, size: object) -> dict[str, object]:
        return {**RCLONE_TUNED, "vfs-cache-max-size": size, "vfs-cache-poll-interval": "100ms"}

    def unavailable(self) -> str | None:
        """tools/setup test installs it."""
        return None

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        """rclone in the foreground."""
        mountpoint = room.folder / "mnt"
        mountpoint.mkdir()
        source = f":s3,provider=Other,env_auth,endpoint='{remote.endpoint}':{remote.bucket}/{prefix}"
        cache = room.folder / "cache"
        command = [rclone_binary(), "mount", source, mountpoint, "--config", os.devnull, "--cache-dir", cache]
        command += [f"--{name}={value}" for name, value in self._flags(f"{room.cache_bytes}B").items()]
        with foreground(command, mountpoint, room):
            yield {"folder": str(mountpoint), "cached": str(cache)}


class S3fs(Peer):
    """s3fs-fuse with its cache on a file system of the cache's size: it has no limit of its own, but looks for free
    space and empties its cache where there is none.
    """

    name = "s3fs-fuse"
    about = "FUSE, cache of whole files, emptied when the disk is full"
    documents = "https://manpages.debian.org/bookworm/s3fs/s3fs.1.en.html"
    note = "evicts what the epoch still needs"
    FLAGS = "use_path_request_style,enable_noobj_cache,stat_cache_expire=86400,multireq_max=20"
    FREE_MB = 4
    """s3fs keeps so much free; the file system of the cache is larger by that."""

    def version(self) -> str:
        """As it says itself."""
        return run(["s3fs", "--version"]).splitlines()[0].split("V")[1].split()[0]

    def flags(self) -> str:
        """Without the folder of the cache."""
        return f"-o {self.FLAGS},use_cache=DIR,ensure_diskfree={self.FREE_MB}"

    def unavailable(self) -> str | None:
        """It is a package of Debian's, which Environment.install installs."""
        if os.geteuid():
            return "limiting its cache takes a file system of its own, and so root"
        return Environment.missing_program("s3fs")

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        """s3fs in the foreground, with its cache in a tmpfs."""
        mountpoint, cache, keys = room.folder / "mnt", room.folder / "cache", room.folder / "keys"
        mountpoint.mkdir()
        cache.mkdir()
        keys.write_text(f"{ACCESS_KEY}:{SECRET_KEY}")
        keys.chmod(0o600)
        flags = (
            f"{self.FLAGS},url={remote.endpoint},passwd_file={keys},use_cache={cache},ensure_diskfree={self.FREE_MB}"
        )
        size = room.cache_bytes + (self.FREE_MB << 20)
        run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", cache])
        try:
            command = ["s3fs", f"{remote.bucket}:/{prefix}", mountpoint, "-f", "-o", flags]
            with foreground(command, mountpoint, room):
                yield {"folder": str(mountpoint), "cached": str(cache)}
        finally:
            run(["umount", "-l", cache])


class Fsspec(Peer):
    """fsspec's own mount."""

    name = "fsspec.fuse"
    about = "FUSE in Python, no cache on disk"
    documents = "https://filesystem-spec.readthedocs.io/en/latest/features.html#mount-anything-with-fuse"
    has_cache = False
    note = "fetches everything in each epoch, one request at a time"
    SCRIPT = (
        "import sys, fsspec, fsspec.fuse;"
        "fs = fsspec.filesystem('s3', client_kwargs={'endpoint_url': sys.argv[1]});"
        "fsspec.fuse.run(fs, sys.argv[2], sys.argv[3])"
    )

    def version(self) -> str:
        """Of fsspec."""
        return Environment.version("fsspec")

    def flags(self) -> str:
        """Its defaults: the documentation says that it is more stable so."""
        return "foreground=True, threads=False (its defaults)"

    def unavailable(self) -> str | None:
        """It needs fusepy, and libfuse 2."""
        return Environment.missing_module("fuse")

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        """A Python that serves the mount."""
        mountpoint = room.folder / "mnt"
        mountpoint.mkdir()
        command = [Environment.python(), "-c", self.SCRIPT, remote.endpoint, f"{remote.bucket}/{prefix}/", mountpoint]
        with foreground(command, mountpoint, room):
            yield {"folder": str(mountpoint)}


class DownloadFirst(Peer):
    """Everything is copied to the disk, then read."""

    name = "s5cmd, then train"
    about = "copies everything first"
    documents = "https://github.com/peak/s5cmd"
    fills_by_itself = True
    has_cache = False
    note = "needs room for all the data, and trains on nothing until it is there"

    def version(self) -> str:
        """As it says itself."""
        return run([s5cmd_binary(), "version"]).split("-")[0].strip()

    def flags(self) -> str:
        """Its defaults: 256 workers."""
        return "cp (its defaults)"

    def unavailable(self) -> str | None:
        """tools/setup test installs it."""
        return None

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        """Return when everything is copied."""
        target = room.folder / "copy"
        command = [s5cmd_binary(), "--log", "error", "--endpoint-url", remote.endpoint]
        run(room.group.command([*command, "cp", f"s3://{remote.bucket}/{prefix}/*", f"{target}/"]))
        yield {"folder": str(target)}


@contextmanager
def foreground(command: list[object], mountpoint: Path, room: Room) -> Iterator[None]:
    """Run a mount that stays in the foreground, from when it is mounted; unmount at the block's end."""
    try:
        log = room.folder / "log"
        with running(room.group.command(command), log, "()") as process:

            def is_mounted() -> bool:
                if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    raise BenchError(f"{command[0]} ended: {log.read_text(errors='replace').strip()}")
                return os.path.ismount(mountpoint)

            wait_until(is_mounted, f"{command[0]} mount", every_s=0.01, timeout_s=60)
            try:
                yield
            finally:
                subprocess.run(["fusermount3", "-u", mountpoint], stderr=subprocess.DEVNULL, timeout=10, check=False)
    finally:
        if f" {mountpoint} " in Path("/proc/self/mounts").read_text():
            subprocess.run(["fusermount3", "-u", "-z", mountpoint], timeout=10, check=False)
