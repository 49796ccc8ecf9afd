"""The schema of a cache's database, and helpers to read it, for the daemon and for workers.

Workers start with each mount, so nothing here imports trio, which takes longer than all their other imports.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from growfs.cache import NODES_FROM
from growfs.cache.cache_folder import FORMAT

Query = Callable[..., Iterable[Any]]
"""Runs a query with its values; returns its rows, which are fetched as they are iterated over."""

ROOT = 1
"""Node id of the root directory, given by the FUSE protocol (fuse.h: FUSE_ROOT_ID)."""

DIRECTORY_CACHE_MAX = 100_000
"""Directories whose paths or ids a process caches in memory."""

PINNED, FROZEN = 1, 2
"""Bits of the column `pinned`. Both keep a file from being delisted and evicted: `growfs pin`, or --freeze."""

SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- What the remote holds. A row is a directory or one version of a file. Its id is the node id in the FUSE protocol.
CREATE TABLE node (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused: the kernel may have cached it
    parent INTEGER NOT NULL,
    name TEXT NOT NULL,
    is_dir INTEGER NOT NULL,
    size INTEGER,                          -- in bytes; NULL while it is unknown
    mtime_ns INTEGER,
    version TEXT NOT NULL DEFAULT '',
    drawn INTEGER NOT NULL DEFAULT 0,      -- the last pass that drew it; negative: deferred it
    pinned INTEGER NOT NULL DEFAULT 0,     -- PINNED and FROZEN as bits; 0: may be delisted and evicted
    first_shown INTEGER,                   -- generations that showed it before its last eviction
    last_shown INTEGER,
    UNIQUE (parent, name)
);
CREATE INDEX directories ON node (id) WHERE is_dir = 1;
CREATE INDEX pinned ON node (id) WHERE pinned > 0;
INSERT INTO node (id, parent, name, is_dir) VALUES ({ROOT}, 0, '', 1);
UPDATE sqlite_sequence SET seq = {NODES_FROM} WHERE name = 'node';

-- The cached files. A directory is resident from the admission of its first file on.
CREATE TABLE resident (
    id INTEGER PRIMARY KEY REFERENCES node,
    parent INTEGER NOT NULL,
    suffix TEXT,                           -- the extension of a file's name; NULL for a directory
    seq INTEGER NOT NULL UNIQUE,           -- the order of admission
    queue_position INTEGER NOT NULL,       -- position in the queue to be delisted; a group has one
    delisted INTEGER,                      -- the generation that delisted it
    opened INTEGER NOT NULL DEFAULT 0,     -- whether it was opened since its admission
    bytes INTEGER NOT NULL,                -- allocated on the disk
    ino INTEGER NOT NULL,                  -- with file_mtime_ns: identifies the cached file
    file_mtime_ns INTEGER NOT NULL,
    digest TEXT NOT NULL,                  -- of the content, as growfs.remote.digest makes it
    durable INTEGER NOT NULL DEFAULT 0     -- 1: a syncfs has covered it
);
CREATE INDEX resident_by_parent ON resident (parent, seq);
CREATE INDEX not_durable ON resident (id) WHERE durable = 0;
CREATE INDEX resident_by_queue_position ON resident (queue_position, delisted, seq) WHERE suffix IS NOT NULL;
CREATE INDEX delisted ON resident (delisted, queue_position, bytes) WHERE delisted IS NOT NULL;
CREATE INDEX resident_files ON resident (seq) WHERE suffix IS NOT NULL;

-- Names of the remote that cannot be files here. listing: the number of the last listing that had the name.
CREATE TABLE skipped (path TEXT PRIMARY KEY, reason TEXT NOT NULL, listing INTEGER NOT NULL) WITHOUT ROWID;

-- Generations: the last admission that each shows, and when it began (seconds since 1970). Those are kept that were the
-- first to show a file which is still cached, and the last one.
CREATE TABLE generation (number INTEGER PRIMARY KEY, last_seq INTEGER NOT NULL, began REAL NOT NULL);
CREATE INDEX generation_by_seq ON generation (last_seq);

-- The newest generations, which can be listed even if no process holds them. listed: a bitmap (pyroaring.BitMap64) of
-- the admissions that each lists.
CREATE TABLE kept_generation (
    number INTEGER PRIMARY KEY,
    last_seq INTEGER NOT NULL,
    files INTEGER NOT NULL,
    listed BLOB NOT NULL
);

-- How often each file was fetched and opened. A table of its own, because opens are counted for thousands of files at a
-- time, and in the large rows of `node` each of them would change another page.
CREATE TABLE usage (id INTEGER PRIMARY KEY, fetches INTEGER NOT NULL DEFAULT 0, opens INTEGER NOT NULL DEFAULT 0);

-- What the cache held and did over time. Sizes in bytes.
CREATE TABLE history (
    uptime_s INTEGER PRIMARY KEY,          -- how long daemons have served this cache, in all
    at INTEGER NOT NULL,                   -- seconds since 1970, by the clock of the machine
    state TEXT NOT NULL,
    generation INTEGER NOT NULL,
    files INTEGER NOT NULL,                -- cached then
    bytes INTEGER NOT NULL,                -- allocated on the disk for them
    limit_bytes INTEGER NOT NULL,
    listed_files INTEGER NOT NULL,         -- by the generation
    share_files INTEGER NOT NULL,          -- those to show in time: of the remote, or of the mount's share
    files_seen INTEGER NOT NULL,           -- ever cached
    opens INTEGER NOT NULL,                -- of these
    fetched_files INTEGER NOT NULL,        -- this and what follows: from the first row on
    fetched_bytes INTEGER NOT NULL,
    evicted_files INTEGER NOT NULL,
    missed_files INTEGER NOT NULL,
    wait_ms INTEGER NOT NULL
);
PRAGMA user_version = {FORMAT};
"""


def create(writer: sqlite3.Connection) -> None:
    """Create the schema in an empty database, within a transaction."""
    for statement in SCHEMA.split(";\n"):
        writer.execute(statement)


def query_of(connection: sqlite3.Connection) -> Query:
    """Queries on that connection."""
    return lambda query, *values: connection.execute(query, values)


def join(folder: str, name: str) -> str:
    """The path of a name in a directory; the path of the root is empty."""
    return f"{folder}/{name}" if folder else name


class DirectoryPaths:
    """The paths of directories by id, cached. Any thread may ask, with its own queries."""

    def __init__(self) -> None:
        self._known = {ROOT: ""}  # replaced, never emptied: another thread may be reading it

    def of(self, ask: Query, id: int) -> str:
        """The path of a directory. Raises KeyError if there is none with this id."""
        path = self._known.get(id)
        if path is None:
            row = next(iter(ask("SELECT parent, name FROM node WHERE id = ?", id)), None)
            if row is None:
                raise KeyError(f"no directory has the id {id}")
            path = join(self.of(ask, row[0]), row[1])
            if len(self._known) >= DIRECTORY_CACHE_MAX:
                self.forget()
            self._known[id] = path
        return path

    def forget(self) -> None:
        """Forget all paths: ids that were rolled back may be assigned again."""
        self._known = {ROOT: ""}


def with_paths(ask: Query, columns: str, rest: str, *values: object) -> Iterator[tuple[Any, ...]]:
    """(path, *columns) for each row of a query over nodes. rest: the query after FROM, with the table `node` as n."""
    paths = DirectoryPaths()
    for parent, name, *row in ask(f"SELECT n.parent, n.name, {columns} FROM {rest}", *values):
        yield join(paths.of(ask, parent), name), *row


def id_at(ask: Query, path: str) -> int | None:
    """The id of the node at a path; None if there is none. The empty path is the root."""
    id = ROOT
    for name in path.split("/") if path else ():
        row = next(iter(ask("SELECT id FROM node WHERE parent = ? AND name = ?", id, name)), None)
        if row is None:
            return None
        id = row[0]
    return id


def set_meta(writer: sqlite3.Connection, key: str, value: Any) -> None:
    """Write a value of the table `meta`."""
    writer.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (key, value))
