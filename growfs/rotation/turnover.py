"""What a new generation leaves out, as the database has it; the rules are rotation's.

Runs in a worker, with a connection of its own, because a large cache has hundreds of thousands of files to look at.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growfs.cache.schema import read_only
from growfs.rotation.rules import Delisting, FileGroup, Holds, Kind, delist, last_shown, turnover_bytes

FIELDS = "r.id, r.parent, r.suffix, r.bytes, r.seq, r.turn, r.left_out, r.opened"
SHOWN = f"SELECT {FIELDS} FROM resident r JOIN node n USING (id) WHERE r.suffix IS NOT NULL AND n.pinned = 0"


@dataclass(frozen=True, slots=True)
class TurnoverInput:
    """What decides what the next generation leaves out. Sizes in bytes.

    limit: of the cache; free: of that. share: of the cache that is to change. largest: a file that waits for room.
    lacking: what is not local. shown_seq: the last admission of the current generation. last_seq: of the next.
    once: holds that may never be renewed. opened: ids of files whose rows may not tell yet that they were.
    show_files: list exactly so many. rotates: whether anything is left out for the sake of change.
    """

    limit: int
    share: float
    largest: int
    lacking: int
    free: int
    shown_seq: int
    last_seq: int
    once: Holds
    opened: frozenset[int]
    show_files: int | None = None
    rotates: bool = True


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """The next generation: the last admission that it shows, how many files that are, and what changes, as Generation
    has it. to_the_back: ids that get a later place in the queue.
    """

    last_seq: int
    files: int
    changes: dict[int, int | None]
    to_the_back: list[tuple[int, ...]]


def plan_generation(catalog: Path, number: int, asked: TurnoverInput) -> GenerationPlan:
    """Decide what generation `number` lists. catalog: the database file."""
    connection = read_only(catalog)
    try:
        connection.execute("BEGIN")  # all of it is of one moment
        last_seq = asked.last_seq
        listed, largest = _kinds(connection, last_seq)
        files: int | None = None
        if asked.show_files is not None:
            last_seq = _last_shown(connection, asked)
            listed, _ = _kinds(connection, last_seq)
            files = max(0, sum(listed.values()) - asked.show_files)
        lacking = asked.lacking if asked.rotates else 0
        need = turnover_bytes(asked.limit, asked.share, max(largest, asked.largest), lacking, asked.free)
        choice = delist(_units(connection, asked), listed, need, files)
        if files is None and choice.room < need:
            left_out = _kinds_of(connection, choice.left_out)
            last_seq = last_shown(_newest(connection, asked), listed, left_out, need - choice.room, last_seq)
            listed, _ = _kinds(connection, last_seq)
        left = sum(listed.values()) - len(choice.left_out)
        return GenerationPlan(last_seq, left, _changes(connection, number, choice), choice.to_the_back)
    finally:
        connection.close()


def _kinds(connection: sqlite3.Connection, last_seq: int) -> tuple[dict[Kind, int], int]:
    """(how many files of each kind are resident, up to an admission; the bytes of the largest)."""
    rows = connection.execute(
        "SELECT parent, suffix, count(*), max(bytes) FROM resident"
        " WHERE suffix IS NOT NULL AND seq <= ? GROUP BY parent, suffix",
        (last_seq,),
    ).fetchall()
    return {(parent, suffix): count for parent, suffix, count, _ in rows}, max((row[3] for row in rows), default=0)


def _kinds_of(connection: sqlite3.Connection, ids: Iterable[int]) -> list[Kind]:
    query = "SELECT parent, suffix FROM resident WHERE id = ?"
    return [connection.execute(query, (id,)).fetchone() for id in ids]


def _newest(connection: sqlite3.Connection, asked: TurnoverInput) -> Iterator[tuple[int, list[Kind], int]]:
    """The units that no generation showed, the last admitted first, up to one that is pinned or frozen."""
    rows = connection.execute(
        "SELECT r.turn, r.seq, r.parent, r.suffix, r.bytes, n.pinned FROM resident r JOIN node n USING (id)"
        " WHERE r.suffix IS NOT NULL AND r.seq > ? AND r.seq <= ? ORDER BY r.seq DESC",
        (asked.shown_seq, asked.last_seq),
    )
    for _, unit in itertools.groupby(rows, key=lambda row: row[0]):
        files = list(unit)
        if any(file[-1] for file in files):
            return  # what is pinned or frozen is always shown, and with it all that was admitted before
        yield files[-1][1], [file[2:4] for file in files], sum(file[4] for file in files)


def _last_shown(connection: sqlite3.Connection, asked: TurnoverInput) -> int:
    """The last admission to show, so that the arrivals alone are not more than are to be shown."""
    assert asked.show_files is not None
    (kept,) = connection.execute(
        "SELECT count(*) FROM (SELECT 1 FROM resident r JOIN node n USING (id)"
        " WHERE r.suffix IS NOT NULL AND r.seq <= ?1 AND (n.pinned > 0 OR r.id IN"
        " (SELECT max(id) FROM resident WHERE suffix IS NOT NULL AND seq <= ?1 GROUP BY parent, suffix)))",
        (asked.shown_seq,),
    ).fetchone()
    hidden = connection.execute(
        "SELECT turn FROM resident WHERE suffix IS NOT NULL AND seq > ? AND seq <= ? ORDER BY seq LIMIT 1 OFFSET ?",
        (asked.shown_seq, asked.last_seq, max(0, asked.show_files - kept)),
    ).fetchone()
    if hidden is None:
        return asked.last_seq
    (last,) = connection.execute(  # a file's: the directory of the next, which came before it, would be shown empty
        "SELECT max(seq) FROM resident WHERE suffix IS NOT NULL AND seq > ? AND seq < ?", (asked.shown_seq, *hidden)
    ).fetchone()  # what was not shown yet has its unit's first admission as its turn
    return asked.shown_seq if last is None else int(last)


def _units(connection: sqlite3.Connection, asked: TurnoverInput) -> Iterator[FileGroup]:
    """What may be left out: what is already, then what was shown for longest."""
    left_out = connection.execute(f"{SHOWN} AND r.left_out IS NOT NULL ORDER BY r.left_out, r.turn")
    listed = connection.execute(f"{SHOWN} AND r.left_out IS NULL AND r.seq <= ? ORDER BY r.turn", (asked.shown_seq,))
    for _, group in itertools.groupby(itertools.chain(left_out, listed), key=lambda row: (row[6], row[5])):
        yield _unit(list(group), asked)


def _unit(rows: list[Any], asked: TurnoverInput) -> FileGroup:
    return FileGroup(
        ids=tuple(row[0] for row in rows),
        kinds=tuple((row[1], row[2]) for row in rows),
        bytes=sum(row[3] for row in rows),
        once=any(asked.once.cover(row[1], row[4], row[6]) for row in rows),
        left_out=rows[0][6] is not None,
        opened=any(row[7] or row[0] in asked.opened for row in rows),
        spared=rows[0][5] > rows[0][4],
    )


def _changes(connection: sqlite3.Connection, number: int, choice: Delisting) -> dict[int, int | None]:
    already = {id for (id,) in connection.execute("SELECT id FROM resident WHERE left_out IS NOT NULL")}
    newly: dict[int, int | None] = {id: number for id in choice.left_out if id not in already}
    return newly | dict.fromkeys(already.difference(choice.left_out))
