"""Finds the daemons of this machine. It imports little: each command waits for that.

Any user can name any folder as the cache of a mount: in its device, by an open file, or in the link of a folder. To
keep commands of root from going to a different daemon, a cache counts only if it belongs to that user.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from growfs import proc
from growfs.cache.cache_folder import DATABASE, daemon_of, is_in_use
from growfs.daemon.control_client import daemon_pid, status_of
from growfs.daemon.place import FrontEnd, Running, front_end_at
from growfs.daemon.spawn import TITLE
from growfs.daemon.status_text import brief
from growfs.errors import GrowfsError, UsageError
from growfs.fuse.mounting import DEVICE, MountRow, answers, mounted_at, mounts
from growfs.fuse.users import other_mounts
from growfs.paths import absolute_path
from growfs.proc import is_killed
from growfs.trust import opened_for_its_owner, resolve
from growfs.workers.guard import abort


def running() -> list[Running]:
    """The growfs mounts of this machine, even dead ones (see `is_served`), and daemons before and after their mount."""
    mounted = [_of_row(row) for row in mounts()]
    return mounted + list(_unmounted({mount.cache for mount in mounted}))


def _unmounted(mounted: set[Path]) -> Iterator[Running]:
    """The daemons without a mount in the mount table: they still list the remote, or their mount is still in use.

    They are found by their open files, as far as visible to this user: root sees all.
    """
    for owner, _, held in _daemons():
        for cache in {Path(path).parent for path in held if path.endswith("/lock")} - mounted:
            if daemon := daemon_of(cache):
                mountpoint = Path(daemon["mountpoint"])
                yield front_end_at(mountpoint, cache) or Running(
                    mountpoint, cache, owner, starting=str(DEVICE) not in held
                )


def _daemons() -> Iterator[tuple[int, int, set[str]]]:
    """(user, process, paths of its open files) for each daemon of this machine, as far as visible to this user."""
    for pid in proc.pids():
        try:
            if proc.begins_with(pid, TITLE):
                yield os.stat(f"/proc/{pid}").st_uid, pid, proc.opened(pid)
        except OSError:
            continue


def check_owner(mount: Running) -> None:
    """Raise GrowfsError if a user other than root and that of a mount owns its cache, or could replace it."""
    try:
        with opened_for_its_owner(mount.cache) as (_, owner):
            is_believed = owner == mount.owner
    except OSError as error:
        is_believed = error.errno != errno.EPERM  # a user without access to the cache cannot affect it
    if not is_believed:
        raise GrowfsError(
            f"{mount.mountpoint}: belongs to uid {mount.owner} and names the cache of another user, {mount.cache}; if"
            f" you do not trust it, remove it: {mount.removal}"
        )


def _of_row(row: MountRow) -> Running:
    return Running(row.mountpoint, row.cache, row.owner, row)


def daemon_with(cache: Path) -> int:
    """The process of the daemon that has a cache open, as far as visible to this user; 0 if there is none."""
    return next((pid for _, pid, held in _daemons() if f"{cache}/lock" in held), 0)


def is_served(cache: Path) -> bool:
    """Whether the daemon of a cache is running. Does not read from the disk, which may be failing."""
    return (is_in_use(cache) or daemon_with(cache) != 0) and not was_killed(cache)


def was_killed(cache: Path) -> bool:
    """Whether the daemon of a cache was killed and is not gone, as far as visible to this user.

    The kernel knows who has the socket; a pid that is stored may be of another process, or of another pid namespace.
    """
    return is_killed(daemon_pid(cache))


def abort_if_killed(row: MountRow) -> None:
    """Fail all requests to a mount if its daemon was killed: see `growfs.workers.guard`. Raises GrowfsError."""
    if was_killed(row.cache):
        abort(row.device, row.mountpoint)


def abort_killed() -> None:
    """As `abort_if_killed`, for each mount, as far as this user may."""
    for row in mounts():
        with suppress(GrowfsError):
            abort_if_killed(row)


def is_dead(mountpoint: Path) -> bool:
    """Whether there is a mount whose daemon is gone. Raises GrowfsError if it hangs."""
    row = mounted_at(mountpoint)
    if row is None:
        return False
    abort_if_killed(row)
    return not answers(mountpoint)


def state_of(mount: Running) -> str:
    """The state that `growfs list` shows for a mount. Waits for its daemon."""
    try:
        check_owner(mount)
        state = brief(status_of(mount.cache)) if is_served(mount.cache) else "dead; remove it with growfs umount"
    except GrowfsError as error:
        state = str(error).removeprefix(f"{mount.cache}: ")  # its row names the cache
    if mount.mounted or isinstance(mount, FrontEnd):
        return state
    return f"{'not mounted yet' if mount.starting else 'unmounted, but still in use'}: {state}"


def find(mountpoint: Path) -> Running:
    """The growfs mount on a mountpoint, or a daemon before or after its mount. Raises GrowfsError."""
    mountpoint = resolve(absolute_path(mountpoint))
    row = mounted_at(mountpoint)
    found = _of_row(row) if row else front_end_at(mountpoint)
    found = found or next((mount for mount in running() if mount.mountpoint == mountpoint), None)
    if not found:
        raise GrowfsError(f"{mountpoint}: growfs is not mounted there; growfs list shows all mounts")
    check_owner(found)
    return found


def only_mount() -> Running:
    """The mount of this user, if there is exactly one. Raises UsageError."""
    own = [mount for mount in running() if mount.owner == os.geteuid()]
    if not own:
        raise UsageError("no mount of this user is running; name its MOUNTPOINT: growfs list shows all mounts")
    if len(own) > 1:
        raise UsageError(
            f"{len(own)} mounts are running; name one: {', '.join(str(mount.mountpoint) for mount in own)}"
        )
    return own[0]


def find_cache(place: Path) -> Path:
    """The cache of the mount on a mountpoint, or the cache at this path. Raises GrowfsError.

    Does not look into a mount: listing it would begin a generation, and its files may have any name.
    """
    try:
        return find(place).cache
    except GrowfsError:
        with suppress(OSError):  # it is not accessible
            if not in_mount(place) and (place / DATABASE).is_file():
                return place
        raise


def in_mount(place: Path) -> bool:
    """Whether a path lies within a growfs mount."""
    place = resolve(absolute_path(place))
    return any(row.mountpoint in place.parents for row in mounts())


def in_use(cache: Path) -> GrowfsError:
    """The error for a cache that another daemon uses."""
    daemon = daemon_of(cache)
    if not daemon:
        return GrowfsError(f"{cache}: another growfs is starting with this cache; wait, or pass another --cache-dir")
    pid, folder = daemon["pid"], daemon["mountpoint"]
    if was_killed(cache):
        return GrowfsError(
            f"{cache}: its growfs (pid {pid}) was killed, but the kernel is still waiting for it; as root, find the"
            " folder in /sys/fs/fuse/connections whose waiting file is not 0, and write 1 to its abort file"
        )
    if any(row.cache == cache for row in mounts()):
        use = (
            f"mounted on {folder}; any number of programs may read it, and mount --bind {folder} or ln -s {folder}"
            " shows it at a second path; otherwise unmount that first"
        )
    elif front_end := front_end_at(Path(folder), cache):
        use = front_end.use
    elif any(mount.cache == cache and mount.starting for mount in running()):
        use = f"which is about to mount on {folder}; wait for it"
    else:
        users = _last_users(cache)
        use = f"unmounted from {folder}, but still in use by {users}; stop that, or growfs itself: kill {pid}"
    return GrowfsError(f"{cache}: in use by growfs (pid {pid}), {use}, or pass another --cache-dir")


def _last_users(cache: Path) -> str:
    """What keeps a mount that is in no mount table. The kernel does not tell who has its files open."""
    users = other_mounts(cache, None)
    with suppress(GrowfsError):
        readers = status_of(cache, 2.0).readers
        users = users or [f"{reader.command} ({reader.pid}), which has read it" for reader in readers if reader.pid]
    return ", ".join(users) or "a process that has a file open, or a container"


def find_living(mountpoint: Path) -> Running:
    """As `find`, but also raises GrowfsError if the daemon is gone."""
    mounted = find(mountpoint)
    if not is_served(mounted.cache):
        raise mounted.gone(mountpoint)
    return mounted
