"""How a file becomes resident and stops being so: the writing thread's part of the store, rows and files together.

Published is a rename and then a commit; withdrawn is a commit and then an unlink. So a crash in between leaves a file
without a row, which the next start deletes, and never a row that vouches for something else.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from growfs import disk
from growfs.catalog import Changes, Node, Removed, directory_path, join, row_of_connection
from growfs.remote.protocol import Fetched

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draft:
    """A file that a worker wrote and checked, not yet visible. reserved: bytes of the quota that it holds.

    renews: the node is a newer version of the file that has its id now.
    """

    node: Node
    path: str
    file: Path
    fetched: Fetched
    reserved: int
    renews: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """A file that was put in its place before its row is committed. old: what had that place, under another name."""

    path: Path
    old: Path | None


@dataclass(slots=True)
class Published:
    """admitted: bytes on the disk, by the id that the draft's node has. renewed: the old versions, now gone."""

    last_seq: int
    admitted: dict[int, int] = field(default_factory=dict)
    renewed: list[Removed] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A file that is no longer resident. size: of its content; bytes: what it took on the disk."""

    id: int
    path: str
    size: int
    bytes: int


class Publisher:
    """Moves files into a folder and out of it. Each method is one turn of the writing thread.

    left_behind: a file without a row could not be removed.
    """

    def __init__(self, files: Path, paths: dict[int, str]) -> None:
        self.left_behind = False
        self._files = files
        self._paths = paths

    def publish(
        self, writer: sqlite3.Connection, drafts: Iterable[Draft], seq: int, pass_number: int, files: list[Moved]
    ) -> Published:
        """Admit drafts after number seq. files: gains what is moved, for `undo` or `finish`."""
        done = Published(seq)
        for draft in drafts:
            query = "SELECT r.id FROM node n LEFT JOIN resident r USING (id) WHERE n.id = ?"
            row = writer.execute(query, (draft.node.id,)).fetchone()
            if row is None or (row[0] and not draft.renews):  # gone, or here already
                disk.unlink("DRAFT_STALE", draft.file)
                continue
            path = self._files / draft.path
            old = draft.file.with_suffix(".old")
            files.append(Moved(path, old if draft.renews and disk.keep("PUBLISH", path, old) else None))
            disk.rename("PUBLISH", draft.file, path)
            id, place = self._renew(writer, draft, done) if draft.renews else (draft.node.id, None)
            if place is None:
                place = done.last_seq = _admit_folders(writer, draft.node.parent, done.last_seq) + 1
            stat = path.stat()
            done.admitted[draft.node.id] = disk.allocated(stat)
            writer.execute(
                "INSERT INTO resident (id, parent, seq, bytes, ino, ctime_ns, digest) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    id,
                    draft.node.parent,
                    place,
                    disk.allocated(stat),
                    stat.st_ino,
                    stat.st_ctime_ns,
                    draft.fetched.digest,
                ),
            )
            writer.execute(
                "UPDATE node SET size = ?, mtime_ns = coalesce(?, mtime_ns), drawn = ?, fetches = fetches + 1"
                " WHERE id = ?",
                (draft.fetched.size, draft.fetched.file.mtime_ns, pass_number, id),
            )
        disk.at("PUBLISH_COMMIT")
        return done

    @staticmethod
    def _renew(writer: sqlite3.Connection, draft: Draft, done: Published) -> tuple[int, int | None]:
        """Put a new version in the old one's place, also in listings; returns (its id, its place)."""
        node = draft.node
        old = writer.execute(
            "SELECT n.size, n.pinned, n.fetches, n.opens, r.bytes, r.seq"
            " FROM node n LEFT JOIN resident r USING (id) WHERE n.id = ?",
            (node.id,),
        ).fetchone()
        size, pinned, fetches, opens, bytes, place = old
        writer.execute("DELETE FROM resident WHERE id = ?", (node.id,))
        writer.execute("DELETE FROM node WHERE id = ?", (node.id,))
        cursor = writer.execute(
            "INSERT INTO node (parent, name, is_dir, mtime_ns, version, pinned, fetches, opens)"
            " VALUES (?, ?, 0, ?, ?, ?, ?, ?)",
            (node.parent, node.name, node.mtime_ns, node.version, pinned, fetches, opens),
        )
        done.renewed.append(Removed(node.id, node.parent, node.name, draft.path, size or 0, bytes))
        return cursor.lastrowid or 0, place

    def undo(self, files: list[Moved]) -> None:
        """Remove files whose rows were not committed, and put back what they took the place of."""
        for moved in files:
            with self._noted(moved.path):
                if moved.old:
                    disk.rename("PUBLISH_UNDO", moved.old, moved.path)
                else:
                    disk.unlink("PUBLISH_UNDO", moved.path)

    def finish(self, files: list[Moved]) -> None:
        """Remove the old versions, now that the new ones' rows are committed."""
        for moved in files:
            if moved.old:
                with self._noted(moved.old):
                    disk.unlink("DISCARD", moved.old)

    def withdraw(self, writer: sqlite3.Connection, ids: Iterable[int], draw_again: bool) -> list[Withdrawn]:
        """Delete the rows; their files are to be removed after the commit."""
        row_of = row_of_connection(writer)
        withdrawn = []
        for id in ids:
            row = row_of(
                "SELECT n.parent, n.name, n.size, r.bytes FROM node n JOIN resident r USING (id) WHERE id = ?", id
            )
            if row:
                parent, name, size, bytes = row
                path = join(directory_path(row_of, parent, self._paths), name)
                withdrawn.append(Withdrawn(id, path, size, bytes))
                writer.execute("DELETE FROM resident WHERE id = ?", (id,))
                if draw_again:
                    writer.execute("UPDATE node SET drawn = 0 WHERE id = ?", (id,))
        return withdrawn

    def remove(self, withdrawn: Iterable[Withdrawn]) -> None:
        """Remove the files of rows that are gone."""
        for gone in withdrawn:
            path = self._files / gone.path
            with self._noted(path):
                disk.unlink("EVICT", path)

    def discard(self, changes: Changes) -> None:
        """Remove the files of what left the catalog, and the folders that this leaves empty."""
        for gone in changes.removed:
            if gone.bytes is not None:
                path = self._files / gone.path
                with self._noted(path):
                    disk.unlink("DISCARD", path)
                    disk.prune_folders("DISCARD_FOLDER", path.parent, self._files)

    @contextmanager
    def _noted(self, path: Path) -> Iterator[None]:
        """Go on where the disk refuses to remove a file that has no row: the next start will."""
        try:
            yield
        except OSError as error:
            self.left_behind = True
            log.warning("%s: cannot be removed: %s", path, error)


def mark_durable(writer: sqlite3.Connection) -> None:
    """Note that the medium holds all that is resident."""
    writer.execute("UPDATE resident SET durable = 1 WHERE durable = 0")


def _admit_folders(writer: sqlite3.Connection, id: int, seq: int) -> int:
    """Have a directory and its parents be resident; returns the last number in the order of admission."""
    missing = []
    while id and not writer.execute("SELECT 1 FROM resident WHERE id = ?", (id,)).fetchone():
        (parent,) = writer.execute("SELECT parent FROM node WHERE id = ?", (id,)).fetchone()
        missing.append((id, parent))
        id = parent
    for id, parent in reversed(missing):
        seq += 1
        writer.execute(
            "INSERT INTO resident (id, parent, seq, bytes, ino, ctime_ns, digest) VALUES (?, ?, ?, 0, 0, 0, '')",
            (id, parent, seq),
        )
    return seq
