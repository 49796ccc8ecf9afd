"""Which generations are held as a whole, because they were opened by their path or by unknown processes."""

from __future__ import annotations

from collections import Counter

from growfs.rotation.reader import Reader
from growfs.rotation.rules import Generation


class GenerationHolds:
    """Owns these holds. A generation is held while a folder of it is open, in whatever process; for each process that
    opened one, until it opens one of a later generation, ends or falls silent; and for some time after each opening:
    other ranks may open it later, and processes of other pid namespaces cannot be told apart. A part of a pass is held
    by open folders only: the rest is decided by `PartsInUse`.

    Times are in seconds on any clock.
    """

    def __init__(self) -> None:
        self._open_folders = Counter[Generation]()
        self._processes: dict[Reader, Generation] = {}
        self._until: dict[Generation, float] = {}

    def open_folder(self, generation: Generation) -> None:
        """Note that a folder of a generation was opened."""
        self._open_folders[generation] += 1

    def close_folder(self, generation: Generation) -> None:
        """Note that such a folder was closed by all processes that had it open."""
        self._open_folders[generation] -= 1
        if not self._open_folders[generation]:
            del self._open_folders[generation]

    def has_open_folder(self, generation: Generation) -> bool:
        """Whether a folder of a generation is open."""
        return generation in self._open_folders

    def note(self, reader: Reader, generation: Generation, until: float) -> bool:
        """Note that a process opened a folder of a generation by its path, or that a foreign one listed it.

        Returns whether the process has gone on to that generation.
        """
        self._until[generation] = max(until, self._until.get(generation, until))
        before = self._processes.get(reader)
        if reader.is_foreign or (before and before.number >= generation.number):
            return False
        self._processes[reader] = generation
        return True

    def of(self, reader: Reader) -> Generation | None:
        """The generation that is held for a process; the first one for those of other pid namespaces."""
        if reader.is_foreign:
            return min(self._until, key=lambda generation: generation.number, default=None)
        return self._processes.get(reader)

    def end(self, reader: Reader) -> Generation | None:
        """End the hold of a process; returns the generation that it held."""
        return self._processes.pop(reader, None)

    def release(self) -> None:
        """End all holds but those of open folders."""
        self._processes.clear()
        self._until.clear()

    def generations(self, now: float) -> set[Generation]:
        """The generations that are held."""
        self._until = {generation: until for generation, until in self._until.items() if now <= until}
        of_processes = (each for each in self._processes.values() if not each.part)
        return {*self._open_folders, *of_processes, *self._until}
