"""An open directory: the generation that it shows, and the entries that come next."""

from __future__ import annotations

from dataclasses import dataclass, field

from growfs.cache.store import Store
from growfs.rotation.reader import Reader
from growfs.rotation.rules import Generation
from growfs.vfs.attributes import Entry


@dataclass(slots=True)
class Directory:
    """An open directory: the generation that it shows, from the first page on, and the entries that come next.

    ahead: what comes after `position`. passed: up to there all that does is left out. looking: for what comes next.
    """

    id: int
    pid: int
    reader: Reader | None = None
    generation: Generation | None = None
    position: int = 0
    ahead: list[Entry] = field(default_factory=list)
    passed: int = 0
    looking: bool = False

    def begin(self, reader: Reader, generation: Generation) -> None:
        """A process lists it, from the start or from wherever it sought."""
        self.reader, self.generation = reader, generation
        self.ahead, self.position, self.passed, self.looking = [], 0, 0, True


def listed(
    store: Store, parent: int, after_seq: int, generation: Generation, most: int, mtime_ns: int
) -> tuple[list[Entry], int | None]:
    """Entries of a directory that a generation shows, admitted after after_seq, in the order of admission.

    At most that many rows are read, and none of them may be shown: then the admission to continue after comes with
    them, else None. mtime_ns: of files and directories that the remote gives no time for.
    """
    rows = store.entries(parent, after_seq, generation.last_seq, most, mtime_ns)
    entries = [Entry._make(row[:-1]) for row in rows if generation.shows(row[0], row[-1])]
    return entries, rows[-1][-2] if len(rows) == most and not entries else None
