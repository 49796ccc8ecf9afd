"""The choice of an engine: passthrough, links or libfuse. Only libfuse needs pyfuse3, from the extra `libfuse`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from growfs.errors import GrowfsError, pip_install
from growfs.fuse.links import LinksEngine
from growfs.fuse.mounting import MountSpec
from growfs.fuse.passthrough import PassthroughEngine
from growfs.fuse.probe import why_not_passthrough
from growfs.fuse.protocol import STACK_DEPTH_MAX
from growfs.vfs.filesystem import Vfs

if TYPE_CHECKING:
    from growfs.cache.catalog import Removed

LIBFUSE = "libfuse"
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
    """Connects a vfs to the kernel."""

    def forget_name(self, parent: int, name: str) -> None:
        """Make the kernel look up a name of that directory again."""

    def forget_files(self, removed: Sequence[Removed]) -> None:
        """Make the kernel ask again about files that are gone: it may know them by names in trees that have ended."""

    def drop_descriptor(self, id: int) -> None:
        """Make the kernel drop a cached file whose descriptor was closed."""


class EngineChoice:
    """The requested engine, or with "auto" the fastest engine that works for files in folder and for all readers.

    allow_other: other users are to read the mount. name: its name. reason: why it was chosen, as text. create: creates
    it for a vfs. Raises GrowfsError if the requested engine does not work, or the chosen one is libfuse and pyfuse3
    does not work.
    """

    def __init__(self, requested: str, folder: Path, allow_other: bool) -> None:
        self.name, self.reason, stack_depth = _choose(requested, folder, allow_other)
        self.create: Callable[[Vfs], KernelEngine]
        if self.name == PassthroughEngine.name:
            self.create = partial(PassthroughEngine, stack_depth=stack_depth)
        else:
            self.create = LinksEngine if self.shows_links else _load_libfuse(self.reason)

    @property
    def shows_links(self) -> bool:
        """Whether readers open cached files directly."""
        return self.name == LinksEngine.name


def _choose(requested: str, folder: Path, allow_other: bool) -> tuple[str, str, int]:
    """(the name of the engine, the reason for it, its stack depth if it is passthrough)."""
    if requested == LinksEngine.name:
        return requested, "each cached file is a symbolic link into the cache", 0
    if requested == LIBFUSE:
        return requested, "requested by --engine", 0
    for stack_depth in (1, STACK_DEPTH_MAX):  # the lower is better: an overlay may lie on top of the mount
        why_not = why_not_passthrough(folder, stack_depth)
        if not why_not:
            return PassthroughEngine.name, "the kernel reads the cached files itself", stack_depth
    if requested == PassthroughEngine.name:
        raise GrowfsError(f"--engine passthrough: {why_not}; or leave the choice to --engine auto")
    others_read = allow_other or (os.geteuid() == 0 and has_pyfuse3())  # only this user and root can follow links
    return LIBFUSE if others_read else LinksEngine.name, f"no passthrough: {why_not}", 0


def _load_libfuse(reason: str) -> Callable[[Vfs], KernelEngine]:
    try:
        from growfs.fuse.libfuse import LibfuseEngine  # imports pyfuse3; mounts start sooner without it
    except (ImportError, OSError) as error:  # its C library may be missing, or have the wrong version
        if has_pyfuse3():
            found = f"cannot be imported: {error}"
            remedy = pip_install("--force-reinstall", "--no-cache-dir", "--no-binary", "pyfuse3", "pyfuse3")
        else:
            found, remedy = "is not installed", pip_install("growfs[libfuse]")
        raise GrowfsError(
            f"the libfuse engine ({reason}) needs pyfuse3, which {found}; {PACKAGES} && {remedy}"
        ) from None
    return LibfuseEngine


def has_pyfuse3() -> bool:
    """Whether pyfuse3 is installed; a library that it needs may still be missing."""
    return find_spec("pyfuse3") is not None
