"""The choice of an engine, which is then imported. Only libfuse needs pyfuse3, from the extra `libfuse`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from growfs.errors import GrowfsError, UsageError, pip_install
from growfs.fuse.mounting import MountSpec
from growfs.fuse.probe import why_not_passthrough
from growfs.fuse.protocol import STACK_DEPTH_MAX
from growfs.vfs.filesystem import Vfs

if TYPE_CHECKING:
    from growfs.cache.catalog import Removed

MODULES = {
    "passthrough": "growfs.fuse.passthrough",
    "links": "growfs.fuse.links.engine",
    "libfuse": "growfs.fuse.libfuse",
}
"""Of the engines. The class of each has its name: PassthroughEngine."""
PACKAGES = "apt install fuse3 libfuse3-dev pkg-config gcc python3-dev"
"""On Debian and Ubuntu: the packages needed to compile pyfuse3, and fusermount3."""


class Engine(Protocol):
    """Shows readers the cached files, as a mount does.

    requests: how many requests of each kind the kernel has sent, if that is known. warning: why a reader could not
    open cached files, if that was noticed.
    """

    name: str
    requests: Counter[str]
    warning: str | None

    def mount(self, spec: MountSpec) -> None:
        """Attach to the mountpoint. Raises GrowfsError."""

    async def serve(self) -> None:
        """Answer the kernel until the file system is unmounted."""

    async def ready(self) -> None:
        """Return once readers can list the cached files, which is enough to start."""

    def unmount(self) -> None:
        """Detach, even while files are open. Does nothing if nothing is mounted."""


class KernelEngine(Engine, Protocol):
    """Connects a vfs to the kernel. view: the class of that vfs."""

    view: type[Vfs]

    def forget_name(self, parent: int, name: str) -> None:
        """Make the kernel look up a name of that directory again."""

    def forget_files(self, removed: Sequence[Removed]) -> None:
        """Make the kernel ask again about files that are gone: it may know them by names in trees that have ended."""

    def drop_descriptor(self, id: int) -> None:
        """Make the kernel drop a cached file whose descriptor was closed."""


class EngineChoice:
    """The requested engine, or with "auto" the fastest engine that works for files in folder and for all readers.

    allow_other: other users are to read the mount. name: its name. reason: why it was chosen, as text. view: see
    KernelEngine. create: creates it for such a vfs. Raises GrowfsError if the requested engine does not work, or the
    chosen one is libfuse and pyfuse3 does not work.
    """

    def __init__(self, requested: str, folder: Path, allow_other: bool) -> None:
        self.name, self.reason, stack_depth = _choose(requested, folder, allow_other)
        engine = _imported(self.name, self.reason)
        self.view: type[Vfs] = engine.view
        self.create: Callable[[Vfs], KernelEngine] = partial(engine, stack_depth=stack_depth) if stack_depth else engine


def _choose(requested: str, folder: Path, allow_other: bool) -> tuple[str, str, int]:
    """(the name of the engine, the reason for it, its stack depth if it is passthrough)."""
    if requested == "links" and allow_other:
        raise UsageError(
            "--allow-other: other users cannot follow links into the cache, which only this user can read; mount as"
            " the user who trains, or with --engine libfuse"
        )
    if requested == "links":
        return requested, "each cached file is a symbolic link into the cache", 0
    if requested == "libfuse":
        return requested, "requested by --engine", 0
    for stack_depth in (1, STACK_DEPTH_MAX):  # the lower is better: an overlay may lie on top of the mount
        why_not = why_not_passthrough(folder, stack_depth)
        if not why_not:
            return "passthrough", "the kernel reads the cached files itself", stack_depth
    if requested == "passthrough":
        raise GrowfsError(f"--engine passthrough: {why_not}; or leave the choice to --engine auto")
    others_read = allow_other or (os.geteuid() == 0 and has_pyfuse3())  # only this user and root can follow links
    return "libfuse" if others_read else "links", f"no passthrough: {why_not}", 0


def _imported(name: str, reason: str) -> Any:
    """The class of an engine; mounts start sooner without the others. Raises GrowfsError."""
    try:
        return getattr(import_module(MODULES[name]), f"{name.title()}Engine")
    except (ImportError, OSError) as error:  # its C library may be missing, or have the wrong version
        if name != "libfuse":
            raise
        if has_pyfuse3():
            found = f"cannot be imported: {error}"
            remedy = pip_install("--force-reinstall", "--no-cache-dir", "--no-binary", "pyfuse3", "pyfuse3")
        else:
            found, remedy = "is not installed", pip_install("growfs[libfuse]")
        raise GrowfsError(
            f"the libfuse engine ({reason}) needs pyfuse3, which {found}; {PACKAGES} && {remedy}"
        ) from None


def has_pyfuse3() -> bool:
    """Whether pyfuse3 is installed; a library that it needs may still be missing."""
    return find_spec("pyfuse3") is not None
