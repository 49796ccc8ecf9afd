"""What is fetched without being asked for, and in which order.

What is drawn is marked in the database as it is admitted: after a restart the pass goes on with the files that are not.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import trio

from growfs import disk
from growfs.budget import Budget
from growfs.catalog import Catalog, Node, Share
from growfs.errors import NoRoom
from growfs.fetcher import Fetcher
from growfs.flight import Flight
from growfs.generations import Generations
from growfs.order import ordered
from growfs.phase import Ask, State
from growfs.pulse import Pulse
from growfs.readers import Readers
from growfs.refresh import Refresher
from growfs.sampling import SEED_DIRECTORIES_MAX, Order, Pass, draw_key, units
from growfs.store import Store
from growfs.wire import MakeOrder
from growfs.workers import Workers

log = logging.getLogger(__name__)

EARLY_FILES_MAX = 1000
"""Files of a listing under way that are looked at for the first draws."""
LISTING_GRACE_S = 5.0
"""How long a start that asks for no number of files waits for the listing before it draws from a part of it."""
RETRY_S = (30.0, 600.0)
"""Pause before the files that failed are tried again at the end of a pass: the first, doubled up to the last."""
BREATH_S = 0.05
"""Pause between two looks for room: holds end by the hundred while a reader lists its folders."""
HOLD_S = 5.0
"""How often a held population looks whether there is room by now; others may have freed disk space."""
STAYS_MAX = 256
"""Files drawn that are here already, to be noted in one transaction."""


class Population:
    """Owns the order of the pass, the place in it, and whether it is paused. asked: what decides the order.

    `changed` pulses when it is paused or resumed, or has to look again.
    """

    def __init__(
        self,
        workers: Workers,
        catalog: Catalog,
        store: Store,
        generations: Generations,
        readers: Readers,
        fetcher: Fetcher,
        refresher: Refresher,
        budget: Budget,
        partial: Path,
        asked: Pass,
        ask: Ask,
    ) -> None:
        self.asked = asked
        self.paused = False
        self.oversized: set[int] = set()
        self._state = State.LISTING
        self._unpromised: str | None = None
        self._workers = workers
        self._catalog = catalog
        self._store = store
        self._generations = generations
        self._readers = readers
        self._fetcher = fetcher
        self._refresher = refresher
        self._budget = budget
        self._partial = partial
        self._ask = ask
        self._stale = False
        self._evicted = False
        self.changed = Pulse[[]]()
        self._seeds: set[int] | None = None
        self._frozen: set[int] | None = None
        self._stays: list[Sequence[int]] = []
        self._failed: dict[Sequence[int], None] = {}
        self._hold_until = -math.inf

    async def run(self) -> None:
        """Draw until everything is resident or nothing more fits; begin anew when the catalog changes."""
        async with trio.open_nursery() as nursery:
            await self._draw_early()
            nursery.start_soon(self._watch_catalog)
            if self._catalog.unseeded() == 0:
                self._seeds = set()  # known at once, where the order of a large catalog takes seconds
            while True:
                self._stale = self._evicted = False
                if await self._pass():
                    await self._catalog.begin_pass(self._catalog.pass_number + 1)
                    continue
                while not (self._stale or self._evicted):
                    await self.changed.wait()

    @property
    def state(self) -> State:
        """What population is doing. What holds may have become complete since, by what was asked for; or no more so."""
        if self.paused:
            return State.PAUSED
        if self._state in (State.HELD, State.COMPLETE):
            return State.COMPLETE if self.is_whole else State.HELD
        return self._state

    def pause(self, paused: bool) -> None:
        """Stop or go on drawing. Misses are served all the same."""
        self.paused = paused
        self.changed()

    def nudge(self) -> None:
        """Look again: there may be more to draw, or more room."""
        self._stale = True
        self.changed()

    def draw_again(self) -> None:
        """Once the pass is through, draw what was evicted meanwhile: its order has gone past that."""
        self._evicted = True
        self.changed()

    # How far it is.

    @property
    def is_whole(self) -> bool:
        """Whether all that this node is to have is here; not by bytes, which a remote may not tell."""
        return self._store.resident_files >= self._catalog.share.files

    @property
    def unpromised(self) -> str | None:
        """Why not every directory has a file yet, where that is not about to change; None where all have."""
        if self._unpromised is None and self._seeds != set() and (self._ask.explicit or self._ask.nothing):
            return "the mount did not wait for that"
        return self._unpromised

    def unpromise(self, reason: str) -> None:
        """Give up waiting for a file of each directory."""
        self._unpromised = reason

    @property
    def seeded(self) -> bool:
        """Whether every directory has its first file, or why not is told in `unpromised`."""
        return self.unpromised is not None or self._seeds == set()

    @property
    def frozen(self) -> bool:
        """Whether all files that --freeze names are here, or failed."""
        return self._frozen == set()

    # Draws.

    async def _watch_catalog(self) -> None:
        while True:
            await self._refresher.renewed.wait()
            self.nudge()

    async def _draw_early(self) -> None:
        """While the first listing runs, draw what the start asks for from the files that are known."""
        if not self._refresher.complete and not self._ask.explicit:
            with trio.move_on_after(LISTING_GRACE_S):
                while not self._refresher.complete:
                    await self._refresher.progress.wait()
        files, bytes = self._ask.files or 0, self._ask.bytes or 0
        if not self._ask.explicit:
            bytes = self._store.limit_bytes // 10
        while not self._refresher.complete:
            for node in self._first_listed() if files > 0 or bytes > 0 else ():
                if files <= 0 and bytes <= 0:
                    break
                if not await self._draw([node.id]):
                    return
                files -= 1
                bytes -= node.size or 0
            if not self._refresher.complete:  # the draws may have taken longer than the listing
                await self._refresher.progress.wait()

    def _first_listed(self) -> list[Node]:
        nodes = [node for node in self._catalog.undrawn(EARLY_FILES_MAX) if not self._fetcher.flight(node.id)]
        mine = [node for node in nodes if self.asked.has(self._catalog.path(node)) and not self._too_large(node)]
        return sorted(mine, key=lambda node: draw_key(self.asked.seed, 1, self._catalog.path(node)))

    async def _pass(self) -> bool:
        """Draw what the pass has still to draw; whether the next one is to begin."""
        asked = replace(self.asked, number=self._catalog.pass_number, size_max=self._store.largest)
        order = await ordered(self._workers, MakeOrder(self._catalog.file, asked, self._partial / "order"))
        self._catalog.share = Share(order.files, order.bytes)
        self._failed.clear()
        self.oversized.clear()
        self._begin(order)
        self._state = State.SEEDING if self._seeds else State.FILLING
        for part in (order.frozen, order.seeds, order.rest):
            if not await self._draw_all(units(part)):
                return False
        pause_s = RETRY_S[0]
        while await self._landed() and self._failed:
            if self._may_go_on():
                return True  # they have their turn in the next pass
            self._state = State.ERROR
            with trio.move_on_after(pause_s):
                while not self._stale:
                    await self.changed.wait()
            pause_s = min(2 * pause_s, RETRY_S[1])
            retry, self._failed = self._failed, {}
            self._state = State.FILLING
            if not await self._draw_all(retry):
                return False
        if not self._stale:
            self._state = State.COMPLETE if self.is_whole else State.HELD
        return not (self._stale or self._evicted) and self._may_go_on()

    def _may_go_on(self) -> bool:
        """Whether there is more that a next pass could draw than what failed and what does not fit."""
        lacking = self._catalog.share.files - self._store.resident_files
        return self._generations.rotates and lacking > sum(map(len, self._failed)) + len(self.oversized)

    async def _landed(self) -> bool:
        """Wait for what is in flight; False when the order is out of date."""
        await self._note_stays()
        while self._fetcher.in_flight and not self._stale:
            await self._fetcher.moved.wait()
        return not self._stale

    def _begin(self, order: Order) -> None:
        self._frozen = {abs(id) for id in order.frozen}
        self._seeds = {abs(id) for id in order.seeds}
        self._unpromised = None
        if len(order.seeds) > SEED_DIRECTORIES_MAX:
            self._unpromised = f"{len(order.seeds)} directories are too many to fetch a file of each first"
        elif self._size(order.seeds) > self._store.limit_bytes // 2:
            self._unpromised = "a file of each directory would take more than half of the cache"

    def _size(self, ids: Sequence[int]) -> int:
        return sum(node.size or 0 for id in ids if (node := self._catalog.node(abs(id))))

    def _too_large(self, node: Node) -> bool:
        return disk.allocation(self._fetcher.need(node)) > self._store.largest

    async def _draw_all(self, drawn: Iterable[Sequence[int]]) -> bool:
        """Draw files in order; False when the order is out of date."""
        for unit in drawn:
            if not await self._draw(unit):
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
            nodes = self._lacking(unit)
            if not nodes:
                await self._stay(unit)
            elif any(self._too_large(node) for node in nodes):
                self.oversized.update(node.id for node in nodes)
                self._settle(*unit)
            elif not await self._reserved(nodes, unit):
                await self._wait_for_room(nodes)
                continue
            if self._state is State.HELD:
                self._state = before
            return True
        return False

    def _lacking(self, unit: Sequence[int]) -> list[Node]:
        """The files of a unit that are neither here nor on their way."""
        nodes = [self._catalog.node(id) for id in unit]
        return [node for node in nodes if node and node.seq is None and not self._fetcher.flight(node.id)]

    async def _reserved(self, nodes: list[Node], unit: Sequence[int]) -> bool:
        """Whether there is room for files; then they are on their way."""
        if trio.current_time() < self._hold_until or self._budget.is_spent:
            return False
        needs = [disk.allocation(self._fetcher.need(node)) for node in nodes]
        reserved = self._store.reserve(sum(needs))
        if reserved is None and self._generations.rotates and self._generations.is_written:
            reserved = await self._store.reserve_by_rotation(sum(needs), self._readers.holds())
            if reserved is not None:
                self._state = State.ROTATING
                if self._lacking(unit) != nodes:  # what was asked for meanwhile
                    self._store.unreserve(reserved)
                    return False
        if reserved is None:
            return False
        self._store.wanted_bytes = 0
        ids = tuple(unit) if len(unit) > 1 else ()
        self._fetcher.draw(dict(zip(nodes, needs, strict=True)), ids, self._settled)
        return True

    async def _wait_for_room(self, nodes: list[Node]) -> None:
        await self._note_stays()
        if self._fetcher.in_flight:
            await self._fetcher.moved.wait()
            return
        self._store.wanted_bytes = sum(disk.allocation(self._fetcher.need(node)) for node in nodes)
        self._state = State.HELD
        with trio.move_on_after(HOLD_S):
            await self._store.room.wait()
            await trio.sleep(BREATH_S)

    async def _stay(self, unit: Sequence[int]) -> None:
        """Note that a unit is drawn that is here already, or comes because somebody asked for it."""
        self._settle(*unit)
        self._stays.append(unit)
        if len(self._stays) >= STAYS_MAX:
            await self._note_stays()

    async def _note_stays(self) -> None:
        stays, self._stays = self._stays, []
        if stays:
            await self._store.stay(stays, self._readers.holds(), self._catalog.pass_number)

    def _start_is_on_its_way(self) -> bool:
        """Whether the numbers that the start was given are in flight: more beside them would only slow them down."""
        store, files, bytes = self._store, self._ask.files or 0, self._ask.bytes or 0
        if store.resident_files >= files and store.resident_content_bytes >= bytes:
            return False
        enough_files = store.resident_files + self._fetcher.in_flight >= files
        return enough_files and store.resident_content_bytes + store.reserved_bytes >= bytes

    def _settled(self, flight: Flight) -> None:
        if flight.error:
            self._failed[flight.unit.ids or (flight.node.id,)] = None
            if self._seeds and flight.node.id in self._seeds:
                self._unpromised = f"the first file of a directory failed: {flight.error}"
        if isinstance(flight.error, NoRoom):
            self._hold_until = trio.current_time() + HOLD_S
        self._settle(flight.node.id)

    def _settle(self, *ids: int) -> None:
        """Nothing more comes of the seeds and frozen files among these."""
        if self._seeds is not None:
            self._seeds.difference_update(ids)
            if not self._seeds and self._state is State.SEEDING:
                self._state = State.FILLING
        if self._frozen is not None:
            self._frozen.difference_update(ids)
