"""The files of the remote, as far as they have been listed: a tree of nodes in the database.

Owns the table `node`, the totals, and the skipped names. The store owns the resident files.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from growfs.cache.listing_diff import ListingDiff
from growfs.cache.schema import (
    DIRECTORY_CACHE_MAX,
    FROZEN,
    PINNED,
    ROOT,
    DirectoryPaths,
    Query,
    id_at,
    join,
    query_of,
    set_meta,
)
from growfs.remote.filter import PathFilter
from growfs.remote.groups import FOLDERS_LOOKED_AT, Suggestion, Surroundings, names_looked_at, suggestion
from growfs.remote.interface import RemoteFile, Skipped
from growfs.remote.names import DUPLICATE_NAME, FILE_AND_DIRECTORY, extension
from growfs.status_and_metrics import SkippedStatus

if TYPE_CHECKING:
    from growfs.cache.database import Database

UNKNOWN_SIZE = 64 << 20
"""Bytes reserved at first for a file of unknown size; doubled whenever they do not suffice."""
LAST_CHARACTER = "\U0010ffff"
PAGE_FILES = 10_000
"""Files to read and change in one transaction when an option changes the set of wanted files."""

NODE = "n.id, n.parent, n.name, n.is_dir, n.size, n.mtime_ns, n.version, n.drawn, n.pinned, r.seq"
"""The columns of a Node in `node AS n` and `resident AS r`."""
NODES = f"SELECT {NODE} FROM node n LEFT JOIN resident r USING (id) WHERE"
FILES_OF_IDS = (
    "SELECT n.id, n.parent, n.name, n.size, r.bytes FROM json_each(?) wanted CROSS JOIN node n ON n.id = wanted.value"
    " LEFT JOIN resident r ON r.id = n.id"
)
PARENT_OF_EMPTY = "SELECT parent FROM node d WHERE id = ? AND NOT EXISTS (SELECT 1 FROM node WHERE parent = d.id)"
VERSION = "SELECT CASE is_dir WHEN 0 THEN version END FROM node WHERE parent = ? AND name = ?"
FOLDERS = "FROM node d WHERE d.is_dir = 1 AND EXISTS (SELECT 1 FROM node f WHERE f.parent = d.id AND f.is_dir = 0)"


class Node(NamedTuple):
    """A directory, or one version of a file: a row of the table `node`."""

    id: int
    parent: int
    name: str
    is_dir: bool
    size: int | None
    """In bytes; None while it is unknown."""
    mtime_ns: int | None
    version: str
    drawn: int
    pinned: int
    seq: int | None
    """The place in the order of admission; None if it is not resident."""

    @property
    def kind(self) -> tuple[int, str]:
        """(directory, extension): a directory keeps a cached file of each extension (rotation's Kind)."""
        return self.parent, extension(self.name)


class Removed(NamedTuple):
    """A file that left the catalog, or is no longer resident."""

    id: int
    parent: int
    name: str
    path: str
    size: int
    """The size of its content in bytes; 0 if unknown."""
    bytes: int | None
    """Bytes that it took on the local disk; None if it was not resident."""


@dataclass(slots=True)
class Changes:
    """The changes to the catalog from applying a part of a listing."""

    added: int = 0
    added_bytes: int = 0
    directories: int = 0
    removed: list[Removed] = field(default_factory=list)


def _first_paths(ask: Query) -> Iterator[str]:
    """Paths that show the layout of the remote: the first names in the first directories."""
    paths = DirectoryPaths()
    folders = ask("SELECT id FROM node WHERE is_dir = 1 ORDER BY id LIMIT ?", FOLDERS_LOOKED_AT)
    for number, (folder,) in enumerate(folders, 1):
        names = "SELECT name, is_dir FROM node WHERE parent = ? ORDER BY name LIMIT ?"
        for name, is_dir in ask(names, folder, names_looked_at(number)):
            if not is_dir:
                yield join(paths.of(ask, folder), name)


class Catalog:
    """Owns the catalog. `files` and `bytes` are totals over all files with a known size. `revision` is incremented
    whenever files are added, removed, replaced, pinned or unpinned.

    freeze: globs of the files that are never delisted or evicted. Directories are never renamed and ids never reused,
    so the path of a directory never changes: `paths` caches them.
    """

    def __init__(self, database: Database, freeze: tuple[str, ...] = ()) -> None:
        self.file = database.path
        self._db = database
        self.freezes = bool(freeze)
        self._frozen = PathFilter(freeze)
        self.revision = 0
        self.paths = DirectoryPaths()
        totals: tuple[int, int, int] = database.last_known("catalog") or database.row(
            "SELECT count(*), coalesce(sum(size), 0), (SELECT count(*) FROM node WHERE is_dir = 1)"
            " FROM node WHERE is_dir = 0"
        )
        self.files, self.bytes, self.directories = totals
        self._freeze_known(json.dumps(freeze))
        self._directory_ids: dict[str, int] = {"": ROOT}

    # Queries, on the thread that answers the kernel.

    @property
    def listing(self) -> int:
        """The number of completed listings of the remote."""
        return int(self._db.meta("listing", 0))

    @property
    def pass_number(self) -> int:
        """The number of the current pass over the catalog, from 1."""
        return int(self._db.meta("pass", 1))

    def find(self, parent: int, name: str) -> Node | None:
        """The node with a name in a directory."""
        row = self._db.row(f"{NODES} n.parent = ? AND n.name = ?", parent, name)
        return row and Node(*row)

    def node(self, id: int) -> Node | None:
        """The node with this id; None if a newer version replaced it, or the remote deleted it."""
        row = self._db.row(f"{NODES} n.id = ?", id)
        return row and Node(*row)

    @staticmethod
    def files_in(ask: Query, around: Surroundings) -> Iterator[Node]:
        """The files in these surroundings; for a thread."""
        folders, values = "SELECT id FROM node WHERE is_dir = 1", list[Any]()
        containing = list[int]()
        if around.folder is not None:
            folders, values = "VALUES (?)", [id_at(ask, around.folder)]
        elif around.substring:
            paths = DirectoryPaths()
            containing = [id for (id,) in ask(folders) if around.substring in paths.of(ask, id)]
        query = f"""WITH folder (id) AS ({folders}) SELECT {NODE} FROM folder CROSS JOIN node n ON n.parent = folder.id
            LEFT JOIN resident r ON r.id = n.id WHERE n.name >= ? AND n.name < ? AND n.is_dir = 0
            AND (instr(n.name, ?) OR n.parent IN (SELECT value FROM json_each(?)))"""
        values += around.prefix, around.prefix + LAST_CHARACTER, around.substring, json.dumps(containing)
        return (Node(*row) for row in ask(query, *values))

    async def suggested_group(self) -> Suggestion | None:
        """A hint at files that belong together, by the first names of each directory. Looks on a thread."""
        return await self._db.query_in_thread(lambda ask: suggestion(_first_paths(ask)))

    @staticmethod
    def paths_by(ask: Query) -> Callable[[Node], str]:
        """As `path`, but for a thread."""
        paths = DirectoryPaths()
        return lambda node: join(paths.of(ask, node.parent), node.name)

    def names_with_prefix(self, prefix: str, parent: int, limit: int) -> list[tuple[str, bool]]:
        """Names in a directory that begin with a prefix, (name, is a directory): of many, the first ones and the
        last.
        """
        query = "SELECT name, is_dir FROM node WHERE parent = ? AND name >= ? AND name < ? ORDER BY name"
        bounds = (parent, prefix, prefix + LAST_CHARACTER)
        first = self._db.rows(f"{query} LIMIT ?", *bounds, limit)
        last = self._db.rows(f"{query} DESC LIMIT 1", *bounds) if len(first) == limit else []
        return [(name, bool(is_dir)) for name, is_dir in first[: limit - len(last)] + last]

    def path(self, node: Node) -> str:
        """The path of a node, relative to the root."""
        return self.path_of(node.parent, node.name)

    def path_of(self, parent: int, name: str) -> str:
        """The path of a name in a directory, relative to the root."""
        return join(self.paths.of(self._db.rows, parent), name)

    async def smallest(self) -> Node | None:
        """The smallest file with a known size. Searched for on a thread: ten million files take seconds."""
        query = f"{NODES} n.is_dir = 0 AND n.size IS NOT NULL ORDER BY n.size LIMIT 1"
        return next((Node(*row) for row in await self._db.query_in_thread(lambda ask: list(ask(query)))), None)

    async def folders_with_files(self) -> int:
        """The number of directories that contain files. Counted on a thread: a million directories take a second."""
        ((number,),) = await self._db.query_in_thread(lambda ask: list(ask(f"SELECT count(*) {FOLDERS}")))
        return int(number)

    def validation_folder(self) -> str | None:
        """A folder at the top whose name says that it has a validation set."""
        names = "('val', 'valid', 'validation', 'test')"
        query = f"SELECT name FROM node WHERE parent = ? AND is_dir = 1 AND name IN {names} LIMIT 1"
        return next((name for (name,) in self._db.rows(query, ROOT)), None)

    async def has_unseeded(self) -> bool:
        """Whether some directory contains files, none of which is resident. Looks on a thread."""
        seeded = "SELECT 1 FROM resident r JOIN node f USING (id) WHERE r.parent = d.id AND f.is_dir = 0"
        query = f"SELECT 1 {FOLDERS} AND NOT EXISTS ({seeded}) LIMIT 1"
        return await self._db.query_in_thread(lambda ask: bool(list(ask(query))))

    def undrawn(self, limit: int) -> list[Node]:
        """The first files, in listing order, that no pass has drawn."""
        query = f"{NODES} n.is_dir = 0 AND n.drawn = 0 ORDER BY n.id LIMIT ?"
        return [Node(*row) for row in self._db.rows(query, limit)]

    def samples(self) -> list[Node]:
        """Files to try the remote with, different ones at each call: first a resident one, then three others, because
        the remote may refuse some and serve the rest.
        """
        ids: dict[int, None] = {}
        for table, is_file in (("resident", "suffix IS NOT NULL"), *[("node", "is_dir = 0")] * 3):
            query = f"SELECT id FROM {table} WHERE {is_file} AND id >= ? ORDER BY id LIMIT 1"
            (last,) = self._db.row(f"SELECT coalesce(max(id), 0) FROM {table}")
            for (id,) in self._db.rows(query, random.randint(0, last)) or self._db.rows(query, 0):
                ids[id] = None
        return [node for id in ids if (node := self.node(id))]

    @staticmethod
    def skipped(ask: Query) -> list[SkippedStatus]:
        """The skipped names, by reason."""
        rows = ask("SELECT reason, count(*), min(path) FROM skipped GROUP BY reason ORDER BY 2 DESC")
        return [SkippedStatus(*row) for row in rows]

    async def skipped_frozen(self) -> list[tuple[str, str]]:
        """The skipped names that --freeze matches, each with the reason."""
        if not self.freezes:
            return []
        rows = await self._db.query_in_thread(lambda ask: list(ask("SELECT path, reason FROM skipped")))
        return [(path, reason) for path, reason in rows if self._frozen.matches(path)]

    # Changes.

    async def apply(self, diff: ListingDiff, then: Callable[[Changes], None]) -> Changes:
        """Apply a part of a listing. then: called with the changes after the commit, on the writing thread."""
        try:
            changes = await self._db.write(lambda writer: self._apply(writer, diff), then)
        except BaseException:
            self._directory_ids = {"": ROOT}  # ids that were rolled back may be assigned again
            self.paths.forget()
            raise
        self.revision += bool(changes.added or changes.removed)
        self._count(changes)
        return changes

    def _count(self, changes: Changes) -> None:
        self.files += changes.added - len(changes.removed)
        self.bytes += changes.added_bytes - sum(gone.size for gone in changes.removed)
        self.directories += changes.directories

    def count_found(self, replaced: list[Removed], bytes: int) -> None:
        """Correct the totals for the files that were replaced, and for the bytes of files whose size was unknown."""
        self.bytes += bytes - sum(old.size for old in replaced)
        self.revision += bool(replaced)

    async def defer(self, ids: list[int], number: int) -> None:
        """Move files to the end of a pass, because they were still resident when it reached them."""
        query, values = "UPDATE node SET drawn = ? WHERE id = ? AND drawn < ?", [(-number, id, number) for id in ids]
        await self._db.write_with_retry(lambda writer: writer.executemany(query, values))

    async def set_pinned(self, ids: Sequence[int], pinned: bool) -> None:
        """Pin files, so that they are never evicted, or undo that."""
        query = f"UPDATE node SET pinned = pinned {'|' if pinned else '& ~'}{PINNED} WHERE id = ?"
        await self._db.write(lambda writer: writer.executemany(query, [(id,) for id in ids]))
        self.revision += 1

    async def begin_pass(self, number: int) -> None:
        """Begin a pass over the catalog."""
        await self._db.write_with_retry(lambda writer: set_meta(writer, "pass", number))

    async def finish(self, listing: int) -> None:
        """Record that a listing was completed."""

        def write(writer: sqlite3.Connection) -> None:
            writer.execute("DELETE FROM skipped WHERE listing < ?", (listing,))
            set_meta(writer, "listing", listing)

        await self._db.write(write)

    def save(self, writer: sqlite3.Connection) -> None:
        """Save the totals for the next daemon, when this one stops."""
        set_meta(writer, "catalog", json.dumps((self.files, self.bytes, self.directories)))

    def forget_excluded(self, paths: PathFilter, options: str) -> Iterator[Changes]:
        """Remove the files that no longer match, if --include and --exclude have changed since the last mount.

        Yields the changes of each of several commits. A new listing of the remote may take long; the catalog serves
        until then. options: the two options, as text.
        """
        if self._db.meta("filter", "[[], []]") == options:  # how --include and --exclude are stored if neither is given
            return

        def finish(writer: sqlite3.Connection) -> None:
            if not self.files:
                set_meta(writer, "listing", 0)  # nothing is left to serve
            set_meta(writer, "filter", options)

        for files in self._pages():
            if excluded := [id for path, id, _ in files if not paths.matches(path)]:
                changes = Changes()
                self._db.write_now(partial(self._remove_and_prune, excluded, changes))
                self._count(changes)
                yield changes
        self._db.write_now(finish)

    def _freeze_known(self, globs: str) -> None:
        """Mark the files that --freeze matches, if its globs changed since the last mount."""
        if self._db.meta("freeze", "[]") == globs:
            return
        for files in self._pages():
            marks = [(mark, id) for path, id, pinned in files if (mark := self._mark(path)) != pinned & FROZEN]
            self._db.write_now(partial(_mark_frozen, marks))
        self._db.write_now(lambda writer: set_meta(writer, "freeze", globs))

    def _pages(self) -> Iterator[list[tuple[str, int, int]]]:
        """(path, id, pinned) of all files, in pages. The files may be removed meanwhile."""
        query = "SELECT parent, name, id, pinned FROM node WHERE is_dir = 0 AND id > ? ORDER BY id LIMIT ?"
        last = ROOT
        while rows := self._db.rows(query, last, PAGE_FILES):
            yield [(self.path_of(parent, name), id, pinned) for parent, name, id, pinned in rows]
            last = rows[-1][2]

    def _mark(self, path: str) -> int:
        return FROZEN if self.freezes and self._frozen.matches(path) else 0

    def _apply(self, writer: sqlite3.Connection, diff: ListingDiff) -> Changes:
        changes = Changes()
        skipped = list(diff.skipped)
        self._remove_and_prune(diff.gone, changes, writer)
        for id, file in diff.changed:
            pinned, version = writer.execute("SELECT pinned, version FROM node WHERE id = ?", (id,)).fetchone() or (
                0,
                "",
            )
            if version and version == file.version:
                writer.execute("UPDATE node SET mtime_ns = ? WHERE id = ?", (file.mtime_ns, id))
                continue
            self._remove(writer, [id], changes)
            self._insert(writer, file, pinned, changes, skipped)
        for file in diff.new:
            self._insert(writer, file, 0, changes, skipped)
        writer.executemany(
            "INSERT OR REPLACE INTO skipped VALUES (?, ?, ?)",
            [(skip.path.encode(errors="replace").decode(), skip.reason, diff.listing) for skip in skipped],
        )
        return changes

    def _insert(
        self, writer: sqlite3.Connection, file: RemoteFile, pinned: int, changes: Changes, skipped: list[Skipped]
    ) -> None:
        folder, _, name = file.path.rpartition("/")
        parent = self._directory(writer, folder, changes, skipped)
        added = writer.execute(
            "INSERT INTO node (parent, name, is_dir, size, mtime_ns, version, pinned) VALUES (?, ?, 0, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            (parent, name, file.size, file.mtime_ns, file.version, pinned | self._mark(file.path)),
        ).rowcount
        if added:
            changes.added += 1
            changes.added_bytes += file.size or 0
        elif (version := writer.execute(VERSION, (parent, name)).fetchone()[0]) != file.version:
            skipped.append(Skipped(FILE_AND_DIRECTORY if version is None else DUPLICATE_NAME, file.path))

    def _directory(self, writer: sqlite3.Connection, path: str, changes: Changes, skipped: list[Skipped]) -> int:
        """The id of the directory at a path. Creates it if missing, replacing a file of that name."""
        known = self._directory_ids.get(path)
        if known is not None:
            return known
        folder, _, name = path.rpartition("/")
        parent = self._directory(writer, folder, changes, skipped)
        row = writer.execute("SELECT id, is_dir FROM node WHERE parent = ? AND name = ?", (parent, name)).fetchone()
        if row and not row[1]:
            skipped.append(Skipped(FILE_AND_DIRECTORY, path))
            self._remove(writer, [row[0]], changes)
        if row and row[1]:
            id = int(row[0])
        else:
            cursor = writer.execute("INSERT INTO node (parent, name, is_dir) VALUES (?, ?, 1)", (parent, name))
            id = int(cursor.lastrowid or 0)
            changes.directories += 1
        if len(self._directory_ids) >= DIRECTORY_CACHE_MAX:
            self._directory_ids = {"": ROOT}
        self._directory_ids[path] = id
        return id

    def _remove_and_prune(self, ids: Sequence[int], changes: Changes, writer: sqlite3.Connection) -> None:
        """Remove files, and the directories that this leaves empty."""
        for parent in self._remove(writer, ids, changes):
            self._prune(writer, parent, changes)

    def _remove(self, writer: sqlite3.Connection, ids: Sequence[int], changes: Changes) -> set[int]:
        """Remove files; returns the ids of their parents, which stay."""
        ask = query_of(writer)
        rows = writer.execute(FILES_OF_IDS, (json.dumps(ids),)).fetchall()
        for id, parent, name, size, bytes in rows:
            changes.removed.append(Removed(id, parent, name, join(self.paths.of(ask, parent), name), size or 0, bytes))
        _delete(writer, ids)
        return {parent for _, parent, *_ in rows}

    def _prune(self, writer: sqlite3.Connection, id: int, changes: Changes) -> None:
        """Remove an empty directory, and those of its parents that this leaves empty."""
        while id != ROOT and (row := writer.execute(PARENT_OF_EMPTY, (id,)).fetchone()):
            _delete(writer, [id])
            changes.directories -= 1
            self._directory_ids = {"": ROOT}
            (id,) = row


def _delete(writer: sqlite3.Connection, ids: Sequence[int]) -> None:
    for table in ("resident", "usage", "node"):
        writer.execute(f"DELETE FROM {table} WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(ids),))


def _mark_frozen(marks: list[tuple[int, int]], writer: sqlite3.Connection) -> None:
    writer.executemany(f"UPDATE node SET pinned = pinned & {PINNED} | ? WHERE id = ?", marks)
