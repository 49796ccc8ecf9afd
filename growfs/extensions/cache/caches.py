"""`growfs cache`: the caches in a cache directory, which stay when their mounts end."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from growfs import disk, trust
from growfs.cache.cache_folder import DATABASE, LOCK, daemon_of, is_in_use, locked, other_format, read_only, url_of
from growfs.errors import GrowfsError


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """A cache. url: of its remote, without secrets; None if an earlier growfs made it. bytes: of its files on the disk;
    None if its database cannot be read. used_at: when it was last mounted, to the hour, in seconds since the epoch.
    mountpoint: of the mount that uses it; empty if that is starting or ending; None if it is not in use.
    """

    path: Path
    url: str | None
    bytes: int | None
    used_at: float
    mountpoint: str | None


def caches(cache_dir: Path) -> list[CacheInfo]:
    """The caches in a directory, the last used first. Raises GrowfsError if the directory cannot be read."""
    found = []
    try:
        for path in cache_dir.iterdir() if cache_dir.exists() else ():
            with suppress(FileNotFoundError):  # it is being removed
                found += [_info(path)] if os.path.isfile(path / DATABASE) else []  # others' caches are not readable
    except OSError as error:
        raise GrowfsError(f"{cache_dir}: {error.strerror}") from None
    return sorted(found, key=lambda cache: cache.used_at, reverse=True)


def _info(path: Path) -> CacheInfo:
    bytes = None
    with suppress(sqlite3.Error), closing(read_only(path / DATABASE)) as connection:
        (bytes,) = connection.execute("SELECT coalesce(sum(bytes), 0) FROM resident").fetchone()
    mountpoint = daemon_of(path).get("mountpoint", "") if is_in_use(path) else None
    return CacheInfo(path, url_of(path), bytes, (path / LOCK).stat().st_mtime, mountpoint)


def _is_failed_log(path: Path) -> bool:
    """Whether it is the log of a mount that failed, and left nothing else: named as `folder_name` names its cache."""
    is_log = re.fullmatch(r"(.*-)?(?=\d*[a-f])[0-9a-f]{8}\.log", path.name)  # eight digits may be a date
    return is_log is not None and path.is_file() and not path.with_suffix("").exists()


def unused(cache_dir: Path, unused_s: float) -> tuple[list[CacheInfo], list[Path]]:
    """The caches that were last used, and the logs of failed mounts that were written, at least so long ago."""
    before = time.time() - unused_s
    old = [cache for cache in caches(cache_dir) if cache.mountpoint is None and cache.used_at <= before]
    logs = filter(_is_failed_log, cache_dir.glob("*.log"))
    return old, [path for path in logs if path.stat().st_mtime <= before]


def remove(path: Path) -> None:
    """Remove a cache with all its files, or the log of a mount that failed.

    Raises GrowfsError for a cache that is in use, and for anything else.
    """
    if _is_failed_log(path):
        with trust.open_folder(path.parent, "choose a cache directory of your own") as folder:
            disk.unlink("REMOVE", path.name, folder.fd)
        return
    if not os.path.isfile(path / DATABASE):
        raise GrowfsError(f"{path}: is not a cache; `growfs cache list` lists the caches")
    other_format(path)  # raises if the database is not one of growfs
    with locked(path) as is_ours:
        if not is_ours:
            mountpoint = daemon_of(path).get("mountpoint", "MOUNTPOINT")
            raise GrowfsError(f"{path}: in use; unmount it first: growfs umount {mountpoint}")
        try:
            disk.remove_tree("REMOVE", path)
        except OSError as error:
            raise GrowfsError(f"{error.filename or path}: {error.strerror}") from None
