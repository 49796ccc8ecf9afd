"""Where daemons show files to readers. Imports little, for programs that only read there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from growfs.errors import GrowfsError
from growfs.extensions import FRONT_ENDS

if TYPE_CHECKING:
    from growfs.fuse.mounting import MountRow


@dataclass(frozen=True, slots=True)
class Running:
    """A mount, or a daemon without one in the mount table."""

    mountpoint: Path
    cache: Path
    owner: int
    """The user who mounted, or runs the daemon."""
    mounted: MountRow | None = None
    starting: bool = False
    """Whether it has not mounted yet; if not, it was unmounted."""

    @property
    def removal(self) -> str:
        """The command after which growfs no longer finds it."""
        return f"umount {self.mountpoint}"

    def gone(self, shown: Path) -> GrowfsError:
        """The error that its daemon is gone. shown: the path, for display."""
        remedy = f"remove the dead mount: growfs umount {shown}"
        if not self.cache.exists():
            return GrowfsError(f"{shown}: its daemon has exited, because {self.cache} was deleted; {remedy}")
        return GrowfsError(f"{shown}: its daemon is gone; {remedy}")


class FrontEnd(Running, ABC):
    """A folder that needs no mount. `find` in the module `front_end` of an extension returns what derives from this."""

    @property
    @abstractmethod
    def use(self) -> str:
        """What its daemon does, and how to end that."""

    @abstractmethod
    def next(self, after: int | None, number: int | None, holds: bool) -> Path:
        """The next generation, or the one with that number. Raises GrowfsError.

        after: the generation that the caller has read and leaves; 0: none, so it may join the newest one; None: none,
        and it wants the one after the newest. holds: the caller is about to lock it.
        """


def front_end_at(path: Path, cache: Path | None = None) -> FrontEnd | None:
    """The front end at this path, if it is one; looks into the folder. cache: only if its daemon uses this one."""
    for name in FRONT_ENDS:
        found: FrontEnd | None = import_module(f"growfs.extensions.{name}.front_end").find(path)
        if found and cache in (None, found.cache):
            return found
    return None
