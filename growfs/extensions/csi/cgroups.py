"""Control groups of the daemons: a container runtime kills every process in the control group of a container that ends.

growfs changes nothing else in them: to limit the memory of all daemons, write to memory.max of SLICE.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SLICE = "growfs.slice"


def enter(top: Path, name: str) -> list[str]:
    """The words before a command that make it run outside of the control groups of this process. Raises OSError.

    top: where control groups are mounted. With version 2, it runs in a group of that name; with version 1, in the
    outermost ones.
    """
    # The shell moves itself into the groups, and becomes the command: so all processes of that start there.
    script = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit; shift; done; shift; exec "$@"'
    return ["sh", "-c", script, "growfs-csi", *map(str, _files(top, name)), "--"]


def _files(top: Path, name: str) -> Iterator[Path]:
    for hierarchy in _hierarchies(top):
        group = hierarchy
        if _is_unified(hierarchy):
            group = hierarchy / SLICE / name
            group.mkdir(parents=True, exist_ok=True)
        yield group / "cgroup.procs"


def names(top: Path) -> list[str]:
    """The names of the groups that there are."""
    slices = [hierarchy / SLICE for hierarchy in _hierarchies(top)]
    return [path.name for slice in slices if slice.is_dir() for path in slice.iterdir() if path.is_dir()]


def remove(top: Path, name: str) -> None:
    """Remove the group of that name, if no process is in it."""
    for hierarchy in filter(_is_unified, _hierarchies(top)):
        with suppress(OSError):
            (hierarchy / SLICE / name).rmdir()


def _hierarchies(top: Path) -> list[Path]:
    return [top] if _is_unified(top) else [path for path in sorted(top.iterdir()) if (path / "cgroup.procs").exists()]


def _is_unified(hierarchy: Path) -> bool:
    return (hierarchy / "cgroup.controllers").exists()
