"""How a file becomes resident and stops being so: the writing thread's part of the store, rows and files together.

Published is a rename and then a commit; withdrawn is a commit and then an unlink. So a crash in between leaves a file
without a row, which the next start deletes, and never a row that vouches for something else.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from growfs import disk
from growfs.cache.catalog import Changes, Node, Removed
from growfs.cache.schema import directory_path, join, row_of_connection
from growfs.remote.names import extension
from growfs.remote.protocol import Fetched

log = logging.getLogger(__name__)

IS_HERE = (
    "SELECT n.id, r.id IS NOT NULL FROM json_each(?) asked JOIN node n ON n.id = asked.value LEFT JOIN resident r"
    " ON r.id = n.id"
)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that a worker wrote and checked, not yet visible. reserved: bytes of the quota that it holds.

    renews: the node is a newer version of the file that has its id now. group: the ids of all files that leave as one
    with it, itself among them; empty where it leaves alone.
    """

    node: Node
    path: str
    file: Path
    fetched: Fetched
    reserved: int
    renews: bool = False
    group: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Renamed:
    """A file that was put in its place before its row is committed. old: what had that place, under another name."""

    path: Path
    old: Path | None


@dataclass(slots=True)
class Published:
    """last_seq: the last admission. admitted: bytes on the disk, by the id that the draft's node has. renewed: the old
    versions, now gone.
    """

    last_seq: int
    admitted: dict[int, int] = field(default_factory=dict)
    renewed: list[Removed] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Evicted:
    """A file that is no longer resident. size: of its content; bytes: what it took on the disk."""

    id: int
    path: str
    size: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file is in listings, and in the queue to leave them: columns of its row."""

    seq: int
    turn: int
    left_out: int | None = None
    opened: int = 0


class Publisher:
    """Moves files into a folder and out of it. Each method is one turn of the writing thread.

    last_seq: the last number given; admissions and places in the queue have theirs from one counter, and none twice.
    left_behind: a file without a row could not be removed.
    """

    def __init__(self, files: Path, paths: dict[int, str], last_seq: int) -> None:
        self.last_seq = last_seq
        self.left_behind = False
        self._files = files
        self._paths = paths

    def publish(
        self, writer: sqlite3.Connection, drafts: Sequence[StagedFile], pass_number: int, files: list[Renamed]
    ) -> Published:
        """Admit drafts. files: gains what is moved, for `undo` or `finish`."""
        done = Published(self.last_seq)
        turns: dict[tuple[int, ...], int] = {}
        residents: list[tuple[object, ...]] = []
        nodes: list[tuple[object, ...]] = []
        folders: set[int] = set()
        is_here = dict(writer.execute(IS_HERE, (json.dumps([draft.node.id for draft in drafts]),)).fetchall())
        for draft in drafts:
            here = is_here.get(draft.node.id)
            if here is None or (here and not draft.renews):  # gone, or here already
                disk.unlink("DRAFT_STALE", draft.file)
                continue
            path = self._files / draft.path
            old = draft.file.with_suffix(".old")
            files.append(Renamed(path, old if draft.renews and disk.keep("PUBLISH", path, old) else None))
            disk.rename("PUBLISH", draft.file, path)
            id, place = self._renew(writer, draft, done) if draft.renews else (draft.node.id, None)
            if place is None:
                if draft.node.parent not in folders:
                    self._admit_folders(writer, draft.node.parent)
                    folders.add(draft.node.parent)
                seq = self._next()
                place = Place(seq, turns.setdefault(draft.group, seq) if draft.group else seq)
                self._join(writer, draft.group, place.turn)
            stat = path.stat()
            done.admitted[draft.node.id] = disk.allocated(stat)
            residents.append(_resident(id, draft, place, stat))
            nodes.append((draft.fetched.size, draft.fetched.file.mtime_ns, pass_number, id))
        writer.executemany(BECOMES_RESIDENT, residents)
        writer.executemany(
            "UPDATE node SET size = ?, mtime_ns = coalesce(?, mtime_ns), drawn = ?, fetches = fetches + 1 WHERE id = ?",
            nodes,
        )
        done.last_seq = self.last_seq
        disk.at("PUBLISH_COMMIT")
        return done

    def _join(self, writer: sqlite3.Connection, group: Iterable[int], turn: int) -> None:
        """Have those of a group that are here already leave as one with it; what is left out is shown with it."""
        for id in group:
            row = writer.execute("SELECT left_out FROM resident WHERE id = ?", (id,)).fetchone()
            if row and row[0] is not None:
                self._admit_again(writer, id)
            writer.execute("UPDATE resident SET turn = ? WHERE id = ?", (turn, id))

    def _admit_again(self, writer: sqlite3.Connection, id: int) -> None:
        _remember_stay(writer, id)
        writer.execute("UPDATE resident SET left_out = NULL, opened = 0, seq = ? WHERE id = ?", (self._next(), id))

    def _next(self) -> int:
        self.last_seq += 1
        return self.last_seq

    @staticmethod
    def _renew(writer: sqlite3.Connection, draft: StagedFile, done: Published) -> tuple[int, Place | None]:
        """Put a new version in the old one's place, also in listings; returns (its id, its place)."""
        node = draft.node
        size, bytes, seq, turn, left_out, opened, *kept = writer.execute(
            "SELECT n.size, r.bytes, r.seq, r.turn, r.left_out, r.opened, n.pinned, n.fetches, n.opens, n.first_shown,"
            " n.last_shown FROM node n LEFT JOIN resident r USING (id) WHERE n.id = ?",
            (node.id,),
        ).fetchone()
        writer.execute("DELETE FROM resident WHERE id = ?", (node.id,))
        writer.execute("DELETE FROM node WHERE id = ?", (node.id,))
        cursor = writer.execute(
            "INSERT INTO node (is_dir, parent, name, mtime_ns, version, pinned, fetches, opens, first_shown,"
            " last_shown) VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (node.parent, node.name, node.mtime_ns, node.version, *kept),
        )
        done.renewed.append(Removed(node.id, node.parent, node.name, draft.path, size or 0, bytes))
        return cursor.lastrowid or 0, Place(seq, turn, left_out, opened) if seq else None

    def requeue(self, writer: sqlite3.Connection, units: Iterable[Sequence[int]]) -> None:
        """Give units the last places in the queue to be left out. Each is the ids of what leaves as one."""
        for unit in units:
            turn = self._next()
            writer.executemany("UPDATE resident SET turn = ? WHERE id = ?", [(turn, id) for id in unit])

    def _admit_folders(self, writer: sqlite3.Connection, id: int) -> None:
        """Have a directory and its parents be resident."""
        missing = []
        while id and not writer.execute("SELECT 1 FROM resident WHERE id = ?", (id,)).fetchone():
            (parent,) = writer.execute("SELECT parent FROM node WHERE id = ?", (id,)).fetchone()
            missing.append((id, parent))
            id = parent
        for id, parent in reversed(missing):
            seq = self._next()
            writer.execute(
                "INSERT INTO resident (id, parent, seq, turn, bytes, ino, ctime_ns, digest)"
                " VALUES (?, ?, ?, ?, 0, 0, 0, '')",
                (id, parent, seq, seq),
            )

    def undo(self, files: list[Renamed]) -> None:
        """Remove files whose rows were not committed, and put back what they took the place of."""
        for moved in files:
            with self._noted(moved.path):
                if moved.old:
                    disk.rename("PUBLISH_UNDO", moved.old, moved.path)
                else:
                    disk.unlink("PUBLISH_UNDO", moved.path)

    def finish(self, files: list[Renamed]) -> None:
        """Remove the old versions, now that the new ones' rows are committed."""
        for moved in files:
            if moved.old:
                with self._noted(moved.old):
                    disk.unlink("DISCARD", moved.old)

    def withdraw(self, writer: sqlite3.Connection, ids: Iterable[int], return_to_pass: bool) -> list[Evicted]:
        """Delete the rows; their files are to be removed after the commit."""
        row_of = row_of_connection(writer)
        withdrawn = []
        for id in ids:
            row = row_of(
                "SELECT n.parent, n.name, n.size, r.bytes, r.left_out FROM node n JOIN resident r USING (id)"
                " WHERE id = ?",
                id,
            )
            if row:
                parent, name, size, bytes, left_out = row
                path = join(directory_path(row_of, parent, self._paths), name)
                withdrawn.append(Evicted(id, path, size, bytes))
                _remember_stay(writer, id)
                writer.execute("DELETE FROM resident WHERE id = ?", (id,))
                if return_to_pass and left_out is None:  # what is left out has had its turn in this pass
                    writer.execute("UPDATE node SET drawn = 0 WHERE id = ?", (id,))
        return withdrawn

    def remove(self, withdrawn: Iterable[Evicted]) -> None:
        """Remove the files of rows that are gone."""
        for gone in withdrawn:
            path = self._files / gone.path
            with self._noted(path):
                disk.unlink("EVICT", path)

    def drop(self, changes: Changes) -> None:
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


BECOMES_RESIDENT = (
    "INSERT INTO resident (id, parent, suffix, seq, turn, left_out, opened, bytes, ino, ctime_ns, digest)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _resident(id: int, draft: StagedFile, place: Place, stat: os.stat_result) -> tuple[object, ...]:
    return (
        id,
        draft.node.parent,
        extension(draft.node.name),
        place.seq,
        place.turn,
        place.left_out,
        place.opened,
        disk.allocated(stat),
        stat.st_ino,
        stat.st_ctime_ns,
        draft.fetched.digest,
    )


def _remember_stay(writer: sqlite3.Connection, id: int) -> None:
    """Keep which generations showed a file: the first, and the last before this stay ends."""
    writer.execute(
        "UPDATE node SET last_shown = shown.last, first_shown = coalesce(first_shown, shown.first)"
        " FROM (SELECT (SELECT min(g.number) FROM generation g WHERE g.last_seq >= r.seq) AS first,"
        " coalesce(r.left_out - 1, (SELECT max(number) FROM generation)) AS last"
        " FROM resident r WHERE r.id = ?1) AS shown WHERE id = ?1 AND shown.first IS NOT NULL",
        (id,),
    )
