"""What a peer is: something that a training program could read a bucket with. Each is described by one small class."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import growfs
from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.measure import ACCESS_KEY, SECRET_KEY, run
from tools.benchmarks.mounts import RCLONE_TUNED, foreground, mounted, rclone_mount_command
from tools.benchmarks.servers import rclone_binary, s5cmd_binary
from tools.peers import environment

BUCKET = "bucket"
"""The one bucket of the server. Its folder `shards` has tar files; the other formats lie beside it (data.py)."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A bucket behind a link. plain: the same files as a folder of the local disk. bucket: its name."""

    endpoint: str
    plain: Path
    shards: int = 0
    bucket: str = BUCKET


@dataclass(frozen=True, slots=True)
class Room:
    """Where a peer works. folder: empty, its own. cache_bytes: what its cache may take. group: counts its daemons."""

    folder: Path
    cache_bytes: int
    group: Cgroup


class Peer:
    """One way to read a bucket."""

    name: ClassVar[str]
    """In the tables."""
    about: ClassVar[str]
    """What it is, in a few words."""
    documents: ClassVar[str] = ""
    """Where its flags for reads come from."""
    flags: ClassVar[str] = ""
    """The flags or parameters that it runs with, those that every run has."""
    note: ClassVar[str] = ""
    """What explains its figures."""
    source: ClassVar[str] = "files"
    """The source of trainer.py that reads with it."""
    has_cache: ClassVar[bool] = True
    """Whether it has a cache whose size can be limited; without one, the size of the cache does not matter."""
    fills_by_itself: ClassVar[bool] = False
    """Whether it downloads without being read."""

    def version(self) -> str:
        """The version that runs here."""
        raise NotImplementedError

    def unavailable(self) -> str | None:
        """Why it cannot run on this machine, or None if it can."""
        return None

    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> AbstractContextManager[dict[str, Any]]:
        """Start it, and stop it at the block's end. Yields what trainer.py needs to know: `folder`, where it mounts."""
        raise NotImplementedError


# Peers that show a folder.


class Growfs(Peer):
    """growfs with its defaults, but for looking at the remote again: it does not change."""

    name = "growfs"
    about = "lists what is local, and rotates it"
    documents = "README.md"
    flags = "--cache-size SIZE --refresh 0"
    fills_by_itself = True
    note = "trains on each fetched file several times, so it sees fewer different samples in an epoch"

    def version(self) -> str:
        return growfs.__version__

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
    has_cache = False
    note = "needs room for all the data, and leaves out how it got there"

    def version(self) -> str:
        return os.uname().release

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        yield {"folder": str(remote.plain / prefix)}


def rclone_limit(size: str) -> dict[str, str]:
    """A limit of the cache, checked ten times a second: once a minute, its default, is too seldom for a small cache."""
    return {"vfs-cache-max-size": size, "vfs-cache-poll-interval": "100ms"}


class Rclone(Peer):
    """rclone mount with a limited cache."""

    name = "rclone mount"
    about = "FUSE, LRU cache of file ranges"
    documents = "https://rclone.org/commands/rclone_mount/#vfs-file-caching"
    flags = " ".join(
        f"--{name}" if value == "true" else f"--{name} {value}"
        for name, value in (RCLONE_TUNED | rclone_limit("SIZE")).items()
    )
    note = "evicts what the epoch still needs"

    def version(self) -> str:
        return run([rclone_binary(), "version"]).split()[1]

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        source = f":s3,provider=Other,env_auth,endpoint='{remote.endpoint}':{remote.bucket}/{prefix}"
        mountpoint, cache = room.folder / "mnt", room.folder / "cache"
        command = rclone_mount_command(source, mountpoint, cache, **rclone_limit(f"{room.cache_bytes}B"))
        with foreground(room.group.command(command), mountpoint, room.folder / "log"):
            yield {"folder": str(mountpoint), "cached": str(cache)}


class S3fs(Peer):
    """s3fs-fuse with its cache on a file system of the cache's size: it has no limit of its own, but looks for free
    space and empties its cache where there is none.
    """

    FLAGS = "use_path_request_style,enable_noobj_cache,stat_cache_expire=86400,multireq_max=20"
    FREE_MB = 4
    """s3fs keeps so much free; the file system of the cache is larger by that."""
    name = "s3fs-fuse"
    about = "FUSE, cache of whole files, emptied when the disk is full"
    documents = "https://manpages.debian.org/bookworm/s3fs/s3fs.1.en.html"
    flags = f"-o {FLAGS},use_cache=DIR,ensure_diskfree={FREE_MB}"
    note = "evicts what the epoch still needs"

    def version(self) -> str:
        return run(["s3fs", "--version"]).splitlines()[0].split("V")[1].split()[0]

    def unavailable(self) -> str | None:
        if os.geteuid():
            return "limiting its cache takes a file system of its own, and so root"
        return environment.missing_program("s3fs")

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        """With its cache in a tmpfs."""
        mountpoint, cache, keys = room.folder / "mnt", room.folder / "cache", room.folder / "keys"
        cache.mkdir()
        keys.touch(0o600)
        keys.write_text(f"{ACCESS_KEY}:{SECRET_KEY}")
        flags = f"url={remote.endpoint},passwd_file={keys},use_cache={cache},ensure_diskfree={self.FREE_MB}"
        size = room.cache_bytes + (self.FREE_MB << 20)
        run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", cache])
        try:
            command = ["s3fs", f"{remote.bucket}:/{prefix}", mountpoint, "-f", "-o", f"{self.FLAGS},{flags}"]
            with foreground(room.group.command(command), mountpoint, room.folder / "log"):
                yield {"folder": str(mountpoint), "cached": str(cache)}
        finally:
            run(["umount", "-l", cache])


class Fsspec(Peer):
    """fsspec's own mount, with its defaults: the documentation says that it is more stable so."""

    name = "fsspec.fuse"
    about = "FUSE in Python, no cache on disk"
    documents = "https://filesystem-spec.readthedocs.io/en/latest/features.html#mount-anything-with-fuse"
    flags = "foreground=True, threads=False (its defaults)"
    has_cache = False
    note = "fetches everything in each epoch, one request at a time"
    SCRIPT = (
        "import sys, fsspec, fsspec.fuse;"
        "fs = fsspec.filesystem('s3', client_kwargs={'endpoint_url': sys.argv[1]});"
        "fsspec.fuse.run(fs, sys.argv[2], sys.argv[3])"
    )

    def version(self) -> str:
        return environment.version("fsspec")

    def unavailable(self) -> str | None:
        """It needs fusepy, and libfuse 2."""
        return environment.missing_module("fuse")

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        mountpoint = room.folder / "mnt"
        words = [remote.endpoint, f"{remote.bucket}/{prefix}/", mountpoint]
        command = [environment.PYTHON, "-c", self.SCRIPT, *words]
        with foreground(room.group.command(command), mountpoint, room.folder / "log"):
            yield {"folder": str(mountpoint)}


class DownloadFirst(Peer):
    """Everything is copied to the disk, then read."""

    name = "s5cmd, then train"
    about = "copies everything first"
    documents = "https://github.com/peak/s5cmd"
    flags = "cp (its defaults)"
    fills_by_itself = True
    has_cache = False
    note = "needs room for all the data, and trains on nothing until it is there"

    def version(self) -> str:
        return run([s5cmd_binary(), "version"]).split("-")[0].strip()

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        """Return when everything is copied."""
        target = room.folder / "copy"
        command = [s5cmd_binary(), "--log", "error", "--endpoint-url", remote.endpoint]
        run(room.group.command([*command, "cp", f"s3://{remote.bucket}/{prefix}/*", f"{target}/"]))
        yield {"folder": str(target)}


# Libraries, which a training program uses in the place of files. trainer.py has their use.


class Library(Peer):
    """Nothing is started, and the program reads."""

    package: ClassVar[str]

    def version(self) -> str:
        return environment.version(self.package)

    def unavailable(self) -> str | None:
        return environment.missing_module(environment.PACKAGES.get(self.package, self.package))

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        yield {
            "endpoint": remote.endpoint,
            "bucket": remote.bucket,
            "shards": remote.shards,
            "cache_dir": str(room.folder / "cache"),
            "cache_bytes": room.cache_bytes,
            "cat": f"{s5cmd_binary()} --endpoint-url {remote.endpoint} cat",
        }


class Mosaicml(Library):
    """MosaicML Streaming."""

    name = "MosaicML Streaming"
    about = "data set in Python, own format, cache of shards"
    documents = "https://docs.mosaicml.com/projects/streaming/en/stable/dataset_configuration/shard_retrieval.html"
    flags = (
        "cache_limit=SIZE, shuffle=True, shuffle_block_size of half of the cache; StreamingDataLoader of 2 processes"
    )
    source = "mosaicml"
    package = "mosaicml-streaming"
    note = "downloads what it evicted, in each epoch"


class S3Torch(Library):
    """The Amazon S3 Connector for PyTorch."""

    name = "s3torchconnector"
    about = "data set in Python and Rust, no cache"
    documents = "https://github.com/awslabs/s3-connector-for-pytorch#readme"
    flags = "S3MapDataset, DataLoader of 8 processes"
    source = "s3torch"
    package = "s3torchconnector"
    has_cache = False
    note = "fetches everything in each epoch"


class WebDataset(Library):
    """WebDataset over pipes."""

    name = "WebDataset, pipe"
    about = "tar files through `s5cmd cat`, no cache"
    documents = "https://github.com/webdataset/webdataset#readme"
    flags = "pipe:s5cmd cat URL, DataLoader of 8 processes"
    source = "webdataset"
    package = "webdataset"
    has_cache = False
    note = "fetches everything in each epoch"


class NeverEvict(Library):
    """A cache that never evicts."""

    name = "never evict"
    about = "what came first stays, the rest is fetched (boto3, 8 threads)"
    documents = "https://arxiv.org/abs/2007.06775"
    flags = "a reader of this benchmark's own"
    source = "keep"
    package = "boto3"
    note = "fetches what does not fit, in each epoch"


PEERS: tuple[type[Peer], ...] = (
    Growfs, Rclone, S3fs, Fsspec, Mosaicml, S3Torch, WebDataset, NeverEvict, DownloadFirst, Disk,
)  # fmt: skip
QUICK = (Growfs, Rclone)
