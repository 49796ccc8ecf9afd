"""The passes over the catalog: which files are drawn in which order, and when the next pass begins.

A drawn file is marked in the database when it is admitted, so a restarted mount continues the pass where it was.
"""

from __future__ import annotations

import trio

from growfs.cache.catalog import Catalog, Node
from growfs.cache.store import Store
from growfs.remote.groups import Suggestion
from growfs.rotation.pass_order import Order, groups_of
from growfs.scheduler.drawer import Drawer
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.outage import Failure
from growfs.scheduler.readiness import PrefetchState
from growfs.scheduler.refresh import CatalogSync
from growfs.scheduler.rotating import Selection
from growfs.scheduler.space import Space
from growfs.signal import Signal
from growfs.status_and_metrics import MountState

LISTING_GRACE_S = 5.0
"""How long the first draws wait for the listing to finish, unless the start waits for a number of files or bytes."""
FAILED_RETRY_S, FAILED_RETRY_S_MAX = 30.0, 86_400.0
"""Pause before failed files are retried at the end of a pass; doubled each time that none succeeded."""
ORDER_PAUSES = 10
"""While single files change, the order is computed again after this many times the duration of the last computation."""
GROWING = (MountState.LISTING, MountState.SEEDING, MountState.FILLING)
"""The states in which the cache is being filled."""


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
        failures = filter(None, (self._catalog_sync.failure, self._fetcher.last_failure()))
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
        store, rate = self._store, self._fetcher.counters.bytes_per_s()
        to_come = min(self._selection.missing.bytes, store.room.limit_bytes - store.resident_bytes)
        return to_come / rate if rate and to_come > 0 and self._state.mount_state in GROWING else None

    def handle_changed_catalog(self) -> None:
        """Invalidate the order: a listing has changed the files to draw."""
        if not self._catalog_sync.is_endless:  # an endless remote never changes a file
            self._drawer.forget_skipped()
        self._state.invalidate_order()

    async def _watch_files(self) -> None:
        """Draw changed files. Each changes the order, which takes minutes of CPU for ten million files."""
        while True:
            await self._catalog_sync.file_changed.wait()
            await trio.sleep(ORDER_PAUSES * self._order_took_s)
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
        for number, part in enumerate((order.frozen, order.seeds, order.rest[:half], order.rest[half:])):
            if number == 3 and self._catalog_sync.is_endless and self._drawer.skips <= half // 2:
                self._catalog_sync.extend()  # so that the next files are known before these run out
            if not await self._drawer.draw_all(groups_of(part)):
                return False
        return True

    async def _retry_failed(self) -> bool:
        """End the pass: retry failed files until none is left; returns whether the next pass is to begin."""
        state, drawer = self._state, self._drawer
        pause_s = FAILED_RETRY_S
        while await drawer.wait_until_finished() and drawer.has_failed:
            if self._may_continue():
                return True  # the next pass tries the failed files again
            state.wait_to_retry()
            with trio.move_on_after(pause_s):
                while not (state.is_stale or state.has_evicted):
                    await state.changed.wait()
            if state.has_evicted:
                return False  # others do not wait for those that fail
            excluded = drawer.excluded
            state.retry()
            if not await drawer.draw_failed_again():
                return False
            pause_s = FAILED_RETRY_S if drawer.excluded < excluded else min(2 * pause_s, FAILED_RETRY_S_MAX)
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
