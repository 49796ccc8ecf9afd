"""The holds of processes: which files stay cached for a process, because it saw them in a listing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from pyroaring import BitMap64

if TYPE_CHECKING:
    from growfs.rotation.rules import Generation

EVERYWHERE = 0
"""Stands for all directories at once, when a file of .growfs/ lists them."""


class DirectoryHolds:
    """The holds of one process: one on each directory, from its last listing there, or one on everything. A hold is the
    promise that the files stay that a generation lists.

    The directories are kept in one compressed bitmap for each hold, because a process may list a million of them. A
    thread may look up a hold while the process goes on listing, and may get the earlier hold.
    """

    def __init__(
        self, everywhere: Generation | None = None, directories: dict[Generation, BitMap64] | None = None
    ) -> None:
        self.everywhere = everywhere
        self.directories = directories or {}

    def __bool__(self) -> bool:
        return self.everywhere is not None or bool(self.directories)

    def get(self, directory: int) -> Generation | None:
        """The hold on a directory, or on EVERYWHERE: from its last listing there, else the one on everything."""
        for hold, directories in reversed(list(self.directories.items())):
            if directory in directories:
                return hold
        return self.everywhere

    def set(self, directory: int, hold: Generation) -> None:
        """Replace the hold on a directory; a hold on EVERYWHERE replaces all."""
        if directory == EVERYWHERE:
            self.everywhere, self.directories = hold, {}
            return
        directories = self.directories.get(hold)
        if directories is None:
            directories = self.directories[hold] = BitMap64()
        directories.add(directory)  # first: a thread that looks meanwhile finds one of the two
        for other in [other for other in self.directories if other != hold]:
            self.directories[other].discard(directory)
            if not self.directories[other]:
                del self.directories[other]

    def end(self, directories: BitMap64) -> None:
        """End the holds on these directories."""
        for hold, held in list(self.directories.items()):
            held -= directories
            if not held:
                del self.directories[hold]

    @property
    def all(self) -> list[Generation]:
        """The holds, on whatever directories."""
        return [*self.directories, *([self.everywhere] if self.everywhere else [])]

    def before(self, generation: int) -> DirectoryHolds:
        """The holds on earlier generations. Shares their bitmaps, so it may or may not show later changes.

        generation: the last one that the process listed. A hold on everything does not cover the directories that the
        process has listed since.
        """
        if self.everywhere is None or self.everywhere.number >= generation:
            earlier = DirectoryHolds()
            listed_since = None
        else:
            earlier = DirectoryHolds(self.everywhere)
            listed_since = replace(self.everywhere, number=generation, last_seq=0)
        for hold, directories in self.directories.items():
            if hold.number < generation:
                earlier.directories[hold] = directories
            elif listed_since:
                earlier.directories[listed_since] = directories
        return earlier


class Holds:
    """The holds of several processes. They are looked up on demand, in the thread that asks."""

    def __init__(self, processes: Iterable[DirectoryHolds] = ()) -> None:
        self._processes = list(processes)
        self._is_merged = False
        self._by_directory: dict[int, list[Generation]] = {}

    def cover(self, directory: int, seq: int, delisted: int | None) -> bool:
        """Whether a file in that directory is held."""
        holds = self._by_directory.get(directory)
        if holds is None:
            if not self._is_merged:
                self.merge()
            found = {hold for process in self._processes if (hold := process.get(directory))}
            holds = self._by_directory[directory] = list(found)
        # A loop, not any(), which takes twice as long: a draw asks this of every delisted file.
        for hold in holds:  # noqa: SIM110
            if hold.covers(seq, delisted):
                return True
        return False

    def merge(self) -> None:
        """Keep a few objects that together hold the same, as of now. This takes long, and may run on a thread.

        A draw may ask about 20,000 directories. Asking each process about each of them would take seconds. A process
        that holds everything plus some directories of another generation keeps its own object: its holds on those
        directories replace the one on everything.
        """
        everywhere: set[Generation] = set()
        by_hold: dict[Generation, BitMap64] = defaultdict(BitMap64)
        several = list[DirectoryHolds]()
        for process in self._processes:
            on_all, directories = process.everywhere, list(process.directories.items())
            if on_all and directories:
                several.append(process)
            elif on_all:
                everywhere.add(on_all)
            else:
                for hold, ids in directories:
                    by_hold[hold].update(ids)
        merged = [DirectoryHolds(directories={hold: ids}) for hold, ids in by_hold.items()]
        self._processes, self._is_merged = [*map(DirectoryHolds, everywhere), *merged, *several], True
