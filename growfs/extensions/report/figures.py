"""The contents of the report, read from the database of a cache: its history, and sums over its files.

All sums are computed by SQLite, and only as many rows are returned as a page can show, whatever the number of files.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growfs.cache.cache_folder import DATABASE, check_format, is_in_use, read_only
from growfs.cache.schema import DirectoryPaths, query_of
from growfs.errors import GrowfsError

OPENS_BARS = 24
DIRECTORIES_MAX = 24
"""Directories that are shown: those with the smallest and those with the largest share of their files cached."""

DIRECTORY_SUMS = """
CREATE TEMP TABLE cached AS SELECT parent AS id, count(suffix) AS cached FROM resident GROUP BY parent;
CREATE TEMP TABLE used AS SELECT n.parent AS id, count(*) AS seen, sum(u.opens) AS opens
    FROM usage u JOIN node n USING (id) GROUP BY n.parent;
CREATE TEMP TABLE folders AS SELECT parent AS id, count(*) AS folders FROM node INDEXED BY directories
    WHERE is_dir = 1 GROUP BY parent;
CREATE INDEX temp.cached_by_id ON cached (id);
CREATE INDEX temp.used_by_id ON used (id);
CREATE INDEX temp.folders_by_id ON folders (id);
CREATE TEMP TABLE directory AS
    SELECT id, names - coalesce(folders, 0) AS files, coalesce(cached, 0) AS cached, coalesce(seen, 0) AS seen,
        coalesce(opens, 0) AS opens
    FROM (SELECT parent AS id, count(*) AS names FROM node GROUP BY parent)
    LEFT JOIN folders USING (id) LEFT JOIN cached USING (id) LEFT JOIN used USING (id)
    WHERE names > coalesce(folders, 0);
"""
"""A row for each directory with files. The first query reads only an index, so it also counts folders."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of the remote: how many files it has, how many of them are cached, and how many were ever cached.

    opens: the total of all of these.
    """

    path: str
    files: int
    cached: int
    seen: int
    opens: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The contents of a report. history: in order, at most as many rows as the database keeps.

    mount: url, mountpoint, cache_dir, engine, engine_reason, version and options of the last mount. opens: (fewest
    opens, most opens or None if unlimited, number of files). directories: the shown ones of `directories_all`.
    """

    mount: dict[str, Any]
    is_mounted: bool
    now: float
    history: Sequence[sqlite3.Row]
    opens: Sequence[tuple[int, int | None, int]]
    directories: Sequence[Directory]
    directories_all: int


def read(cache: Path, last_s: float | None = None) -> Figures:
    """Read the figures of a cache; last_s: only of this time before its last row. Raises GrowfsError."""
    check_format(cache)
    try:
        with closing(read_only(cache / DATABASE)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN")  # all queries see one snapshot
            mount = connection.execute("SELECT value FROM meta WHERE key = 'mount'").fetchone()
            history = _history(connection, last_s) if mount else []
            if not history:
                raise GrowfsError(f"{cache}: has no history yet; mount it first")
            (shown, total), opens = _directories(connection), _opens(connection)
    except sqlite3.DatabaseError as error:
        raise GrowfsError(
            f"{cache}: its history cannot be read ({error}); run this as the user who mounted it"
        ) from None
    return Figures(json.loads(mount["value"]), is_in_use(cache), time.time(), history, opens, shown, total)


def _history(connection: sqlite3.Connection, last_s: float | None) -> list[sqlite3.Row]:
    rows = connection.execute("SELECT * FROM history ORDER BY uptime_s").fetchall()
    if not rows or last_s is None:
        return rows
    since = rows[-1]["at"] - last_s
    return [row for row in rows if since <= row["at"] <= rows[-1]["at"]]


def _opens(connection: sqlite3.Connection) -> list[tuple[int, int | None, int]]:
    """The histogram of opens of the files that were ever cached. The last bar has all files opened more often."""
    mean, most = connection.execute("SELECT total(opens) / max(1, count(*)), max(opens) FROM usage").fetchone()
    width = int(min(most or 0, max(OPENS_BARS - 1, 3 * mean))) // OPENS_BARS + 1
    rows = connection.execute(
        "SELECT min(opens / ?, ?) AS bar, count(*) FROM usage GROUP BY bar", (width, OPENS_BARS)
    ).fetchall()
    counts = dict(map(tuple, rows))
    return [
        (bar * width, None if bar == OPENS_BARS else (bar + 1) * width - 1, counts.get(bar, 0))
        for bar in range(max(counts, default=-1) + 1)
    ]


def _directories(connection: sqlite3.Connection) -> tuple[list[Directory], int]:
    """The directories to show, from the smallest share cached to the largest, and the number of all directories."""
    for statement in DIRECTORY_SUMS.split(";\n"):
        connection.execute(statement)
    (total,) = connection.execute("SELECT count(*) FROM directory").fetchone()
    order = "ORDER BY 1.0 * cached / files {0}, 1.0 * seen / files {0}, id {0} LIMIT ?"
    columns = "SELECT id, files, cached, seen, opens FROM directory "
    least = connection.execute(columns + order.format("ASC"), (DIRECTORIES_MAX // 2,)).fetchall()
    most = connection.execute(columns + order.format("DESC"), (DIRECTORIES_MAX // 2,)).fetchall()
    paths, ask = DirectoryPaths(), query_of(connection)
    shown = {row["id"]: row for row in (*least, *reversed(most))}
    return [Directory(paths.of(ask, id), *tuple(row)[1:]) for id, row in shown.items()], total


def segments(history: Sequence[sqlite3.Row]) -> Iterator[list[sqlite3.Row]]:
    """The parts of a history without a gap. In a gap no daemon ran, the machine slept, or its clock was set.

    A gap that is too short to be visible within the whole history does not count.
    """
    span_s = max(row["at"] for row in history) - min(row["at"] for row in history)
    # Clock and uptime may differ by less between two rows, and no more than 200 gaps are shown.
    shortest_s = max(30, span_s / 200)
    part: list[sqlite3.Row] = []
    for row in history:
        if part and abs((row["at"] - part[-1]["at"]) - (row["uptime_s"] - part[-1]["uptime_s"])) > shortest_s:
            yield part
            part = []
        part.append(row)
    if part:
        yield part
