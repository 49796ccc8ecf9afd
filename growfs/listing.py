"""The catalog as a worker reads it: to compare a listing with it, and to order its files.

Nothing here writes. The daemon applies what differs, so listing again costs it nothing where nothing changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

from growfs.remote.names import TWICE
from growfs.remote.protocol import RemoteFile, Skipped
from growfs.sampling import Candidate, Pass
from growfs.schema import DIRECTORY_CACHE_MAX, FROZEN, NODES_FROM, ROOT, directory_path, join, row_of_connection

UNKNOWN_SIZE = 64 << 20
"""Bytes that a file whose size the remote does not tell reserves at first; doubled when that was too little."""


def candidates(connection: sqlite3.Connection, asked: Pass) -> Iterator[Candidate]:
    """Every file of the catalog, as a pass sees it. One of unknown size counts as those that are known, on average."""
    (mean,) = connection.execute("SELECT avg(size) FROM node WHERE is_dir = 0").fetchone()
    unknown = min(UNKNOWN_SIZE if mean is None else int(mean), asked.size_max or UNKNOWN_SIZE)
    known = {ROOT: ""}
    row_of = row_of_connection(connection)
    for id, parent, name, size, drawn, pinned, resident in connection.execute(
        "SELECT n.id, n.parent, n.name, n.size, n.drawn, n.pinned, r.id FROM node n LEFT JOIN resident r USING (id)"
        " WHERE n.is_dir = 0"
    ):
        path = join(directory_path(row_of, parent, known), name)
        bytes = unknown if size is None else size
        frozen, done, late = bool(pinned & FROZEN), drawn >= asked.number, drawn == -asked.number
        yield Candidate(id, parent, path, bytes, resident is not None, done, frozen, late)


class Comparison:
    """Compares a listing with the catalog as it was when the listing began.

    Owns a mark for each file that was seen: a byte each, so ten million files take ten megabytes.
    late: new files where the catalog has a directory, which may be gone when the listing is complete. twice: those of
    the last page whose paths came before; the first counts.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        (last,) = connection.execute("SELECT max(id) FROM node").fetchone()
        self._seen = bytearray(last + 1)
        self._empty = last <= NODES_FROM
        self._directory_ids: dict[str, int | None] = {"": ROOT}
        self.late: list[RemoteFile] = []
        self.twice: list[Skipped] = []

    def compare(self, files: Iterable[RemoteFile]) -> tuple[list[RemoteFile], list[tuple[int, RemoteFile]]]:
        """(files that are new, files that replace the one with that id)."""
        if self._empty:
            return list(files), []
        self.twice = []
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
                self.twice.append(Skipped(TWICE, file.path))
                continue
            self._seen[id] = 1
            if _differs((size, mtime_ns, version), file):
                changed.append((id, file))
        return new, changed

    def gone(self) -> Iterator[int]:
        """The ids of the files that the listing did not have, once it is complete."""
        for (id,) in self._connection.execute("SELECT id FROM node WHERE is_dir = 0 AND id < ?", (len(self._seen),)):
            if not self._seen[id]:
                yield id

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
    """Whether the remote's file is another version; what either side does not know cannot differ."""
    size, mtime_ns, version = known
    if version and file.version:
        return version != file.version
    return any(a is not None and b is not None and a != b for a, b in [(size, file.size), (mtime_ns, file.mtime_ns)])
