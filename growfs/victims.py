"""Which resident files may go, as the database and the open files have it; which of them do is rotation's decision."""

from __future__ import annotations

from growfs.database import Database
from growfs.openfiles import OpenFiles
from growfs.rotation import Victim
from growfs.sampling import extension


def victims(db: Database, in_use: OpenFiles, listed_seq: int, most: int) -> tuple[list[Victim], list[Victim]]:
    """What may be evicted, up to so many: files that no reader saw listed, the last first; those listed, oldest first.

    listed_seq: the number of the last admission that is listed.
    """
    query = (
        "SELECT r.id, r.parent, n.name, r.bytes FROM resident r JOIN node n USING (id)"
        " WHERE n.is_dir = 0 AND n.pinned = 0 AND r.seq {} ? ORDER BY r.seq {} LIMIT ?"
    )
    unlisted = db.rows(query.format(">", "DESC"), listed_seq, most)
    listed = db.rows(query.format("<=", "ASC"), listed_seq, most)
    allowed = evictable(db, in_use, [row[:3] for row in (*unlisted, *listed)])
    return (
        [Victim(row[0], row[3]) for row in unlisted if row[0] in allowed],
        [Victim(row[0], row[3]) for row in listed if row[0] in allowed],
    )


def evictable(db: Database, in_use: OpenFiles, files: list[tuple[int, int, str]]) -> set[int]:
    """Which of these (id, parent, name) may all go: none is in use, each directory keeps one of each extension."""
    left: dict[tuple[int, str], int] = {}
    allowed = set()
    for id, parent, name in files:
        kind = (parent, extension(name))
        if kind not in left:
            left[kind] = _count(db, *kind, 2 * len(files))
        if id not in in_use and left[kind] > 1:
            left[kind] -= 1
            allowed.add(id)
    return allowed


def _count(db: Database, parent: int, suffix: str, most: int) -> int:
    """How many resident files of that extension a directory has, among the first `most`."""
    names = db.rows(
        "SELECT n.name FROM resident r JOIN node n USING (id) WHERE r.parent = ? AND n.is_dir = 0 LIMIT ?", parent, most
    )
    return sum(extension(name) == suffix for (name,) in names)
