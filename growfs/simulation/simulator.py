"""A mount in memory, in simulated time: the rules of rotation and the order of draws, without disk, network and kernel.

The same files, seed and readers always give the same figures.

    simulation = Simulation(files, limit_bytes=10**9, bandwidth=1e6)
    simulation.sleep(3600)                  # the cache fills
    reader = simulation.reader()
    for id in reader.list():
        reader.open(id)
        simulation.sleep(0.1)
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from growfs.errors import UsageError
from growfs.rotation.jobs import Job
from growfs.rotation.pass_order import Candidate, Pass, draw_order
from growfs.rotation.reader import Reader
from growfs.rotation.rules import EVERYWHERE
from growfs.simulation.cache import POLICIES, Cache, File, MountSettings, Replacing, Rotating


@dataclass(slots=True)
class SimulatedDownload:
    """A fetch in flight."""

    id: int
    lacking: float
    """Bytes still to fetch."""


class Simulation:
    """A remote, a cache and the link between them."""

    def __init__(
        self,
        files: Sequence[File],
        limit_bytes: int,
        bandwidth: float,
        settings: MountSettings | None = None,
    ) -> None:
        """bandwidth: bytes per second. Raises UsageError for an unknown policy."""
        settings = settings or MountSettings()
        if settings.policy not in POLICIES:
            raise UsageError(f"{settings.policy!r} is not a policy; the policies are {', '.join(POLICIES)}")
        self.files = files
        rotates = settings.policy == "growfs"
        self.cache: Cache = (Rotating if rotates else Replacing)(files, limit_bytes, settings)
        self.now = 0.0  # in seconds
        self.bandwidth = bandwidth
        self.fetches = [0] * len(files)  # by file
        self.opens = [0] * len(files)  # by file
        self.first = [0] * len(files)  # by file, its place in the order of first admissions, from 1; 0 for never
        self.remote_bytes = 0  # fetched so far
        self.opened_files = 0  # opened at least once
        self.passes: list[int] = []  # for each pass that began, the bytes fetched before it
        self._seed = settings.seed
        self._parallel = settings.parallel
        self._order: deque[int] = deque()
        self._deferred: list[int] = []
        self._begun_in_pass = 0
        self._window: deque[SimulatedDownload] = deque()
        self._in_flight: set[int] = set()
        self.lacks_room = False
        self._moved_at = 0.0
        self._draw_at = 0.0
        self._pids = itertools.count(1)

    def reader(self) -> SimReader:
        """A process that starts now. Opens by its children count as its own."""
        return SimReader(self, Reader(next(self._pids), "0", "simulated", job=Job()))

    def sleep(self, seconds: float) -> None:
        """Let time pass; the cache fills meanwhile."""
        until = self.now + max(0.0, seconds)
        while self._draw_at <= until:
            self.now = max(self.now, self._draw_at)
            self._advance()
            self._draw()
        self.now = until

    def try_drawing(self) -> None:
        """Try to draw now: there may be room."""
        if self._draw_at > self.now:
            self._draw_at = self.now

    # Prefetching.

    def _advance(self) -> None:
        """Advance the fetches in flight to the current time; admit the complete ones, in the order of the draws."""
        active = [download for download in self._window if download.lacking > 0]
        if active:
            each = max(0.0, self.now - self._moved_at) * self.bandwidth / len(active)
            for download in active:
                left = download.lacking - each
                download.lacking = left if left > 1e-6 * self.files[download.id].size + 1e-6 else 0.0
        self._moved_at = max(self.now, self._moved_at)
        while self._window and not self._window[0].lacking:
            self._admit(self._window.popleft().id)

    def _admit(self, id: int) -> None:
        self._in_flight.discard(id)
        size = self.files[id].size
        self.cache.reserved -= size
        self.cache.admit(id)
        self.fetches[id] += 1
        self.remote_bytes += size
        self.first[id] = self.first[id] or self.cache.counter

    def _draw(self) -> None:
        """Begin fetches while there are slots, files and room; schedule the next attempt."""
        active = [download.lacking for download in self._window if download.lacking > 0]
        self.lacks_room = False
        # For each parallel fetch, 16 complete files may wait for one that was drawn before them.
        while len(active) < self._parallel and len(self._window) < 16 * self._parallel:
            id = self._next()
            if id is None:
                break
            size = self.files[id].size
            if not self.cache.make_room(size, self.now):
                self.lacks_room = True
                break
            self._order.popleft()
            self._begun_in_pass += 1
            self.cache.reserved += size
            self._window.append(SimulatedDownload(id, float(size)))
            self._in_flight.add(id)
            active.append(float(size))
        if active:
            self._draw_at = self._moved_at + min(active) * len(active) / self.bandwidth
        else:  # a hold may end because its reader falls silent
            self._draw_at = self.now + 180.0 if self.lacks_room else float("inf")

    def _next(self) -> int | None:
        """The file to fetch next, which stays in the order; None if there is none now."""
        while True:
            while self._order:
                id = self._order[0]
                if self.files[id].size <= self.cache.limit:
                    if not self.cache.seq[id] and id not in self._in_flight:
                        return id
                    if self.cache.seq[id]:  # drawn again at the end, so that its stays are far apart
                        self._deferred.append(id)
                self._order.popleft()
            if self._deferred:
                self._deferred, late = [], self._deferred
                self._order.extend(id for id in late if not self.cache.seq[id])  # this pass skips the others
                continue
            complete = len(self.cache.folders[EVERYWHERE]) == len(self.files)
            if self._window or complete or (self.passes and not self._begun_in_pass):
                return None
            self._begin_pass()

    def _begin_pass(self) -> None:
        first = not self.passes and not self.cache.counter
        self.passes.append(self.remote_bytes)
        self._begun_in_pass = 0
        pass_ = Pass(self._seed, len(self.passes))
        self._order.extend(
            _first_order(tuple(self.files), pass_) if first else _order(self.files, pass_, self.cache.seq)
        )

    def miss(self, id: int) -> float:
        """Fetch a file before all others, which pause meanwhile; returns the duration in seconds."""
        self._advance()
        size = lacking = float(self.files[id].size)
        for download in self._window:
            if download.id == id:
                lacking = download.lacking
                self._window.remove(download)
                self._admit(id)
                break
        else:
            if self.cache.make_room(int(size), self.now, missed=True):
                self.cache.reserved += int(size)
                self._admit(id)
            else:  # it is read from the remote without being cached
                self.fetches[id] += 1
                self.remote_bytes += int(size)
        wait = lacking / self.bandwidth
        self._moved_at = max(self._moved_at, self.now) + wait
        if self._window:
            active = [download.lacking for download in self._window if download.lacking > 0]
            self._draw_at = self._moved_at + (min(active) * len(active) / self.bandwidth if active else 0.0)
        else:
            self.try_drawing()
        return wait


def _order(files: Sequence[File], pass_: Pass, seq: Sequence[int]) -> Iterator[int]:
    candidates = (
        Candidate(id, file.directory, file.path, file.size, resident=seq[id] > 0, drawn=False)
        for id, file in enumerate(files)
    )
    order = draw_order(candidates, pass_)
    return itertools.chain(order.seeds, order.rest)


@lru_cache(4)
def _first_order(files: tuple[File, ...], pass_: Pass) -> tuple[int, ...]:
    """The order while nothing is cached. It is the same for all policies, and takes a third of a short simulation."""
    return tuple(_order(files, pass_, bytes(len(files))))


class SimReader:
    """A process that lists and opens files. reader: its facts for the rules."""

    def __init__(self, simulation: Simulation, reader: Reader) -> None:
        self.reader = reader
        self._simulation = simulation
        simulation.cache.live.append(reader)

    def list(self, directory: int = EVERYWHERE) -> list[int]:
        """The ids that a directory (or all of them) shows now, in the order of admission."""
        simulation = self._simulation
        shown = simulation.cache.listing(self.reader, directory, simulation.now)
        simulation.try_drawing()
        return shown

    def open(self, id: int) -> float:
        """Open a file, and close it; returns the seconds that it waited for a fetch."""
        wait = self.begin_to_read(id)
        self.reader.closed(self._simulation.now)
        return wait

    def begin_to_read(self, id: int) -> float:
        """Open a file; returns the seconds that it waited for a fetch."""
        simulation, reader = self._simulation, self.reader
        cache = simulation.cache
        wait = 0.0 if cache.seq[id] else simulation.miss(id)
        simulation.opened_files += not simulation.opens[id]
        simulation.opens[id] += 1
        if cache.seq[id]:
            cache.opened(id)
        view = reader.job.view
        reader.opened(id, cache.generation, simulation.now, wait > 0, view is not None and cache.seq[id] in view.listed)
        return wait

    def exit(self) -> None:
        """End the process, and with it its holds. It must have closed its files."""
        cache = self._simulation.cache
        cache.live.remove(self.reader)
        self.reader.ended()
        cache.readers_changed()
        self._simulation.try_drawing()
