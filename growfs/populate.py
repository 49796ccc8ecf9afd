"""What is fetched without being asked for, and in which order; and when a training run can start.

What is drawn is marked in the database as it is admitted: after a restart the pass goes on with the files that are not.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import trio
from humanfriendly import format_size

from growfs import disk
from growfs.catalog import Catalog, Node
from growfs.errors import GrowfsError, NoRoom, RemoteError
from growfs.fetcher import Fetcher
from growfs.flight import Flight
from growfs.order import ordered
from growfs.pulse import Pulse
from growfs.refresh import Refresher
from growfs.sampling import SEED_DIRECTORIES_MAX, draw_key
from growfs.store import Store
from growfs.wire import Order
from growfs.workers import Workers

log = logging.getLogger(__name__)

START_S = 60.0
"""A mount does not wait longer than this for more than its directories."""
EARLY_FILES_MAX = 1000
"""Files of a listing under way that are looked at for the first draws."""
LISTING_GRACE_S = 5.0
"""How long a start that asks for no number of files waits for the listing before it draws from a part of it."""
RETRY_S = (30.0, 600.0)
"""Pause before the files that failed are tried again at the end of a pass: the first, doubled up to the last."""
RENEWALS_PARALLEL = 2
HOLD_S = 5.0
"""How often a held population looks whether there is room by now; others may have freed disk space."""
START_FAILURES_MAX = 3


class State(enum.Enum):
    """What population is doing; the words of `status`."""

    LISTING = "listing"
    SEEDING = "seeding"
    FILLING = "filling"
    HELD = "held"
    COMPLETE = "complete"
    PAUSED = "paused"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a mount waits for before it returns. Nothing given: every directory, and a tenth of the cache."""

    files: int | None = None
    bytes: int | None = None
    nothing: bool = False
    list_timeout_s: float = 60.0

    @property
    def explicit(self) -> bool:
        """Whether a number was given."""
        return self.files is not None or self.bytes is not None


class Population:
    """Owns the order of the pass, the place in it, and whether it is paused."""

    def __init__(
        self,
        workers: Workers,
        catalog: Catalog,
        store: Store,
        fetcher: Fetcher,
        refresher: Refresher,
        partial: Path,
        seed: int,
        ask: Ask,
    ) -> None:
        self.seed = seed
        self.paused = False
        self._state = State.LISTING
        self._unpromised: str | None = None
        self._workers = workers
        self._catalog = catalog
        self._store = store
        self._fetcher = fetcher
        self._refresher = refresher
        self._partial = partial
        self._ask = ask
        self._began_at = trio.current_time()
        self._stale = False
        self._evicted = False
        self._wake = Pulse[[]]()
        self._seeds: set[int] | None = None
        self._failed: list[int] = []
        self._hold_until = -math.inf
        self.oversized: set[int] = set()

    async def run(self) -> None:
        """Draw until everything is resident or nothing more fits; begin anew when the catalog changes."""
        async with trio.open_nursery() as nursery:
            for _ in range(RENEWALS_PARALLEL):
                nursery.start_soon(self._renew)
            await self._draw_early()
            nursery.start_soon(self._watch_catalog)
            if self._catalog.unseeded() == 0:
                self._seeds = set()  # known at once, where the order of a large catalog takes seconds
            while True:
                self._stale = self._evicted = False
                await self._pass()
                while not (self._stale or self._evicted):
                    await self._wake.wait()

    @property
    def state(self) -> State:
        """What population is doing. What holds may have become complete since, by what was asked for; or no more so."""
        if self.paused:
            return State.PAUSED
        if self._state in (State.HELD, State.COMPLETE):
            everything = self._store.resident_files >= self._catalog.files
            return State.COMPLETE if everything else State.HELD
        return self._state

    def pause(self, paused: bool) -> None:
        """Stop or go on drawing. Misses are served all the same."""
        self.paused = paused
        self._wake()

    def nudge(self) -> None:
        """Look again: there may be more to draw, or more room."""
        self._stale = True
        self._wake()

    def draw_again(self) -> None:
        """Once the pass is through, draw what was evicted meanwhile: its order has gone past that."""
        self._evicted = True
        self._wake()

    # Whether training can start.

    @property
    def unpromised(self) -> str | None:
        """Why not every directory has a file yet, where that is not about to change; None where all have."""
        if self._unpromised is None and self._seeds != set() and (self._ask.explicit or self._ask.nothing):
            return "the mount did not wait for that"
        return self._unpromised

    @property
    def seeded(self) -> bool:
        """Whether every directory has its first file, or why not is told in `unpromised`."""
        return self.unpromised is not None or self._seeds == set()

    def can_start(self) -> bool:
        """Whether `mount` may return. Raises GrowfsError where it never will."""
        waited_s = trio.current_time() - self._began_at
        files, bytes = self._store.resident_files, self._store.resident_content_bytes
        failed = self._fetcher.counters.failed
        tried_all = self._state in (State.ERROR, State.COMPLETE, State.HELD)
        if not files and self._fetcher.idle and failed and (tried_all or failed >= START_FAILURES_MAX):
            raise RemoteError(f"no file could be fetched: {self._fetcher.counters.last_error}")
        if not files and self._state is State.HELD and self._fetcher.idle:
            raise GrowfsError(
                f"{self._store.folder}: not even one file fits:"
                f" the cache may take {format_size(self._store.limit_bytes)}, its disk has"
                f" {format_size(disk.free_bytes(self._store.folder))} free, of which --min-free leaves"
                f" {format_size(self._store.min_free)} to others; change one of the two, or --cache-dir"
            )
        if self._ask.nothing:
            return self._refresher.complete or self._catalog.files > 0
        everything = self._refresher.complete and self._state is State.COMPLETE
        ended = self._state in (State.HELD, State.ERROR)  # nothing more comes, or not soon
        if self._ask.explicit:
            enough = files >= (self._ask.files or 0) and bytes >= (self._ask.bytes or 0)
            return enough or everything or ended
        if not self._refresher.complete and waited_s > self._ask.list_timeout_s:
            self._unpromised = f"the listing was not complete after {self._ask.list_timeout_s:g} s"
        whole = files >= self._catalog.files  # not by bytes, which a remote may not tell
        enough = self._refresher.complete and (whole or bytes >= self._store.limit_bytes // 10)
        return self.seeded and (enough or everything or ended or waited_s > START_S)

    # Draws.

    async def _renew(self) -> None:
        """Fetch the new versions of resident files: the old one is shown until its successor is whole."""
        renewals = self._refresher.renewals
        while True:
            while renewals and not self.paused:
                id, file = renewals.popitem()
                node = self._catalog.node(id)
                if node:
                    successor = replace(node, size=file.size, mtime_ns=file.mtime_ns, version=file.version)
                    self._refresher.renewing.add(id)
                    await self._fetcher.renew(successor, self._catalog.path(node))
                    self._refresher.renewing.discard(id)
            await self._wake.wait()

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
                if not await self._draw(node):
                    return
                files -= 1
                bytes -= node.size or 0
            if not self._refresher.complete:  # the draws may have taken longer than the listing
                await self._refresher.progress.wait()

    def _first_listed(self) -> list[Node]:
        nodes = [node for node in self._catalog.undrawn(EARLY_FILES_MAX) if not self._fetcher.flight(node.id)]
        fitting = [node for node in nodes if disk.allocation(self._fetcher.need(node)) <= self._store.largest]
        number = self._catalog.pass_number
        return sorted(fitting, key=lambda node: draw_key(self.seed, number, self._catalog.path(node)))

    async def _pass(self) -> None:
        request = Order(self._catalog.file, self.seed, self._catalog.pass_number, self._partial / "order")
        seeds, rest = await ordered(self._workers, request)
        self._failed.clear()
        self.oversized.clear()
        self._begin_seeds(seeds)
        self._state = State.SEEDING if self._seeds else State.FILLING
        if not await self._draw_all(seeds) or not await self._draw_all(rest):
            return
        pause_s = RETRY_S[0]
        while await self._landed() and self._failed:
            self._state = State.ERROR
            with trio.move_on_after(pause_s):
                while not self._stale:
                    await self._wake.wait()
            pause_s = min(2 * pause_s, RETRY_S[1])
            retry, self._failed = self._failed, []
            self._state = State.FILLING
            if not await self._draw_all(retry):
                return
        if not self._stale:
            everything = self._store.resident_files >= self._catalog.files
            self._state = State.COMPLETE if everything else State.HELD

    async def _landed(self) -> bool:
        """Wait for what is in flight; False when the order is out of date."""
        while not self._fetcher.idle and not self._stale:
            await self._fetcher.moved.wait()
        return not self._stale

    def _begin_seeds(self, seeds: Sequence[int]) -> None:
        self._seeds = set(seeds)
        self._unpromised = None
        if len(seeds) > SEED_DIRECTORIES_MAX:
            self._unpromised = f"{len(seeds)} directories are too many to fetch a file of each first"
            return
        nodes = [self._catalog.node(id) for id in seeds]
        if sum(node.size or 0 for node in nodes if node) > self._store.limit_bytes // 2:
            self._unpromised = "a file of each directory would take more than half of the cache"

    async def _draw_all(self, ids: Sequence[int]) -> bool:
        """Draw files in order; False when the order is out of date."""
        for id in ids:
            node = self._catalog.node(id)
            if node is None or node.seq is not None or self._fetcher.flight(id):
                self._seed_settled(id)
            elif disk.allocation(self._fetcher.need(node)) > self._store.largest:
                self.oversized.add(id)
                self._seed_settled(id)
            elif not await self._draw(node):
                return False
        return not self._stale

    async def _draw(self, node: Node) -> bool:
        """Draw one file as soon as there is room for it: a smaller one behind it does not overtake."""
        while (self._fetcher.window_full or self._start_is_on_its_way()) and not self._stale:
            await self._fetcher.moved.wait()
        before = self._state
        while not self._stale:
            if self.paused:
                await self._wake.wait()
                continue
            now = self._catalog.node(node.id)
            if now is None or now.seq is not None or self._fetcher.flight(node.id):  # since it waits here
                self._state = before
                self._seed_settled(node.id)
                return True
            refused = trio.current_time() < self._hold_until
            reserved = None if refused else self._store.reserve(self._fetcher.need(node))
            if reserved is not None:
                self._state = before
                self._fetcher.draw(node, self._catalog.path(node), reserved, self._settled)
                return True
            if not self._fetcher.idle:
                await self._fetcher.moved.wait()
                continue
            self._state = State.HELD
            with trio.move_on_after(HOLD_S):
                await self._store.room.wait()
        return False

    def _start_is_on_its_way(self) -> bool:
        """Whether the numbers that the start was given are in flight: more beside them would only slow them down."""
        store, files, bytes = self._store, self._ask.files or 0, self._ask.bytes or 0
        if store.resident_files >= files and store.resident_content_bytes >= bytes:
            return False
        enough_files = store.resident_files + self._fetcher.in_flight >= files
        return enough_files and store.resident_content_bytes + store.reserved_bytes >= bytes

    def _settled(self, flight: Flight) -> None:
        if flight.error:
            self._failed.append(flight.node.id)
            if self._seeds and flight.node.id in self._seeds:
                self._unpromised = f"the first file of a directory failed: {flight.error}"
        if isinstance(flight.error, NoRoom):
            self._hold_until = trio.current_time() + HOLD_S
        self._seed_settled(flight.node.id)

    def _seed_settled(self, id: int) -> None:
        if self._seeds is not None:
            self._seeds.discard(id)
            if not self._seeds and self._state is State.SEEDING:
                self._state = State.FILLING
