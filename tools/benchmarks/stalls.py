"""The longest stalls of the thread that answers the kernel, with a million files, directories, holds or generations.

The components of a daemon run in this process, on a database with made-up rows: there is no mount, remote or file. A
task notes the longest time for which it did not get to run, because another one computed or a helper thread kept the
interpreter's lock.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import trio

from growfs.cache import NODES_FROM
from growfs.cache.cache_folder import read_only
from growfs.cache.catalog import Catalog, Node
from growfs.cache.database import Database
from growfs.cache.recovery import recover
from growfs.cache.room import SizeEstimate
from growfs.cache.schema import ROOT
from growfs.cache.store import Store
from growfs.cache.usage import Budget, Traffic, UsageCounters
from growfs.daemon.commands import FileCommands
from growfs.daemon.server import SWITCH_S
from growfs.proc import Process
from growfs.rotation import readers
from growfs.rotation.generations import Demand, Generations
from growfs.rotation.order_file import candidates
from growfs.rotation.pass_order import Order, Pass, draw_order
from growfs.rotation.readers import Readers
from growfs.rotation.rules import EVERYWHERE, GenerationPlan, TurnoverInput
from growfs.rotation.turnover import plan_generation
from growfs.scheduler.in_flight import Priority
from growfs.scheduler.outage import Outage
from growfs.scheduler.prefetcher import Drawer, Prefetcher
from growfs.scheduler.readiness import PrefetchState, StartCondition
from growfs.scheduler.rotating import Rotation
from growfs.scheduler.space import Space, WaitingClaims
from growfs.units import CacheSize
from growfs.workers.process import tune_gc
from tools.benchmarks.measure import Figures, Setting

NUMBER, NUMBER_QUICK = 1_000_000, 1000
TARGET_MS = 20
PER_DIRECTORY = 1000
FILE_BYTES = 4096
OPENED_FILES = 50_000
"""Opens between two saves, at ten thousand a second."""
PROBE_S = 0.0005

FIRST_FILE, FIRST_DIRECTORY = 10_000_000, NODES_FROM + 1


class StallMeter:
    """Notes the longest stall of trio's thread."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        before = time.perf_counter()
        while True:
            await trio.sleep(PROBE_S)
            now = time.perf_counter()
            self.longest_s = max(self.longest_s, now - before - PROBE_S)
            before = now


class Scene:
    """A cache with `files` cached files in `directories` directories, and the components that use it.

    planner: the process that replaces a worker.
    """

    def __init__(self, folder: Path, files: int, directories: int, planner: ProcessPoolExecutor) -> None:
        folder.mkdir()
        self.files = files
        self.directories = range(FIRST_DIRECTORY, FIRST_DIRECTORY + directories)
        self.database = Database(folder / "catalog.sqlite")
        recover(self.database, folder)
        self.database.write_now(self._fill)
        self._planner = planner
        self.catalog = Catalog(self.database)
        self.store = Store(folder, self.database, self.catalog, CacheSize(bytes=0), 0)
        self.store.room.limit_bytes = self.store.room.used_bytes
        selection = ProcessRotation(self, self._in_worker)
        self.generations = Generations(self.database, self.store, selection, self._demand, turnover=0.2, settle_s=60.0)
        self.usage = UsageCounters(self.database, Budget(self.database, 0))
        self.readers = Readers(self.generations, 3600.0, self.usage.recently_opened)
        outage, sizes = Outage(self._probe), SizeEstimate(self.store.room)
        self.space = Space(
            self.database,
            self.store,
            self.generations,
            Budget(self.database, 0),
            outage,
            sizes,
            WaitingClaims(),
            self.readers.holds,
        )
        self.commands = FileCommands(self.database, self.catalog, self.store, self.space, outage, self._fetch)
        fetcher: Any = SimpleNamespace(traffic=Traffic())
        self.prefetch = PrefetchState(StartCondition(), lambda: False, lambda: False, outage)
        drawer = Drawer(self.catalog, self.store, fetcher, self.space, sizes, self.prefetch, outage)
        order: Any = SimpleNamespace(remaining=self._order, first=Pass(1, 1))
        sync: Any = None
        self.prefetcher = Prefetcher(
            self.catalog,
            self.store,
            sync,
            order,
            fetcher,
            drawer,
            self.space,
            self.prefetch,
        )

    def _demand(self) -> Demand:
        return Demand(self.catalog.bytes, 0, 0)

    async def _probe(self, repeats: bool) -> None:
        """A probe of a remote that is not away."""

    def _fill(self, writer: sqlite3.Connection) -> None:
        for first, count, is_dir in (
            (FIRST_DIRECTORY, len(self.directories), 1),
            (FIRST_FILE, self.files, 0),
        ):
            parents = [ROOT] if is_dir else self.directories
            writer.executemany(
                "INSERT INTO node (id, parent, name, is_dir, size, version, drawn) VALUES (?, ?, ?, ?, ?, 'v', 1)",
                (
                    (first + n, parents[n % len(parents)], f"{n:07}.jpg", is_dir, None if is_dir else FILE_BYTES)
                    for n in range(count)
                ),
            )
            suffix, bytes = (None, 0) if is_dir else ("jpg", FILE_BYTES)
            seq = first - FIRST_DIRECTORY + 1
            writer.executemany(
                "INSERT INTO resident (id, parent, suffix, seq, queue_position, opened, bytes, ino, file_mtime_ns,"
                " digest) VALUES (?, ?, ?, ?, ?, 1, ?, 1, 1, '')",
                ((first + n, parents[n % len(parents)], suffix, seq + n, seq + n, bytes) for n in range(count)),
            )
        writer.execute("INSERT INTO usage (id, fetches) SELECT id, 1 FROM resident WHERE suffix IS NOT NULL")
        # A part of the catalog is not cached, so that generations delist files.
        writer.execute(
            "INSERT INTO node (parent, name, is_dir, size, drawn) VALUES (?, 'missing', 0, ?, 0)",
            (FIRST_DIRECTORY, self.files * FILE_BYTES),
        )

    async def _in_worker(self, function: Callable[..., bytes], *arguments: object) -> Any:
        """Like a worker's answer: computed by another process, and unpickled on this thread."""
        future = self._planner.submit(function, *arguments)
        return pickle.loads(await trio.to_thread.run_sync(future.result))

    async def _order(self, size_max: int) -> Order:
        order: Order = await self._in_worker(_order, self.database.path)
        return order

    @staticmethod
    async def _fetch(node: Node, path: str, patience_s: float) -> None:
        await trio.lowlevel.checkpoint()

    async def listing(self, pid: int, directory: int) -> None:
        """Make a process list a directory to the end."""
        reader = self.readers.reader_of(pid)
        await self.readers.begin(reader, directory)
        reader.job.is_shown(directory, self.readers.listing(reader, directory), 5)

    def close(self) -> None:
        """Close the database."""
        self.database.close()


class ProcessRotation(Rotation):
    """Plans in another process than the workers."""

    def __init__(self, scene: Scene, call: Callable[..., Awaitable[Any]]) -> None:
        nothing: Any = None
        super().__init__(nothing, scene.database, scene.catalog, scene.store, scene.database.path.parent, Pass(1, 1))
        self._file, self._call = scene.database.path, call

    async def plan(self, number: int, turnover: TurnoverInput) -> GenerationPlan:
        plan: GenerationPlan = await self._call(_plan, pickle.dumps((self._file, number, turnover)))
        return plan


def _plan(asked: bytes) -> bytes:
    return pickle.dumps(plan_generation(*pickle.loads(asked)))


def _order(catalog: Path) -> bytes:
    connection = read_only(catalog)
    order = draw_order(candidates(connection, Pass(1, 2)), Pass(1, 2))
    connection.close()
    return pickle.dumps(order)


Step = Callable[[Scene], Awaitable[object]]


def stalls(setting: Setting, found: Figures) -> str:
    """Each scene is played once per round."""
    number = NUMBER_QUICK if setting.quick else NUMBER
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)  # as in the daemon
    tune_gc()
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as planner, _made_up_processes():
            planner.submit(os.getpid).result()  # fork before there are other threads
            for round in range(setting.rounds):
                for name, (files, directories, play) in scenes(number).items():
                    scene = Scene(setting.folder / f"{round}-{name.split()[0]}", files, directories, planner)
                    for step, stall_s in trio.run(_play, scene, play).items():
                        found.add(f"{name}, {step}", stall_s * 1000, unit="ms", at_most=TARGET_MS)
                    scene.close()
    finally:
        sys.setswitchinterval(switch_s)
    return f"longest stalls of the answering thread, {number:,} of each"


def scenes(number: int) -> dict[str, tuple[int, int, Callable[[Scene], Iterator[tuple[str, Step]]]]]:
    """By name: the numbers of files and directories, and the steps."""
    few = max(1, number // PER_DIRECTORY)
    return {
        "files": (number, few, of_files),
        "directories": (number, number, of_directories),
        "readers x directories": (number, few, partial(of_readers, max(1, number // few))),
        "generations": (number, few, partial(of_generations, number)),
        "arguments of commands": (number, few, of_commands),
    }


def of_files(scene: Scene) -> Iterator[tuple[str, Step]]:
    """Generations, room for draws and for misses, and counting."""
    yield "the first generation", lambda scene: scene.listing(1, EVERYWHERE)

    async def open_files(scene: Scene) -> None:
        for id in range(FIRST_FILE, FIRST_FILE + min(OPENED_FILES, scene.files)):
            scene.usage.assume_open(id)
            if id % 100 == 0:
                await trio.lowlevel.checkpoint()
        await scene.usage.save()

    yield "opens are saved", open_files

    async def next_generation(scene: Scene) -> None:
        await scene.generations.begin(scene.readers.holds(), scene.usage.recently_opened())
        await scene.generations.written.wait()

    yield "a generation that delists a fifth", next_generation
    yield "room for a draw, all is held", lambda scene: scene.space.reserve_by_eviction(FILE_BYTES, Priority.DRAW)
    yield (
        "no room for a miss",
        lambda scene: scene.space.reserve_by_eviction(2 * scene.store.room.limit_bytes, Priority.READER),
    )
    yield (
        "the cache is made smaller",
        lambda scene: scene.space.set_cache_size(CacheSize(bytes=scene.store.room.limit_bytes * 9 // 10)),
    )


def of_directories(scene: Scene) -> Iterator[tuple[str, Step]]:
    """A pass begins, and a process lists each directory."""
    yield "a pass begins", lambda scene: scene.prefetcher._begin_order()
    yield "do all have a file", lambda scene: scene.catalog.has_unseeded()

    async def walk(scene: Scene) -> None:
        for directory in scene.directories:
            await scene.listing(1, directory)
            if directory % 100 == 0:
                await trio.lowlevel.checkpoint()

    yield "a process lists all", walk
    yield "room for a draw", lambda scene: scene.space.reserve_by_eviction(FILE_BYTES, Priority.DRAW)
    yield "the next generation", _next_epoch


def of_readers(readers: int, scene: Scene) -> Iterator[tuple[str, Step]]:
    """Many processes list the same directories."""

    async def walks(scene: Scene) -> None:
        for number, (directory, pid) in enumerate(product(scene.directories, range(1, readers + 1))):
            await scene.listing(pid, directory)
            if number % 100 == 0:
                await trio.lowlevel.checkpoint()

    yield "all list all", walks
    yield "room for a draw", lambda scene: scene.space.reserve_by_eviction(FILE_BYTES, Priority.DRAW)
    yield "the next generation", _next_epoch
    yield "room for a draw, some is delisted", lambda scene: scene.space.reserve_by_eviction(FILE_BYTES, Priority.DRAW)

    async def release(scene: Scene) -> None:
        scene.readers.release()

    yield "all holds end", release


async def _next_epoch(scene: Scene) -> None:
    """A process that has listed and read lists again."""
    for id in range(FIRST_FILE, FIRST_FILE + 100):
        scene.readers.opened(scene.readers.opener(1), id, False)
    await scene.readers.begin(scene.readers.reader_of(1), FIRST_DIRECTORY)
    await scene.generations._wait_until_written()


def of_generations(number: int, scene: Scene) -> Iterator[tuple[str, Step]]:
    """A frozen file has kept the rows of all generations, as in an older version; then a new one begins."""

    first_seq, last_seq = scene.database.row("SELECT min(seq), max(seq) FROM resident WHERE suffix IS NOT NULL")
    step = max(1, (last_seq - first_seq) // number)
    rows = ((n + 1, min(last_seq, first_seq + n * step), 0) for n in range(number))
    scene.database.write_now(lambda writer: writer.executemany("INSERT INTO generation VALUES (?, ?, ?)", rows))
    scene.generations.last_number = number
    ids = list(range(FIRST_FILE + scene.files - min(1000, scene.files // 2), FIRST_FILE + scene.files))
    yield "files are evicted", lambda scene: scene.store.evict(ids)
    yield "the next one", lambda scene: scene.listing(1, ROOT)
    yield "it is written", lambda scene: scene.generations._wait_until_written()


def of_commands(scene: Scene) -> Iterator[tuple[str, Step]]:
    """Commands whose pattern matches every file."""

    async def to_end(results: AsyncIterator[Any]) -> None:
        async for _ in results:
            pass

    scene.store.room.limit_bytes *= 3
    yield "pin", lambda scene: to_end(scene.commands.pin(["**"]))
    yield "unpin", lambda scene: to_end(scene.commands.unpin(["**"]))
    yield "evict", lambda scene: to_end(scene.commands.evict(["**"]))
    yield "fetch", lambda scene: to_end(scene.commands.fetch(["**"]))


async def _play(scene: Scene, steps: Callable[[Scene], Iterator[tuple[str, Step]]]) -> dict[str, float]:
    """The longest stall of each step, in seconds."""
    stalls = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.readers.run)
        nursery.start_soon(scene.generations.run)
        for name, step in steps(scene):
            meter = StallMeter()
            async with trio.open_nursery() as metering:
                metering.start_soon(meter.run)
                await trio.sleep(4 * PROBE_S)
                await step(scene)
                await trio.sleep(4 * PROBE_S)  # for work that the step has left to others
                metering.cancel_scope.cancel()
            stalls[name] = meter.longest_s
        nursery.cancel_scope.cancel()
    return stalls


@contextlib.contextmanager
def _made_up_processes() -> Iterator[None]:
    """Every number is a separate process, which never ends."""
    made_up: dict[str, Any] = {
        "thread_group": int,
        "process": lambda pid: Process(pid, 1, "1", "reader"),
        "_watched": lambda pid: None,
    }
    with patch.multiple(readers, **made_up):
        yield
