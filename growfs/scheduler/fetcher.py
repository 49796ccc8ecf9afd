"""What is in flight: each file at most once, misses before all else, admitted in the order in which they were drawn.

Workers finish in any order; a window holds drawn flights back until those before them have
landed, so the order of admission does not depend on how many workers there are. A miss does not wait for the window.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from growfs import disk
from growfs.cache.catalog import UNKNOWN_SIZE, Catalog, Node
from growfs.cache.publish import Draft
from growfs.cache.store import Store
from growfs.errors import GrowfsError, NoRoom, RemoteBusy, RemoteError, RemoteMissing
from growfs.events import Pulse
from growfs.remote.digest import PART_BYTES
from growfs.remote.protocol import Fetched, RemoteFile
from growfs.rotation.eviction import Evictor
from growfs.scheduler.dispatcher import Crew
from growfs.scheduler.in_flight import (
    LIVES,
    Counters,
    Flight,
    Guess,
    Landing,
    State,
    TimedOut,
    Unit,
    no_room,
    too_large,
)
from growfs.scheduler.order import Groups
from growfs.workers.messages import Lost, TooMuch

log = logging.getLogger(__name__)

MADE_SIZE = 1 << 30
"""Bytes that the first file that is made reserves: to make it twice costs more than to keep others waiting."""
WINDOW_FILES = 1024
"""Drawn units in flight or waiting for an earlier one."""
WINDOW_PARTS = 4
"""Their bytes, in parts of files for each stream; but as many units as there are streams may be larger."""
ROOM_POLL_S = 0.5
"""How often a miss without room looks again: others may have freed the disk meanwhile."""


class Fetcher:
    """Owns the flights. `moved` pulses whenever one lands or fails.

    guess: of unknown sizes. sizes_vary: the size that a file had the last time
    tells nothing for sure.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        partial: Path,
        crew: Crew,
        miss_timeout_s: float,
        replace: Callable[[Node, RemoteFile | None], Awaitable[None]],
        evictor: Evictor,
        groups: Groups,
        sizes_vary: bool = False,
    ) -> None:
        self.miss_timeout_s = miss_timeout_s
        self.counters = Counters()
        self.moved = Pulse[[]]()
        self._catalog = catalog
        self._store = store
        self._partial = partial
        self._crew = crew
        self._replace = replace
        self._evictor = evictor
        self._groups = groups
        self._sizes_vary = sizes_vary
        self._flights: dict[int, Flight] = {}
        self._landing = Landing()
        self.guess = Guess(MADE_SIZE if sizes_vary else UNKNOWN_SIZE)
        self._unreserved: deque[Flight] = deque()
        self._unreserved_came = Pulse[[]]()
        self._roomless: list[Flight] = []
        self._roomless_came = Pulse[[]]()
        self._landed = trio.Event()
        crew.received.tell(self.counters.add_bytes)

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._crew.run, self._became, self._worker_lost)
            for task in (self._admit, self._reserve_room, self._retry_roomless):
                nursery.start_soon(task)

    # What others ask for.

    @property
    def window_full(self) -> bool:
        """Whether a draw has to wait."""
        bytes = self._store.reserved_bytes
        streams = self._crew.streams
        return len(self._landing) >= WINDOW_FILES or (
            len(self._landing) >= streams and bytes >= WINDOW_PARTS * streams * PART_BYTES
        )

    @property
    def in_flight(self) -> int:
        """Files on their way."""
        return len(self._flights)

    def need(self, node: Node) -> int:
        """Bytes to reserve for a file."""
        if node.size is None or self._sizes_vary:
            return min(max(self.guess.bytes, node.size or 0), self._store.largest)
        return node.size

    def flight(self, id: int) -> Flight | None:
        """The file's flight, if it is on its way."""
        return self._flights.get(id)

    def draw(self, nodes: dict[Node, int], ids: tuple[int, ...], settled: Callable[[Flight], None]) -> None:
        """Fetch what is drawn as one, in its turn. nodes: each with the bytes that are reserved for it.

        ids: as Unit has them. settled is told of each that landed or failed.
        """
        unit = Unit(drawn=True, ids=ids)
        self._landing.expect(unit)
        for node, reserved in nodes.items():
            self._push(self._depart(node, unit, reserved=reserved, tell=settled))

    def _depart(self, node: Node, unit: Unit, **state: Any) -> Flight:
        target = self._partial / str(node.id)
        need = self.need(node)
        need = min(need, state.get("reserved", need))  # what is guessed may have grown since
        flight = self._flights[node.id] = Flight(node, self._catalog.path(node), target, need, unit, **state)
        return flight

    async def renew(self, node: Node) -> None:
        """Fetch a newer version of a resident file, which then takes its place; returns when it has, or failed.

        node: the resident file's, with the new version's size, time and version.
        """
        while earlier := self._flights.get(node.id):
            await earlier.settled.wait()
        flight = self._depart(node, Unit(), renews=True)
        self._push(flight)
        await flight.settled.wait()

    async def ensure(self, node: Node, path: str) -> None:
        """Return when the file is resident, fetching it before all that nobody waits for.

        Raises GrowfsError with the errno that a reader should get, after miss_timeout_s at the latest.
        """
        if self.need(node) > self._store.largest:
            raise too_large(path)
        flight = self._flights.get(node.id)
        if flight is None:
            flight = self._miss(node)
        elif not flight.urgent:
            self._hurry(flight.unit)
        with trio.move_on_after(self.miss_timeout_s):
            await flight.settled.wait()
        if not flight.settled.is_set():
            if flight.roomless_at is not None:
                raise no_room(path, flight.need)
            raise TimedOut(f"{path}: not here after {self.miss_timeout_s:g} s; raise --miss-timeout")
        if flight.error:
            raise flight.error

    def _miss(self, node: Node) -> Flight:
        members = self._groups.members(node, self._store.largest)
        unit = Unit(ids=tuple(member.id for member in members) if len(members) > 1 else ())
        for member in members:
            if member.seq is None and member.id not in self._flights:
                self._push(self._depart(member, unit, urgent=True))
        return self._flights[node.id]

    def _hurry(self, unit: Unit) -> None:
        for flight in unit.flights:
            flight.urgent = True
            self._crew.hurry(flight)
        self._land(unit)

    # Room, and what became of it.

    def _push(self, flight: Flight) -> None:
        if flight.reserved is None:
            self._unreserved.append(flight)
            self._unreserved_came()
        else:
            self._crew.take(flight)

    async def _reserve_room(self) -> None:
        while True:
            while not self._unreserved:
                await self._unreserved_came.wait()
            flight = self._unreserved.popleft()
            if flight.state is State.QUEUED and await self._reserve(flight):
                self._crew.take(flight)

    async def _reserve(self, flight: Flight) -> bool:
        """Have room for a flight; one that gets none now waits for it, and keeps no other waiting."""
        flight.reserved = await self._evictor.reserve_by_eviction(flight.need)
        if flight.state is not State.QUEUED:  # it failed with another of its group meanwhile
            self._unreserve(flight)
            return False
        if flight.reserved is not None:
            flight.roomless_at = None
            return True
        flight.roomless_at = flight.roomless_at or trio.current_time()
        if trio.current_time() - flight.roomless_at >= self.miss_timeout_s:
            self._fail(flight, no_room(flight.path, flight.need))
        else:
            self._roomless.append(flight)
            self._roomless_came()
        return False

    async def _retry_roomless(self) -> None:
        while True:
            while not self._roomless:
                await self._roomless_came.wait()
            with trio.move_on_after(ROOM_POLL_S):
                await self._store.room.wait()
            roomless, self._roomless = self._roomless, []
            for flight in roomless:
                if flight.state is State.QUEUED:
                    self._push(flight)

    async def _became(self, flight: Flight, became: Fetched | Lost) -> None:
        if isinstance(became, Lost):
            await self._not_fetched(flight, became)
            return
        assert flight.reserved is not None
        self.guess.learn(became.size)
        flight.reserved = self._store.settle(flight.reserved, became.size)
        flight.draft = Draft(
            flight.node, flight.path, flight.target, became, flight.reserved, flight.renews, flight.unit.ids
        )
        flight.move(State.FETCHED)
        if error := flight.unit.error:
            self._fail(flight, error)
        else:
            self._land(flight.unit)

    async def _not_fetched(self, flight: Flight, lost: Lost) -> None:
        error = lost.error
        if isinstance(error, TooMuch) and flight.need < self._store.largest:
            self._unreserve(flight)
            flight.need = self.guess.was_too_little(flight.need, self._store.largest)
            flight.move(State.QUEUED)
            self._push(flight)
            return
        if lost.found or isinstance(error, RemoteMissing):
            await self._replace(flight.node, lost.found)
        self._fail(flight, too_large(flight.path) if isinstance(error, TooMuch) else error)

    def _unreserve(self, flight: Flight) -> None:
        if flight.reserved is not None:
            self._store.unreserve(flight.reserved)
            flight.reserved = None

    # Landing.

    def _land(self, unit: Unit) -> None:
        self._landing.hurry(unit)
        self._landed.set()

    async def _admit(self) -> None:
        while True:
            await self._landed.wait()
            batch = self._landing.ready()
            self.moved()
            if not batch:
                self._landed = trio.Event()
                continue
            failure: GrowfsError | None = None
            try:
                admitted = await self._store.admit(
                    [flight.draft for flight in batch if flight.draft], self._catalog.pass_number
                )
            except (OSError, sqlite3.Error) as error:
                failure = NoRoom(f"the cache directory refuses to be written ({error}); look at its disk")
                admitted = set()
            for flight in batch:
                flight.reserved = None  # the store has settled that
                if flight.node.id in admitted:
                    flight.move(State.ADMITTED)
                    self.counters.files += 1
                    self._settle(flight)
            for flight in batch:
                if flight.state is State.FETCHED:  # else another of its group failed, and it with that
                    self._fail(flight, failure or RemoteError(f"{flight.path}: the remote has another version by now"))

    def _worker_lost(self, flight: Flight) -> None:
        with contextlib.suppress(OSError):  # the next one writes over it
            disk.unlink("DRAFT_LOST", flight.target)
        flight.lives -= 1
        if flight.lives == 0:
            self._fail(flight, RemoteBusy(f"{flight.path}: {LIVES} worker processes died or hung over it; see the log"))
            return
        log.warning("%s: its worker died or hung; another takes over", flight.path)
        flight.move(State.QUEUED)
        self._crew.take(flight, first=True)

    def _fail(self, flight: Flight, error: GrowfsError) -> None:
        self._unreserve(flight)
        if flight.draft:
            with contextlib.suppress(OSError):
                disk.unlink("DRAFT_FAILED", flight.draft.file)
        flight.error = error
        flight.move(State.FAILED)
        self.counters.failed += 1
        self.counters.last_error = str(error)
        log.warning("not fetched: %s", error)
        self._settle(flight)
        for other in flight.unit.flights:
            if other.state in (State.QUEUED, State.FETCHED):
                self._fail(other, error)
        self._landed.set()

    def _settle(self, flight: Flight) -> None:
        del self._flights[flight.node.id]
        flight.settled.set()
        if flight.tell:
            flight.tell(flight)
        self.moved()
