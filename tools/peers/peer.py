"""A peer is a way for a training program to read a bucket. PEERS describes each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import growfs
from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.measure import ACCESS_KEY, SECRET_KEY, run
from tools.benchmarks.mounts import RCLONE_TUNED, foreground, mounted, rclone_mount_command
from tools.benchmarks.servers import rclone_binary, s5cmd_binary
from tools.peers import environment

BUCKET = "bucket"
"""The only bucket of the server. Its folder `shards` has tar files; the other formats are alongside it (data.py)."""


@dataclass(frozen=True, slots=True)
class Room:
    """The data that a peer reads, and the place where it works."""

    endpoint: str
    """The endpoint of the server, behind a link."""
    plain: Path
    """The same files, as a folder on the local disk."""
    folder: Path
    """Its own folder, initially empty."""
    cache_bytes: int
    """The space that its cache may take."""
    group: Cgroup
    """Counts its daemons."""
    bucket: str = BUCKET
    prefix: str = "shards"
    """The folder of the bucket that is read."""
    shards: int = 0
    """How many tar files there are."""

    @property
    def mountpoint(self) -> Path:
        """Where the peer mounts."""
        return self.folder / "mnt"

    @property
    def cache(self) -> Path:
        """Where the peer caches."""
        return self.folder / "cache"

    def mount(self, command: list[object]) -> AbstractContextManager[None]:
        """Run a mount that stays in the foreground."""
        return foreground(self.group.command(command), self.mountpoint, self.folder / "log")


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to read a bucket."""

    name: str
    """Its name in the tables."""
    about: str
    """A short description."""
    note: str
    """An explanation of its figures."""
    version: Callable[[], str]
    """The version that runs here."""
    running: Callable[[Room], AbstractContextManager[dict[str, Any]]]
    """Starts it, and stops it at the block's end. Yields parameters for the programs: `folder`, where it mounts."""
    documents: str = ""
    """The source of its flags for reads."""
    flags: str = ""
    """The flags or parameters that it runs with, apart from those common to all runs."""
    source: str = "files"
    """The source of trainer.py that reads with it."""
    has_cache: bool = True
    """Whether it has a cache whose size can be limited; if not, the size of the cache does not matter."""
    fills_by_itself: bool = False
    """Whether it downloads without being read."""
    unavailable: Callable[[], str | None] = lambda: None
    """The reason why it cannot run on this machine, or None if it can."""


# Peers that show a folder.


@contextmanager
def run_growfs(room: Room, more_flags: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """A mount that returns when training can start. It need not list the remote again, which does not change."""
    flags = ["--endpoint-url", room.endpoint, "--cache-size", room.cache_bytes, "--refresh", 0, *more_flags]
    url = f"s3://{room.bucket}/{room.prefix}"
    with mounted(url, room.folder, *flags, start=lambda words: run(room.group.command(words))) as mount:
        yield {"folder": str(mount.mountpoint), "cached": str(mount.files)}


EXACT = ("--exact",)


@contextmanager
def run_disk(room: Room) -> Iterator[dict[str, Any]]:
    """The same files on the local disk."""
    yield {"folder": str(room.plain / room.prefix)}


def rclone_limit(size: str) -> dict[str, str]:
    """A limit of the cache, checked ten times a second: the default of once a minute is too rare for a small cache."""
    return {"vfs-cache-max-size": size, "vfs-cache-poll-interval": "100ms"}


RCLONE_FLAGS = " ".join(
    f"--{name}" if value == "true" else f"--{name} {value}"
    for name, value in (RCLONE_TUNED | rclone_limit("SIZE")).items()
)


@contextmanager
def run_rclone(room: Room) -> Iterator[dict[str, Any]]:
    """rclone mount with a limited cache."""
    source = f":s3,provider=Other,env_auth,endpoint='{room.endpoint}':{room.bucket}/{room.prefix}"
    limit = rclone_limit(f"{room.cache_bytes}B")
    with room.mount(rclone_mount_command(source, room.mountpoint, room.cache, **limit)):
        yield {"folder": str(room.mountpoint), "cached": str(room.cache)}


S3FS_FLAGS = "use_path_request_style,enable_noobj_cache,stat_cache_expire=86400,multireq_max=20"
S3FS_FREE_MB = 4
"""s3fs keeps this much free; the file system of the cache is larger by that."""


def s3fs_unavailable() -> str | None:
    """The reason why s3fs cannot run: it needs root, for its cache."""
    if os.geteuid():
        return "limiting its cache takes a file system of its own, and so root"
    return environment.missing_program("s3fs")


@contextmanager
def run_s3fs(room: Room) -> Iterator[dict[str, Any]]:
    """s3fs-fuse with its cache in a tmpfs of the cache's size: it has no limit of its own, but checks for free space
    and empties its cache if there is none.
    """
    keys = room.folder / "keys"
    room.cache.mkdir()
    keys.touch(0o600)
    keys.write_text(f"{ACCESS_KEY}:{SECRET_KEY}")
    flags = f"url={room.endpoint},passwd_file={keys},use_cache={room.cache},ensure_diskfree={S3FS_FREE_MB}"
    size = room.cache_bytes + (S3FS_FREE_MB << 20)
    run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", room.cache])
    try:
        source = f"{room.bucket}:/{room.prefix}"
        with room.mount(["s3fs", source, room.mountpoint, "-f", "-o", f"{S3FS_FLAGS},{flags}"]):
            yield {"folder": str(room.mountpoint), "cached": str(room.cache)}
    finally:
        run(["umount", "-l", room.cache])


FSSPEC_SCRIPT = (
    "import sys, fsspec, fsspec.fuse;"
    "fs = fsspec.filesystem('s3', client_kwargs={'endpoint_url': sys.argv[1]});"
    "fsspec.fuse.run(fs, sys.argv[2], sys.argv[3])"
)


@contextmanager
def run_fsspec(room: Room) -> Iterator[dict[str, Any]]:
    """fsspec's own mount, with its defaults, which its documentation calls more stable."""
    words = [room.endpoint, f"{room.bucket}/{room.prefix}/", room.mountpoint]
    with room.mount([environment.PYTHON, "-c", FSSPEC_SCRIPT, *words]):
        yield {"folder": str(room.mountpoint)}


@contextmanager
def run_s5cmd(room: Room) -> Iterator[dict[str, Any]]:
    """Copy everything to the disk, then read."""
    target = room.folder / "copy"
    command = [s5cmd_binary(), "--log", "error", "--endpoint-url", room.endpoint]
    run(room.group.command([*command, "cp", f"s3://{room.bucket}/{room.prefix}/*", f"{target}/"]))
    yield {"folder": str(target)}


# Libraries that a training program uses instead of files. trainer.py uses them.


@contextmanager
def run_nothing(room: Room) -> Iterator[dict[str, Any]]:
    """Run nothing: the program itself reads."""
    yield {
        "endpoint": room.endpoint,
        "bucket": room.bucket,
        "shards": room.shards,
        "cache_dir": str(room.cache),
        "cache_bytes": room.cache_bytes,
        "cat": f"{s5cmd_binary()} --endpoint-url {room.endpoint} cat",
    }


def library(package: str) -> dict[str, Any]:
    """The common part of all peers that are packages in the peers' environment."""
    module = environment.PACKAGES.get(package, package)
    return {
        "version": lambda: environment.version(package),
        "running": run_nothing,
        "unavailable": lambda: environment.missing_module(module),
    }


PEERS = (
    Peer(
        "growfs",
        "lists the cached files, and rotates them",
        "trains on each fetched file several times, so it sees fewer different samples in an epoch",
        lambda: growfs.__version__,
        run_growfs,
        documents="README.md",
        flags="--cache-size SIZE --refresh 0",
        fills_by_itself=True,
    ),
    Peer(
        "growfs --exact",
        "lists each file once in a pass, a part at a time",
        "keeps a part of the data set, and fetches the rest in each epoch, before it is read",
        lambda: growfs.__version__,
        partial(run_growfs, more_flags=EXACT),
        documents="docs/whole-epochs.md",
        flags=f"--cache-size SIZE --refresh 0 {' '.join(EXACT)}",
        source="parts",
    ),
    Peer(
        "rclone mount",
        "FUSE, LRU cache of file ranges",
        "evicts files that the epoch still needs",
        lambda: run([rclone_binary(), "version"]).split()[1],
        run_rclone,
        documents="https://rclone.org/commands/rclone_mount/#vfs-file-caching",
        flags=RCLONE_FLAGS,
    ),
    Peer(
        "s3fs-fuse",
        "FUSE, cache of whole files, emptied when the disk is full",
        "evicts files that the epoch still needs",
        lambda: run(["s3fs", "--version"]).splitlines()[0].split("V")[1].split()[0],
        run_s3fs,
        documents="https://manpages.debian.org/bookworm/s3fs/s3fs.1.en.html",
        flags=f"-o {S3FS_FLAGS},use_cache=DIR,ensure_diskfree={S3FS_FREE_MB}",
        unavailable=s3fs_unavailable,
    ),
    Peer(
        "fsspec.fuse",
        "FUSE in Python, no cache on disk",
        "fetches everything in each epoch, one request at a time",
        lambda: environment.version("fsspec"),
        run_fsspec,
        documents="https://filesystem-spec.readthedocs.io/en/latest/features.html#mount-anything-with-fuse",
        flags="foreground=True, threads=False (its defaults)",
        has_cache=False,
        unavailable=lambda: environment.missing_module("fuse"),  # fusepy, which needs libfuse 2
    ),
    Peer(
        "MosaicML Streaming",
        "data set in Python, own format, cache of shards",
        "downloads evicted shards again, in each epoch",
        documents="https://docs.mosaicml.com/projects/streaming/en/stable/dataset_configuration/shard_retrieval.html",
        flags="cache_limit=SIZE, shuffle=True, shuffle_block_size of half of the cache;"
        " StreamingDataLoader of 2 processes",
        source="mosaicml",
        **library("mosaicml-streaming"),
    ),
    Peer(
        "s3torchconnector",
        "data set in Python and Rust, no cache",
        "fetches everything in each epoch",
        documents="https://github.com/awslabs/s3-connector-for-pytorch#readme",
        flags="S3MapDataset, DataLoader of 8 processes",
        source="s3torch",
        has_cache=False,
        **library("s3torchconnector"),
    ),
    Peer(
        "WebDataset, pipe",
        "tar files through `s5cmd cat`, no cache",
        "fetches everything in each epoch",
        documents="https://github.com/webdataset/webdataset#readme",
        flags="pipe:s5cmd cat URL, DataLoader of 8 processes",
        source="webdataset",
        has_cache=False,
        **library("webdataset"),
    ),
    Peer(
        "never evict",
        "keeps the first files, fetches all others each time (boto3, 8 threads)",
        "fetches the files that do not fit, in each epoch",
        documents="https://arxiv.org/abs/2007.06775",
        flags="a reader of this benchmark's own",
        source="keep",
        **library("boto3"),
    ),
    Peer(
        "s5cmd, then train",
        "copies everything first",
        "needs room for all the data; training starts after the copy",
        lambda: run([s5cmd_binary(), "version"]).split("-")[0].split()[0],
        run_s5cmd,
        documents="https://github.com/peak/s5cmd",
        flags="cp (its defaults)",
        has_cache=False,
        fills_by_itself=True,
    ),
    Peer(
        "local disk",
        "everything is on the disk before the clock starts",
        "needs room for all the data; the copy is not counted",
        lambda: os.uname().release,
        run_disk,
        has_cache=False,
    ),
)
QUICK = PEERS[:3]
