"""Which engine carries a mount to the kernel, and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Protocol

from growfs.errors import GrowfsError
from growfs.fuse.mounting import Mounting
from growfs.fuse.passthrough import PassthroughEngine
from growfs.fuse.probe import why_not_passthrough
from growfs.vfs.filesystem import Vfs


class Engine(Protocol):
    """What carries a vfs to the kernel. requests: how many of each kind the kernel has sent, where that is known."""

    name: str
    requests: Counter[str]

    def mount(self, mounting: Mounting) -> None:
        """Attach to the mountpoint. Raises GrowfsError."""

    async def serve(self) -> None:
        """Answer the kernel until the mount is gone."""

    def unmount(self) -> None:
        """Detach, also while files are open; nothing happens where nothing is mounted."""

    def forget_name(self, parent: int, name: str) -> None:
        """Have the kernel look a name of that directory up again."""


class EngineChoice:
    """The engine that was asked for, or for "auto" the fastest that works for files in folder.

    reason: of the choice, for people. Raises GrowfsError where the engine that was asked for does not work.
    """

    def __init__(self, wanted: str, folder: Path) -> None:
        why_not = None if wanted == "libfuse" else why_not_passthrough(folder)
        self.passthrough = wanted != "libfuse" and why_not is None
        if wanted == "passthrough" and why_not:
            raise GrowfsError(f"--engine passthrough: {why_not}; or leave the choice to --engine auto")
        if self.passthrough:
            self.reason = "the kernel reads the cached files itself"
        elif why_not:
            self.reason = f"no passthrough: {why_not}"
        else:
            self.reason = "asked for"

    def engine(self, vfs: Vfs) -> Engine:
        """That engine, over a vfs."""
        if self.passthrough:
            return PassthroughEngine(vfs)
        from growfs.fuse.libfuse import LibfuseEngine  # and pyfuse3, only where it is needed: a mount starts sooner

        return LibfuseEngine(vfs)
