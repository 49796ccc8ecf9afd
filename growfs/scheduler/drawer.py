"""Puts files in flight that no reader waits for: those of the pass, and new versions of cached ones.

Drawn files go one group after another, in the order of the pass, each as soon as there is space. A file that is already
cached when it is drawn is deferred: it is drawn again late in the pass, because it may be evicted by then.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import trio

from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Catalog, Node
from growfs.cache.store import Store
from growfs.errors import DiskFailed, DiskFull, NoRoom, RemoteChanged
from growfs.rotation.pass_order import groups_of, ids_of
from growfs.scheduler.fetcher import Fetcher, too_large
from growfs.scheduler.in_flight import Download, Priority, SizeEstimate
from growfs.scheduler.outage import Outage
from growfs.scheduler.readiness import PrefetchState
from growfs.scheduler.refresh import CatalogSync
from growfs.scheduler.space import Claim, Space
from growfs.signal import Signal
from growfs.status_and_metrics import SkippedStatus

DRAWS_PER_STEP = 64
"""Groups drawn before the kernel is answered again: most draws do not wait for anything, and take 0.05 ms."""


class Drawer:
    """Draws groups of files, and owns the set of files of a pass that could not be cached.

    A smaller group does not overtake one that waits for space. found_room: notified when a draw has its room. drawn:
    notified of files that were drawn in order and are cached.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        fetcher: Fetcher,
        space: Space,
        sizes: SizeEstimate,
        state: PrefetchState,
        outage: Outage,
    ) -> None:
        self.found_room = Signal[[]]()
        self.drawn = Signal[[Download]]()
        self._catalog = catalog
        self._store = store
        self._fetcher = fetcher
        self._space = space
        self._sizes = sizes
        self._state = state
        self._outage = outage
        self._oversized = BitMap64()  # files of this pass that are larger than the cache
        self._skipped = dict[str, BitMap64]()  # those that failed and are not tried again, by the reason
        self._failed = array("q")  # those of this pass that could not be fetched, with their groups, as ids of an Order
        self._failed_ids = BitMap64()
        self._defers = True  # cached files are deferred; otherwise they already were
        self._deferred: list[int] = []
        self._has_deferred = False

    # Outcomes of the files of a pass.

    @property
    def has_failed(self) -> bool:
        """Whether files could not be fetched and are to be tried again."""
        return bool(self._failed)

    @property
    def excluded(self) -> int:
        """The number of files that this pass cannot cache."""
        return len(self._failed) + len(self._oversized.union(*self._skipped.values()))

    @property
    def skips(self) -> int:
        """The number of files that failed and are not tried again."""
        return sum(map(len, self._skipped.values()))

    def begin_order(self) -> None:
        """Start on another order of the pass: it has all files that failed or were too large before."""
        self._take_failed()
        self._oversized.clear()

    def forget_skipped(self) -> None:
        """Let them be tried again."""
        self._skipped.clear()

    def end_round(self) -> bool:
        """Begin to draw the deferred files again; if there are none, return True: the pass is complete."""
        self._defers, self._has_deferred = not (self._defers and self._has_deferred), False
        return self._defers

    def skipped(self) -> list[SkippedStatus]:
        """The files that this pass cannot fetch, by reason."""
        reasons = {"larger than the whole cache": self._oversized, **self._skipped}
        return [SkippedStatus(reason, len(ids), self._path(ids.min())) for reason, ids in reasons.items() if ids]

    def _path(self, id: int) -> str:
        node = self._catalog.node(id)
        return self._catalog.path(node) if node else ""

    def _take_failed(self) -> Sequence[int]:
        failed, self._failed = self._failed, array("q")
        self._failed_ids.clear()
        return failed

    def handle_finished(self, download: Download) -> None:
        """Note the outcome of a download."""
        id, error, seeds = download.node.id, download.error, self._state.seeds
        if not (isinstance(error, (RemoteChanged, DiskFull)) and seeds.is_frozen(id)):  # else it is drawn again
            if error:
                seeds.failed(download.node, error)
            else:
                seeds.fetched(download.node)
            self._state.finish(id)
        if not download.group.is_drawn:
            return
        if error and error.skip_reason:
            self._skipped.setdefault(error.skip_reason, BitMap64()).add(id)
        elif error:
            if isinstance(error, DiskFull):
                self._state.draw_evicted()  # there will be room: the disk's real capacity is known by now
            else:
                self._note_failed(download.group.ids or (id,))
        elif self._defers:
            self.drawn.notify(download)
        if isinstance(error, (NoRoom, DiskFailed)):
            self._space.pause_draws()

    def _note_failed(self, ids: Sequence[int]) -> None:
        first = ids[0]
        if first not in self._failed_ids:  # otherwise another of the group failed before
            self._failed_ids.add(first)
            self._failed.extend(ids_of([ids]))

    # Draws.

    async def draw_all(self, groups: Iterable[Sequence[int]]) -> bool:
        """Draw groups in order; False if the order is out of date."""
        for number, ids in enumerate(groups):
            if number % DRAWS_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
            if all(any(id in skipped for skipped in self._skipped.values()) for id in ids):
                self._state.finish(*ids)
            elif not await self.draw(ids):
                return False
        return not self._state.is_stale

    async def draw_failed_again(self) -> bool:
        """Draw the failed files again, and wait for them; False if the order is out of date."""
        return await self.draw_all(groups_of(self._take_failed())) and await self.wait_until_finished()

    async def draw(self, ids: Sequence[int]) -> bool:
        """Draw a group as soon as there is space; False if the order is out of date."""
        state = self._state
        while (self._fetcher.window_full or self._is_start_in_flight(ids)) and not state.is_stale:
            await self._fetcher.progressed.wait()
        while not state.is_stale:
            nodes = self._nodes(ids)
            missing = self._missing(nodes)
            if self._must_wait(missing):
                await state.changed.wait()
                continue
            if not missing:
                await self._defer(ids)
            elif self._space.is_too_large(nodes):
                self._oversized.update(node.id for node in missing)
                for node in missing:
                    state.seeds.failed(node, too_large(self._catalog.path(node)))
                state.finish(*ids)
            elif not await self._fetch(missing, ids):
                continue
            return True
        return False

    def _must_wait(self, missing: Sequence[Node]) -> bool:
        """Whether these files have to wait."""
        if not self._state.is_interrupted:
            return False
        paths = map(self._catalog.path, missing)
        return self._state.paused or not missing or any(map(self._outage.blocks, paths))

    async def wait_until_finished(self) -> bool:
        """Wait for all drawn files in flight; False if the order is out of date.

        A file that only readers wait for may find no room for minutes, which does not prolong the pass.
        """
        await self._write_deferred()
        while self._fetcher.downloads.has_drawn and not self._state.is_stale:
            await self._fetcher.progressed.wait()
        return not self._state.is_stale

    def _nodes(self, ids: Iterable[int]) -> list[Node]:
        """The nodes of these files that the catalog still has."""
        return [node for id in ids if (node := self._catalog.node(id))]

    def _missing(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes that are neither cached nor in flight."""
        return [node for node in nodes if node.seq is None and self._fetcher.downloads.get(node.id) is None]

    def _is_start_in_flight(self, ids: Sequence[int]) -> bool:
        """Whether the files that the start waits for are in flight: these would only slow it down."""
        store, condition = self._store, self._state.condition
        if condition.no_wait or self._state.is_started:
            return False
        files, bytes = condition.amount(store.room.limit_bytes)
        if not condition.explicit:
            bytes = max(bytes, self._state.seeds.bytes)
        if store.resident_files >= files and store.resident_content_bytes >= bytes:
            return False
        if not condition.explicit and any(self._sizes.is_guess(node) for node in self._nodes(ids)):
            return False  # reservations for files of unknown size may be far too large
        enough_files = store.resident_files + len(self._fetcher.downloads) >= files
        return enough_files and store.resident_content_bytes + store.room.reserved_bytes >= bytes

    async def _fetch(self, missing: list[Node], ids: Sequence[int]) -> bool:
        """Put the missing files of a group in flight once there is space; False if others are missing then."""
        state = self._state

        def is_wanted() -> bool:  # false if a miss now fetches some of them
            return not (state.is_stale or self._must_wait(missing)) and self._missing(self._nodes(ids)) == missing

        first = missing[0]
        priority = Priority.DUE if state.seeds.is_frozen(first.id) else Priority.DRAW
        claim = Claim(missing, self._catalog.path(first), priority, is_wanted, is_draw=True)
        if not (reserved := self._space.reserve_free(claim)):
            await self._write_deferred()
            reserved = await self._space.acquire(claim)
        if reserved:
            self._fetcher.draw(missing, tuple(ids) if len(ids) > 1 else (), priority, reserved)
            self.found_room.notify()
        return reserved is not None

    async def _defer(self, ids: Sequence[int]) -> None:
        self._state.finish(*(id for id in ids if self._fetcher.downloads.get(id) is None))  # else once they are fetched
        if self._defers:
            self._has_deferred = True
            self._deferred.extend(ids)
            if len(self._deferred) >= 256:  # one transaction writes them all
                await self._write_deferred()

    async def _write_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        if deferred:
            await self._catalog.defer(deferred, self._catalog.pass_number)


class VersionUpdater:
    """Fetches the new versions found by CatalogSync, each of which replaces a resident file."""

    def __init__(self, catalog: Catalog, fetcher: Fetcher, catalog_sync: CatalogSync, state: PrefetchState) -> None:
        self._catalog = catalog
        self._fetcher = fetcher
        self._catalog_sync = catalog_sync
        self._state = state

    async def run(self) -> None:
        """Fetch new versions until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(2):  # two new versions at a time
                nursery.start_soon(self._update)

    async def _update(self) -> None:
        while True:
            while not self._state.is_interrupted and (update := self._catalog_sync.next_update()):
                with update as (id, file):
                    if node := self._catalog.node(id):
                        newer = node._replace(size=file.size, mtime_ns=file.mtime_ns, version=file.version)
                        await self._fetcher.update(newer, self._catalog.path(node))
            await self._state.changed.wait()
