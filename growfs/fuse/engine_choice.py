"""The choice between the two engines, passthrough and libfuse. Only libfuse needs pyfuse3, of the extra `libfuse`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from growfs.errors import GrowfsError, pip_install
from growfs.fuse.mounting import MountSpec
from growfs.fuse.passthrough import PassthroughEngine
from growfs.fuse.probe import why_not_passthrough
from growfs.fuse.protocol import STACK_DEPTH_MAX
from growfs.vfs.filesystem import Vfs

PACKAGES = "apt install fuse3 libfuse3-dev pkg-config gcc python3-dev"
"""On Debian and Ubuntu: what pyfuse3 is compiled with, and fusermount3."""


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
        """Return once readers can list what is cached, which is enough to start."""

    def unmount(self) -> None:
        """Detach, even while files are open. Does nothing if nothing is mounted."""


class KernelEngine(Engine, Protocol):
    """Connects a vfs to the kernel."""

    def forget_name(self, parent: int, name: str) -> None:
        """Make the kernel look up a name of that directory again."""

    def drop_descriptor(self, id: int) -> None:
        """Have the kernel drop a cached file, whose descriptor was closed."""


class EngineChoice:
    """The requested engine, or with "auto" the fastest engine that works for files in folder.

    reason: why it was chosen, in words. Raises GrowfsError if the requested engine does not work.
    """

    def __init__(self, requested: str, folder: Path) -> None:
        self._stack_depth = 1  # the lowest that works: so an overlay may lie on top of the mount
        why_not = None if requested == "libfuse" else why_not_passthrough(folder, self._stack_depth)
        if why_not:
            self._stack_depth = STACK_DEPTH_MAX
            why_not = why_not_passthrough(folder, self._stack_depth)
        self.passthrough = requested != "libfuse" and why_not is None
        if requested == "passthrough" and why_not:
            raise GrowfsError(f"--engine passthrough: {why_not}; or leave the choice to --engine auto")
        if self.passthrough:
            self.reason = "the kernel reads the cached files itself"
        elif why_not:
            self.reason = f"no passthrough: {why_not}"
        else:
            self.reason = "requested by --engine"

    def create(self, vfs: Vfs) -> KernelEngine:
        """Create the chosen engine for a vfs. Raises GrowfsError as `load` does."""
        return self.load()(vfs)

    def load(self) -> Callable[[Vfs], KernelEngine]:
        """Import the chosen engine. Raises GrowfsError if that is libfuse, and pyfuse3 does not work here."""
        if self.passthrough:
            return partial(PassthroughEngine, stack_depth=self._stack_depth)
        try:
            from growfs.fuse.libfuse import LibfuseEngine  # imports pyfuse3; without it a mount starts sooner
        except (ImportError, OSError) as error:  # its C library may be missing, or of another version
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
    """Whether pyfuse3 is installed; it may need a library that is not."""
    return find_spec("pyfuse3") is not None
