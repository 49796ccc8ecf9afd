"""The longest stalls of the thread that answers the kernel, with a million files, directories, holds or generations.

The components of a daemon run in this process, on a database with made-up rows: there is no mount, remote or file. A
task notes the longest time for which it did not get to run, because another one computed or a helper thread kept the
interpreter's lock.
"""

from __future__ import annotations

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
from growfs.cache.catalog import Node
from growfs.cache.database import Database
from growfs.cache.recovery import recover
from growfs.cache.schema import ROOT, set_meta
from growfs.cache.usage import Budget, Traffic, UsageCounters
from growfs.daemon.server import SWITCH_S
from growfs.proc import Process
from growfs.rotation import readers
from growfs.rotation.order_file import candidates
from growfs.rotation.pass_order import Amount, Order, Pass, draw_order
from growfs.rotation.readers import Readers
from growfs.rotation.rules import EVERYWHERE
from growfs.rotation.turnover import plan_generation
from growfs.scheduler.in_flight import Priority
from growfs.scheduler.outage import Outage
from growfs.scheduler.prefetcher import Drawer, Prefetcher
from growfs.scheduler.readiness import PrefetchState, StartCondition
from growfs.units import CacheSize
from growfs.workers.process import tune_gc
from tests.unit.local_cache import LocalRotation, answers, file_commands, open_local_cache
from tools.benchmarks.measure import Figures, Setting

NUMBER, NUMBER_QUICK = 1_000_000, 1000
FILE_BYTES = 4096
OPENED_FILES = 50_000
"""Opens between two saves, at ten thousand a second."""
PROBE_S = 0.0005

FIRST_FILE, FIRST_DIRECTORY = 10_000_000, NODES_FROM + 1


class Scene:
    """A cache with `files` cached files in `directories` directories, and the components that use it.

    planner: the process that replaces a worker.
    """

    def __init__(self, folder: Path, files: int, directories: int, planner: ProcessPoolExecutor) -> None:
        folder.mkdir()
        self.files = files
        self.directories = range(FIRST_DIRECTORY, FIRST_DIRECTORY + directories)
        database = Database(folder / "catalog.sqlite")
        recover(database, folder)
        database.write_now(self._fill)
        database.close()
        self.cache = cache = open_local_cache(folder)
        cache.share = Amount(2 * files, 2 * files * FILE_BYTES)  # so generations delist files
        cache.store.room.limit_bytes = cache.store.room.used_bytes
        self._planner = planner
        self.usage = UsageCounters(cache.database, Budget(cache.database, 0))
        self.readers = Readers(cache.generations, 3600.0, self.usage.recently_opened)
        cache.space._holds = self.readers.holds
        self.commands = file_commands(cache, self._fetch)
        outage, fetcher = Outage(answers), SimpleNamespace(traffic=Traffic())  # type: Outage, Any
        state = PrefetchState(StartCondition(), lambda: False, lambda: False, outage)
        drawer = Drawer(cache.catalog, cache.store, fetcher, cache.space, cache.sizes, state, outage)
        order: Any = SimpleNamespace(remaining=self._order, first=Pass(1, 1))
        sync: Any = None
        self.prefetcher = Prefetcher(cache.catalog, cache.store, sync, order, fetcher, drawer, cache.space, state)

    def _fill(self, writer: sqlite3.Connection) -> None:
        for first, count, is_dir in ((FIRST_DIRECTORY, len(self.directories), 1), (FIRST_FILE, self.files, 0)):
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
        set_meta(writer, "clean", 1)  # so that nothing looks for the files

    async def in_worker(self, function: Callable[..., bytes], *arguments: object) -> Any:
        """Like a worker's answer: computed by another process, and unpickled on this thread."""
        future = self._planner.submit(function, *arguments)
        return pickle.loads(await trio.to_thread.run_sync(future.result))

    async def _order(self, size_max: int) -> Order:
        order: Order = await self.in_worker(_order, self.cache.database.path)
        return order

    @staticmethod
    async def _fetch(node: Node, path: str, patience_s: float) -> None:
        await trio.lowlevel.checkpoint()

    async def room(self, bytes: int = FILE_BYTES, priority: Priority = Priority.DRAW) -> None:
        """Make room, by default for a draw."""
        await self.cache.space.reserve_by_eviction(bytes, priority)

    async def listing(self, pid: int, directory: int) -> None:
        """Make a process list a directory to the end."""
        reader = self.readers.reader_of(pid)
        await self.readers.begin(reader, directory)
        reader.job.is_shown(directory, self.readers.listing(reader, directory), 5)


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
    made_up: dict[str, Any] = {  # every number is a separate process, which never ends
        "thread_group": int,
        "process": lambda pid: Process(pid, 1, "1", "reader"),
        "_watched": lambda pid: None,
    }
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as planner, patch.multiple(readers, **made_up):
            planner.submit(os.getpid).result()  # fork before there are other threads
            for round in range(setting.rounds):
                for name, (files, directories, play) in scenes(number).items():
                    scene = Scene(setting.folder / f"{round}-{name.split()[0]}", files, directories, planner)
                    for step, stall_s in trio.run(_play, scene, play).items():
                        found.add(f"{name}, {step}", stall_s * 1000, unit="ms", at_most=20)
                    scene.cache.database.close()
    finally:
        sys.setswitchinterval(switch_s)
    return f"longest stalls of the answering thread, {number:,} of each"


def scenes(number: int) -> dict[str, tuple[int, int, Callable[[Scene], Iterator[tuple[str, Step]]]]]:
    """By name: the numbers of files and directories, and the steps."""
    few = max(1, number // 1000)
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
        await scene.cache.generations.begin(scene.readers.holds(), scene.usage.recently_opened())
        await scene.cache.generations.written.wait()

    scene.cache.open_all()  # else it would delist nothing
    yield "a generation that delists a fifth", next_generation
    yield "room for a draw, all is held", Scene.room
    limit = scene.cache.store.room.limit_bytes
    yield "no room for a miss", lambda scene: scene.room(2 * limit, Priority.READER)
    smaller = CacheSize(bytes=limit * 9 // 10)
    yield "the cache is made smaller", lambda scene: scene.cache.space.set_cache_size(smaller)


def of_directories(scene: Scene) -> Iterator[tuple[str, Step]]:
    """A pass begins, and a process lists each directory."""
    yield "a pass begins", lambda scene: scene.prefetcher._begin_order()
    yield "do all have a file", lambda scene: scene.cache.catalog.has_unseeded()
    yield "a process lists all", partial(_walk, 1)
    yield "room for a draw", Scene.room
    yield "the next generation", _next_epoch


def of_readers(readers: int, scene: Scene) -> Iterator[tuple[str, Step]]:
    """Many processes list the same directories."""
    yield "all list all", partial(_walk, readers)
    yield "room for a draw", Scene.room
    yield "the next generation", _next_epoch
    yield "room for a draw, some is delisted", Scene.room

    async def release(scene: Scene) -> None:
        scene.readers.release()

    yield "all holds end", release


async def _walk(readers: int, scene: Scene) -> None:
    """So many processes list all directories."""
    for number, (directory, pid) in enumerate(product(scene.directories, range(1, readers + 1))):
        await scene.listing(pid, directory)
        if number % 100 == 0:
            await trio.lowlevel.checkpoint()


async def _next_epoch(scene: Scene) -> None:
    """A process that has listed and read lists again."""
    for id in range(FIRST_FILE, FIRST_FILE + 100):
        scene.readers.opened(scene.readers.opener(1), id, False)
    await scene.readers.begin(scene.readers.reader_of(1), FIRST_DIRECTORY)
    await scene.cache.generations._wait_until_written()


def of_generations(number: int, scene: Scene) -> Iterator[tuple[str, Step]]:
    """A frozen file has kept the rows of all generations, as in an older version; then a new one begins."""
    cache = scene.cache
    first_seq, last_seq = cache.database.row("SELECT min(seq), max(seq) FROM resident WHERE suffix IS NOT NULL")
    step = max(1, (last_seq - first_seq) // number)
    rows = ((n + 1, min(last_seq, first_seq + n * step), 0) for n in range(number))
    cache.database.write_now(lambda writer: writer.executemany("INSERT INTO generation VALUES (?, ?, ?)", rows))
    cache.generations.last_number = number
    ids = list(range(FIRST_FILE + scene.files - min(1000, scene.files // 2), FIRST_FILE + scene.files))
    yield "files are evicted", lambda scene: cache.store.evict(ids)
    yield "the next one", lambda scene: scene.listing(1, ROOT)
    yield "it is written", lambda scene: cache.generations._wait_until_written()


def of_commands(scene: Scene) -> Iterator[tuple[str, Step]]:
    """Commands whose pattern matches every file."""

    async def to_end(results: AsyncIterator[Any]) -> None:
        async for _ in results:
            pass

    scene.cache.store.room.limit_bytes *= 3
    yield "pin", lambda scene: to_end(scene.commands.pin(["**"]))
    yield "unpin", lambda scene: to_end(scene.commands.unpin(["**"]))
    yield "evict", lambda scene: to_end(scene.commands.evict(["**"]))
    yield "fetch", lambda scene: to_end(scene.commands.fetch(["**"]))


async def _play(scene: Scene, steps: Callable[[Scene], Iterator[tuple[str, Step]]]) -> dict[str, float]:
    """The longest stall of each step, in seconds."""
    stalls: dict[str, float] = {}

    async def measure(step: str) -> None:
        before, stalls[step] = time.perf_counter(), 0.0
        while True:
            await trio.sleep(PROBE_S)
            now = time.perf_counter()
            stalls[step] = max(stalls[step], now - before - PROBE_S)
            before = now

    async def plan(_: object, *asked: object) -> Any:
        return await scene.in_worker(_plan, pickle.dumps((scene.cache.database.path, *asked)))

    with patch.object(LocalRotation, "plan", plan):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.readers.run)
            nursery.start_soon(scene.cache.generations.run)
            for name, step in steps(scene):
                async with trio.open_nursery() as metering:
                    metering.start_soon(measure, name)
                    await trio.sleep(4 * PROBE_S)
                    await step(scene)
                    await trio.sleep(4 * PROBE_S)  # for work that the step has left to others
                    metering.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
    return stalls
