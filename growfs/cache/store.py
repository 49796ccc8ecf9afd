"""The cached files: which are resident, and which are open.

Owns the folder files/ and the table `resident`.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import trio

from growfs import disk
from growfs.cache.catalog import Catalog, Changes, Removed
from growfs.cache.database import DISK_ERRORS, Database
from growfs.cache.open_files import OpenFile, OpenFiles
from growfs.cache.publish import Published, Publisher, StagedFile, last_admitted, mark_durable
from growfs.cache.recovery import Identity, set_identity, verify_content, verify_on_medium
from growfs.cache.room import Room
from growfs.cache.schema import set_meta
from growfs.errors import TooManyOpen
from growfs.signal import Signal
from growfs.status_and_metrics import CacheStatus
from growfs.units import CacheSize

log = logging.getLogger(__name__)

EVICTED_FILES_MAX = 1000
"""Files evicted in one transaction: other writers and readers wait for some ten milliseconds."""


class Located(NamedTuple):
    """A resident file. seq: its place in the order of admission, which tells it from an earlier one with its id."""

    path: Path
    digest: str
    seq: int


class ResidentFile(NamedTuple):
    """A resident file, as it was when it was admitted or last verified."""

    parent: int
    path: str
    size: int
    mtime_ns: int | None
    """The modification time of the remote's file."""
    identity: Identity

    def is_unchanged(self) -> bool:
        """Whether it is still the file at its path. `open` has the same rule."""
        try:
            stat = os.lstat(self.path)
        except OSError:
            return False
        return Identity.of(stat) == self.identity and stat.st_size == self.size


class Store:
    """Owns the rows of the cached files. room: what they may take.

    Counters change only on trio's thread, between two awaits, hence atomically.

    Signals: `admitted`, after files became resident; `returned_to_pass`, after the eviction of files that the current
    pass may draw again; `evicted`, with the files; `replaced`, with the versions that newer ones replaced; `damaged`,
    with the node id of a file that was evicted because of wrong content.

    open_files: the cached files that readers have open or mapped.
    keep_readers_away: set if readers open files by themselves: keeps them from files, given by their ids, while it is
    entered. Each file is then also opened here before it is removed, so that a lease can tell who has it open, then and
    later (`OpenFile.is_mapped`).
    """

    def __init__(
        self,
        folder: Path,
        database: Database,
        catalog: Catalog,
        cache_size: CacheSize,
        min_free: int,
    ) -> None:
        self.folder = folder
        self.evicted_files = self.evicted_bytes = 0
        self.admitted = Signal[[]]()
        self.replaced = Signal[[list[Removed]]]()
        self.returned_to_pass = Signal[[]]()
        self.damaged = Signal[[int]]()
        self.evicted = Signal[[list[Removed]]]()
        self.keep_readers_away: Callable[[Sequence[int]], AbstractAsyncContextManager[None]] | None = None
        self.open_files = OpenFiles()
        self._db = database
        self._catalog = catalog
        self._files = folder / "files"
        self._files.mkdir(exist_ok=True)
        # The kernel reports each error once to each descriptor. A new one does not get errors reported to other
        # processes.
        self._sync_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.resident_files: int
        self.resident_bytes: int
        self.resident_content_bytes: int
        self.resident_files, self.resident_bytes, self.resident_content_bytes, last_place = database.last_known(
            "resident"
        ) or database.row(
            "SELECT count(r.suffix), coalesce(sum(r.bytes), 0), coalesce(sum(iif(n.is_dir, 0, n.size)), 0),"
            " max(coalesce(max(r.seq), 0), coalesce(max(r.queue_position), 0)) FROM resident r JOIN node n USING (id)"
        )
        self.room = Room(folder, database.spare, self.open_files, lambda: self.resident_bytes, cache_size, min_free)
        (shown_seq,) = database.row("SELECT coalesce(max(last_seq), 0) FROM generation")
        (self.last_seq,) = database.row("SELECT coalesce(max(seq), 0) FROM resident")
        self._publisher = Publisher(self._files, catalog.paths, max(shown_seq, last_place))
        self.mirrors = self._publisher.mirrors
        """Folders of hard links to cached files, under the same paths; changed on the writing thread, or at start."""
        self._durable = database.row("SELECT 1 FROM resident WHERE durable = 0") is None

    def largest_resident(self) -> int | None:
        """Size of the largest resident file; None if there is none."""
        (size,) = self._db.row("SELECT max(n.size) FROM node n JOIN resident r USING (id)")
        return None if size is None else int(size)

    def status(self, delisted_bytes: int) -> CacheStatus:
        """The cache section of the status. delisted_bytes: of the cached files, which take long to sum up."""
        self.room.collect_orphans()
        return CacheStatus(
            files=self.resident_files,
            bytes=self.resident_bytes,
            content_bytes=self.resident_content_bytes,
            limit_bytes=self.room.limit_bytes,
            in_flight_bytes=self.room.reserved_bytes,
            orphan_bytes=self.open_files.orphan_bytes,
            left_out_bytes=delisted_bytes,
        )

    # Admission and eviction.

    async def admit(self, staged: list[StagedFile]) -> Published:
        """Publish files, in this order, in one transaction.

        Files whose version the catalog no longer has are left out, and so are files whose path alone the disk refuses.
        Raises OSError or sqlite3.Error if the disk refuses more; then none of them is resident. In either case their
        reservations end.
        """
        for file in staged:
            if file.renews:
                self.track(file.node.id)
        done, pass_number = Published(), self._catalog.pass_number
        try:
            await self._db.write(
                lambda writer: self._publisher.publish(writer, staged, pass_number, done),
                lambda _: self._publisher.finish(done),
            )
        except (OSError, sqlite3.Error):
            await self._db.run_in_writer(lambda: self._publisher.undo(done))
            raise
        finally:
            for file in staged:
                file.reserved.spend()
        self._durable = False
        self.last_seq = max(self.last_seq, done.last_seq)
        self.count_gone(done.replaced)
        for file in staged:
            if file.node.id in done.admitted:
                self.resident_files += 1
                self.resident_bytes += done.admitted[file.node.id]
                self.resident_content_bytes += file.fetched.size
        found = [file for file in staged if file.node.id in done.admitted and (file.node.size is None or file.renews)]
        self._catalog.count_found(done.replaced, sum(file.fetched.size for file in found))
        if done.replaced:
            self.replaced.notify(done.replaced)
        self.admitted.notify()
        return done

    async def group_sizes(self) -> list[int]:
        """How many cached files the groups have: each number once. Counted on a thread."""
        query = "SELECT DISTINCT count(*) FROM resident WHERE suffix IS NOT NULL GROUP BY queue_position"
        return [number for (number,) in await self._db.query_in_thread(lambda ask: list(ask(query)))]

    async def evict(self, ids: list[int], return_to_pass: bool = False) -> int:
        """Evict files; returns the bytes that they took. An open file stays readable until its last close.

        return_to_pass: the current pass may draw them again.
        """
        freed = 0
        for start in range(0, len(ids), EVICTED_FILES_MAX):
            freed += await self._evict(ids[start : start + EVICTED_FILES_MAX], return_to_pass)
        if ids and return_to_pass:
            self.returned_to_pass.notify()
        await self.room.commit_deletions(freed, self._sync_fd)
        return freed

    async def _evict(self, ids: Sequence[int], return_to_pass: bool) -> int:
        async with self.unreachable(ids):
            for id in ids:
                self.open_files.close_if_idle(id)
            evicted = await self._db.write(
                lambda writer: self._publisher.evict(writer, ids, return_to_pass), self._publisher.remove
            )
        freed = self.count_gone(evicted)
        self.evicted.notify(evicted)
        self.evicted_files += len(evicted)
        self.evicted_bytes += freed
        return freed

    def unreachable(self, ids: Sequence[int]) -> AbstractAsyncContextManager[None]:
        """A block in which files may be removed: no reader is about to open one by itself."""
        return self.keep_readers_away(ids) if self.keep_readers_away and ids else nullcontext()

    def drop_files(self, changes: Changes) -> None:
        """Remove the cached files that left the catalog. Called on the writing thread, after the commit."""
        self._publisher.remove(changes.removed, left_catalog=True)

    def count_gone(self, gone: Iterable[Removed]) -> int:
        """Subtract the resident ones of these files from the counters; returns the bytes that they took."""
        bytes, is_freed = self.resident_bytes, False
        for file in gone:
            if file.bytes is not None:
                self.resident_files -= 1
                self.resident_bytes -= file.bytes
                self.resident_content_bytes -= file.size
                is_freed = not self.open_files.orphan(file.id, file.bytes) or is_freed
        if is_freed:
            self.room.freed.notify()
        return bytes - self.resident_bytes

    def entries(self, parent: int, after_seq: int, last_seq: int, limit: int, mtime_ns: int) -> list[Any]:
        """The resident children of a directory, admitted after after_seq and up to last_seq, in order of admission.

        At most `limit` rows of (id, name, is_dir, size, mtime_ns, seq). mtime_ns: used for unknown times.
        """
        return self._db.rows(
            "SELECT n.id, n.name, n.is_dir, coalesce(n.size, 0), coalesce(n.mtime_ns, ?), r.seq"
            " FROM resident r JOIN node n USING (id)"
            " WHERE r.parent = ? AND r.seq > ? AND r.seq <= ? ORDER BY r.seq LIMIT ?",
            mtime_ns, parent, after_seq, last_seq, limit,
        )  # fmt: skip

    def entries_at(self, seqs: Sequence[int], mtime_ns: int) -> list[Any]:
        """The resident files and directories with these admissions, in any order.

        Rows of (id, name, is_dir, size, mtime_ns, seq). mtime_ns: used for unknown times.
        """
        return self._db.rows(
            "SELECT n.id, n.name, n.is_dir, coalesce(n.size, 0), coalesce(n.mtime_ns, ?), r.seq"
            " FROM json_each(?) wanted CROSS JOIN resident r ON r.seq = wanted.value JOIN node n ON n.id = r.id",
            mtime_ns, json.dumps([*seqs]),
        )  # fmt: skip

    async def mark(self, delisted: Sequence[int], generation: int, needed: Sequence[int]) -> bool:
        """Mark cached files as delisted by a generation, and others as listed; False if some of these are gone."""

        def write(writer: sqlite3.Connection) -> bool:
            query = "UPDATE resident SET delisted = ? WHERE id = ? AND delisted IS NULL"
            writer.executemany(query, ((generation, id) for id in delisted))
            relist = "UPDATE resident SET delisted = NULL WHERE id = ?"
            return writer.executemany(relist, ((id,) for id in needed)).rowcount == len(needed)

        try:
            return await self._db.write(write)
        except sqlite3.DatabaseError as error:
            log.warning("files to be evicted cannot be marked: %s", error)
            return False
        finally:
            self.room.freed.notify()

    async def admit_folders(self) -> None:
        """Make all directories of the catalog resident, even those without a cached file."""
        await self._db.write_with_retry(self._publisher.admit_all_folders)

    def requeue(self, writer: sqlite3.Connection, groups: Iterable[Sequence[int]]) -> None:
        """Move groups of files, given by their admissions, to the end of the queue to be delisted; within a write."""
        self._publisher.requeue(writer, groups)

    # Open files.

    def open(self, id: int) -> OpenFile | None:
        """Open a resident file once; None if it is not resident, or `recheck` has to verify it first."""
        if opened := self.open_files.reuse(id):
            return opened
        if (row := self.resident(id)) is None:
            return None
        return self.open_files.open(id, row.path, row.size, row.mtime_ns, row.identity)

    def resident(self, id: int) -> ResidentFile | None:
        """The resident file with this id; None if there is none."""
        row = self._db.row(
            "SELECT n.parent, n.name, n.size, n.mtime_ns, r.ino, r.file_mtime_ns FROM resident r JOIN node n USING (id)"
            " WHERE id = ? AND n.is_dir = 0",
            id,
        )
        if row is None:
            return None
        parent, name, size, mtime_ns, *identity = row
        return ResidentFile(parent, self.path_of(parent, name), size, mtime_ns, Identity(*identity))

    def is_in_use(self, id: int) -> bool:
        """Whether a reader has a resident file open or mapped, or nobody can tell."""
        return not self.track(id) or id in self.open_files

    def track(self, id: int) -> bool:
        """Track a file that may go when its last reader closes it, if readers open files by themselves.

        Returns False if the daemon has as many descriptors as it may have.
        """
        if self.keep_readers_away:
            try:
                if self.open(id):
                    self.open_files.close(id)
            except TooManyOpen:
                return False
        return True

    def path_of(self, parent: int, name: str) -> str:
        """The path of a resident file with that name in a directory."""
        return f"{self._files}/{self._catalog.path_of(parent, name)}"

    def located(self, id: int) -> Located | None:
        """Where a resident file is; None if it is not resident."""
        query = "SELECT n.parent, n.name, r.digest, r.seq FROM resident r JOIN node n USING (id) WHERE id = ?"
        row = self._db.row(query, id)
        return row and Located(Path(self.path_of(row[0], row[1])), *row[2:])

    def note_stray(self, parent: int, name: str) -> None:
        """Note a file that has no row, if it is there: the next start removes it. Programs may still use it."""
        with suppress(KeyError):  # its directory has left the catalog
            if os.path.lexists(self.path_of(parent, name)):
                self._publisher.left_behind = True

    async def settled(self) -> None:
        """Return when a file that was just renamed has its row."""
        await self._db.run_in_writer(lambda: None)

    async def _is_still(self, located: Located, id: int) -> bool:
        """Whether a file was neither evicted nor replaced since it was located."""
        await self.settled()
        return self.located(id) == located

    def open_ahead(self, id: int) -> bool:
        """Open a resident file before a reader does; False if that would not help."""
        return self.open_files.should_preopen(id) and self.open(id) is not None

    async def recheck(self, id: int) -> None:
        """Verify a resident file that `open` refused: if the digest differs, the file is evicted."""
        await self.settled()
        if id not in self.open_files:
            await self.verify(id)

    async def verify(self, id: int) -> bool:
        """Compare a resident file with its digest, and evict it if they differ; returns whether it was evicted.

        Readers that have it open go on reading the damaged file.
        """
        located = self.located(id)
        if located is None:
            return False
        self.open_files.descriptor_opened.notify(id)
        identity = await trio.to_thread.run_sync(verify_content, located.path, located.digest)
        if identity:
            await self._db.write(lambda writer: set_identity(writer, id, identity))
            return False
        if not await self._is_still(located, id):
            return False
        log.warning("%s: the cached file was changed; fetching it again", located.path)
        await self.evict([id])
        self.damaged.notify(id)
        return True

    def close_file(self, id: int) -> None:
        """Close a file once; the last close of a file that is no longer resident frees its bytes."""
        if self.open_files.close(id):
            self.room.freed.notify()

    # Durability.

    async def run(self) -> None:
        """Sync the resident files repeatedly until cancelled, so that they count even after a power loss."""
        while True:
            await trio.sleep(30.0)
            try:
                await self.make_durable()
            except DISK_ERRORS as error:
                log.warning("the cached files could not be synced to the disk, trying again: %s", error)

    async def make_durable(self) -> None:
        """Sync the resident files and mark them durable: they then count even after a power loss."""
        if self._durable:
            return
        self._durable = True  # `admit` resets it
        try:
            admitted = await self._db.write(last_admitted)
            await trio.to_thread.run_sync(lambda: disk.syncfs("SYNC", self._sync_fd))  # takes seconds on a busy disk
            await self._db.write(lambda writer: mark_durable(writer, admitted))
        except OSError:
            self._durable = False
            await self._drop_lost()
            raise
        except BaseException:
            self._durable = False
            raise

    async def _drop_lost(self) -> None:
        """Evict files that a failed sync has lost. The kernel reports each error once: the next sync would succeed."""
        for (id,) in self._db.rows("SELECT id FROM resident WHERE durable = 0 AND suffix IS NOT NULL"):
            located = self.located(id)
            if located is None or await trio.to_thread.run_sync(verify_on_medium, located.path, located.digest):
                continue
            if await self._is_still(located, id):
                log.warning("%s: it has disappeared from the disk; fetching it again", located.path)
                await self.evict([id], return_to_pass=True)

    def stop(self) -> None:
        """Sync, and mark the cache as cleanly stopped: the last step of a daemon. Raises OSError."""
        try:
            disk.syncfs("SYNC_STOP", self._sync_fd)
        except OSError:  # the next daemon trusts only files covered by an earlier sync, as after a power loss
            self._db.write_now(lambda writer: set_meta(writer, "boot_id", ""))
            raise
        finally:
            os.close(self._sync_fd)

        def write(writer: sqlite3.Connection) -> None:
            mark_durable(writer, last_admitted(writer))
            self._catalog.save(writer)
            resident = self.resident_files, self.resident_bytes, self.resident_content_bytes, self._publisher.last_seq
            set_meta(writer, "resident", json.dumps(resident))
            set_meta(writer, "clean", int(not self._publisher.left_behind))

        self._db.write_now(write)
