"""The passes over the catalog, and all other files that no reader waits for: new versions of cached ones.

`Prefetcher` decides which files are drawn in which order, and when the next pass begins. A drawn file is marked in the
database when it is admitted, so a restarted mount continues the pass where it was. `Drawer` draws one group after
another, in that order, each as soon as there is space. A file that is already cached when it is drawn is deferred: it
is drawn again late in the pass, because it may be evicted by then.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import partial

import trio

from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Catalog, Node
from growfs.cache.room import SizeEstimate
from growfs.cache.store import Store
from growfs.errors import DiskFailed, DiskFull, NoRoom, RemoteChanged
from growfs.remote.groups import Suggestion
from growfs.rotation.pass_order import Order, groups_of, ids_of
from growfs.scheduler.fetcher import Fetcher, too_large
from growfs.scheduler.in_flight import Claim, Download, Priority
from growfs.scheduler.outage import Failure, Outage
from growfs.scheduler.readiness import PrefetchState
from growfs.scheduler.refresh import CatalogSync
from growfs.scheduler.rotating import Selection
from growfs.scheduler.space import Space
from growfs.signal import Signal
from growfs.status_and_metrics import MountState, SkippedStatus

LISTING_GRACE_S = 5.0
"""How long the first draws wait for the listing to finish, unless the start waits for a number of files or bytes."""
FAILED_RETRY_S = 30.0
"""Pause before failed files are retried at the end of a pass; doubled each time that none succeeded, up to a day."""


class Prefetcher:
    """Owns the order of the current pass and the position in it. `ordered` notifies of each order."""

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        catalog_sync: CatalogSync,
        selection: Selection,
        fetcher: Fetcher,
        drawer: Drawer,
        space: Space,
        state: PrefetchState,
    ) -> None:
        self.ordered = Signal[[Order]]()
        self._catalog = catalog
        self._store = store
        self._catalog_sync = catalog_sync
        self._selection = selection
        self._fetcher = fetcher
        self._drawer = drawer
        self._space = space
        self._state = state
        self._order_took_s = 0.0
        self._warnings: list[str] = []
        self._missing_group: Suggestion | None = None

    async def run(self) -> None:
        """Draw until everything is cached or nothing more fits; start over when the catalog changes."""
        async with trio.open_nursery() as nursery:
            await self._draw_early()
            nursery.start_soon(self._watch_files)
            if not await self._catalog.has_unseeded():
                self._state.seeds.complete_seeds(has_frozen=self._catalog.freezes)
            if self._fetcher.downloads.group is None:
                self._missing_group = await self._catalog.suggested_group()
            while True:
                self._state.begin_order()
                if await self._draw_pass():
                    await self._begin_next_pass()
                    continue
                while not (self._state.is_stale or self._state.has_evicted):
                    await self._state.changed.wait()

    @property
    def last_failure(self) -> Failure | None:
        """The latest failure of a file or a listing that has not succeeded since."""
        failures = filter(None, (self._catalog_sync.failure, self._fetcher.failures.last))
        return max(failures, key=lambda failure: failure.at, default=None)

    @property
    def warnings(self) -> list[str]:
        """Warnings about options that are odd, too small or cannot be met."""
        seeds = self._state.seeds
        missing = [seeds.frozen_failure] if seeds.frozen_failure and not seeds.frozen_complete else []
        groups = [": ".join(self._missing_group)] if self._missing_group and not self._all_fit else []
        return [*self._warnings, *groups, *missing, *self._shortage()]

    def _shortage(self) -> list[str]:
        """Advice if the disk, rather than the size of the cache, ends its growth before everything is cached."""
        room, size = self._store.room, self._store.room.reachable_bytes
        wants_more = self._state.mount_state is MountState.HELD or self._selection.share.bytes > size
        # A cache that can grow to nearly its size is not too large for its disk: files in flight count twice.
        return [room.shortage()] if size < 0.98 * room.limit_bytes and wants_more else []

    def eta_s(self) -> float | None:
        """Seconds until the cache is full or everything is cached, at the current rate; None if no more will come."""
        store, rate = self._store, self._fetcher.traffic.bytes_per_s()
        to_come = min(self._selection.missing.bytes, store.room.limit_bytes - store.resident_bytes)
        is_growing = self._state.mount_state in (MountState.LISTING, MountState.SEEDING, MountState.FILLING)
        return to_come / rate if rate and to_come > 0 and is_growing else None

    def handle_changed_catalog(self) -> None:
        """Invalidate the order: a listing has changed the files to draw."""
        if not self._catalog_sync.is_endless:  # an endless remote never changes a file
            self._drawer.forget_skipped()
        self._state.invalidate_order()

    async def _watch_files(self) -> None:
        """Draw changed files. Each changes the order, which takes minutes of CPU for ten million files: at most a tenth
        of the time.
        """
        while True:
            await self._catalog_sync.file_changed.wait()
            await trio.sleep(10 * self._order_took_s)
            self._state.invalidate_order()

    async def _draw_early(self) -> None:
        """While the first listing runs, draw the files that the start waits for from those known so far."""
        sync, condition = self._catalog_sync, self._state.condition
        if not sync.complete and not condition.explicit:
            with trio.move_on_after(LISTING_GRACE_S):
                while not sync.complete:
                    await sync.progressed.wait()
        files, bytes = condition.amount(self._store.room.limit_bytes)
        while not sync.complete:
            for node in await self._first_listed() if files > 0 or bytes > 0 else ():
                if (files <= 0 and bytes <= 0) or sync.complete:
                    break
                if not await self._drawer.draw([node.id]):
                    return
                files -= 1
                bytes -= node.size or 0
            if not sync.complete:  # the draws may have taken longer than the listing
                await sync.progressed.wait()

    async def _first_listed(self) -> list[Node]:
        undrawn, downloads = self._catalog.undrawn(1000), self._fetcher.downloads
        idle = [node for node in undrawn if downloads.get(node.id) is None]
        return await self._selection.early(node for node in idle if not self._space.is_too_large([node]))

    async def _draw_pass(self) -> bool:
        """Draw the rest of the pass; returns whether the next pass is to begin."""
        order = await self._begin_order()
        return await self._draw_order(order) and await self._retry_failed()

    async def _begin_order(self) -> Order:
        state, drawer = self._state, self._drawer
        began = trio.current_time()
        order = await self._selection.remaining(self._store.room.max_file_bytes)
        self._order_took_s = trio.current_time() - began
        self.ordered.notify(order)
        self._warnings = self._options_without_effect(order)
        drawer.begin_order()
        state.draw_order(order, self._store.room.limit_bytes)
        return order

    def _options_without_effect(self, order: Order) -> list[str]:
        warnings = [
            f"--freeze {glob} matches no file, so it freezes nothing; patterns use .gitignore syntax"
            for glob in order.unmatched
        ]
        if order.has_no_groups:
            warnings.append("--group puts no two files together: each is fetched and replaced alone")
        if not (self._all_fit or self._catalog.freezes) and (folder := self._catalog.validation_folder()):
            warnings.append(
                f"{folder}/ looks like a validation set, but its files come and go like any others: --freeze"
                f" '{folder}/**' keeps them all, --exclude '{folder}/**' leaves them out"
            )
        return warnings

    @property
    def _all_fit(self) -> bool:
        return self._catalog.bytes <= self._store.room.reachable_bytes

    async def _draw_order(self, order: Order) -> bool:
        """Draw everything once; False if the order is out of date."""
        half = len(order.rest) // 2 if self._catalog_sync.is_endless else 0
        for number, ids in enumerate((order.frozen, order.seeds, order.rest[:half], order.rest[half:])):
            if number == 3 and self._catalog_sync.is_endless and self._drawer.skips <= half // 2:
                self._catalog_sync.extend()  # so that the next files are known before these run out
            if not await self._drawer.draw_all(groups_of(ids)):
                return False
        return True

    async def _retry_failed(self) -> bool:
        """End the pass: retry failed files until none is left; returns whether the next pass is to begin."""
        state, drawer = self._state, self._drawer
        pause_s = FAILED_RETRY_S
        while await drawer.wait_until_finished() and drawer.has_failed:
            if self._may_continue():
                return True  # the next pass tries the failed files again
            state.enter(MountState.ERROR)
            with trio.move_on_after(pause_s):
                while not (state.is_stale or state.has_evicted):
                    await state.changed.wait()
            if state.has_evicted:
                return False  # others do not wait for those that fail
            excluded = drawer.excluded
            state.enter(MountState.FILLING)
            if not await drawer.draw_failed_again():
                return False
            pause_s = FAILED_RETRY_S if drawer.excluded < excluded else min(2 * pause_s, 86_400.0)
        if not state.is_stale:
            state.rest()
        while self._fetcher.downloads and not (state.is_stale or state.has_evicted or self._may_continue()):
            await self._fetcher.progressed.wait()  # files that fail for their readers have to be drawn
        return not (state.is_stale or state.has_evicted) and self._may_continue()

    def _may_continue(self) -> bool:
        """Whether a next pass could draw more than the files that failed and those that do not fit."""
        missing = self._selection.missing.files - len(self._fetcher.downloads)
        return self._space.rotates and missing > self._drawer.excluded and not self._catalog_sync.is_endless

    async def _begin_next_pass(self) -> None:
        """Draw the deferred files of this pass again; after that, begin the next pass."""
        if self._drawer.end_round():
            self._drawer.forget_skipped()
            await self._catalog.begin_pass(self._catalog.pass_number + 1)


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
            if number % 64 == 0:  # most draws do not wait for anything, and take 0.05 ms
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
        blocked = (node for node in missing if self._outage.blocks(self._catalog.path(node)))
        return self._state.paused or (self._outage.is_on and (not missing or any(blocked)))

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
    """Fetches the new versions found by CatalogSync, each of which replaces a resident file.

    The smallest come first, and one that waits for room gives way to a smaller one: it may find room.
    """

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
        sync = self._catalog_sync
        while True:
            while not self._state.is_interrupted and (update := sync.next_update()):
                with update as (id, file):
                    if node := self._catalog.node(id):
                        newer = node._replace(size=file.size, mtime_ns=file.mtime_ns, version=file.version)
                        gives_way = partial(sync.has_smaller_update, file)
                        if not await self._fetcher.update(newer, self._catalog.path(node), gives_way):
                            sync.add_update(id, file)
            await self._state.changed.wait()
