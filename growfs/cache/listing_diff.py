"""How a worker compares a listing with the catalog, and what it reports.

Nothing here writes: the daemon applies the difference, so a listing without changes costs the daemon nothing.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

from growfs.cache import NODES_FROM
from growfs.cache.schema import DIRECTORY_CACHE_MAX, ROOT, query_of, with_paths
from growfs.remote.interface import RemoteFile, Skipped
from growfs.remote.names import DUPLICATE_NAME


@dataclass(frozen=True, slots=True)
class ListingDiff:
    """The differences between a part of listing number `listing` and the catalog. changed: (id of old version, new
    one). If both are the same version, only its time is new.
    """

    listing: int
    new: list[RemoteFile] = field(default_factory=list)
    changed: list[tuple[int, RemoteFile]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def __reduce__(self) -> tuple[object, ...]:
        """How it is pickled: with plain tuples, as pickling a NamedTuple takes five times as long."""
        return _unpickled, (self.listing, list(map(tuple, self.new)), self.changed, self.gone, self.skipped)


def _unpickled(listing: int, new: list[tuple[Any, ...]], *others: Any) -> ListingDiff:
    return ListingDiff(listing, list(map(RemoteFile._make, new)), *others)


class Comparison:
    """Compares a listing with the catalog as it was when the listing began.

    Owns one byte for each file, which records that the file was seen: ten million files take ten megabytes. late: new
    files at paths where the catalog has a directory, which may be gone when the listing is complete. duplicates: the
    files of the last page whose paths were listed before; the first one counts.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        (last,) = connection.execute("SELECT max(id) FROM node").fetchone()
        self._seen = bytearray(last + 1)
        self._empty = last <= NODES_FROM
        self._directory_ids: dict[str, int | None] = {"": ROOT}
        self.late: list[RemoteFile] = []
        self.duplicates: list[Skipped] = []

    def compare(self, files: Iterable[RemoteFile]) -> tuple[list[RemoteFile], list[tuple[int, RemoteFile]]]:
        """Returns (new files, (id, new version) of each file that changed).

        A version that was stored again is returned with its newer time. An older one is not: servers that replicate a
        store may have different times, and would be followed back and forth.
        """
        if self._empty:
            return list(files), []
        self.duplicates = []
        new: list[RemoteFile] = []
        changed: list[tuple[int, RemoteFile]] = []
        for file in files:
            folder, _, name = file.path.rpartition("/")
            row = self._known(self._directory_id(folder), name)
            if row is None:
                new.append(file)
                continue
            id, is_dir, size, mtime_ns, version = row
            if is_dir:
                self.late.append(file)
                continue
            if self._seen[id]:
                self.duplicates.append(Skipped(DUPLICATE_NAME, file.path))
                continue
            self._seen[id] = 1
            if _differs((size, mtime_ns, version), file):
                changed.append((id, file))
        return new, changed

    def gone(self, is_unread: Callable[[str], bool] = lambda version: False) -> Iterator[int]:
        """The ids of the files missing from a complete listing.

        is_unread: whether a file of this version is in a container that could not be read, so that it may still exist.
        """
        rows = self._connection.execute("SELECT id, version FROM node WHERE is_dir = 0 AND id < ?", (len(self._seen),))
        for id, version in rows:
            if not (self._seen[id] or is_unread(version)):
                yield id

    def to_ask(self, gone: list[int], count: int) -> list[RemoteFile]:
        """At most `count` of these files, in any order: cached ones if there are as many, otherwise all of these."""
        cached = {id for (id,) in self._connection.execute("SELECT id FROM resident WHERE suffix IS NOT NULL")}
        cached &= set(gone)
        chosen = random.sample(sorted(cached), min(count, len(cached)))
        if len(chosen) < count:
            others = [id for id in gone if id not in cached]
            chosen += random.sample(others, min(count - len(chosen), len(others)))
        query = "node n WHERE n.id IN (SELECT value FROM json_each(?))"
        rows = with_paths(query_of(self._connection), "n.size, n.mtime_ns, n.version", query, json.dumps(chosen))
        return list(starmap(RemoteFile, rows))

    def _known(self, parent: int | None, name: str) -> Any:
        return (
            parent
            and self._connection.execute(
                "SELECT id, is_dir, size, mtime_ns, version FROM node WHERE parent = ? AND name = ? AND id < ?",
                (parent, name, len(self._seen)),
            ).fetchone()
        )

    def _directory_id(self, path: str) -> int | None:
        if path not in self._directory_ids:
            folder, _, name = path.rpartition("/")
            parent = self._directory_id(folder)
            row = (
                parent
                and self._connection.execute(
                    "SELECT id FROM node WHERE parent = ? AND name = ? AND is_dir = 1", (parent, name)
                ).fetchone()
            )
            if len(self._directory_ids) >= DIRECTORY_CACHE_MAX:
                self._directory_ids = {"": ROOT}
            self._directory_ids[path] = row[0] if row else None
        return self._directory_ids[path]


def _differs(known: tuple[int | None, int | None, str], file: RemoteFile) -> bool:
    """Whether the remote has another version, or stored this one again later. An unknown value does not count."""
    size, mtime_ns, version = known
    if version and file.version:
        return version != file.version or (mtime_ns or 0) < (file.mtime_ns or 0)
    return any(a is not None and b is not None and a != b for a, b in [(size, file.size), (mtime_ns, file.mtime_ns)])
