"""Which resident files may go, as the database and the open files have it; which of them do is rotation's decision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from growfs.database import Database
from growfs.openfiles import OpenFiles
from growfs.rotation import Holds, Kind, Victim

ROW = "r.id, r.parent, r.suffix, r.bytes, r.seq, r.left_out"
LEFT_OUT = "r.left_out IS NOT NULL", "r.left_out, r.turn"
UNSHOWN = "r.left_out IS NULL AND r.seq > ?", "r.seq DESC"
LISTED = "r.left_out IS NULL AND r.seq <= ?", "r.turn"


def expendable(db: Database, in_use: OpenFiles, holds: Holds, most: int) -> list[Victim]:
    """Up to `most` files that are left out and that nobody holds, in the order in which they are to go."""
    return _allowed(db, in_use, (row for row in _rows(db, LEFT_OUT, most) if not holds.cover(row[1], *row[4:])))


def victims(db: Database, in_use: OpenFiles, holds: Holds, shown_seq: int, most: int) -> list[Victim]:
    """What a miss may take the place of, up to `most` of each sort, in that order.

    Files that no reader saw listed, the last first; those left out, first what nobody holds; those listed, the oldest
    first. shown_seq: the last admission that a generation showed.
    """
    left_out = _rows(db, LEFT_OUT, most)
    held = [holds.cover(row[1], *row[4:]) for row in left_out]
    return _allowed(
        db,
        in_use,
        [
            *_rows(db, UNSHOWN, most, shown_seq),
            *(row for row, kept in zip(left_out, held, strict=True) if not kept),
            *(row for row, kept in zip(left_out, held, strict=True) if kept),
            *_rows(db, LISTED, most, shown_seq),
        ],
    )


def evictable(db: Database, in_use: OpenFiles, files: Iterable[tuple[int, Kind]]) -> set[int]:
    """Which of these may all go: none is in use, and each directory keeps one of each extension."""
    left: dict[Kind, int] = {}
    allowed = set()
    files = list(files)
    for id, kind in files:
        if kind not in left:
            left[kind] = _count(db, kind, 2 * len(files))
        if id not in in_use and left[kind] > 1:
            left[kind] -= 1
            allowed.add(id)
    return allowed


def _rows(db: Database, which: tuple[str, str], most: int, *values: object) -> list[Any]:
    condition, order = which
    return db.rows(
        f"SELECT {ROW} FROM resident r JOIN node n USING (id)"
        f" WHERE r.suffix IS NOT NULL AND n.pinned = 0 AND {condition} ORDER BY {order} LIMIT ?",
        *values,
        most,
    )


def _allowed(db: Database, in_use: OpenFiles, rows: Iterable[Any]) -> list[Victim]:
    rows = list(rows)
    allowed = evictable(db, in_use, [(row[0], (row[1], row[2])) for row in rows])
    return [Victim(row[0], row[3]) for row in rows if row[0] in allowed]


def _count(db: Database, kind: Kind, most: int) -> int:
    """How many resident files of that extension a directory has, up to so many."""
    (count,) = db.row(
        "SELECT count(*) FROM (SELECT 1 FROM resident WHERE parent = ? AND suffix = ? LIMIT ?)", *kind, most
    )
    return int(count)
