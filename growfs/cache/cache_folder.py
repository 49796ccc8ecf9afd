"""The folder of one cache: its name, its format, and the lock that allows only one daemon."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG, S_ISVTX, S_IWGRP, S_IWOTH
from typing import TYPE_CHECKING, Any

from growfs import disk
from growfs.errors import GrowfsError, Unreadable
from growfs.proc import is_killed
from growfs.version import __version__

if TYPE_CHECKING:
    import sqlite3

    from growfs.remote.interface import RemoteSpec

FORMAT = 5
"""The format of everything in a cache's folder, the schema included. Stored in the database (PRAGMA user_version).

A new format takes the next number. Earlier versions of growfs wrote 0 to 4, and 2 for two different schemas.
"""
DATABASE = "catalog.sqlite"
CACHE_TABLES = frozenset({"meta", "node", "resident"})
"""Tables that every format has."""
LOCK = "lock"
ANNOUNCED = "daemon.json"
ANNOUNCED_BYTES_MAX = 1 << 16
TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache of growfs: backups may leave it out.\n"
"""https://bford.info/cachedir/"""
DYING_S = 10.0
"""How long a killed daemon may hold its lock: a thread that is writing to the disk ends only after the write."""
ENDING_S = 60.0
"""How long an unmounted daemon may take to save its state."""
NOTICE_S = 1.0
"""umount(8) returns before the daemon has noticed it."""
ENDING = b"ending\n"
"""Content of the lock file while a daemon saves its state."""
POLL_S = 0.02
ALL_USERS = (1 << 32) - 1
"""The number of users that the initial user namespace knows (user_namespaces(7))."""


class CacheInUse(GrowfsError):
    """Another daemon uses the cache with this path. `daemon.running` knows how."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: in use by another growfs")
        self.path = path


@dataclass(slots=True)
class CacheFolder:
    """Owns the lock on a cache while the process lives."""

    path: Path
    lock: int
    fresh: bool
    """Whether this process created the folder."""

    @property
    def partial(self) -> Path:
        """The folder that workers write to."""
        return self.path / "partial"

    @property
    def database(self) -> Path:
        """The database file."""
        return self.path / DATABASE

    @property
    def log(self) -> Path:
        """The log file."""
        return self.path / "log"

    def empty(self) -> None:
        """Remove everything in the folder: a cache of another format has to be filled again."""
        # The database holds the format, so it goes last. SQLite ignores a write-ahead log without a database.
        names = sorted(set(os.listdir(self.path)) - {LOCK}, key=lambda name: name.startswith(DATABASE))
        for path in map(self.path.joinpath, names):
            if path.is_dir():
                disk.remove_tree("EMPTY", path)
            else:
                disk.unlink("EMPTY", path)

    def announce(self, url: str, mountpoint: Path) -> None:
        """Record which daemon uses the cache."""
        daemon = {
            "pid": os.getpid(),
            "mountpoint": str(mountpoint),
            "url": url,
            "started": time.time(),
            "version": __version__,
            "format": FORMAT,
        }
        disk.write_text("ANNOUNCE", self.path / ANNOUNCED, json.dumps(daemon) + "\n")

    def note_end(self) -> None:
        """Note that the daemon is about to end, so that another mount waits for it."""
        with suppress(OSError):
            os.pwrite(self.lock, ENDING, 0)

    def release(self) -> None:
        """Release the lock."""
        with suppress(OSError):  # only the lock counts
            disk.unlink("WITHDRAW", self.path / "control.sock")
            disk.unlink("WITHDRAW", self.path / ANNOUNCED)  # last: `growfs umount` returns when it is gone
        os.close(self.lock)

    def undo(self, keeps_log: bool) -> Path | None:
        """Remove a folder that was created for a mount that failed. keeps_log: keep its log alongside it.

        Returns the path of the log that was kept.
        """
        log = self.log
        with suppress(OSError):  # the user sees why the mount failed
            if self.fresh and keeps_log:
                log = self.path.with_name(f"{self.path.name}.log")
                disk.rename("UNDO", self.log, log)
            if self.fresh:
                disk.remove_tree("UNDO", self.path)
        return log if keeps_log and log.exists() else None


def open_cache(cache_dir: Path, spec: RemoteSpec, url: str) -> CacheFolder:
    """Open and lock the cache of a remote below cache_dir. Raises CacheInUse, or another GrowfsError."""
    cache_dir = Path(os.path.realpath(cache_dir.expanduser()))  # the target of a link may change later
    path = cache_dir / folder_name(spec, url)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_above(cache_dir)
        with _opened(cache_dir) as directory:
            _check_owner(cache_dir, os.fstat(directory), shared=True)
            if not _is_tagged(cache_dir):
                disk.write_text("TAG", cache_dir / "CACHEDIR.TAG", TAG)
            fresh = _make_folder(path.name, directory)
            with _opened(path, path.name, directory) as folder:
                _check_owner(path, os.fstat(folder))
                _check_content(path, folder)
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                lock = os.open(LOCK, flags, 0o600, dir_fd=folder)
    except OSError as error:
        raise unusable(cache_dir, error) from None
    began = time.monotonic()
    while not _try_lock(lock):
        if time.monotonic() - began > _patience_s(path, lock):
            os.close(lock)
            raise CacheInUse(path)
        time.sleep(POLL_S)
    os.ftruncate(lock, 0)
    return CacheFolder(path, lock, fresh)


def check_cache(cache_dir: Path, name: str) -> None:
    """Raise the GrowfsError with which `open_cache` would refuse the existing state. Changes nothing; the cache need
    not exist.
    """
    cache_dir = Path(os.path.realpath(cache_dir))
    path = cache_dir / name
    try:
        _check_above(cache_dir)
        with suppress(FileNotFoundError), _opened(cache_dir) as directory:
            _check_owner(cache_dir, os.fstat(directory), shared=True)
            with _opened(path, name, directory) as folder:
                _check_owner(path, os.fstat(folder))
                _check_content(path, folder)
                if is_in_use(path):
                    raise CacheInUse(path)
    except OSError as error:
        raise unusable(cache_dir, error) from None


def unusable(cache_dir: Path, error: OSError) -> GrowfsError:
    """The error that explains why a folder cannot be the cache directory."""
    reason = "is not a folder" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror
    return GrowfsError(f"{error.filename or cache_dir}: {reason}; pass a folder that you can write to: --cache-dir")


@contextmanager
def _opened(path: Path, name: str | None = None, parent: int | None = None) -> Iterator[int]:
    """The descriptor of a folder. With parent, the name is looked up there, and must not be a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags) if name is None else os.open(name, flags | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        yield fd
    finally:
        os.close(fd)


def _make_folder(name: str, parent: int) -> bool:
    """Create a folder; return False if it exists."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return False
    return True


def _check_content(path: Path, folder: int) -> None:
    """Raise GrowfsError unless everything directly in a cache's folder belongs to the user and is not a link.

    Otherwise another user could make the daemon delete and overwrite files elsewhere.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise GrowfsError(f"{path / entry.name}: is a link, which growfs did not make; delete it")
            _check_owner(path / entry.name, entry.stat(follow_symlinks=False))


def _check_above(cache_dir: Path) -> None:
    """Raise GrowfsError if another user can replace the cache directory. No part of its path is a link.

    In a user namespace, an owner from outside may be root or another user, and they cannot be told apart: both are
    trusted.
    """
    trusted = {os.geteuid(), 0, *_unmapped()}
    for folder in cache_dir.parents:
        with suppress(FileNotFoundError):
            stat = folder.stat()
            if stat.st_uid not in trusted:
                raise GrowfsError(
                    f"{cache_dir}: lies below {folder} of another user (uid {stat.st_uid}), who could replace it and"
                    " make growfs delete other files; pass another --cache-dir"
                )
            if _others_may_write(stat, shared=True):
                raise GrowfsError(
                    f"{cache_dir}: lies below {folder}, where other users could replace it and make growfs delete other"
                    f" files; pass another --cache-dir, or protect it from other users: chmod +t {folder}"
                )


def _unmapped() -> tuple[int, ...]:
    """The owner that the kernel shows for all users that this user namespace does not know (user_namespaces(7))."""
    mapped = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return () if mapped == ALL_USERS else (int(Path("/proc/sys/kernel/overflowuid").read_text()),)


def _check_owner(path: Path, stat: os.stat_result, shared: bool = False) -> None:
    """Raise GrowfsError if a user other than root and the mounting user can replace what growfs reads and deletes.

    shared: also accept a folder in which all users may create files, but not remove those of others (such as /tmp).
    """
    if stat.st_uid not in (os.geteuid(), 0):
        raise GrowfsError(
            f"{path}: belongs to another user (uid {stat.st_uid}), who could make growfs delete other files; pass"
            " another --cache-dir, or delete it"
        )
    if _others_may_write(stat, shared):
        raise GrowfsError(
            f"{path}: other users may write to it, and could make growfs delete other files; chmod go-w {path}"
        )


def _others_may_write(stat: os.stat_result, shared: bool) -> bool:
    """Whether others may write to a folder. The groups of this process count as trusted."""
    writers = S_IWOTH if stat.st_gid in (os.getegid(), *os.getgroups()) else S_IWGRP | S_IWOTH
    return bool(stat.st_mode & writers) and not (shared and stat.st_mode & S_ISVTX)


def folder_name(spec: RemoteSpec, url: str) -> str:
    """A readable name, plus a hash of everything that distinguishes remotes. url: without secrets."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", url.partition("://")[2] or url).strip("-")[:60]
    place = re.sub("^(file|local)://", "", url).rstrip("/")
    identity: list[object] = [place, spec.endpoint_url, spec.manifest, *([str(spec.members)] if spec.members else [])]
    if made := spec.producer:  # different producers make different files from the same remote
        identity += [str(made.function), made.rename, made.seed]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return f"{slug}-{digest[:8]}" if slug else digest[:8]


def is_in_use(path: Path) -> bool:
    """Whether a daemon holds the lock of a cache."""
    try:
        lock = _open_file(path / LOCK, os.O_RDONLY)  # a failing disk may have become read-only
    except PermissionError:
        return True  # another user's cache; assume so
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _patience_s(path: Path, lock: int) -> float:
    """How long to wait for the daemon that holds a lock to end."""
    if os.pread(lock, len(ENDING), 0) == ENDING:
        return ENDING_S
    return DYING_S if _is_dying(path) else NOTICE_S


def _is_dying(path: Path) -> bool:
    """Whether the daemon that uses a cache was killed, or is gone by now."""
    daemon = daemon_of(path)
    return bool(daemon) and (is_killed(daemon["pid"]) or not Path(f"/proc/{daemon['pid']}").exists())


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock a cache for the block so that no daemon starts with it; yields False if one already holds the lock.

    Raises GrowfsError if this user may not lock it.
    """
    try:
        lock = _open_file(path / LOCK, os.O_RDWR)
    except OSError as error:
        raise GrowfsError(f"{path}: {error.strerror}; run the command as the user who mounts it, or as root") from None
    try:
        yield _try_lock(lock)
    finally:
        os.close(lock)


def daemon_of(path: Path) -> dict[str, Any]:
    """The daemon that uses a cache, if it is recorded: pid, mountpoint, url, started, version, format.

    The owner of the cache may have written anything there, so never end a process because of it.
    """
    try:
        fd = _open_file(path / ANNOUNCED, os.O_RDONLY)
        try:
            daemon = json.loads(os.read(fd, ANNOUNCED_BYTES_MAX))
        finally:
            os.close(fd)
    except (OSError, ValueError, RecursionError):
        return {}
    return daemon if isinstance(daemon, dict) and isinstance(daemon.get("mountpoint"), str) else {}


def _open_file(path: Path, flags: int) -> int:
    """The descriptor of a regular file. Raises OSError for anything else: opening another user's FIFO would block."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a file")
    return fd


def _is_tagged(cache_dir: Path) -> bool:
    tag = cache_dir / "CACHEDIR.TAG"
    return tag.exists() and tag.stat().st_size > 0  # empty after a power loss


def other_format(cache: Path) -> str:
    """A message about a cache of another format; empty if the format is current, or there is no database yet.

    Creates none of SQLite's files. Raises Unreadable, and GrowfsError if it is not a cache of growfs.
    """
    import sqlite3  # most commands do not need it

    database = cache.absolute() / DATABASE
    if not os.path.exists(database):  # Path.exists raises for another user's cache that is not accessible
        return ""
    # The write-ahead log left by a crash counts as well. Without a log, there is no writer.
    how = "mode=ro" if database.with_name(f"{DATABASE}-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?{how}", uri=True)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            (number,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise unreadable(database, error) from error
    if not tables:
        return ""
    if not tables >= CACHE_TABLES:
        raise GrowfsError(f"{database}: is not the database of a growfs cache; move it away, or pass --cache-dir")
    return "" if number == FORMAT else f"{cache}: its format is {number}, and that of this growfs is {FORMAT}"


def check_format(cache: Path) -> None:
    """Raise GrowfsError if a cache cannot be read because it has another format or is damaged."""
    if other := other_format(cache):
        raise GrowfsError(f"{other}; the next mount empties it and fills it again")


def unreadable(path: Path, error: sqlite3.DatabaseError) -> Unreadable:
    """The error for a database that cannot be read. A failing disk may make it look damaged."""
    return Unreadable(
        f"{path}: {error}; look at the cache's disk (dmesg); if it is well, delete {path.parent} and mount again"
    )
