"""The cache's disk: its file system, how much room it has, and how fast it is."""

from __future__ import annotations

import fcntl
import mmap
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import IO

from growfs import disk
from growfs.cache.cache_folder import DATABASE, CacheInUse, check_cache, other_format, unusable
from growfs.daemon.options import Options
from growfs.daemon.running import in_use
from growfs.errors import DiskFull, GrowfsError
from growfs.extensions.doctor.check import SCRATCH, Check, Disk, Level, ok, warning
from growfs.fuse.mounting import file_system, is_remote
from growfs.units import flag_size, format_size

BLOCK_BYTES = 4 << 20


class CacheDisk:
    """Checks the disk for a cache with these options. name: of the cache's folder; None if the remote is unknown.

    folder: the cache directory, or the existing part of its path. usable, disk: the results of `checks`. spare: bytes
    that may be written temporarily.
    """

    def __init__(self, options: Options, name: str | None) -> None:
        self._options, self._name = options, name
        path = options.cache_dir
        self.folder = next(each for each in (path, *path.parents) if os.path.lexists(each))
        self.usable = False
        self.disk = Disk(0)
        self.spare = 0

    def checks(self, seconds: float) -> Iterator[Check]:
        """All checks. seconds: for writing, and again for reading. `disk` is set afterwards, if it is `usable`."""
        cache_dir = self._options.cache_dir
        try:
            if self._name is not None:
                check_cache(cache_dir, self._name)
            with tempfile.TemporaryFile(dir=self.folder):  # it never has a name, so it cannot be left behind
                pass
        except CacheInUse as error:
            yield Check.failed("folder", in_use(error.path))
            return
        except GrowfsError as error:
            yield Check.failed("folder", error)
            return
        except OSError as error:
            yield Check.failed("folder", unusable(self.folder, OSError(error.errno, error.strerror)))
            return
        yield ok("folder", str(cache_dir) + ("" if self.folder == cache_dir else ", to be created"))
        if self._name is not None and (found := _check_format(cache_dir / self._name)):
            yield found
        yield self._check_file_system()
        space = self._check_space()
        yield space
        yield self._check_links()
        self.usable = space.level is not Level.FAILURE
        if self.usable and seconds:
            yield self._check_speed(seconds)

    def _check_file_system(self) -> Check:
        kind, mountpoint = file_system(self.folder)
        text = f"{kind} on {mountpoint}"
        elsewhere = "put --cache-dir on a local disk: ext4 or XFS"
        if kind == "overlay":
            text = f"{text}: the writable layer of a container; it is slow, and is deleted with the container"
            return warning("file system", text, "put --cache-dir on a volume")
        if kind in ("tmpfs", "ramfs"):
            text = f"{text}: in memory; cached files use memory, and are lost on restart"
            return warning("file system", text, f"{elsewhere}, unless this is intended")
        if is_remote(kind):
            return warning("file system", f"{text}: not a local disk", elsewhere)
        return ok("file system", text)

    def _check_space(self) -> Check:
        options = self._options
        free, used = disk.free_bytes(self.folder), self._used_bytes()
        wanted = options.cache_size.of(free + used)
        room = min(wanted, free + used - options.min_free)
        self.disk, self.spare = Disk(max(0, room)), max(0, free - options.min_free)
        state = f"{format_size(free)} free" + (f", {format_size(used)} cached already" if used else "")
        if room < disk.BLOCK:
            kept = f"and --min-free keeps {format_size(options.min_free)} for other programs"
            remedy = "delete something there, or pass another --cache-dir, or a smaller --min-free"
            return Check(Level.FAILURE, "space", f"no room for a cache: {state}, {kept}", remedy)
        if wanted > room:
            text = f"{state}: the cache stops growing at {format_size(room)}, below its size of {format_size(wanted)}"
            return warning("space", text, f"pass --cache-size {flag_size(room)}, or free some space")
        files = os.statvfs(self.folder)
        if files.f_files and files.f_favail < 10_000:
            text = f"room for only {files.f_favail:,} more files (inodes)"
            return warning("space", text, "pass a --cache-dir on a file system with more inodes (mkfs -i)")
        return ok("space", f"{state}; the cache may use {format_size(room)}")

    def _used_bytes(self) -> int:
        """The size of the existing cache. Its database is read as is, without creating SQLite's files."""
        if self._name is None:
            return 0
        database = self._options.cache_dir / self._name / DATABASE
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"{database.as_uri()}?immutable=1", uri=True)) as catalog:
            return int(catalog.execute("SELECT coalesce(sum(bytes), 0) FROM resident").fetchone()[0])
        return 0

    def _check_links(self) -> Check:
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=self.folder) as folder:
            try:
                os.link(tempfile.mkstemp(dir=folder)[1], Path(folder, "link"))
            except OSError as error:
                text = f"not supported ({error.strerror}), so a cached file that changes is not replaced"
                return warning("hard links", text, "put --cache-dir on a local disk: ext4 or XFS")
        return ok("hard links", "work")

    def _check_speed(self, seconds: float) -> Check:
        """Write and read a file without a name, bypassing the page cache if the file system can."""
        most = min(self.spare // 2, self.disk.room, 8 << 30)
        if most < BLOCK_BYTES:
            return warning("speed", "not measured: too little space", "see --cache-size, or delete something there")
        try:
            with tempfile.TemporaryFile(dir=self.folder, buffering=0) as file:
                direct = _bypass_page_cache(file.fileno())
                written, write = _write(file, most, seconds, direct)
                read = _read(file, written, seconds, direct)
        except OSError as error:
            if isinstance(disk.cannot_write(error), DiskFull):
                return warning("speed", f"not measured: {error.strerror}", "see --cache-size; there may be a quota")
            return Check.failed("speed", unusable(self.folder, error))
        self.disk = Disk(self.disk.room, write, read)
        return ok("speed", f"writes {format_size(write)}/s, reads {format_size(read)}/s, one file at a time")


def _check_format(cache: Path) -> Check | None:
    """Whether a mount would continue with the existing cache."""
    try:
        other = other_format(cache)
    except GrowfsError as error:
        return Check.failed("catalog", error)
    text = f"{other}; a mount empties and refills it"
    return warning("catalog", text, "to keep the cached files, pass another --cache-dir") if other else None


def _bypass_page_cache(fd: int) -> bool:
    """Switch direct input and output on (open(2), O_DIRECT); returns whether the file system supports it."""
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
        return True
    return False


def _write(file: IO[bytes], most: int, seconds: float, direct: bool) -> tuple[int, float]:
    """(bytes written, bytes per second). Includes flushing the disk's own cache."""
    block = mmap.mmap(-1, BLOCK_BYTES)  # page-aligned, as required by O_DIRECT
    block[:] = os.urandom(BLOCK_BYTES)  # some file systems compress
    written, began = 0, time.monotonic()
    while written + BLOCK_BYTES <= most and (not written or time.monotonic() < began + seconds):
        written += os.write(file.fileno(), block)
        if not direct:
            os.fdatasync(file.fileno())  # after each block, since the page cache takes gigabytes and writes them later
    os.fdatasync(file.fileno())
    return written, written / (time.monotonic() - began)


def _read(file: IO[bytes], size: int, seconds: float, direct: bool) -> float:
    """Bytes per second."""
    if not direct:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    block = mmap.mmap(-1, BLOCK_BYTES)
    read, began = 0, time.monotonic()
    while read < size and (not read or time.monotonic() < began + seconds):
        read += os.preadv(file.fileno(), [block], read)
    return read / (time.monotonic() - began)
