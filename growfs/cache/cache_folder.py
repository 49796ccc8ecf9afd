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
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from growfs import disk, trust
from growfs.errors import GrowfsError, Unreadable
from growfs.proc import is_killed
from growfs.trust import OpenFolder
from growfs.version import __version__

if TYPE_CHECKING:
    import sqlite3

    from growfs.remote.interface import RemoteSpec

FORMAT = 6
"""The format of everything in a cache's folder, the schema included. Stored in the database (PRAGMA user_version).

A new format takes the next number. Earlier versions of growfs wrote 0 to 5, and 2 for two different schemas.
"""
DATABASE = "catalog.sqlite"
LOCK = "lock"
URL = "url.json"
"""The file with the URL of the remote, without secrets, for people."""
ANNOUNCED = "daemon.json"
NOTICE_S = 1.0
"""umount(8) returns before the daemon has noticed it."""
ENDING = b"ending\n"
"""Content of the lock file while a daemon saves its state."""
REMEDY = "pass another --cache-dir"


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

    def is_whole(self) -> bool:
        """Whether the folder still has the lock of this process; restores its folder for downloads if so.

        If others have deleted it, another daemon may use the same path by now.
        """
        try:
            lock = (self.path / LOCK).stat()
            is_ours = os.path.samestat(lock, os.fstat(self.lock))
            if is_ours and time.time() - lock.st_mtime > 3600.0:  # some programs delete old files
                os.utime(self.lock)
            if is_ours and (self.path / "files").exists():  # otherwise the cache is about to go
                disk.make_folder("SWEEP_PARTIAL", self.partial)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # the disk fails or is full, which is noticed elsewhere
        return is_ours

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
        disk.write_text("ANNOUNCE", self.path / URL, json.dumps(url))
        disk.write_text("ANNOUNCE", self.path / ANNOUNCED, json.dumps(daemon) + "\n")

    def note_end(self) -> None:
        """Note that the daemon is about to end, so that another mount waits for it."""
        with suppress(OSError):
            os.pwrite(self.lock, ENDING, 0)

    def release(self) -> None:
        """Release the lock."""
        with suppress(OSError):  # only the lock counts
            if self.is_whole():
                disk.unlink("WITHDRAW", self.path / "control.sock")
                disk.unlink("WITHDRAW", self.path / ANNOUNCED)  # last: `growfs umount` returns when it is gone
        os.close(self.lock)

    def undo(self, keeps_log: bool) -> Path | None:
        """Release the lock after a mount that failed, and before that remove a folder that was created for it.

        keeps_log: keep the log alongside the folder. Returns the path of the log that was kept.
        """
        log = self.log
        with suppress(OSError):  # the user sees why the mount failed
            if self.fresh and keeps_log:
                log = self.path.with_name(f"{self.path.name}.log")
                disk.rename("UNDO", self.log, log)
            if self.fresh:
                self.empty()  # whoever creates the lock's file again must find nothing else that is about to go
                disk.remove_tree("UNDO", self.path)
        self.release()
        return log if keeps_log and log.exists() else None


def open_cache_dir(cache_dir: Path, makes: bool) -> OpenFolder:
    """Open a cache directory. makes: create it, if it is missing. Raises GrowfsError, or OSError with the path."""
    return trust.open_folder(cache_dir.expanduser(), REMEDY, shared=True, makes=0o700 if makes else None)


def open_cache(cache_dir: Path, spec: RemoteSpec, url: str) -> CacheFolder:
    """Open and lock the cache of a remote below cache_dir. Raises CacheInUse, or another GrowfsError."""
    try:
        with open_cache_dir(cache_dir, makes=True) as directory:
            if not _is_tagged(directory.path):
                text = (
                    "Signature: 8a477f597d28d172789f06886806bc55\n"  # https://bford.info/cachedir/
                    "# This folder is a cache of growfs: backups may leave it out.\n"
                )
                disk.write_text("TAG", directory.path / "CACHEDIR.TAG", text)
            with trust.open_below(directory, folder_name(spec, url), REMEDY, makes=0o700) as folder:
                trust.check_entries(folder, REMEDY)
                path, fresh = folder.path, folder.fresh
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                lock = os.open(LOCK, flags, 0o600, dir_fd=folder.fd)
    except OSError as error:
        raise unusable(cache_dir, error) from None
    began = time.monotonic()
    while not _try_lock(lock):
        if time.monotonic() - began > _patience_s(path, lock):
            os.close(lock)
            raise CacheInUse(path)
        time.sleep(0.02)
    os.ftruncate(lock, 0)
    cache = CacheFolder(path, lock, fresh)
    if not cache.is_whole():  # the daemon that had the lock has removed the folder
        os.close(lock)
        return open_cache(cache_dir, spec, url)
    return cache


def check_cache(cache_dir: Path, name: str) -> None:
    """Raise the GrowfsError with which `open_cache` would refuse the existing state. Changes nothing; the cache need
    not exist.
    """
    try:
        with (
            suppress(FileNotFoundError),
            open_cache_dir(cache_dir, makes=False) as directory,
            trust.open_below(directory, name, REMEDY) as folder,
        ):
            trust.check_entries(folder, REMEDY)
            if is_in_use(folder.path):
                raise CacheInUse(folder.path)
    except OSError as error:
        raise unusable(cache_dir, error) from None


def unusable(cache_dir: Path, error: OSError) -> GrowfsError:
    """The error that explains why a folder cannot be the cache directory."""
    reason = "is not a folder" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror
    path = Path(error.filename or cache_dir)
    above = f"{cache_dir}: " if path in cache_dir.parents else ""
    return GrowfsError(f"{above}{path}: {reason}; pass a folder that you can write to: --cache-dir")


def folder_name(spec: RemoteSpec, url: str) -> str:
    """A readable name, plus a hash of everything that distinguishes remotes. url: without secrets."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", url.partition("://")[2] or url).strip("-")[:60]
    place = re.sub("^(file|local)://", "", url).rstrip("/")
    digest = hashlib.sha256(json.dumps([place, *spec.identity]).encode()).hexdigest()
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
        return 60.0  # it is saving its state
    # A thread of a killed daemon that is writing to the disk, and has the lock, ends only after the write.
    return 10.0 if _is_dying(path) else NOTICE_S


def _is_dying(path: Path) -> bool:
    """Whether the daemon that uses a cache was killed, or is gone by now."""
    daemon = daemon_of(path)
    return bool(daemon) and (is_killed(daemon["pid"]) or not Path(f"/proc/{daemon['pid']}").exists())


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock a cache for the block so that no daemon starts with it; yields False if one already holds the lock.

    Raises GrowfsError if this user may not lock it, or if another user could make growfs remove files elsewhere.
    """
    try:
        with trust.open_folder(path, "choose a cache of your own") as folder:
            lock = _open_file(folder.here / LOCK, os.O_RDWR)
    except OSError as error:
        raise GrowfsError(f"{path}: {error.strerror}; run the command as the user who mounts it, or as root") from None
    try:
        yield _try_lock(lock)
    finally:
        os.close(lock)


def daemon_of(path: Path) -> dict[str, Any]:
    """The daemon that uses a cache, if it is recorded: pid and mountpoint; perhaps url, version, format.

    The owner of the cache may have written anything there: what a daemon could not have written counts as nothing, and
    the rest may be false, so never end a process because of it.
    """
    try:
        daemon = _read_json(path / ANNOUNCED)
        return daemon if _is_possible(daemon) else {}
    except ValueError:  # a path that cannot be encoded
        return {}


def url_of(path: Path) -> str | None:
    """The URL of the remote of a cache, without secrets; None if it is not recorded."""
    url = _read_json(path / URL)
    return url if isinstance(url, str) else None


def _read_json(path: Path) -> Any:
    """What a small file of a cache contains; None if it cannot be read. Its owner may have put anything there."""
    try:
        fd = _open_file(path, os.O_RDONLY)
        try:
            return json.loads(os.read(fd, 1 << 16))
        finally:
            os.close(fd)
    except (OSError, ValueError, RecursionError):
        return None


def _is_possible(daemon: object) -> bool:
    """Whether a daemon may have announced this. Raises ValueError for what cannot be a path."""
    if not isinstance(daemon, dict) or not daemon.keys() >= {"pid", "mountpoint"}:
        return False
    types = {"pid": int, "mountpoint": str, "url": str, "version": str, "format": int}
    if any(type(value) is not types.get(key, type(value)) for key, value in daemon.items()):
        return False
    mountpoint = os.fsencode(daemon["mountpoint"])
    pid_max = 1 << 22  # PID_MAX_LIMIT in include/linux/threads.h
    return mountpoint.startswith(b"/") and b"\0" not in mountpoint and 0 < daemon["pid"] <= pid_max


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


def read_only(database: Path) -> sqlite3.Connection:
    """A connection that cannot write, for the calling thread. Raises sqlite3.Error.

    Creates none of SQLite's files: the daemon may have ended, and its user may be deleting the cache.
    """
    import sqlite3  # most commands do not need it

    how = "mode=ro"
    try:
        os.stat(database.with_name(f"{database.name}-wal"))
    except FileNotFoundError:  # without a write-ahead log, which a crash leaves, there is no writer
        how = "immutable=1"
    except OSError:
        pass  # of a failing disk, which SQLite reports
    return sqlite3.connect(
        f"{database.absolute().as_uri()}?{how}", uri=True, isolation_level=None, cached_statements=256
    )


def other_format(cache: Path) -> str:
    """A message about a cache of another format; empty if the format is current, or there is no database yet.

    Creates none of SQLite's files. Raises Unreadable, and GrowfsError if it is not a cache of growfs.
    """
    import sqlite3  # most commands do not need it

    database = cache.absolute() / DATABASE
    if not os.path.exists(database):  # Path.exists raises for another user's cache that is not accessible
        return ""
    try:
        with closing(read_only(database)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            (number,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise unreadable(database, error) from error
    if not tables:
        return ""
    if not tables >= {"meta", "node", "resident"}:  # which every format has
        raise GrowfsError(f"{database}: is not the database of a growfs cache; move it away, or pass --cache-dir")
    return "" if number == FORMAT else f"{cache}: its format is {number}, but this growfs uses format {FORMAT}"


def check_format(cache: Path) -> None:
    """Raise GrowfsError if a cache cannot be read because it has another format or is damaged."""
    if other := other_format(cache):
        raise GrowfsError(f"{other}; the next mount empties and refills it")


def unreadable(path: Path, error: sqlite3.DatabaseError) -> Unreadable:
    """The error for a database that cannot be read. A failing disk may make it look damaged."""
    return Unreadable(
        f"{path}: {error}; check the cache's disk (dmesg); if the disk is fine, delete {path.parent} and mount again"
    )
