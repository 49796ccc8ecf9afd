"""An open directory: the generation that it shows, and the entries that come next."""

from __future__ import annotations

from dataclasses import dataclass, field

from growfs.cache.store import Store
from growfs.rotation.reader import Reader
from growfs.rotation.rules import Generation
from growfs.vfs.attributes import Entry


@dataclass(slots=True)
class Directory:
    """An open directory. From its first page on it shows one generation.

    pending: entries after `position` that were read from the database and not yet delivered. scanned: the admission up
    to which the database was searched. is_scanning: the search for the next entries has not found any yet.
    """

    id: int
    pid: int
    reader: Reader | None = None
    generation: Generation | None = None
    position: int = 0
    pending: list[Entry] = field(default_factory=list)
    scanned: int = 0
    is_scanning: bool = False

    def begin(self, reader: Reader, generation: Generation) -> None:
        """Begin a listing for a process."""
        self.reader, self.generation = reader, generation
        self.pending, self.position, self.scanned, self.is_scanning = [], 0, 0, True


def visible_entries(
    store: Store, parent: int, after_seq: int, generation: Generation, limit: int, mtime_ns: int
) -> tuple[list[Entry], int | None]:
    """Entries of a directory that a generation shows, admitted after after_seq, in the order of admission.

    At most `limit` rows are read. Where the generation shows none of them, the second value is the admission to
    continue after; else it is None. mtime_ns: of files and directories for which the remote gives no time.
    """
    rows = store.entries(parent, after_seq, generation.last_seq, limit, mtime_ns)
    entries = [Entry._make(row[:-1]) for row in rows if generation.shows(row[0], row[-1])]
    return entries, rows[-1][-2] if len(rows) == limit and not entries else None
