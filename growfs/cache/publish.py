"""How files are published and evicted: the part of the store that changes rows and files together, on the writer.

Publishing renames and then commits; evicting commits and then unlinks. A crash in between leaves a file without a row,
which the next start deletes, but never a row without its file.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from growfs import disk
from growfs.cache.catalog import Node, Removed
from growfs.cache.recovery import Identity
from growfs.cache.schema import DirectoryPaths, join, query_of
from growfs.paths import StrPath
from growfs.remote.interface import Fetched
from growfs.remote.names import extension

if TYPE_CHECKING:
    from growfs.cache.room import Reservation

log = logging.getLogger(__name__)

OF_ONE_PATH = {
    *(errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL),  # the file system does not accept the name
    *(errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY),  # it may be case-insensitive
    *(errno.EMLINK, errno.EPERM),  # it has no hard links, which keep the old version during a rename
}
"""Errors that need not affect other files."""
IS_RESIDENT = (
    "SELECT n.id, r.id IS NOT NULL FROM json_each(?) wanted JOIN node n ON n.id = wanted.value LEFT JOIN resident r"
    " ON r.id = n.id"
)


class StagedFile(NamedTuple):
    """A file that a worker wrote and checked, not yet visible."""

    node: Node
    path: str
    file: StrPath
    fetched: Fetched
    reserved: Reservation
    """The room that it holds."""
    renews: bool = False
    """Whether the node is a newer version of the file that has its id now."""
    group: tuple[int, ...] = ()
    """The ids of all files that are delisted and evicted together with it, including its own; empty if it has no
    group.
    """


@dataclass(slots=True)
class Published:
    """The result of publishing files."""

    renamed: dict[str, str | None] = field(default_factory=dict)
    """The paths of the files, each with another name of the file that it replaced, if any. Strings, because making and
    hashing a Path takes 5 us."""
    admitted: dict[int, int] = field(default_factory=dict)
    """Bytes on the disk, by the id of the staged node."""
    replaced: list[Removed] = field(default_factory=list)
    """The old versions that are gone."""
    refused: dict[int, OSError] = field(default_factory=dict)
    """Errors OF_ONE_PATH, by the id of the staged node."""
    last_seq: int = 0
    """The last admission."""


class QueuePlace(NamedTuple):
    """The place of a file in the order of admission and in the queue to be delisted: columns of its row."""

    seq: int
    queue_position: int
    delisted: int | None = None
    opened: int = 0


class Publisher:
    """Moves files into a folder and removes them. Each method is one step on the writing thread.

    last_seq: the last number given. Admissions and queue positions take their numbers from the same counter, and never
    the same one. left_behind: whether there is a file without a row. mirrors: folders with links to files,
    under the same paths. A removed file is also removed there, and a replaced one replaced there, so that its bytes are
    freed.
    """

    def __init__(self, files: Path, paths: DirectoryPaths, last_seq: int) -> None:
        self.last_seq = last_seq
        self.left_behind = False
        self.mirrors: list[Path] = []
        self._files = files
        self._paths = paths

    def publish(
        self, writer: sqlite3.Connection, staged: Sequence[StagedFile], pass_number: int, done: Published
    ) -> None:
        """Admit staged files. done: collects the results, for `finish`, and for `undo` if this or the commit fails."""
        group_positions: dict[tuple[int, ...], int] = {}
        residents: list[tuple[object, ...]] = []
        nodes: list[tuple[object, ...]] = []
        folders: set[int] = set()
        resident = dict(writer.execute(IS_RESIDENT, (json.dumps([file.node.id for file in staged]),)).fetchall())
        for file in staged:
            is_resident = resident.get(file.node.id)
            if is_resident is None or (is_resident and not file.renews):  # gone from the catalog, or resident already
                disk.unlink("DRAFT_STALE", file.file)
                continue
            path = f"{self._files}/{file.path}"
            try:
                done.renamed[path] = self._rename(file, path)
            except OSError as error:
                if error.errno not in OF_ONE_PATH or file.group:  # a group is admitted as a whole or not at all
                    raise
                done.refused[file.node.id] = error
                continue
            id, place = self._replace(writer, file, done) if file.renews else (file.node.id, None)
            if place is None:
                if file.node.parent not in folders:
                    self._admit_folders(writer, file.node.parent)
                    folders.add(file.node.parent)
                seq = self._next()
                if file.group and file.group not in group_positions:
                    group_positions[file.group] = seq
                    writer.execute(JOIN_GROUP, (seq, json.dumps(file.group)))
                place = QueuePlace(seq, group_positions.get(file.group, seq))
            stat = os.stat(path)
            bytes = done.admitted[file.node.id] = disk.allocated(stat)
            row = id, file.node.parent, extension(file.node.name), *place
            residents.append((*row, bytes, *Identity.of(stat), file.fetched.digest))
            nodes.append((file.fetched.size, file.fetched.mtime_ns, pass_number, id))
        writer.execute(INSERT_RESIDENTS, (json.dumps(residents),))
        rows = json.dumps(nodes)
        writer.execute(UPDATE_NODES, (rows,))
        writer.execute(COUNT_FETCHES, (rows,))
        done.last_seq = self.last_seq
        disk.fault_point("PUBLISH_COMMIT")

    @staticmethod
    def _rename(file: StagedFile, path: str) -> str | None:
        """Rename a staged file to its path; returns another name of the file that it replaces."""
        old = f"{file.file}.old" if file.renews else None
        if old and not disk.link("PUBLISH", path, old):
            old = None
        try:
            disk.rename("PUBLISH", file.file, path)
        except OSError:
            if old:
                disk.unlink("PUBLISH_UNDO", old)
            raise
        return old

    def _next(self) -> int:
        self.last_seq += 1
        return self.last_seq

    @staticmethod
    def _replace(writer: sqlite3.Connection, file: StagedFile, done: Published) -> tuple[int, QueuePlace | None]:
        """Give a new version the place of the old one, also in listings; returns (its new id, its place)."""
        node = file.node
        size, bytes, seq, queue_position, delisted, opened, *kept = writer.execute(
            "SELECT n.size, r.bytes, r.seq, r.queue_position, r.delisted, r.opened,"
            " n.pinned, n.first_shown, n.last_shown"
            " FROM node n LEFT JOIN resident r USING (id) WHERE n.id = ?",
            (node.id,),
        ).fetchone()
        writer.execute("DELETE FROM resident WHERE id = ?", (node.id,))
        writer.execute("DELETE FROM node WHERE id = ?", (node.id,))
        cursor = writer.execute(
            "INSERT INTO node (is_dir, parent, name, mtime_ns, version, pinned, first_shown, last_shown)"
            " VALUES (0, ?, ?, ?, ?, ?, ?, ?)",
            (node.parent, node.name, node.mtime_ns, node.version, *kept),
        )
        writer.execute("UPDATE usage SET id = ? WHERE id = ?", (cursor.lastrowid, node.id))
        done.replaced.append(Removed(node.id, node.parent, node.name, file.path, size or 0, bytes))
        return cursor.lastrowid or 0, QueuePlace(seq, queue_position, delisted, opened) if seq else None

    def requeue(self, writer: sqlite3.Connection, groups: Iterable[Sequence[int]]) -> None:
        """Move groups of files to the end of the queue to be delisted. Each group is a sequence of admissions."""
        for group in groups:
            position = self._next()
            rows = [(position, seq) for seq in group]
            writer.executemany("UPDATE resident SET queue_position = ? WHERE seq = ?", rows)

    def admit_all_folders(self, writer: sqlite3.Connection) -> None:
        """Make all directories of the catalog resident."""
        missing = "SELECT id FROM node WHERE is_dir = 1 AND id NOT IN (SELECT id FROM resident)"
        for (id,) in writer.execute(missing).fetchall():
            self._admit_folders(writer, id)

    def _admit_folders(self, writer: sqlite3.Connection, id: int) -> None:
        """Make a directory and its parents resident."""
        missing = []
        while id and not writer.execute("SELECT 1 FROM resident WHERE id = ?", (id,)).fetchone():
            (parent,) = writer.execute("SELECT parent FROM node WHERE id = ?", (id,)).fetchone()
            missing.append((id, parent))
            id = parent
        for id, parent in reversed(missing):
            seq = self._next()
            writer.execute(
                "INSERT INTO resident (id, parent, seq, queue_position, bytes, ino, file_mtime_ns, digest)"
                " VALUES (?, ?, ?, ?, 0, 0, 0, '')",
                (id, parent, seq, seq),
            )

    def undo(self, done: Published) -> None:
        """Remove files whose rows were not committed, and restore those that they replaced."""
        for path, old in done.renamed.items():
            with self._log_failure(path):
                if old:
                    disk.rename("PUBLISH_UNDO", old, path)
                else:
                    disk.unlink("PUBLISH_UNDO", path)

    def finish(self, done: Published) -> None:
        """Remove the old versions after the rows of the new ones are committed."""
        for path, old in done.renamed.items():
            if old:
                with self._log_failure(old):
                    self._replace_links(Path(path), Path(old).with_suffix(".new"))
                    disk.unlink("DISCARD", old)

    def _replace_links(self, path: Path, new: Path) -> None:
        """Make the mirrors link to another version of a file. new: a free name."""
        for mirror in self.mirrors:
            link = mirror / path.relative_to(self._files)
            if link.exists() and not link.samefile(path):  # it is a link to the path, or was made just now
                disk.link("DISCARD", path, new)
                disk.rename("DISCARD", new, link)

    def evict(self, writer: sqlite3.Connection, ids: Iterable[int], return_to_pass: bool) -> list[Removed]:
        """Delete the rows of files. `remove` deletes the files after the commit."""
        ask = query_of(writer)
        evicted = list[Removed]()
        for id in ids:
            row = writer.execute(
                "SELECT n.parent, n.name, n.size, r.bytes, r.delisted FROM node n JOIN resident r USING (id)"
                " WHERE id = ?",
                (id,),
            ).fetchone()
            if row:
                parent, name, size, bytes, delisted = row
                evicted.append(Removed(id, parent, name, join(self._paths.of(ask, parent), name), size, bytes))
                _record_generations(writer, id)
                writer.execute("DELETE FROM resident WHERE id = ?", (id,))
                if return_to_pass and delisted is None:  # a delisted file was shown in this pass
                    writer.execute("UPDATE node SET drawn = 0 WHERE id = ?", (id,))
        writer.executemany(DELIST_EMPTY, {(file.parent,) for file in evicted})
        return evicted

    def remove(self, removed: Iterable[Removed], left_catalog: bool = False) -> None:
        """Remove the cached files whose rows were deleted.

        left_catalog: the files left the catalog, so the folders that this leaves empty are removed as well.
        """
        for file in removed:
            if file.bytes is None:
                continue
            with self._log_failure(self._files / file.path):
                for top in (self._files, *self.mirrors):
                    path = top / file.path
                    if left_catalog:
                        disk.unlink("DISCARD", path)
                        disk.prune_folders("DISCARD_FOLDER", path.parent, top)
                    else:
                        disk.unlink("EVICT", path)

    @contextmanager
    def _log_failure(self, path: StrPath) -> Iterator[None]:
        """Continue if the disk refuses to remove a file that has no row: the next start removes it."""
        try:
            yield
        except OSError as error:
            self.left_behind = True
            log.warning("%s: cannot be removed: %s", path, error)


def last_admitted(writer: sqlite3.Connection) -> tuple[int, int]:
    """(the last admission, the last node id), for `mark_durable`."""
    row: tuple[int, int] = writer.execute(
        "SELECT (SELECT coalesce(max(seq), 0) FROM resident), (SELECT max(id) FROM node)"
    ).fetchone()
    return row


def mark_durable(writer: sqlite3.Connection, admitted: tuple[int, int]) -> None:
    """Record that the files resident at some moment are on the medium. admitted: `last_admitted` at that moment.

    Files admitted since have a later place; a version that replaced another has that one's place, but a later id.
    """
    writer.execute("UPDATE resident SET durable = 1 WHERE durable = 0 AND seq <= ? AND id <= ?", admitted)


# One statement for a batch: sqlite3 gives up the interpreter's lock at each row of executemany, and waits to get it
# back, which took a tenth of the CPU time of a small file.
_RESIDENT = ", ".join(f"json_extract(value, '$[{column}]')" for column in range(11))
INSERT_RESIDENTS = (
    "INSERT INTO resident (id, parent, suffix, seq, queue_position, delisted, opened, bytes, ino, file_mtime_ns,"
    f" digest) SELECT {_RESIDENT} FROM json_each(?)"
)
UPDATE_NODES = (
    "UPDATE node SET size = json_extract(value, '$[0]'), mtime_ns = coalesce(json_extract(value, '$[1]'), mtime_ns),"
    " drawn = json_extract(value, '$[2]') FROM json_each(?) WHERE node.id = json_extract(value, '$[3]')"
)
COUNT_FETCHES = (
    "INSERT INTO usage (id, fetches) SELECT json_extract(value, '$[3]'), 1 FROM json_each(?) WHERE true"
    " ON CONFLICT DO UPDATE SET fetches = fetches + 1"
)


JOIN_GROUP = "UPDATE resident SET queue_position = ? WHERE id IN (SELECT value FROM json_each(?))"
"""Make the resident files of a group stay with a new one. Delisted files stay delisted, and keep the generation number
by which readers hold them; the next generation lists the group as a whole."""

DELIST_EMPTY = (
    "UPDATE resident SET delisted = (SELECT coalesce(max(number), 0) + 1 FROM generation)"
    " WHERE id = ? AND delisted IS NULL AND NOT EXISTS (SELECT 1 FROM resident r WHERE r.parent = resident.id)"
)
"""From the next generation on, do not list a directory that is empty. It is listed again with its next file."""

FIRST_SHOWN = "(SELECT number FROM generation g WHERE g.last_seq >= r.seq ORDER BY g.last_seq, g.number LIMIT 1)"
"""The first generation that shows the file of a row r of `resident`."""


def _record_generations(writer: sqlite3.Connection, id: int) -> None:
    """Record the first and the last generation that showed a file, before its row is deleted."""
    writer.execute(
        "UPDATE node SET last_shown = shown.last, first_shown = coalesce(first_shown, shown.first)"
        f" FROM (SELECT r.id AS of, {FIRST_SHOWN} AS first,"
        " coalesce(r.delisted - 1, (SELECT max(number) FROM generation)) AS last"
        " FROM resident r WHERE r.id = ?) AS shown WHERE id = shown.of AND shown.first IS NOT NULL",
        (id,),
    )
