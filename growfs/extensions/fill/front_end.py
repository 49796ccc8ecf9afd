"""A folder of `growfs fill`, as other processes find it. Imports little, for programs that only read there."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from growfs.daemon.place import FrontEnd
from growfs.errors import GrowfsError
from growfs.vfs.attributes import CURRENT, GENERATIONS

LINK = ".growfs"
"""A symbolic link to the cache's folder, which contains the control socket."""


def name_of(number: int) -> str:
    """The name of a generation's tree."""
    return f"{number:04}"


def find(folder: Path) -> FilledFolder | None:
    """The filled folder at this path; None if `growfs fill` did not make it."""
    try:
        return FilledFolder(folder, Path(os.readlink(folder / LINK)), (folder / LINK).lstat().st_uid, starting=True)
    except OSError:
        return None


class FilledFolder(FrontEnd):
    """See FrontEnd. owner: of the link. starting: there is no mount to end its daemon with, but the command `stop`."""

    @property
    def removal(self) -> str:
        """See Running."""
        return f"rm {self.mountpoint / LINK}"

    def gone(self, shown: Path) -> GrowfsError:
        """See Running."""
        return GrowfsError(f"{shown}: nothing is filling it; start growfs fill again: growfs fill URL {shown}")

    @property
    def use(self) -> str:
        """See FrontEnd."""
        return (
            f"which fills {self.mountpoint}; any number of programs may read it; otherwise stop that first: growfs stop"
            f" {self.mountpoint}"
        )

    def next(self, after: int | None, number: int | None, holds: bool) -> Path:
        """See FrontEnd. If the daemon does not answer: the newest existing generation, or the existing one with that
        number, with a warning.
        """
        from growfs.daemon.control_client import call

        folder = self.mountpoint
        try:
            # While the daemon makes a generation, it sends a line each second.
            return Path(call(self.cache, "next", answer_s=10.0, after=after, number=number, holds=holds)["path"])
        except GrowfsError as error:
            tree = folder / GENERATIONS / name_of(number) if number else (folder / CURRENT).resolve()
            if not os.path.isdir(tree):  # or this user may not enter the folder
                raise
            warnings.warn(f"{folder}: no new generation; training continues with {tree.name}: {error}", stacklevel=6)
            return tree
