"""The choice of an engine: passthrough, links or libfuse. Only libfuse needs pyfuse3, from the extra `libfuse`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from growfs.errors import GrowfsError, pip_install
from growfs.fuse.links import LinksEngine
from growfs.fuse.mounting import MountSpec
from growfs.fuse.passthrough import PassthroughEngine
from growfs.fuse.probe import why_not_passthrough
from growfs.fuse.protocol import STACK_DEPTH_MAX
from growfs.vfs.filesystem import Vfs

LIBFUSE = "libfuse"
PACKAGES = "apt install fuse3 libfuse3-dev pkg-config gcc python3-dev"
"""On Debian and Ubuntu: the packages needed to compile pyfuse3, and fusermount3."""


class Engine(Protocol):
    """Shows readers the cached files, as a mount does.

    requests: how many requests of each kind the kernel has sent, if that is known.
    """

    name: str
    requests: Counter[str]

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

    def drop_descriptor(self, id: int) -> None:
        """Make the kernel drop a cached file whose descriptor was closed."""


class EngineChoice:
    """The requested engine, or with "auto" the fastest engine that works for files in folder and shows plain files.

    name: its name. reason: why it was chosen, as text. Raises GrowfsError if the requested engine does not work.
    """

    def __init__(self, requested: str, folder: Path) -> None:
        self.name, self._stack_depth = requested, 1  # the lowest that works, so an overlay may lie on top of the mount
        self.reason = "requested by --engine"
        if requested == LinksEngine.name:
            self.reason = "each cached file is a symbolic link to itself in the cache"
        elif requested != LIBFUSE:
            why_not = self._why_not_passthrough(folder)
            if requested == PassthroughEngine.name and why_not:
                raise GrowfsError(f"--engine passthrough: {why_not}; or leave the choice to --engine auto")
            self.name = self._name_without(why_not) if why_not else PassthroughEngine.name

    def _why_not_passthrough(self, folder: Path) -> str | None:
        self.reason = "the kernel reads the cached files itself"
        if why_not := why_not_passthrough(folder, self._stack_depth):
            self._stack_depth = STACK_DEPTH_MAX
            why_not = why_not_passthrough(folder, self._stack_depth)
        return why_not

    def _name_without(self, why_not: str) -> str:
        """The engine to choose without passthrough."""
        self.reason = f"no passthrough: {why_not}"
        return LIBFUSE if has_pyfuse3() else LinksEngine.name

    @property
    def shows_links(self) -> bool:
        """Whether readers open cached files directly."""
        return self.name == LinksEngine.name

    def create(self, vfs: Vfs) -> KernelEngine:
        """Create the chosen engine for a vfs. Raises GrowfsError as `load` does."""
        return self.load()(vfs)

    def load(self) -> Callable[[Vfs], KernelEngine]:
        """Import the chosen engine. Raises GrowfsError if that is libfuse, and pyfuse3 does not work here."""
        if self.name == PassthroughEngine.name:
            return partial(PassthroughEngine, stack_depth=self._stack_depth)
        if self.name == LinksEngine.name:
            return LinksEngine
        try:
            from growfs.fuse.libfuse import LibfuseEngine  # imports pyfuse3; mounts start sooner without it
        except (ImportError, OSError) as error:  # its C library may be missing, or have the wrong version
            if has_pyfuse3():
                found = f"cannot be imported: {error}"
                remedy = pip_install("--force-reinstall", "--no-cache-dir", "--no-binary", "pyfuse3", "pyfuse3")
            else:
                found, remedy = "is not installed", pip_install("growfs[libfuse]")
            raise GrowfsError(
                f"the libfuse engine ({self.reason}) needs pyfuse3, which {found}; {PACKAGES} && {remedy}"
            ) from None

        return LibfuseEngine


def has_pyfuse3() -> bool:
    """Whether pyfuse3 is installed; a library that it needs may still be missing."""
    return find_spec("pyfuse3") is not None
