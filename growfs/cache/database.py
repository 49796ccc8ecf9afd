"""The single database of a cache: its connections, and who may write.

The catalog (which files exist) and the store (which are resident) share it. The daemon has one connection for reading,
on the thread that answers the kernel, and one for writing, used by one thread at a time, so a slow commit delays no
reader. Workers read with their own connections: in SQLite's write-ahead log mode, readers and a writer do not block
each other.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio

from growfs import disk
from growfs.cache.cache_folder import FORMAT, read_only, unreadable
from growfs.cache.full_disk import Spare
from growfs.cache.schema import Query, create
from growfs.errors import Unreadable

log = logging.getLogger(__name__)

T = TypeVar("T")

LOG_BYTES_MAX = 16 << 20
"""The size to which the write-ahead log is cut after it has grown larger."""
DISK_ERRORS = (Unreadable, OSError, sqlite3.DatabaseError)
"""The errors that a failing disk causes in a service. Anything else is a bug."""
RETRY_S = 5.0
"""Pause before retrying a write that the disk refused."""


def failed_query(path: Path, error: sqlite3.DatabaseError) -> Unreadable:
    """The error for it, which is logged: a program that looks up a name gets nothing but an EIO."""
    log.warning("%s", failure := unreadable(path, error))
    return failure


async def read_in_thread(path: Path, function: Callable[[], T]) -> T:
    """Run a function that reads a database on a thread. Raises Unreadable."""
    try:
        return await trio.to_thread.run_sync(function)
    except sqlite3.DatabaseError as error:
        raise failed_query(path, error) from error


class Database:
    """Owns both connections of the daemon.

    `rows` and `row` read committed data without waiting. `write` runs a function in a transaction on the writing
    thread. Writes never overlap; one that raises is rolled back. If the disk refuses, reads raise Unreadable and writes
    sqlite3.DatabaseError.

    refusal: the error with which the disk refused the last write; None if it did not. stopped_cleanly: whether the
    last daemon did, once `recover` has found out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spare = Spare(path.with_name("spare"))
        self.refusal: sqlite3.DatabaseError | None = None
        self.stopped_cleanly = False
        disk.make_overwritable(path.with_name(f"{path.name}-shm"))  # SQLite and all readers map it
        self._writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = NORMAL")
        self._writer.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_MAX}")
        if self._writer.execute("PRAGMA user_version").fetchone() != (FORMAT,):
            with transaction(self._writer):
                create(self._writer)
        self._reader = read_only(path)
        self._writing_thread = trio.CapacityLimiter(1)

    def rows(self, query: str, *values: object) -> list[Any]:
        """All rows of a query over committed data."""
        try:
            return self._reader.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise failed_query(self.path, error) from error

    def row(self, query: str, *values: object) -> Any:
        """The first row of a query over committed data, or None."""
        try:
            return self._reader.execute(query, values).fetchone()
        except sqlite3.DatabaseError as error:
            raise failed_query(self.path, error) from error

    async def query_in_thread(self, function: Callable[[Query], T]) -> T:
        """Run a function with queries on a thread, with its own connection: for queries that would delay readers."""

        def query() -> T:
            with closing(read_only(self.path)) as connection:
                connection.execute("BEGIN")  # all queries see one snapshot
                return function(lambda query, *values: connection.execute(query, values))

        return await read_in_thread(self.path, query)

    async def write(self, function: Callable[[sqlite3.Connection], T], then: Callable[[T], None] | None = None) -> T:
        """Run a function in a transaction; returns its result after the commit.

        then: called with the result after the commit and before the next write, for changes that must follow on the
        disk.
        """

        def commit() -> T:
            result = self.write_now(function)
            if then:
                then(result)
            return result

        return await self.run_in_writer(commit)

    async def write_with_retry(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """As `write`, and retry while the disk refuses: for writes whose failure must not end the daemon."""
        while True:
            try:
                return await self.write(function)
            except sqlite3.DatabaseError as error:
                log.warning("the database cannot be written, trying again: %s", error)
                await trio.sleep(RETRY_S)

    async def run_in_writer(self, function: Callable[[], T]) -> T:
        """Run a function on the writing thread, outside of any transaction: for work that must not overtake a write.

        As a write, it is not lost if the daemon stops while it waits for its turn.
        """
        with trio.CancelScope(shield=True):
            result = await trio.to_thread.run_sync(function, limiter=self._writing_thread)
        return result  # noqa: RET504 - the types allow a CancelScope to swallow an error

    def write_now(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """As `write`, but on this thread: at start and stop, when nothing else writes.

        If the disk is too full for it, some space is free afterwards for the next try.
        """
        try:
            with transaction(self._writer):
                result = function(self._writer)
        except sqlite3.DatabaseError as error:
            self.refusal = error
            self.spare.give_up()  # whatever the error: SQLite reports a full disk, but not an exhausted quota
            raise
        self.refusal = None
        self.spare.make()
        return result

    def write_durably(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """As `write_now`, but returns only when it is on the medium: for changes that a power loss must not undo."""
        self._writer.execute("PRAGMA synchronous = FULL")
        try:
            return self.write_now(function)
        finally:
            self._writer.execute("PRAGMA synchronous = NORMAL")

    def meta(self, key: str, default: Any = None) -> Any:
        """A value of the table `meta`."""
        row = self.row("SELECT value FROM meta WHERE key = ?", key)
        return default if row is None else row[0]

    def last_known(self, key: str) -> Any:
        """A JSON value of the table `meta` that is written when a daemon stops; None if the last one crashed."""
        return json.loads(self.meta(key, "null")) if self.stopped_cleanly else None

    def close(self) -> None:
        """Close both connections; SQLite then folds the write-ahead log into the file."""
        self._reader.close()
        self._writer.close()
        self.spare.give_up()


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
