"""Finds the daemons of this machine. It imports little: each command waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from growfs import proc
from growfs.cache.cache_folder import DATABASE, daemon_of, is_in_use
from growfs.daemon.spawn import TITLE
from growfs.errors import GrowfsError
from growfs.folder.layout import cache_of
from growfs.fuse.mounting import DEVICE, MountRow, mounted_at, mounts, resolved


@dataclass(frozen=True, slots=True)
class Running:
    """A mount, or a daemon without one in the mount table."""

    mountpoint: Path
    cache: Path
    mounted: MountRow | None
    starting: bool = False
    """It has not mounted yet; else it was unmounted."""
    fills: bool = False
    """It needs no mount, as it keeps a folder filled."""


def running() -> list[Running]:
    """The growfs mounts of this machine, with dead ones (see `living`), and daemons before their mount and after it."""
    mounted = [Running(mount.mountpoint, mount.cache, mount) for mount in mounts()]
    return mounted + list(_unmounted({mount.cache for mount in mounted}))


def _unmounted(mounted: set[Path]) -> Iterator[Running]:
    """The daemons without a mount in the mount table: they still list the remote, or somebody still uses the mount.

    They are found by what they hold open, as far as this user may see that: root sees all.
    """
    for _, held in _daemons():
        for cache in {Path(path).parent for path in held if path.endswith("/lock")} - mounted:
            if daemon := daemon_of(cache):
                mountpoint = Path(daemon["mountpoint"])
                fills = cache_of(mountpoint) == cache
                yield Running(mountpoint, cache, None, starting=str(DEVICE) not in held, fills=fills)


def _daemons() -> Iterator[tuple[int, set[str]]]:
    """(process, paths that it has open) for each daemon of this machine, as far as this user may see that."""
    for pid in proc.pids():
        try:
            if proc.begins_with(pid, TITLE):
                yield pid, proc.opened(pid)
        except OSError:
            continue


def daemon_with(cache: Path) -> int:
    """The process of the daemon that has a cache open, as far as this user may see that; 0 if there is none."""
    return next((pid for pid, held in _daemons() if f"{cache}/lock" in held), 0)


def living(mount: Running) -> bool:
    """Whether the daemon of a mount is running. Its disk may fail: then nothing can be read there."""
    return is_in_use(mount.cache) or daemon_with(mount.cache) != 0


def find(mountpoint: Path) -> Running:
    """The growfs mount on a mountpoint, or a daemon before its mount or after it. Raises GrowfsError."""
    mountpoint = resolved(mountpoint.expanduser().absolute())
    if mounted := mounted_at(mountpoint):
        return Running(mountpoint, mounted.cache, mounted)
    if cache := cache_of(mountpoint):
        return Running(mountpoint, cache, None, starting=True, fills=True)
    found = next((mount for mount in running() if mount.mountpoint == mountpoint), None)
    if found is None:
        raise GrowfsError(f"{mountpoint}: growfs is not mounted there; growfs list shows all mounts")
    return found


def find_cache(place: Path) -> Path:
    """The cache of the mount on a mountpoint, or that is at this path. Raises GrowfsError.

    A mount is not looked into: to list it would begin a generation, and its files may have any name.
    """
    try:
        return find(place).cache
    except GrowfsError:
        with suppress(OSError):  # it cannot be looked into
            if (place / DATABASE).is_file():
                return place
        raise


def find_living(mountpoint: Path) -> Running:
    """As `find`; raises GrowfsError if the daemon is gone, too."""
    mounted = find(mountpoint)
    if not living(mounted) and mounted.fills:
        raise GrowfsError(f"{mountpoint}: nothing fills it now; start it again: growfs fill URL {mountpoint}")
    if not living(mounted):
        raise GrowfsError(f"{mountpoint}: its daemon is gone; remove the dead mount: growfs umount {mountpoint}")
    return mounted
