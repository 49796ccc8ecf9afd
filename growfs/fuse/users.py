"""Where a file system stays mounted: other mounts of it, and copies in other mount namespaces.

An unmount reaches bind mounts and copies only if mount propagation carries it there (mount_namespaces(7)). Elsewhere
the file system stays mounted, and its daemon keeps serving it: for example, in a container that was started with
`docker -v`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from growfs import proc
from growfs.fuse.mounting import MountRow, mount_rows


def other_mounts(cache: Path, mountpoint: Path | None) -> list[str]:
    """Where the file system of a cache stays mounted after it is unmounted from a mountpoint (None: already unmounted).

    Other namespaces are visible as far as this user's rights go: root sees all.
    """
    own = mount_rows()
    namespaces = list(_other_namespaces())
    unmounted = [row for row in own if row.is_growfs and row.mountpoint == mountpoint][-1:]
    reached = _reached(unmounted, own, [row for _, rows in namespaces for row in rows])
    return [
        *(f"a mount on {row.mountpoint}" for row in own if _stays(row, own, cache, reached) and row not in unmounted),
        *(
            f"the mount namespace of {process}"
            for process, rows in namespaces
            if any(_stays(row, rows, cache, reached) for row in rows)
        ),
    ]


_Place = tuple[str, str]
"""The place of a mount: the device of the file system below it, and the path there."""


def _reached(unmounted: list[MountRow], own: list[MountRow], others: list[MountRow]) -> set[tuple[_Place, int]]:
    """The places, and the peer groups of the mounts below them, to which an unmount propagates."""
    if not unmounted or not (parent := _parent(unmounted[0], own)) or not parent.peers:
        return set()
    groups, more = set[int](), {parent.peers}
    while more:  # a slave group receives from its master, and may be a master itself
        groups |= more
        more = {row.peers for row in own + others if row.master in groups and row.peers} - groups
    return {(_place(unmounted[0], parent), group) for group in groups}


def _stays(row: MountRow, rows: list[MountRow], cache: Path, reached: set[tuple[_Place, int]]) -> bool:
    """Whether a row is a mount of that cache that is not reached."""
    if not row.is_growfs or row.cache != cache:
        return False
    parent = _parent(row, rows)
    return not parent or not {(_place(row, parent), group) for group in (parent.peers, parent.master)} & reached


def _parent(row: MountRow, rows: list[MountRow]) -> MountRow | None:
    return next((other for other in rows if other.id == row.parent), None)


def _place(row: MountRow, parent: MountRow) -> _Place:
    return parent.device, os.path.normpath(
        os.path.join(parent.root, os.path.relpath(row.mountpoint, parent.mountpoint))
    )


def _other_namespaces() -> Iterator[tuple[str, list[MountRow]]]:
    """(a process, the mounts that it sees) for each other mount namespace."""
    seen = {os.readlink("/proc/self/ns/mnt")}
    for pid in proc.pids():
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            if namespace not in seen:
                seen.add(namespace)
                yield proc.name_of(pid), mount_rows(str(pid))
        except OSError:  # it has ended, or is another user's
            continue
