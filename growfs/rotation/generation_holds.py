"""Which generations are held as a whole, because they were opened by their path or by unknown processes."""

from __future__ import annotations

from collections import Counter

from growfs.rotation.holds import DirectoryHolds
from growfs.rotation.reader import Reader
from growfs.rotation.rules import Generation


class GenerationHolds:
    """Owns these holds. A generation is held while a folder of it is open, in whatever process; for each process that
    opened one, until it opens one of a later generation, ends or falls silent; and for a while after a process of
    another pid namespace, which cannot be told apart from others, has listed it.

    Callers pass the time, in seconds on any clock.
    """

    def __init__(self) -> None:
        self._open_folders = Counter[Generation]()
        self._processes: dict[Reader, Generation] = {}
        self._foreign: dict[Generation, float] = {}

    def open_folder(self, generation: Generation) -> None:
        """Note that a folder of a generation was opened."""
        self._open_folders[generation] += 1

    def close_folder(self, generation: Generation) -> None:
        """Note that such a folder was closed by all processes that had it open."""
        self._open_folders[generation] -= 1
        if not self._open_folders[generation]:
            del self._open_folders[generation]

    def note(self, reader: Reader, generation: Generation, now: float) -> None:
        """Note that a process opened a folder of a generation by its path, or for a foreign one, that it listed it."""
        before = self._processes.get(reader)
        if reader.is_foreign:
            self._foreign[generation] = now
        elif before is None or before.number < generation.number:
            self._processes[reader] = generation

    def of(self, reader: Reader) -> Generation | None:
        """The generation that is held for a process; the first one for those of other pid namespaces."""
        if reader.is_foreign:
            return min(self._foreign, key=lambda generation: generation.number, default=None)
        return self._processes.get(reader)

    def end(self, reader: Reader) -> None:
        """End the hold of a process."""
        self._processes.pop(reader, None)

    def end_foreign(self, now: float, hold_idle_s: float) -> bool:
        """End the holds for processes of other pid namespaces after that time. Returns whether there were any."""
        ended = [generation for generation, since in self._foreign.items() if now - since > hold_idle_s]
        for generation in ended:
            del self._foreign[generation]
        return bool(ended)

    def release(self) -> None:
        """End all holds but those of open folders."""
        self._processes.clear()
        self._foreign.clear()

    def generations(self) -> set[Generation]:
        """The generations that are held."""
        return {*self._open_folders, *self._processes.values(), *self._foreign}

    def before(self, newest: Generation | None) -> list[DirectoryHolds]:
        """The holds on others than the newest: programs that read the newest may go on to the next one soon."""
        return [DirectoryHolds(each.hold) for each in self.generations() if each is not newest]
