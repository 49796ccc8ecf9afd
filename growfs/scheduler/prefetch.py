"""What is fetched without being asked for, and in which order.

What is drawn is marked in the database as it is admitted: after a restart the pass goes on with the files that are not.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from growfs import disk
from growfs.cache.budget import Budget
from growfs.cache.catalog import Catalog, Node, Share
from growfs.cache.store import Store
from growfs.errors import NoRoom, NotMade
from growfs.events import Signal
from growfs.rotation.draw_order import Pass, draw_key, groups_of
from growfs.rotation.eviction import Evictor
from growfs.rotation.generations import Generations
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.in_flight import Download
from growfs.scheduler.order import order_in_worker
from growfs.scheduler.readiness import MountState, SeedTracker, StartCondition
from growfs.scheduler.refresh import CatalogSync
from growfs.workers.messages import MakeOrder
from growfs.workers.pool import WorkerPool

log = logging.getLogger(__name__)

EARLY_FILES_MAX = 1000
"""Files of a listing under way that are looked at for the first draws."""
LISTING_GRACE_S = 5.0
"""How long a start that asks for no number of files waits for the listing before it draws from a part of it."""
RETRY_S = (30.0, 600.0)
"""Pause before the files that failed are tried again at the end of a pass: the first, doubled up to the last."""
BREATH_S = 0.2
"""Pause between two looks for room: holds end by the hundred while a reader lists its folders, and a look costs."""
HOLD_S = 5.0
"""How often a held population looks whether there is room by now; others may have freed disk space."""
DEFERRED_MAX = 256
"""Files that are here when they are drawn, to be noted in one transaction."""

GROWING = (MountState.LISTING, MountState.SEEDING, MountState.FILLING)
"""The states in which the number of cached files grows."""


class Prefetcher:
    """Owns the order of the pass, the place in it, and whether it is paused. asked: what decides the order.

    `changed` pulses when it is paused or resumed, or has to look again.
    """

    def __init__(
        self,
        workers: WorkerPool,
        catalog: Catalog,
        store: Store,
        generations: Generations,
        evictor: Evictor,
        fetcher: Fetcher,
        catalog_sync: CatalogSync,
        budget: Budget,
        partial: Path,
        asked: Pass,
        ask: StartCondition,
    ) -> None:
        self.asked = asked
        self.paused = False
        self.oversized: set[int] = set()
        self.not_made: set[int] = set()
        self.promise = SeedTracker(ask)
        self._state = MountState.LISTING
        self._workers = workers
        self._catalog = catalog
        self._store = store
        self._generations = generations
        self._evictor = evictor
        self._fetcher = fetcher
        self._catalog_sync = catalog_sync
        self._budget = budget
        self._partial = partial
        self._ask = ask
        self._stale = False
        self._evicted = False
        self.changed = Signal[[]]()
        self._deferred: list[int] = []
        self._has_deferred = False
        self._late = False
        self._failed: dict[Sequence[int], None] = {}
        self._hold_until = -math.inf

    async def run(self) -> None:
        """Draw until everything is resident or nothing more fits; begin anew when the catalog changes."""
        async with trio.open_nursery() as nursery:
            await self._draw_early()
            nursery.start_soon(self._watch_catalog)
            if self._catalog.unseeded() == 0:
                self.promise.nothing_is_missing(self._catalog.freezes)
            while True:
                self._stale = self._evicted = False
                if await self._pass():
                    self._late = self._has_deferred and not self._late
                    self._has_deferred = False
                    if not self._late:
                        self.not_made.clear()
                        await self._catalog.begin_pass(self._catalog.pass_number + 1)
                    continue
                while not (self._stale or self._evicted):
                    await self.changed.wait()

    @property
    def state(self) -> MountState:
        """What population is doing. What holds may have become complete since, by what was asked for; or no more so."""
        if self.paused:
            return MountState.PAUSED
        if self._state in (MountState.HELD, MountState.COMPLETE):
            return MountState.COMPLETE if self.is_whole else MountState.HELD
        return self._state

    def figures(self) -> dict[str, Any]:
        """What it is doing, as status.json has it."""
        share = self.asked.share
        return {
            "state": self.state.value,
            "seed": self.asked.seed,
            "partition": f"{share[0]}/{share[1]}" if share else None,
            "pass": self._catalog.pass_number,
            "pass_files": self._catalog.share.files,
            "eta_s": self._eta_s(),
            "skipped": self._skipped(),
            "unpromised": self.promise.broken,
            "last_error": str(self._catalog_sync.last_error or self._fetcher.counters.last_error or "") or None,
        }

    def _eta_s(self) -> float | None:
        """Seconds until the cache is full or everything is cached, at the current rate; None if no more comes."""
        store, rate = self._store, self._fetcher.counters.bytes_per_s()
        lacking = self._catalog.share.bytes - store.resident_content_bytes
        to_come = min(lacking, store.limit_bytes - store.resident_bytes)
        return to_come / rate if rate and to_come > 0 and self.state in GROWING else None

    def _skipped(self) -> list[tuple[str, int, str]]:
        """(reason, number of files, one of them) for the files that this pass cannot fetch."""
        reasons = {"larger than the whole cache": self.oversized, "the producer failed on it": self.not_made}
        return [(reason, len(ids), self._path(min(ids))) for reason, ids in reasons.items() if ids]

    def _path(self, id: int) -> str:
        node = self._catalog.node(id)
        return self._catalog.path(node) if node else ""

    def pause(self, paused: bool) -> None:
        """Stop or go on drawing. Misses are served all the same."""
        self.paused = paused
        self.changed.notify()

    def nudge(self) -> None:
        """Look again: there may be more to draw, or more room."""
        self._stale = True
        if self._state is MountState.HELD:  # until that is known again
            self._state = MountState.FILLING
        self.changed.notify()

    def draw_again(self) -> None:
        """Once the pass is through, draw what was evicted meanwhile: its order has gone past that."""
        self._evicted = True
        self.changed.notify()

    @property
    def is_whole(self) -> bool:
        """Whether all that this node is to have is here; not by bytes, which a remote may not tell."""
        return self._store.resident_files >= self._catalog.share.files

    async def _watch_catalog(self) -> None:
        while True:
            await self._catalog_sync.renewed.wait()
            if not self._catalog_sync.is_endless:  # of which no file is ever another one
                self.not_made.clear()
            self.nudge()

    async def _draw_early(self) -> None:
        """While the first listing runs, draw what the start asks for from the files that are known."""
        if not self._catalog_sync.complete and not self._ask.explicit:
            with trio.move_on_after(LISTING_GRACE_S):
                while not self._catalog_sync.complete:
                    await self._catalog_sync.progress.wait()
        files, bytes = self._ask.files or 0, self._ask.bytes or 0
        if not self._ask.explicit:
            bytes = self._store.limit_bytes // 10
        while not self._catalog_sync.complete:
            for node in self._first_listed() if files > 0 or bytes > 0 else ():
                if files <= 0 and bytes <= 0:
                    break
                if not await self._draw([node.id]):
                    return
                files -= 1
                bytes -= node.size or 0
            if not self._catalog_sync.complete:  # the draws may have taken longer than the listing
                await self._catalog_sync.progress.wait()

    def _first_listed(self) -> list[Node]:
        if self.asked.group is not None:
            return []  # the others of a group may not be listed yet
        nodes = [node for node in self._catalog.undrawn(EARLY_FILES_MAX) if not self._fetcher.download(node.id)]
        fitting = [node for node in nodes if not self._too_large([node])]
        mine = [node for node in fitting if self.asked.has(self._catalog.path(node))]
        return sorted(mine, key=lambda node: draw_key(self.asked.seed, 1, self._catalog.path(node)))

    async def _pass(self) -> bool:
        """Draw what the pass has still to draw; whether the next one is to begin."""
        asked = replace(self.asked, number=self._catalog.pass_number, size_max=self._store.max_file_bytes)
        order = await order_in_worker(self._workers, MakeOrder(self._catalog.file, asked, self._partial / "order"))
        self._catalog.share = Share(order.files, order.bytes)
        self._failed.clear()
        self.oversized.clear()
        seed_bytes = sum(node.size or 0 for node in self._nodes(map(abs, order.seeds)))
        self.promise.begin(order, seed_bytes, self._store.limit_bytes)
        self._state = MountState.SEEDING if order.seeds else MountState.FILLING
        half = len(order.rest) // 2 if self._catalog_sync.is_endless else 0
        for number, part in enumerate((order.frozen, order.seeds, order.rest[:half], order.rest[half:])):
            if number == 3 and self._catalog_sync.is_endless and len(self.not_made) <= half // 2:
                self._catalog_sync.extend()  # so that what comes next is known before this runs out
            if not await self._draw_all(groups_of(part)):
                return False
        pause_s = RETRY_S[0]
        while await self._landed() and self._failed:
            if self._may_go_on():
                return True  # they have their turn in the next pass
            self._state = MountState.ERROR
            with trio.move_on_after(pause_s):
                while not self._stale:
                    await self.changed.wait()
            pause_s = min(2 * pause_s, RETRY_S[1])
            retry, self._failed = self._failed, {}
            self._state = MountState.FILLING
            if not await self._draw_all(retry):
                return False
        if not self._stale:
            self._state = MountState.COMPLETE if self.is_whole else MountState.HELD
        return not (self._stale or self._evicted) and self._may_go_on()

    def _may_go_on(self) -> bool:
        """Whether there is more that a next pass could draw than what failed and what does not fit."""
        lacking = self._catalog.share.files - self._store.resident_files
        failed = sum(map(len, self._failed)) + len(self.oversized | self.not_made)
        return self._generations.rotates and lacking > failed and not self._catalog_sync.is_endless

    async def _landed(self) -> bool:
        """Wait for what is in flight; False when the order is out of date."""
        await self._note_deferred()
        while self._fetcher.in_flight and not self._stale:
            await self._fetcher.moved.wait()
        return not self._stale

    def _needs(self, nodes: Sequence[Node]) -> list[int]:
        """Bytes on the disk, for each."""
        return [disk.allocation(self._fetcher.need(node)) for node in nodes]

    def _too_large(self, nodes: Sequence[Node]) -> bool:
        """Whether what is drawn as one can never be here as a whole."""
        return sum(self._needs(nodes)) > self._store.max_file_bytes

    async def _draw_all(self, drawn: Iterable[Sequence[int]]) -> bool:
        """Draw files in order; False when the order is out of date."""
        for unit in drawn:
            if self.not_made.issuperset(unit):
                self._settle(*unit)
            elif not await self._draw(unit):
                return False
        return not self._stale

    async def _draw(self, unit: Sequence[int]) -> bool:
        """Draw what is drawn as one, as soon as there is room: a smaller one behind it does not overtake."""
        while (self._fetcher.window_full or self._start_is_on_its_way()) and not self._stale:
            await self._fetcher.moved.wait()
        before = self._state
        while not self._stale:
            if self.paused:
                await self.changed.wait()
                continue
            nodes = self._nodes(unit)
            lacking = self._lacking(nodes)
            if not lacking:
                await self._defer(unit)
            elif self._too_large(nodes):
                self.oversized.update(node.id for node in lacking)
                self._settle(*unit)
            elif not await self._reserved(lacking, unit):
                await self._wait_for_room(lacking)
                continue
            if self._state is MountState.HELD:
                self._state = before
            return True
        return False

    def _nodes(self, unit: Iterable[int]) -> list[Node]:
        return [node for id in unit if (node := self._catalog.node(id))]

    def _lacking(self, nodes: Sequence[Node]) -> list[Node]:
        """Those that are neither here nor on their way."""
        return [node for node in nodes if node.seq is None and not self._fetcher.download(node.id)]

    async def _reserved(self, nodes: list[Node], unit: Sequence[int]) -> bool:
        """Whether there is room for files; then they are on their way."""
        if trio.current_time() < self._hold_until or not self._budget.covers(self._store.reserved_bytes):
            return False
        needs = self._needs(nodes)
        reserved = self._store.reserve(sum(needs))
        if reserved is None:
            reserved = await self._make_room(sum(needs), unit[0])
            if reserved is not None and self._lacking(self._nodes(unit)) != nodes:  # some were asked for meanwhile
                self._store.unreserve(reserved)
                return False
        if reserved is None:
            return False
        self._store.wanted_bytes = 0
        ids = tuple(unit) if len(unit) > 1 else ()
        self._fetcher.draw(dict(zip(nodes, needs, strict=True)), ids, self._settled)
        return True

    async def _make_room(self, need: int, id: int) -> int | None:
        """As Store.reserve, where something has to go for it."""
        if self.promise.is_frozen(id):
            return await self._evictor.reserve_by_eviction(need)
        reserved = await self._evictor.reserve_by_rotation(need)
        if reserved is not None:
            self._state = MountState.ROTATING
        return reserved

    async def _wait_for_room(self, nodes: list[Node]) -> None:
        await self._note_deferred()
        if self._fetcher.in_flight:
            await self._fetcher.moved.wait()
            return
        self._store.wanted_bytes = sum(self._needs(nodes))
        self._state = MountState.HELD
        with trio.move_on_after(HOLD_S):
            await self._store.space_freed.wait()
            await trio.sleep(BREATH_S)

    async def _defer(self, unit: Sequence[int]) -> None:
        """Have a unit that is here when it is drawn come once more, late in the pass; it may be gone by then."""
        self._settle(*unit)
        if not self._late:
            self._has_deferred = True
            self._deferred.extend(unit)
            if len(self._deferred) >= DEFERRED_MAX:
                await self._note_deferred()

    async def _note_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        if deferred:
            await self._catalog.defer(deferred, self._catalog.pass_number)

    def _start_is_on_its_way(self) -> bool:
        """Whether the numbers that the start was given are in flight: more beside them would only slow them down."""
        store, files, bytes = self._store, self._ask.files or 0, self._ask.bytes or 0
        if store.resident_files >= files and store.resident_content_bytes >= bytes:
            return False
        enough_files = store.resident_files + self._fetcher.in_flight >= files
        return enough_files and store.resident_content_bytes + store.reserved_bytes >= bytes

    def _settled(self, download: Download) -> None:
        if isinstance(download.error, NotMade):  # it was tried as often as it may
            self.not_made.add(download.node.id)
        elif download.error:
            self._failed[download.unit.ids or (download.node.id,)] = None
            self.promise.fail(download.node.id, download.error)
        if isinstance(download.error, NoRoom):
            self._hold_until = trio.current_time() + HOLD_S
        self._settle(download.node.id)

    def _settle(self, *ids: int) -> None:
        self.promise.settle(*ids)
        if self._state is MountState.SEEDING and self.promise.seeds_came:
            self._state = MountState.FILLING
