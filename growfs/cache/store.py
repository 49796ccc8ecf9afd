"""The cached files: which are resident, which are open, and how much of the quota is reserved.

Owns the folder files/, the table `resident`, and the quota.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import trio

from growfs import btrfs, disk
from growfs.cache.catalog import Catalog, Changes, Removed
from growfs.cache.database import SPARE_BYTES_MAX, Database
from growfs.cache.open_files import OpenFile, OpenFiles
from growfs.cache.publish import Published, Publisher, StagedFile, last_admitted, mark_durable
from growfs.cache.recovery import Identity, set_identity, verify_content, verify_on_medium
from growfs.cache.schema import set_meta
from growfs.errors import TooManyOpen, Unreadable
from growfs.signal import Signal
from growfs.status_and_metrics import CacheStatus
from growfs.units import CacheSize

log = logging.getLogger(__name__)

QUOTA_MARGIN_SHARE = 32
"""When a quota refuses more, one part in 32 of the used bytes is given up, or SPARE_BYTES_MAX: the catalog grows.

The space that the spare file had, or should have had, is also left free.
"""
QUOTA_STEP_SHARE, QUOTA_STEP_BYTES_MAX = 100, 64 << 20
"""A quota that has refused more is probed with a hundredth of what it allowed, or with this if it is less."""
QUOTA_RETRY_S = 60.0
"""Pause before probing it again after another refusal, unless a reader waits."""
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


class Reservation:
    """Bytes of the quota that one owner holds in order to write a file of at most this size.

    Invariant: they are given back once, however often that is requested, or are spent when the file is admitted. An
    error in a `with` block gives them back.
    """

    def __init__(self, store: Store, bytes: int) -> None:
        self.bytes = bytes
        self._store = store
        store.reserved_bytes += bytes

    def resize(self, size: int) -> None:
        """Hold the bytes for a file whose size is now known."""
        before, self.bytes = self.bytes, disk.allocation(size)
        self._store.reserved_bytes += self.bytes - before
        if self.bytes < before:
            self._store.space_freed.notify()

    def extend(self, need: int) -> None:
        """Also hold free bytes, up to what a file needs."""
        more = min(disk.allocation(need) - self.bytes, self._store.free_bytes())
        if more > 0:
            self.resize(self.bytes + more)

    def split(self, bytes: int) -> Reservation:
        """Give a part of it to another owner."""
        self.spend(bytes)
        return Reservation(self._store, bytes)

    def spend(self, bytes: int | None = None) -> None:
        """Hold this many bytes less, or none: they are now in use."""
        spent = self.bytes if bytes is None else bytes
        self.bytes -= spent
        self._store.reserved_bytes -= spent

    def release(self) -> None:
        """Give the bytes back."""
        if self.bytes:
            self.spend()
            self._store.space_freed.notify()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error:
            self.release()


class Store:
    """Owns the quota and the rows of the cached files.

    Invariant: resident_bytes + reserved_bytes + orphan_bytes <= limit_bytes, unless the limit was lowered and the
    excess cannot be evicted. Counters change only on trio's thread, between two awaits, hence atomically.

    Signals: `space_freed`; `admitted`, after files became resident; `returned_to_pass`, after the eviction of files
    that the current pass may draw again; `evicted`, with the files; `replaced`, with the versions that newer ones
    replaced; `damaged`, with the node id of a file that was evicted because of wrong content.

    open_files: the cached files that readers have open or mapped.
    unreachable: given if readers open files by themselves: keeps them from files, given by their ids, while it is
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
        unreachable: Callable[[Sequence[int]], AbstractAsyncContextManager[None]] | None = None,
    ) -> None:
        self.folder = folder
        self.min_free = min_free
        self.reserved_bytes = 0
        self.evicted_files = self.evicted_bytes = 0
        self.space_freed = Signal[[]]()
        self.admitted = Signal[[]]()
        self.replaced = Signal[[list[Removed]]]()
        self.returned_to_pass = Signal[[]]()
        self.damaged = Signal[[int]]()
        self.evicted = Signal[[list[Removed]]]()
        self._unreachable = unreachable
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
        self.limit_bytes = self.limit_of(cache_size)
        (shown_seq,) = database.row("SELECT coalesce(max(last_seq), 0) FROM generation")
        (self.last_seq,) = database.row("SELECT coalesce(max(seq), 0) FROM resident")
        self._publisher = Publisher(self._files, catalog.paths, max(shown_seq, last_place))
        self.mirrors = self._publisher.mirrors
        """Folders of hard links to cached files, under the same paths; changed on the writing thread, or at start."""
        self._durable = database.row("SELECT 1 FROM resident WHERE durable = 0") is None
        self.quota_bytes: int | None = None
        """The bytes that a quota invisible to statvfs(2) allows, as far as probed; None until it refuses more."""
        self._quota_retry_at = -math.inf

    # The quota.

    @property
    def orphan_bytes(self) -> int:
        """Bytes of files that are evicted or replaced but still open or mapped."""
        return self.open_files.orphan_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the quota that are in use."""
        return self.resident_bytes + self.reserved_bytes + self.orphan_bytes

    def reserve(self, size: int) -> Reservation | None:
        """Reserve the bytes for a file of this size; None if the cache is full."""
        self.collect_orphans()
        need = disk.allocation(size)
        return None if self.bytes_short(need) > 0 else Reservation(self, need)

    def reserve_part(self, need: int, at_least: int) -> Reservation | None:
        """Reserve half of the free bytes, up to `need`, or all of them if half is less than at_least.

        None if fewer bytes than at_least are free. The other half is left to the next file.
        """
        free = self.free_bytes()
        half = disk.allocation(free // 2)
        part = min(disk.allocation(need), half if half >= at_least else free)
        return None if part < max(at_least, disk.BLOCK) else Reservation(self, part)

    def free_bytes(self) -> int:
        """The bytes that may be reserved, in whole blocks."""
        self.collect_orphans()
        return max(0, -self.bytes_short(0)) // disk.BLOCK * disk.BLOCK

    @property
    def max_file_bytes(self) -> int:
        """Size of the largest file that fits into the cache."""
        return self.limit_bytes // disk.BLOCK * disk.BLOCK

    def largest_resident(self) -> int | None:
        """Size of the largest resident file; None if there is none."""
        (size,) = self._db.row("SELECT max(n.size) FROM node n JOIN resident r USING (id)")
        return None if size is None else int(size)

    def bytes_short(self, need: int) -> int:
        """Bytes that have to be evicted before a file of `need` bytes fits; negative if space is left.

        Files in flight count as not written yet, so this is too high by their written part. If the disk has run out of
        inodes, the result is `need`.
        """
        short = self._short_by_disk(need)
        if self.quota_bytes is not None:
            short = max(short, self.used_bytes + need - self.quota_bytes)
        return short

    def _short_by_disk(self, need: int) -> int:
        """The same, by the size of the cache and the disk figures of statvfs(2). Raises Unreadable."""
        try:
            free, files = disk.room(self.folder)
        except OSError as error:
            raise Unreadable(f"{self.folder}: {error.strerror}; check the cache's disk (dmesg)") from error
        kept = self.min_free + self._db.spare.lacking_bytes
        short = max(self.used_bytes + need - self.limit_bytes, kept + need + self.reserved_bytes - free)
        return short if files else max(short, need)

    @property
    def excess_bytes(self) -> int:
        """By how much the cached files exceed what the size of the cache, or others on its disk, leave them."""
        return max(0, self.bytes_short(-self.reserved_bytes))

    def note_full(self, in_flight_bytes: int) -> bool:
        """Note that the disk refused a file for which there seemed to be room; returns whether it has a quota.

        in_flight_bytes: the written part of the files in flight.
        """
        if self._short_by_disk(0) > 0:
            return False
        used = self.resident_bytes + self.orphan_bytes + in_flight_bytes
        margin = min(SPARE_BYTES_MAX, used // QUOTA_MARGIN_SHARE) + self._db.spare.lacking_bytes
        self.quota_bytes = used - min(margin, used // 2)
        self._db.spare.leave_free()
        return True

    @property
    def is_over_quota(self) -> bool:
        """Whether files in flight would take space that a quota leaves to the catalog: they started before it was
        found.
        """
        return self.quota_bytes is not None and self.used_bytes > self.quota_bytes

    async def try_quota(self, need: int, at_once: bool) -> bool:
        """Probe whether a quota that has refused more now has room for `need` bytes; returns whether it does.

        While files are in flight, the written part of their space is unknown. at_once: even if it has just refused.
        """
        is_due = at_once or trio.current_time() >= self._quota_retry_at
        if self.quota_bytes is None or self.reserved_bytes or not is_due:
            return False
        more = max(need, min(self.quota_bytes // QUOTA_STEP_SHARE, QUOTA_STEP_BYTES_MAX))
        quota = self.used_bytes + more
        if not await trio.to_thread.run_sync(self._db.spare.has_room_for, more):
            self._quota_retry_at = trio.current_time() + QUOTA_RETRY_S
            return False
        self.quota_bytes = quota
        return True

    @property
    def reachable_bytes(self) -> int:
        """How large the cache can become: its limit, or less if its disk has less room; less than now, if others have
        taken that.
        """
        return max(0, min(self.limit_bytes, self.used_bytes - self.bytes_short(0)))

    def status(self, delisted_bytes: int) -> CacheStatus:
        """The cache section of the status. delisted_bytes: of the cached files, which take long to sum up."""
        self.collect_orphans()
        return CacheStatus(
            files=self.resident_files,
            bytes=self.resident_bytes,
            content_bytes=self.resident_content_bytes,
            limit_bytes=self.limit_bytes,
            in_flight_bytes=self.reserved_bytes,
            orphan_bytes=self.orphan_bytes,
            left_out_bytes=delisted_bytes,
        )

    # Admission and eviction.

    def set_cache_size(self, size: CacheSize) -> None:
        """Change the quota. `Space.set_cache_size` evicts the excess."""
        self.limit_bytes = self.limit_of(size)
        self.space_freed.notify()

    def limit_of(self, size: CacheSize) -> int:
        """The limit that an option stands for, in bytes."""
        return size.of(disk.free_bytes(self.folder) + self.resident_bytes)

    def set_min_free(self, min_free: int) -> None:
        """Change how much of the disk is left free for other programs."""
        self.min_free = min_free

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
            with trio.CancelScope(shield=True):  # a daemon that stops now would leave files without rows
                await self._db.run_in_writer(lambda: self._publisher.undo(done))
            raise
        finally:
            for file in staged:
                file.reserved.spend()
        self._durable = False
        self.last_seq = max(self.last_seq, done.last_seq)
        self._count_gone(done.replaced)
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
        if freed and self._short_by_disk(freed) > 0:  # otherwise the size of the cache is the limit
            await trio.to_thread.run_sync(btrfs.commit, self._sync_fd)
        return freed

    async def _evict(self, ids: Sequence[int], return_to_pass: bool) -> int:
        async with self.unreachable(ids):
            evicted = await self._db.write(
                lambda writer: self._publisher.evict(writer, ids, return_to_pass), self._publisher.remove
            )
        freed = self._count_gone(evicted)
        self.evicted.notify(evicted)
        self.evicted_files += len(evicted)
        self.evicted_bytes += freed
        return freed

    def unreachable(self, ids: Sequence[int]) -> AbstractAsyncContextManager[None]:
        """A block in which files may be removed: no reader is about to open one by itself."""
        return self._unreachable(ids) if self._unreachable and ids else nullcontext()

    @property
    def refusal(self) -> Exception | None:
        """The error with which the disk refused the last write to the catalog; None if it did not."""
        return self._db.refusal

    def drop_files(self, changes: Changes) -> None:
        """Remove the cached files that left the catalog. Called on the writing thread, after the commit."""
        self._publisher.remove(changes.removed, left_catalog=True)

    def count_dropped(self, changes: Changes) -> None:
        """Subtract the files that left the catalog from the counters."""
        self._count_gone(changes.removed)

    def _count_gone(self, gone: Iterable[Removed]) -> int:
        """Subtract the resident ones of these files from the counters; returns the bytes that they took."""
        bytes, is_freed = self.resident_bytes, False
        for file in gone:
            if file.bytes is not None:
                self.resident_files -= 1
                self.resident_bytes -= file.bytes
                self.resident_content_bytes -= file.size
                is_freed = not self.open_files.orphan(file.id, file.bytes) or is_freed
        if is_freed:
            self.space_freed.notify()
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
            self.space_freed.notify()

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
        if self._unreachable:
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
            self.space_freed.notify()

    def collect_orphans(self) -> None:
        """Free the bytes of orphans that are no longer mapped; the kernel does not notify of that."""
        if self.open_files.collect_orphans():
            self.space_freed.notify()

    # Durability.

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
