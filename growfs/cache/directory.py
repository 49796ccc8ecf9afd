"""The folder of one cache: its name, its format, and the lock that admits one daemon only."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growfs import disk
from growfs.errors import GrowfsError
from growfs.remote.protocol import RemoteSpec

FORMAT = 2
"""Of everything below a cache directory. A growfs that finds a higher number refuses it; lower ones are migrated."""
TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache of growfs: backups may leave it out.\n"
"""https://bford.info/cachedir/"""


@dataclass(slots=True)
class CacheFolder:
    """Owns the lock on a cache, for as long as the process lives. fresh: the folder was created by this process."""

    path: Path
    lock: int
    fresh: bool

    @property
    def partial(self) -> Path:
        """The folder that workers write to."""
        return self.path / "partial"

    @property
    def database(self) -> Path:
        """The database file."""
        return self.path / "catalog.sqlite"

    @property
    def log(self) -> Path:
        """The log file."""
        return self.path / "log"

    def announce(self, url: str, mountpoint: Path) -> None:
        """Write down which daemon uses the cache."""
        daemon = {"pid": os.getpid(), "mountpoint": str(mountpoint), "url": url, "started": time.time()}
        disk.write_text("ANNOUNCE", self.path / "daemon.json", json.dumps(daemon) + "\n")

    def release(self) -> None:
        """Release the lock."""
        with suppress(OSError):  # only the lock counts
            disk.unlink("WITHDRAW", self.path / "daemon.json")
            disk.unlink("WITHDRAW", self.path / "control.sock")
        os.close(self.lock)

    def undo(self) -> None:
        """Remove a folder that was created for a mount that failed."""
        if self.fresh:
            with suppress(OSError):  # the user is told why the mount failed
                disk.remove_tree("UNDO", self.path)


def open_cache(cache_dir: Path, spec: RemoteSpec, url: str) -> CacheFolder:
    """Open and lock the cache of a remote below cache_dir. Raises GrowfsError where it cannot be used."""
    cache_dir = cache_dir.expanduser().absolute()
    path = cache_dir / folder_name(spec, url)
    try:
        fresh = not path.exists()
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_format(cache_dir)
        path.mkdir(exist_ok=True, mode=0o700)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = "is not a folder" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror
        raise GrowfsError(
            f"{error.filename or cache_dir}: {reason}; pass a folder that you can write to: --cache-dir"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise GrowfsError(f"{path}: {_user(path)}; unmount that first, or pass another --cache-dir") from None
    return CacheFolder(path, lock, fresh)


def folder_name(spec: RemoteSpec, url: str) -> str:
    """A readable name, and a hash of everything that distinguishes remotes. url: without secrets."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", url.partition("://")[2] or url).strip("-")[:60]
    identity: list[object] = [url, spec.endpoint_url, spec.manifest, *([str(spec.members)] if spec.members else [])]
    if made := spec.producer:  # different producers make different files from the same remote
        identity += [str(made.function), made.rename, made.seed]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return f"{slug}-{digest[:8]}" if slug else digest[:8]


def is_in_use(path: Path) -> bool:
    """Whether a daemon holds the lock of a cache."""
    try:
        lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        return True  # another user's cache; assume so
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def daemon_of(path: Path) -> dict[str, Any]:
    """The daemon that uses a cache, if it is written down: pid, mountpoint, url, started."""
    try:
        return dict(json.loads((path / "daemon.json").read_text()))
    except (OSError, ValueError):
        return {}


def _user(path: Path) -> str:
    daemon = daemon_of(path)
    if not daemon:
        return "another growfs is starting with this cache"
    return f"in use by the growfs with pid {daemon['pid']}, mounted on {daemon['mountpoint']}"


def _check_format(cache_dir: Path) -> None:
    version = cache_dir / "version"
    if version.exists():
        text = version.read_text().strip()
        if not text.isdigit() or int(text) > FORMAT:
            raise GrowfsError(
                f"{cache_dir}: written by a newer growfs (format {text}); update growfs, or pass another --cache-dir"
            )
        if int(text) == FORMAT:
            return
    disk.write_text("FORMAT", cache_dir / "CACHEDIR.TAG", TAG)
    disk.write_text("FORMAT", version, f"{FORMAT}\n")
