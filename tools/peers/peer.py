"""A peer is a way for a training program to read a bucket. PEERS describes each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import growfs
from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.measure import ACCESS_KEY, SECRET_KEY, run
from tools.benchmarks.mounts import RCLONE_TUNED, foreground, mounted, rclone_limit, rclone_mounted
from tools.benchmarks.servers import rclone_binary, s5cmd_binary
from tools.peers import environment

BUCKET = "bucket"
"""The only bucket of the server. Its folder `shards` has tar files; the other formats are alongside it (data.py)."""


@dataclass(frozen=True, slots=True)
class Room:
    """The data that a peer reads, and the place where it works.

    endpoint: of the server, behind a link. plain: the same files, as a folder on the local disk. folder: its own,
    initially empty. cache_bytes: the space that its cache may take. group: counts its daemons. prefix: the folder of
    the bucket that is read.
    """

    endpoint: str
    plain: Path
    folder: Path
    cache_bytes: int
    group: Cgroup
    bucket: str = BUCKET
    prefix: str = "shards"

    @property
    def mountpoint(self) -> Path:
        return self.folder / "mnt"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def mount(self, command: list[object]) -> AbstractContextManager[None]:
        return foreground(self.group.command(command), self.mountpoint)


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to read a bucket.

    name, about, note: for the tables; the note explains its figures. version: that runs here. running: starts it, and
    stops it at the block's end; yields parameters for the programs: `folder`, where it mounts. documents: the source of
    its flags for reads. flags: the flags or parameters that it runs with, apart from those common to all runs. source:
    of trainer.py, that reads with it. has_cache: whether it has a cache whose size can be limited; if not, the size of
    the cache does not matter. fills_by_itself: whether it downloads without being read. convert: writes the dataset in
    its own format, if it has one, before the clock starts: the endpoint of the server, and the bucket as a folder.
    unavailable: the reason why it cannot run on this machine, or None if it can.
    """

    name: str
    about: str
    note: str
    version: Callable[[], str]
    running: Callable[[Room], AbstractContextManager[dict[str, Any]]]
    documents: str = ""
    flags: str = ""
    source: str = "files"
    has_cache: bool = True
    fills_by_itself: bool = False
    convert: Callable[[str, Path], None] | None = None
    unavailable: Callable[[], str | None] = lambda: None


# Peers that show a folder.


@contextmanager
def run_growfs(room: Room, more_flags: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """A mount that returns when training can start. It need not list the remote again, which does not change."""
    flags = ["--endpoint-url", room.endpoint, "--cache-size", room.cache_bytes, "--refresh", 0, *more_flags]
    url = f"s3://{room.bucket}/{room.prefix}"
    with mounted(url, room.folder, *flags, start=lambda words: run(room.group.command(words))) as mount:
        yield {"folder": str(mount.mountpoint), "cached": str(mount.files)}


def with_flags(growfs: Peer, flags: Sequence[str]) -> Peer:
    """growfs with more flags."""
    return replace(growfs, running=partial(run_growfs, more_flags=flags))


EXACT = ("--exact",)


@contextmanager
def run_disk(room: Room) -> Iterator[dict[str, Any]]:
    yield {"folder": str(room.plain / room.prefix)}


def shown(flags: dict[str, str]) -> str:
    return " ".join(f"--{name}" if value == "true" else f"--{name} {value}" for name, value in flags.items())


@contextmanager
def run_rclone(room: Room) -> Iterator[dict[str, Any]]:
    """rclone mount with a limited cache."""
    path = f"{room.bucket}/{room.prefix}"
    with rclone_mounted(room.endpoint, path, room.folder, room.cache_bytes, room.group) as mountpoint:
        yield {"folder": str(mountpoint), "cached": str(room.cache)}


S3FS_FLAGS = "use_path_request_style,enable_noobj_cache,stat_cache_expire=86400,multireq_max=20"
S3FS_FREE_MB = 4
"""s3fs keeps this much free; the file system of the cache is larger by that."""


def missing_with_small_disk(program: str | Path) -> str | None:
    """The reason why a program whose cache needs a small disk cannot run, or None."""
    if os.geteuid():
        return "limiting its cache takes a file system of its own, and so root"
    return environment.missing_program(program)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A new folder on a file system of this many bytes, for a cache that only the free space limits."""
    folder.mkdir()
    run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder])
    try:
        yield
    finally:
        run(["umount", "-l", folder])


@contextmanager
def run_s3fs(room: Room) -> Iterator[dict[str, Any]]:
    """s3fs-fuse. Its cache has no limit of its own, but is emptied if there is no free space."""
    keys = room.folder / "keys"
    keys.touch(0o600)
    keys.write_text(f"{ACCESS_KEY}:{SECRET_KEY}")
    flags = f"url={room.endpoint},passwd_file={keys},use_cache={room.cache},ensure_diskfree={S3FS_FREE_MB}"
    source = f"{room.bucket}:/{room.prefix}"
    command = ["s3fs", source, room.mountpoint, "-f", "-o", f"{S3FS_FLAGS},{flags}"]
    with small_disk(room.cache, room.cache_bytes + (S3FS_FREE_MB << 20)), room.mount(command):
        yield {"folder": str(room.mountpoint), "cached": str(room.cache)}


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


JUICEFS_FLAGS = {
    **dict.fromkeys(("read-only", "hide-internal", "no-bgjob", "no-usage-report", "no-syslog"), "true"),
    "backup-meta": "0",
    **dict.fromkeys(("open-cache", "attr-cache", "entry-cache", "dir-entry-cache"), "24h"),
    "free-space-ratio": "0.01",
}


def juicefs_metadata(bucket: Path) -> str:
    """The URL of the metadata of the JuiceFS file system with the same files as a bucket, which is a folder."""
    return f"sqlite3://{bucket.parents[1] / 'juicefs.db'}"


def juicefs_convert(endpoint: str, bucket: Path) -> None:
    """Copy a bucket into a new JuiceFS file system, whose data is in another bucket."""
    data, metadata = bucket.with_name("juicefs"), juicefs_metadata(bucket)
    data.mkdir()
    keys = ["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY, "--trash-days", 0]
    store = ["--storage", "s3", "--bucket", f"{endpoint}/{data.name}", *keys]
    run([environment.JUICEFS, "format", *store, metadata, "files"])
    run([environment.JUICEFS, "sync", "--exclude", "mds/", f"{bucket}/", "jfs://METADATA/"], METADATA=metadata)


@contextmanager
def run_juicefs(room: Room, eviction: str) -> Iterator[dict[str, Any]]:
    """JuiceFS with its metadata in SQLite on the local disk. Without eviction it ignores --cache-size and caches until
    the disk is full, so its disk is as small as the cache.
    """
    limit = {"cache-size": f"{room.cache_bytes >> 10}K", "cache-eviction": eviction}
    places = {"cache-dir": f"{room.cache}", "subdir": f"/{room.prefix}", "bucket": f"{room.endpoint}/juicefs"}
    flags = JUICEFS_FLAGS | limit | places | {"metrics": "127.0.0.1:0"}
    words = [f"--{name}={value}" for name, value in flags.items()]
    disk = small_disk(room.cache, room.cache_bytes) if eviction == "none" else nullcontext()
    with disk, room.mount([environment.JUICEFS, "mount", *words, juicefs_metadata(room.plain), room.mountpoint]):
        yield {"folder": str(room.mountpoint)}


def juicefs(eviction: str) -> dict[str, Any]:
    """The common part of both peers that are JuiceFS."""
    missing = missing_with_small_disk if eviction == "none" else environment.missing_program
    return {
        "version": lambda: run([environment.JUICEFS, "version"]).split()[2].partition("+")[0],
        "running": partial(run_juicefs, eviction=eviction),
        "documents": "https://juicefs.com/docs/community/guide/cache/",
        "flags": shown(JUICEFS_FLAGS | {"cache-size": "SIZE", "cache-eviction": eviction}),
        "convert": juicefs_convert,
        "unavailable": partial(missing, environment.JUICEFS),
    }


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
        "trains on each fetched file several times, so it sees fewer distinct samples in an epoch",
        lambda: growfs.__version__,
        run_growfs,
        documents="README.md",
        flags="--cache-size SIZE --refresh 0",
        fills_by_itself=True,
    ),
    Peer(
        "growfs --exact",
        "lists each file once in a pass, a part at a time",
        "keeps a part of the dataset, and fetches the rest in each epoch, before it is read",
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
        flags=shown(RCLONE_TUNED | rclone_limit("SIZE")),
    ),
    Peer(
        "s3fs-fuse",
        "FUSE, cache of whole files, emptied when the disk is full",
        "evicts files that the epoch still needs",
        lambda: run(["s3fs", "--version"]).splitlines()[0].split("V")[1].split()[0],
        run_s3fs,
        documents="https://manpages.debian.org/bookworm/s3fs/s3fs.1.en.html",
        flags=f"-o {S3FS_FLAGS},use_cache=DIR,ensure_diskfree={S3FS_FREE_MB}",
        unavailable=partial(missing_with_small_disk, "s3fs"),
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
        "JuiceFS",
        "FUSE, own format, cache of blocks: evicts the older of two random ones",
        "evicts blocks that the epoch still needs; the import of the data is not counted",
        **juicefs("2-random"),
    ),
    Peer(
        "JuiceFS, no eviction",
        "the same, but keeps the first blocks, until its disk is full: one of the cache's size",
        "fetches the blocks that do not fit, in each epoch; the import of the data is not counted",
        **juicefs("none"),
    ),
    Peer(
        "MosaicML Streaming",
        "dataset in Python, own format, cache of shards",
        "downloads evicted shards again, in each epoch",
        documents="https://docs.mosaicml.com/projects/streaming/en/stable/dataset_configuration/shard_retrieval.html",
        flags="cache_limit=SIZE, shuffle=True, shuffle_block_size of half of the cache;"
        " StreamingDataLoader of 2 processes",
        source="mosaicml",
        **library("mosaicml-streaming"),
    ),
    Peer(
        "s3torchconnector",
        "dataset in Python and Rust, no cache",
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
        "Multi-Storage Client, mru",
        "client in Python, cache of whole files that evicts the most recently used",
        "fetches the files that do not fit, in each epoch; makes room once a second, so its cache is larger in between",
        documents="https://nvidia.github.io/multi-storage-client/user_guide/cache.html",
        flags="eviction_policy=mru, size=SIZE, refresh_interval=1, check_source_version=false; 8 threads",
        source="msc_mru",
        **library("multi-storage-client"),
    ),
    Peer(
        "Multi-Storage Client, no eviction",
        "the same, but keeps everything, whatever its size",
        "needs room for all the data; fetches each file once",
        documents="https://nvidia.github.io/multi-storage-client/user_guide/cache.html",
        flags="eviction_policy=no_eviction, check_source_version=false; 8 threads",
        source="msc_no_eviction",
        has_cache=False,
        **library("multi-storage-client"),
    ),
    Peer(
        "MONAI SmartCacheDataset",
        "dataset in Python, a window of the data in memory, which moves in each epoch",
        "trains on each fetched file several times, but waits for its cache to fill, and then for the replacements;"
        " needs memory instead of a disk",
        documents="https://docs.monai.io/en/stable/data.html#smartcachedataset",
        flags="cache_num of SIZE with the replacements, replace_rate=0.2, 8 threads, copy_cache=False;"
        " Lambda of a function that fetches a file with boto3",
        source="smartcache",
        **library("monai"),
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
