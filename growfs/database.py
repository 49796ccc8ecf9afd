"""The one database of a cache: its file, its schema, and who may write.

Two rooms share it: the catalog (what exists) and the store (what is resident). The daemon has one connection that
reads, on the thread that answers the kernel, and one that writes, used by one thread at a time, so that a slow commit
delays no reader. Workers read with connections of their own (SQLite's write-ahead log lets readers go on beside a
writer).
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio

from growfs.sampling import extension

log = logging.getLogger(__name__)

T = TypeVar("T")

Ask = Callable[..., list[Any]]
"""Given a query and its values, all of its rows."""

RETRY_S = 5.0
"""Pause where the disk refuses a write that can wait."""

ROOT = 1
"""Node id of the root folder, as the FUSE protocol has it (fuse.h: FUSE_ROOT_ID)."""

NODES_FROM = 1024
"""Node ids below this are for files that are in no catalog."""

PAGE_CACHE_KIB = 2 * 1024
"""Of each connection. What that lacks the kernel's page cache has: with ten million rows, 16 MiB were no faster."""

VERSION = 2
"""Of the schema (PRAGMA user_version); the first had none."""

PINNED, FROZEN = 1, 2
"""Why a file is never left out or evicted: somebody asked for it while mounted, or --freeze did."""

SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- What the remote holds. A row is a directory, or one version of a file; its id is the node id that the kernel knows.
CREATE TABLE node (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: the kernel may remember it
    parent INTEGER NOT NULL,
    name TEXT NOT NULL,
    is_dir INTEGER NOT NULL,
    size INTEGER,                          -- bytes; NULL while the remote does not tell
    mtime_ns INTEGER,
    version TEXT NOT NULL DEFAULT '',
    drawn INTEGER NOT NULL DEFAULT 0,      -- the last pass that drew it; negative: that deferred it
    pinned INTEGER NOT NULL DEFAULT 0,     -- PINNED and FROZEN, added up: why it is never left out or evicted
    fetches INTEGER NOT NULL DEFAULT 0,
    opens INTEGER NOT NULL DEFAULT 0,
    first_shown INTEGER,                   -- generations, of stays that have ended
    last_shown INTEGER,
    UNIQUE (parent, name)
);
CREATE INDEX directories ON node (id) WHERE is_dir = 1;
CREATE INDEX fetched ON node (opens, fetches) WHERE is_dir = 0 AND fetches > 0;
INSERT INTO node (id, parent, name, is_dir) VALUES ({ROOT}, 0, '', 1);
UPDATE sqlite_sequence SET seq = {NODES_FROM} WHERE name = 'node';

-- What is on the local disk, whole. A directory is resident from its first file's admission on.
CREATE TABLE resident (
    id INTEGER PRIMARY KEY REFERENCES node,
    parent INTEGER NOT NULL,
    suffix TEXT,                           -- the extension of a file's name; NULL for a directory
    seq INTEGER NOT NULL UNIQUE,           -- order of admission
    turn INTEGER NOT NULL,                 -- place in the queue to be left out; files that leave as one have the same
    left_out INTEGER,                      -- the first generation that does not list it any more
    opened INTEGER NOT NULL DEFAULT 0,     -- since its admission
    bytes INTEGER NOT NULL,                -- allocated on the disk
    ino INTEGER NOT NULL,                  -- of the cached file, as ctime_ns: another file in its place has others
    ctime_ns INTEGER NOT NULL,
    digest TEXT NOT NULL,                  -- XXH3 (64 bits) of the content
    durable INTEGER NOT NULL DEFAULT 0     -- was on the medium when a syncfs succeeded
);
CREATE INDEX resident_by_parent ON resident (parent, seq);
CREATE INDEX not_durable ON resident (id) WHERE durable = 0;

-- Names of the remote that cannot be files here. listing: the number of the last listing that met it.
CREATE TABLE skipped (path TEXT PRIMARY KEY, reason TEXT NOT NULL, listing INTEGER NOT NULL) WITHOUT ROWID;
"""


INDEXES = f"""
CREATE INDEX resident_by_turn ON resident (turn) WHERE suffix IS NOT NULL AND left_out IS NULL;
CREATE INDEX left_out ON resident (left_out, turn, bytes) WHERE left_out IS NOT NULL;

-- A generation's last admission, and when it began (seconds since 1970).
CREATE TABLE generation (number INTEGER PRIMARY KEY, last_seq INTEGER NOT NULL, began REAL NOT NULL);
PRAGMA user_version = {VERSION};
"""

FROM_1 = """
ALTER TABLE node ADD COLUMN first_shown INTEGER;
ALTER TABLE node ADD COLUMN last_shown INTEGER;
ALTER TABLE resident ADD COLUMN suffix TEXT;
ALTER TABLE resident ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE resident ADD COLUMN left_out INTEGER;
ALTER TABLE resident ADD COLUMN opened INTEGER NOT NULL DEFAULT 0;
UPDATE resident SET turn = seq, suffix = (SELECT extension(name) FROM node n WHERE n.id = resident.id AND is_dir = 0);
"""
"""What brings the first format up to date; both end with INDEXES."""


def _missing(writer: sqlite3.Connection) -> str:
    """The statements that the schema lacks: all of it in a new file."""
    (version,) = writer.execute("PRAGMA user_version").fetchone()
    if version == VERSION:
        return ""
    if not writer.execute("SELECT 1 FROM sqlite_master WHERE name = 'node'").fetchone():
        return SCHEMA + INDEXES
    writer.create_function("extension", 1, extension, deterministic=True)
    return FROM_1 + INDEXES


def read_only(path: Path) -> sqlite3.Connection:
    """A connection that cannot write, for the thread that asks."""
    connection = sqlite3.connect(f"file:{_quoted(path)}?mode=ro", uri=True, isolation_level=None, cached_statements=256)
    connection.execute(f"PRAGMA cache_size = -{PAGE_CACHE_KIB}")
    return connection


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path))


class Database:
    """Owns both connections of the daemon.

    `rows` and `row` read what is committed, at once. `write` runs a function in a transaction on the writing thread;
    writes never overlap, and one that raises leaves no trace.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = NORMAL")
        self._writer.execute(f"PRAGMA cache_size = -{PAGE_CACHE_KIB}")
        script = _missing(self._writer)
        with transaction(self._writer):
            for statement in script.split(";\n"):
                self._writer.execute(statement)
        self._reader = read_only(path)
        self._turn = trio.CapacityLimiter(1)

    def rows(self, query: str, *values: object) -> list[Any]:
        """All rows of a query over what is committed."""
        return self._reader.execute(query, values).fetchall()

    def row(self, query: str, *values: object) -> Any:
        """The first row of a query over what is committed, or None."""
        return self._reader.execute(query, values).fetchone()

    async def aside(self, function: Callable[[Ask], T]) -> T:
        """Have function ask on a thread, by a connection of its own: for what takes longer than a reader can wait."""

        def look() -> T:
            connection = read_only(self.path)
            try:
                connection.execute("BEGIN")  # all of it is of one moment
                return function(lambda query, *values: connection.execute(query, values).fetchall())
            finally:
                connection.close()

        return await trio.to_thread.run_sync(look)

    async def write(self, function: Callable[[sqlite3.Connection], T], then: Callable[[T], None] | None = None) -> T:
        """Run function in a transaction, in turn; its result comes once that is committed.

        then: given the result after the commit and before the next write; for what must follow on the disk.
        """

        def turn() -> T:
            result = self.write_now(function)
            if then:
                then(result)
            return result

        return await trio.to_thread.run_sync(turn, limiter=self._turn)

    async def write_at_last(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """As `write`, again and again while the disk refuses: what needs no answer must not end the daemon."""
        while True:
            try:
                return await self.write(function)
            except sqlite3.OperationalError as error:
                log.warning("the catalog cannot be written, trying again: %s", error)
                await trio.sleep(RETRY_S)

    async def in_writer(self, function: Callable[[], T]) -> T:
        """Run function, outside of any transaction, in the writing thread's turn: what must not overtake a write."""
        return await trio.to_thread.run_sync(function, limiter=self._turn)

    def write_now(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """As `write`, on this thread: for start and stop, when nobody else writes."""
        with transaction(self._writer):
            return function(self._writer)

    def write_through(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """As `write_now`, and return when the medium has it: what a power loss must not undo."""
        self._writer.execute("PRAGMA synchronous = FULL")
        try:
            return self.write_now(function)
        finally:
            self._writer.execute("PRAGMA synchronous = NORMAL")

    def meta(self, key: str, default: Any = None) -> Any:
        """A small fact about the whole cache."""
        row = self.row("SELECT value FROM meta WHERE key = ?", key)
        return default if row is None else row[0]

    def last_known(self, key: str) -> Any:
        """What the last daemon knew as it ended, as `set_last_known` wrote it down; None where it did not, or crashed.

        It is told once: the next daemon must not hear it, if this one crashes.
        """
        if (value := self.meta(key)) is None:
            return None
        self.write_now(lambda writer: writer.execute("DELETE FROM meta WHERE key = ?", (key,)))
        return json.loads(value)

    def close(self) -> None:
        """Fold the write-ahead log into the file and let go of it."""
        self._reader.close()
        self._writer.close()


def set_meta(writer: sqlite3.Connection, key: str, value: Any) -> None:
    """Keep a small fact about the whole cache."""
    writer.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (key, value))


def set_last_known(writer: sqlite3.Connection, key: str, value: Any) -> None:
    """Keep for the next daemon what JSON can say, and what takes long to find out anew."""
    set_meta(writer, key, json.dumps(value))


@contextmanager
def transaction(writer: sqlite3.Connection) -> Iterator[None]:
    """All or nothing."""
    writer.execute("BEGIN IMMEDIATE")
    try:
        yield
        writer.execute("COMMIT")
    except BaseException:
        if writer.in_transaction:  # a full disk may have ended it (sqlite.org/lang_transaction.html)
            writer.execute("ROLLBACK")
        raise
