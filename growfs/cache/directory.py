"""The folder of one cache: which it is, that it can be used, and that one daemon alone uses it."""

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
"""Of everything below a cache directory. A growfs that finds a higher number touches nothing; lower ones are brought
up to date.
"""
TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache of growfs: backups may leave it out.\n"
"""https://bford.info/cachedir/"""


@dataclass(slots=True)
class CacheFolder:
    """Owns the lock on a cache, for as long as the process lives. fresh: it was made just now."""

    path: Path
    lock: int
    fresh: bool

    @property
    def partial(self) -> Path:
        """Where workers write."""
        return self.path / "partial"

    @property
    def database(self) -> Path:
        """The catalog and what is resident."""
        return self.path / "catalog.sqlite"

    @property
    def log(self) -> Path:
        """What happened."""
        return self.path / "log"

    def announce(self, url: str, mountpoint: Path) -> None:
        """Tell who uses the cache."""
        daemon = {"pid": os.getpid(), "mountpoint": str(mountpoint), "url": url, "started": time.time()}
        disk.write_text("ANNOUNCE", self.path / "daemon.json", json.dumps(daemon) + "\n")

    def withdraw(self) -> None:
        """Nobody uses it any more."""
        with suppress(OSError):  # the lock is what counts
            disk.unlink("WITHDRAW", self.path / "daemon.json")
            disk.unlink("WITHDRAW", self.path / "control.sock")
        os.close(self.lock)

    def undo(self) -> None:
        """Remove a folder that was made for a mount that did not come to be."""
        if self.fresh:
            with suppress(OSError):  # what is told is why there is no mount
                disk.remove_tree("UNDO", self.path)


def open_cache(cache_dir: Path, spec: RemoteSpec, url: str) -> CacheFolder:
    """The cache of a remote below cache_dir, locked. Raises GrowfsError where it cannot be used."""
    cache_dir = cache_dir.expanduser().absolute()
    path = cache_dir / folder_name(spec, url)
    try:
        fresh = not path.exists()
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_format(cache_dir)
        path.mkdir(exist_ok=True, mode=0o700)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = "is no folder" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror
        raise GrowfsError(
            f"{error.filename or cache_dir}: {reason}; name a folder of yours that can be written: --cache-dir"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise GrowfsError(f"{path}: {_user(path)}; umount that first, or give another --cache-dir") from None
    return CacheFolder(path, lock, fresh)


def folder_name(spec: RemoteSpec, url: str) -> str:
    """A name for people, and a hash of what tells remotes apart. url: without secrets."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", url.partition("://")[2] or url).strip("-")[:60]
    told: list[object] = [url, spec.endpoint_url, spec.manifest, *([str(spec.members)] if spec.members else [])]
    if made := spec.producer:  # others make other files of the same
        told += [str(made.function), made.rename, made.seed]
    identity = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return f"{slug}-{identity[:8]}" if slug else identity[:8]


def is_in_use(path: Path) -> bool:
    """Whether a daemon holds the lock of a cache."""
    try:
        lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        return True  # another user's: as far as one may know
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
    """Who uses a cache, as far as that is written down: pid, mountpoint, url, started."""
    try:
        return dict(json.loads((path / "daemon.json").read_text()))
    except (OSError, ValueError):
        return {}


def _user(path: Path) -> str:
    daemon = daemon_of(path)
    if not daemon:
        return "another growfs is just starting with this cache"
    return f"in use by the growfs with pid {daemon['pid']}, mounted on {daemon['mountpoint']}"


def _check_format(cache_dir: Path) -> None:
    version = cache_dir / "version"
    if version.exists():
        text = version.read_text().strip()
        if not text.isdigit() or int(text) > FORMAT:
            raise GrowfsError(
                f"{cache_dir}: written by a newer growfs (format {text}); update growfs, or give another --cache-dir"
            )
        if int(text) == FORMAT:
            return
    disk.write_text("FORMAT", cache_dir / "CACHEDIR.TAG", TAG)
    disk.write_text("FORMAT", version, f"{FORMAT}\n")
