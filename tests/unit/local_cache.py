"""A cache without a daemon: database, catalog, store and rotation in one folder. Files are staged as by a worker."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from growfs import disk
from growfs.bitmaps import BitMap64
from growfs.cache.cache_folder import read_only
from growfs.cache.catalog import Catalog, Changes, Node
from growfs.cache.database import Database
from growfs.cache.listing_diff import Comparison, ListingDiff
from growfs.cache.publish import StagedFile
from growfs.cache.recovery import recover
from growfs.cache.room import Reservation, SizeEstimate
from growfs.cache.schema import ROOT, id_at
from growfs.cache.store import Store
from growfs.cache.usage import Budget
from growfs.daemon.commands import FileCommands
from growfs.errors import GrowfsError
from growfs.remote import digest
from growfs.remote.interface import Fetched, RemoteFile, Skipped
from growfs.rotation.generations import Demand, Generations
from growfs.rotation.pass_order import Amount, Pass
from growfs.rotation.rules import Generation, GenerationPlan, TurnoverInput
from growfs.rotation.turnover import plan_generation
from growfs.scheduler.in_flight import InFlightTable, Priority
from growfs.scheduler.outage import Outage
from growfs.scheduler.rotating import Rotation
from growfs.scheduler.space import Space, WaitingClaims
from growfs.units import CacheSize
from growfs.vfs.attributes import Entry
from growfs.vfs.filesystem import visible_entries

Fetch = Callable[[Node, str, float], Awaitable[None]]
"""Fetches a file with this path, within so many seconds."""


@dataclass
class LocalCache:
    """A cache folder with its components."""

    folder: Path
    database: Database
    catalog: Catalog
    store: Store
    generations: Generations
    space: Space
    sizes: SizeEstimate
    waiting: WaitingClaims
    holds: BitMap64 = field(default_factory=BitMap64)
    share: Amount | None = None
    """What the passes draw; None: all."""
    largest: int = 0
    """Bytes of a draw that waits for room."""
    reserved: list[Reservation] = field(default_factory=list)

    async def list(self, files: list[RemoteFile], page: int = 1000, skipped: list[Skipped] | None = None) -> int:
        """Apply a listing of the remote as a worker and CatalogSync do; returns how many files differed."""
        connection = read_only(self.database.path)
        comparison = Comparison(connection)
        number = self.catalog.listing + 1
        differing = 0
        parts = [files[start : start + page] for start in range(0, len(files), page)] or [[]]
        for part in parts:
            new, changed = comparison.compare(part)
            differing += len(new) + len(changed)
            await self.apply(
                ListingDiff(number, new=new, changed=changed, skipped=[*(skipped or []), *comparison.duplicates])
            )
        gone = list(comparison.gone())
        await self.apply(ListingDiff(number, gone=gone, new=comparison.late))
        connection.close()
        await self.catalog.finish(number)
        return differing + len(gone) + len(comparison.late)

    async def apply(self, part: ListingDiff) -> Changes:
        changes = await self.catalog.apply(part, self.store.drop_files)
        self.store.count_gone(changes.removed)
        return changes

    async def reserve_by_rotation(self, size: int, holds: BitMap64 | None = None) -> int | None:
        return await self.reserve(size, Priority.DRAW, holds)

    async def reserve_by_eviction(self, size: int, holds: BitMap64 | None = None) -> int | None:
        return await self.reserve(size, Priority.READER, holds)

    async def reserve(self, size: int, priority: Priority, holds: BitMap64 | None = None) -> int | None:
        """Reserve for that priority, while readers have these holds; returns the bytes."""
        self.holds = holds or BitMap64()
        reserved = await self.space.reserve_by_eviction(size, priority)
        if reserved:
            self.reserved.append(reserved)
        return reserved.bytes if reserved else None

    def give_back(self) -> None:
        """Give back all that was reserved by these three."""
        while self.reserved:
            self.reserved.pop().release()

    def demand(self) -> Demand:
        """What is still to be cached: all, unless a test has said otherwise; and what waits for room."""
        if self.share:
            bytes = (self.share - Amount(self.store.resident_files, self.store.resident_content_bytes)).disk_bytes
        else:
            query = "SELECT size FROM node LEFT JOIN resident USING (id) WHERE is_dir = 0 AND resident.id IS NULL"
            bytes = sum(disk.allocation(size or 0) for (size,) in self.database.rows(query))
        return Demand(bytes, max(self.largest, self.waiting.largest), self.waiting.versions)

    def in_flight(self, template: str | None = None) -> InFlightTable:
        return InFlightTable(self.database, self.catalog, template, self.folder / "partial")

    def node(self, path: str) -> Node:
        node = self.find(path)
        assert node, path
        return node

    def find(self, path: str) -> Node | None:
        id = id_at(self.database.rows, path)
        return None if id is None else self.catalog.node(id)

    def stage(self, path: str, content: bytes) -> StagedFile:
        """Reserve space for a file, and stage it as a worker does."""
        node = self.node(path)
        file = self.folder / "partial" / str(node.id)
        file.write_bytes(content)
        reserved = self.store.room.reserve(len(content))
        assert reserved is not None, "the cache is full"
        return StagedFile(node, path, file, Fetched(len(content), node.mtime_ns, digest.of(file)), reserved)

    async def admit(self, *paths: str, content: bytes = b"x" * 100) -> None:
        for path in paths:
            assert (await self.store.admit([self.stage(path, content)])).admitted

    async def renew(self, path: str, content: bytes, version: str = "v2") -> None:
        """Replace a resident file by a newer version."""
        staged = self.stage(path, content)
        staged = staged._replace(node=staged.node._replace(version=version), renews=True)
        assert (await self.store.admit([staged])).admitted

    async def shrink(self, limit_bytes: int) -> bool:
        """Change the quota; whether the cache is within it then."""
        try:
            await self.space.set_cache_size(CacheSize(bytes=limit_bytes))
        except GrowfsError:
            return False
        return True

    async def begin(
        self, lasting_holds: BitMap64 | None = None, opened: frozenset[int] = frozenset()
    ) -> Generation | None:
        """Begin a generation, and wait until its changes are committed; returns the current one.

        All that the one before listed counts as opened since, so it delists as much as it may.
        """
        generations, before = self.generations, self.generations.number
        self.open_all()
        async with running(generations.run):
            await generations.begin(lasting_holds or BitMap64(), opened)
            if generations.number > before:
                await generations.written.wait()
        return generations.current

    def open_all(self) -> None:
        """Have all cached files count as opened since the current generation began."""
        for (id,) in self.database.rows("SELECT id FROM resident WHERE suffix IS NOT NULL"):
            self.generations.note_opened(id)

    def listed(self, generation: Generation | None = None) -> set[str]:
        """The paths of the files that a generation (by default the current one) lists, by a walk from the root."""
        generation = generation or self.generations.current
        assert generation
        paths, folders = set[str](), [ROOT]
        while folders:
            for entry in self.entries(folders.pop(), generation):
                if entry.is_dir:
                    folders.append(entry.id)
                elif node := self.catalog.node(entry.id):
                    paths.add(self.catalog.path(node))
        return paths

    def entries(self, directory: int, generation: Generation, at_once: int = 1000) -> Sequence[Entry]:
        """The entries of a directory that a generation lists, read at_once rows at a time."""
        listed = deque[Entry]()
        passed: int | None = 0
        while passed is not None:
            entries, _, passed = visible_entries(self.store, directory, passed, generation, at_once, 0)
            listed += entries
            passed = entries[-1].position if entries else passed
        return listed

    def totals(self) -> tuple[int, int]:
        files, bytes, _ = self.generations.hidden(self.database.rows)
        return self.store.resident_files - files, self.store.resident_content_bytes - bytes

    def resident(self) -> set[str]:
        ids = self.database.rows("SELECT r.id FROM resident r JOIN node n USING (id) WHERE n.is_dir = 0")
        nodes = [self.catalog.node(id) for (id,) in ids]
        return {self.catalog.path(node) for node in nodes if node}

    def cached(self) -> dict[str, bytes]:
        files = self.folder / "files"
        return {str(path.relative_to(files)): path.read_bytes() for path, _ in disk.walk_files(files)}

    def catalog_files(self) -> set[RemoteFile]:
        rows = self.database.rows("SELECT id FROM node WHERE is_dir = 0")
        nodes = [node for (id,) in rows if (node := self.catalog.node(id))]
        return {RemoteFile(self.catalog.path(node), node.size, node.mtime_ns, node.version) for node in nodes}

    def close(self) -> None:
        self.store.stop()
        self.database.close()


@asynccontextmanager
async def running(*services: Callable[[], Awaitable[object]]) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        for service in services:
            nursery.start_soon(service)
        yield nursery
        nursery.cancel_scope.cancel()


def run_in_memory(run: Callable[[Path], Awaitable[None]]) -> None:
    """Run a function with an empty folder, in memory if there is a file system there: a property has many of them."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.exists() else None) as folder:
        trio.run(run, Path(folder))


async def answers(_: bool) -> None:
    """A probe of a remote that is not away."""


def file_commands(cache: LocalCache, fetch: Fetch, outage: Outage | None = None) -> FileCommands:
    """The commands for files. outage: by default, the remote is not away."""
    return FileCommands(cache.database, cache.catalog, cache.store, cache.space, outage or Outage(answers), fetch)


class LocalRotation(Rotation):
    """Plans without a worker, whatever the number of files."""

    async def plan(self, number: int, turnover: TurnoverInput) -> GenerationPlan:
        return plan_generation(self._db.path, number, turnover)


def open_local_cache(folder: Path, limit_bytes: int = 1 << 30) -> LocalCache:
    """Open a cache as the daemon does when it starts."""
    database = Database(folder / "catalog.sqlite")
    recover(database, folder)
    catalog = Catalog(database)
    store = Store(folder, database, catalog, CacheSize(bytes=limit_bytes), min_free=0)

    def demand() -> Demand:
        return cache.demand()

    cache: LocalCache
    no_workers: Any = None
    selection = LocalRotation(no_workers, database, catalog, store, folder / "partial", Pass(0, 1))
    generations = Generations(database, store, selection, demand, turnover=0.2, settle_s=60.0)
    sizes, waiting, budget = SizeEstimate(store.room), WaitingClaims(), Budget(database, 0)
    space = Space(database, store, generations, budget, Outage(answers), sizes, waiting, lambda: cache.holds)
    cache = LocalCache(folder, database, catalog, store, generations, space, sizes, waiting)
    return cache


def file(path: str, size: int | None = 100, version: str = "v1") -> RemoteFile:
    return RemoteFile(path, size, 1_700_000_000 * 10**9, version)
