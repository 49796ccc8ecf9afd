"""Keeps the code of this version of growfs in memory, because it may be upgraded or removed while a mount runs.

A process that has called `keep`, and those that it forks, import the modules of growfs that they still lack from there.
From the disk, they would get modules of another version, or none. Little is imported here, for the fork server.
"""

from __future__ import annotations

import logging
import os
import sys

from growfs.syscalls import memfd_create, seal

log = logging.getLogger(__name__)

_FDS = "/proc/self/fd/"
_NAME = __name__.partition(".")[0]
_PATH: list[str] = sys.modules[_NAME].__path__  # type: ignore[assignment]


def _inherited() -> int | None:
    """The descriptor of the archive that this process was started from (see `command`); None if there is none."""
    folder = _PATH[0]
    if not folder.startswith(_FDS):
        return None
    fd = int(folder.removeprefix(_FDS).partition("/")[0])
    os.set_inheritable(fd, False)
    return fd


_kept = _inherited()
"""The descriptor of an archive of the package."""


def keep() -> None:
    """Read the whole package. That takes 30 ms, so it is for when there is nothing else to do."""
    global _kept
    if _kept is None:
        try:
            _kept = _archived()
            _import_first_from(_kept)
        except (OSError, ImportError, RuntimeError, MemoryError) as error:
            log.warning("growfs's code cannot be kept in memory; unmount before upgrading it: %s", error)


def command(module: str, *arguments: str) -> tuple[list[str], list[int]]:
    """(the command that runs a module of this version, the descriptors that it needs)."""
    if _kept is None:
        return [sys.executable, "-m", module, *arguments], []
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    script = f"import runpy, sys; sys.path.insert(0, '{_FDS}{_kept}'); {run}"
    return [sys.executable, "-c", script, *arguments], [_kept]


def _archived() -> int:
    from pathlib import Path
    from zipfile import ZipFile, ZipInfo

    folder = Path(_PATH[0])
    (folder / "__init__.py").stat()  # it is still there
    sources = [(str(path.relative_to(folder.parent)), path.read_bytes()) for path in folder.rglob("*.py")]
    with ZipFile(os.fdopen(fd := memfd_create("growfs-code"), "wb", closefd=False), "w") as archive:
        for name, source in sources:
            archive.writestr(ZipInfo(name), source)
    seal(fd)  # a process that a user's function starts may get the descriptor
    return fd


def _import_first_from(fd: int) -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _NAME and hasattr(module, "__path__"):
            module.__path__.insert(0, f"{_FDS}{fd}/{name.replace('.', '/')}")
