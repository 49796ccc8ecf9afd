"""A simulated mount, and processes that read it as the traced readers do. Seeds are fixed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator, Iterable, Sequence

import pytest

from growfs.rotation.jobs import Job
from growfs.rotation.reader import Reader
from growfs.rotation.rules import EVERYWHERE
from growfs.simulation.cache import File, MountSettings, Rotating
from growfs.simulation.simulator import SimReader, Simulation

STEP_S = 1.0
MINUTE = 60.0
SIZE = 1000

Process = Generator[float, None, None]
"""A process of `Processes.run`: yields the seconds that it sleeps."""
Walk = Generator[float, None, list[int]]


def seeds(few: int, many: int) -> list[object]:
    """A parameter for each of the first `many` seeds; all but the first few are only for tools/test --long."""
    return [seed if seed < few else pytest.param(seed, marks=pytest.mark.long) for seed in range(many)]


def catalog(files: int, directories: int = 10) -> list[File]:
    return [File(1 + i % directories, f"c{1 + i % directories}/{i:06}.rec", SIZE) for i in range(files)]


class Processes(Simulation):
    """A simulated mount with several processes, and what these were shown.

    gone: opens of files shown to the reader that are no longer cached. unlisted: opens of uncached files not shown to
    the reader. shown: 1 for each file that was listed.
    """

    def __init__(
        self, files: Sequence[File], limit_bytes: int, bandwidth: float, settings: MountSettings | None = None
    ) -> None:
        super().__init__(files, limit_bytes, bandwidth, settings)
        self.gone = self.unlisted = 0
        self.shown = bytearray(len(files))

    @property
    def misses(self) -> int:
        """Opens that had to wait for a fetch."""
        return self.gone + self.unlisted

    @property
    def shown_files(self) -> int:
        """How many files were listed at least once."""
        return sum(self.shown)

    def reader(self, job: Job | None = None, above: SimProcess | None = None) -> SimProcess:
        """A process that starts now. job: by default its own. above: the process of which it is a worker that lists."""
        reader = super().reader().reader
        self.cache.live.remove(reader)
        reader.job = job or reader.job
        if above:
            reader.job, reader.above = above.reader.job, above.reader
        return SimProcess(self, reader)

    def run(self, processes: Iterable[Process]) -> None:
        heap = [(self.now, number, process) for number, process in enumerate(processes)]
        while heap:
            at, number, process = heap[0]
            self.sleep(at - self.now)
            try:
                pause = next(process)
            except StopIteration:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (self.now + pause, number, process))


class SimProcess(SimReader):
    """A process that keeps files open, and knows what it was shown."""

    _simulation: Processes

    def __init__(self, simulation: Processes, reader: Reader) -> None:
        super().__init__(simulation, reader)
        self._seen: dict[int, set[int]] = {}

    def list(self, directory: int = EVERYWHERE) -> list[int]:
        shown = super().list(directory)
        if directory == EVERYWHERE:
            self._seen.clear()
        self._seen[directory] = set(shown)
        for id in shown:
            self._simulation.shown[id] = 1
        return shown

    def open(self, id: int, keep: bool = False) -> float:
        """Open a file; returns the seconds that it waited for a fetch. keep: keep it open until `close`."""
        simulation, cache = self._simulation, self._simulation.cache
        if not cache.seq[id]:
            was_shown = self._was_shown(id)
            simulation.gone += was_shown
            simulation.unlisted += not was_shown
        wait = self.begin_to_read(id)
        if not self._seen:  # it never listed: it holds the files listed now
            self._seen[EVERYWHERE] = set(cache.listed(EVERYWHERE))
            cache.readers_changed()
        if keep:
            cache.busy[id] += 1
        else:
            self.reader.closed(simulation.now)
        return wait

    def close(self, id: int) -> None:
        self.reader.closed(self._simulation.now)
        self._simulation.cache.closed(id)
        if self._simulation.lacks_room:
            self._simulation.try_drawing()

    def _was_shown(self, id: int) -> bool:
        if isinstance(self._simulation.cache, Rotating) and not self.reader.held:
            return False  # its holds have ended because it was silent
        directory = self._simulation.files[id].directory
        return id in self._seen.get(directory, self._seen.get(EVERYWHERE, set()))


class World:
    """A mount, and the number of opens after which its processes end: they check `enough`.

    downloads: how many files the link can fetch for each open of a single reader.
    """

    def __init__(
        self,
        policy: str = "growfs",
        opens: int = 10_000,
        files: Sequence[File] | None = None,
        share: float = 0.2,
        downloads: float = 0.5,
        seed: int = 0,
        parallel: int = 4,
        turnover: float = 0.2,
    ) -> None:
        self.files = catalog(1000) if files is None else files
        self.bytes = sum(file.size for file in self.files)
        self.limit = int(share * self.bytes)
        self.opens_target = opens
        mean = self.bytes / len(self.files)
        self.simulation = Processes(
            self.files,
            self.limit,
            downloads * mean / STEP_S,
            MountSettings(policy, seed, turnover, parallel),
        )
        self.random = random.Random(seed)
        self.directories = sorted({file.directory for file in self.files})
        self.opens = 0
        self.shown_halfway = 0

    @property
    def enough(self) -> bool:
        """Whether the processes may end."""
        return self.opens >= self.opens_target

    def fill(self, part: float = 1.0) -> None:
        self.simulation.sleep(1.02 * part * self.limit / self.simulation.bandwidth)

    def run(self, *processes: Process) -> None:
        self.simulation.run(processes)

    def shuffled(self, ids: Sequence[int]) -> list[int]:
        return self.random.sample(ids, len(ids))

    # Steps of processes.

    def walk(self, reader: SimProcess, pause_s: float = 0.0) -> Walk:
        """List every directory, one after the other, as os.walk does."""
        ids: list[int] = []
        for directory in self.directories:
            ids += reader.list(directory)
            if pause_s:
                yield pause_s
        return ids

    def read(self, reader: SimProcess, ids: Sequence[int], times: int = 1, step_s: float = STEP_S) -> Process:
        """Open files one after the other, each `times` times in a row."""
        for id in ids:
            for _ in range(times):
                wait_s = reader.open(id, keep=True)
                self.opens += 1
                yield wait_s + step_s
                reader.close(id)

    def train(
        self,
        start_s: float = 0.0,
        relist: bool = True,
        part: float = 1.0,
        times: Callable[[int], int] = lambda epoch: 1,
        choose: Callable[[list[int]], list[int]] | None = None,
        step_s: float = STEP_S,
        epochs: float = float("inf"),
        reader: SimProcess | None = None,
    ) -> Process:
        """A training run: each epoch reads a part of the listed files in random order; the next one may list again.

        reader: a process that has done something else before.
        """
        yield start_s
        reader = reader or self.simulation.reader()
        ids = yield from self.walk(reader)
        epoch = 0
        while not self.enough and epoch < epochs:
            if epoch and relist:
                ids = yield from self.walk(reader)
            chosen = choose(ids) if choose else self.shuffled(ids)[: max(1, round(part * len(ids)))]
            yield from self.read(reader, chosen, times(epoch), step_s)
            if not chosen:
                yield MINUTE
            epoch += 1
        reader.exit()

    def train_listing_at_each_sample(
        self, start_s: float = 0.0, step_s: float = STEP_S, workers: int = 0, relist: bool = True
    ) -> Process:
        """A training run that lists a file's directory before it opens the file, as does a search for its mask.

        workers: how many processes below it do this, new ones in each epoch; 0: it does so itself. relist: whether it
        lists everything in each epoch.
        """
        yield start_s
        program = self.simulation.reader()
        ids: list[int] = []
        while not self.enough:
            if relist or not ids:
                ids = yield from self.walk(program)
            readers = [self.simulation.reader(above=program) for _ in range(workers)] or [program]
            for place, id in enumerate(self.shuffled(ids)):
                reader = readers[place % len(readers)]
                assert id in reader.list(self.files[id].directory), "it has seen the file, and does not find it"
                yield from self.read(reader, [id], step_s=step_s)
            for reader in readers[: workers or 0]:
                reader.exit()
            if not ids:
                yield MINUTE
        program.exit()

    def look(self, every_s: float, walks: bool = True, copies: bool = False, step_s: float = 0.01) -> Process:
        """A short process from time to time: ls (the first directory only), find, or cp -r."""
        while not self.enough:
            yield every_s
            reader = self.simulation.reader()
            ids = (yield from self.walk(reader, 0.1)) if walks else reader.list(self.directories[0])
            if copies:
                yield from self.read(reader, ids, step_s=step_s)
            reader.exit()
