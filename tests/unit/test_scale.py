"""Costs that must not grow with the catalog or the cache: of the thread that answers the kernel, and of memory."""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import growfs.cache.store
import growfs.daemon.commands
from growfs.bitmaps import BitMap64
from growfs.cache import catalog
from growfs.cache.cache_folder import DATABASE, read_only
from growfs.cache.catalog import Catalog, Node
from growfs.cache.publish import FIRST_SHOWN
from growfs.cache.schema import ROOT
from growfs.cache.usage import Budget, Traffic, UsageCounters
from growfs.daemon.commands import FETCHES_MAX
from growfs.disk import BLOCK
from growfs.errors import GrowfsError, NotMade, RemoteError, Unreadable
from growfs.remote.interface import Page, RemoteSpec
from growfs.rotation import order_file
from growfs.rotation import readers as readers_module
from growfs.rotation.order_file import make_order
from growfs.rotation.pass_order import Candidate, Order, Pass, draw_order, groups_of
from growfs.rotation.reader import Reader
from growfs.rotation.readers import Readers
from growfs.rotation.rules import Generation
from growfs.scheduler import space
from growfs.scheduler.in_flight import Download, DownloadGroup, Priority
from growfs.scheduler.outage import Outage
from growfs.scheduler.prefetcher import Drawer, Prefetcher
from growfs.scheduler.readiness import PrefetchState, StartCondition
from growfs.signal import Signal
from growfs.status_and_metrics import SkippedStatus
from growfs.vfs.attributes import Entry
from growfs.vfs.filesystem import visible_entries
from growfs.workers import messages, worker
from growfs.workers.messages import ListRemote, StillWorking
from tests.remote.fake_remote import FakeRemote
from tests.unit.local_cache import LocalCache, answers, file, file_commands, open_local_cache, running

FILES = 60
SMALL = ("generation", "meta", "g")
"""Tables that always have few rows."""


def scans(cache: LocalCache, queries: set[str]) -> set[str]:
    """The queries that read a whole table, or sort what they read."""
    connection = read_only(cache.database.path)
    scanning = set()
    for query in queries:
        for _, _, _, step in connection.execute(f"EXPLAIN QUERY PLAN {query}"):
            kind, _, table = step.partition(" ")
            if (kind == "SCAN" and table.split()[0] not in SMALL) or "TEMP B-TREE" in step:
                scanning.add(f"{step}: {query}")
    connection.close()
    return scanning


@contextmanager
def traced_memory() -> Iterator[Callable[[], tuple[int, int]]]:
    """Yields what returns the bytes that were allocated in the block, and their peak."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


def record_queries(connection: sqlite3.Connection) -> set[str]:
    """The set of queries of a connection, which grows from now on."""
    queries = set[str]()
    connection.set_trace_callback(lambda query: queries.add(query) if query.startswith("SELECT") else None)
    return queries


async def full_cache(cache: LocalCache) -> list[str]:
    """Fill a cache and let a generation delist some files; returns the names in folder a."""
    names = [f"a/{number}.bin" for number in range(FILES)]
    await cache.list([file(name, BLOCK) for name in [*names, *(f"b/{number}" for number in range(FILES))]])
    await cache.admit(*names, content=b"x" * BLOCK)
    await cache.admit("b/0", content=b"x" * BLOCK)
    cache.store.room.limit_bytes = cache.store.room.used_bytes
    cache.generations.turnover = 0.5
    ids = frozenset(cache.node(name).id for name in names)
    for _ in range(2):
        assert await cache.begin(opened=ids)
    return names


async def test_queries_of_the_answering_thread_scan_no_table(cache: LocalCache) -> None:
    names = await full_cache(cache)
    generation = cache.generations.current
    assert generation
    assert generation.files < FILES
    queries = record_queries(cache.database._reader)
    passed: int | None = 0
    entries, steps = list[Entry](), 0
    while passed is not None:
        entries, _, passed = visible_entries(cache.store, cache.node("a").id, passed, generation, 5, 0)
        steps += 1
    assert entries
    assert steps > (FILES + 1 - generation.files) // 5 > 4, "no step looks at more than five files, listed or not"
    assert await cache.reserve_by_rotation(BLOCK, BitMap64(range(generation.last_seq + 1))) is None
    assert await cache.reserve_by_rotation(BLOCK)
    assert await cache.reserve_by_eviction(40 * BLOCK)
    resident = sorted(cache.resident())
    cache.find(names[0])
    cache.node(resident[-1])
    assert cache.store.open(cache.node(resident[-1]).id)
    assert cache.catalog.undrawn(10)
    assert cache.catalog.pass_number == 1
    cache.database._reader.set_trace_callback(None)
    tested = {query for query in queries if "n.is_dir = 0" not in query}  # without those of this test itself
    assert len(tested) > 5
    assert not scans(cache, tested)


async def test_totals_are_the_same_after_a_clean_stop_and_after_a_crash(tmp_path: Path) -> None:
    cache = open_local_cache(tmp_path)
    names = await full_cache(cache)
    await cache.store.evict([cache.node(name).id for name in ("a/50.bin", "a/59.bin")])
    await cache.renew("a/58.bin", b"shorter")
    more = [file(f"c/{number}", None if number % 2 else 7) for number in range(9)]
    await cache.list([file(name, BLOCK) for name in names if not name.endswith("2.bin")] + more)
    expected = totals(cache)
    cache.close()
    for clean in (True, False):
        with closing(sqlite3.connect(tmp_path / DATABASE)) as rows, rows:
            if not clean:
                rows.execute("UPDATE meta SET value = '[1, 1, 1]' WHERE key IN ('catalog', 'resident')")
            rows.execute("UPDATE meta SET value = ? WHERE key = 'clean'", (clean,))
        cache = open_local_cache(tmp_path)
        assert totals(cache) == expected, clean
        cache.close()


def totals(cache: LocalCache) -> tuple[int, ...]:
    catalog, store = cache.catalog, cache.store
    resident = store.resident_files, store.resident_bytes, store.resident_content_bytes
    return catalog.files, catalog.bytes, catalog.directories, *resident


async def test_the_rate_of_what_arrives_is_counted_in_few_steps(autojump_clock: MockClock) -> None:
    traffic = Traffic()
    for number in range(3000):
        traffic.add_bytes(100)
        await trio.sleep(0.01)
        if number == 200:
            assert traffic.bytes_per_s() == pytest.approx(10_000, rel=0.1), "although it has just begun"
    assert len(traffic.recent) < 100, "although nobody asks for the rate"
    assert traffic.bytes == 300_000
    assert traffic.bytes_per_s() == pytest.approx(10_000, rel=0.05)


async def test_the_readers_of_a_thousand_threads_are_known_until_a_second_has_passed(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, searched = 0.0, list[int]()

    def find(tid: int) -> int:
        searched.append(tid)
        return os.getpid()

    monkeypatch.setattr(readers_module, "thread_group", find)
    monkeypatch.setattr(readers_module, "time", SimpleNamespace(monotonic=lambda: now))
    readers = Readers(cache.generations, 3600.0, frozenset)
    async with running(readers.run):
        await wait_all_tasks_blocked()
        for tid in [*range(1000), *range(1000)]:
            readers.opener(tid)
        assert searched == [*range(1000)]
        now += 1.0
        readers.opener(1)
        assert searched[-1] == 1
        assert len(readers._threads) == 1


def test_a_reader_of_many_directories_takes_few_bytes_for_each() -> None:
    directories, generation = range(2000, 22_000), Generation(1, 10)
    with traced_memory() as memory:
        reader = Reader(4711, "99", "python")
        for directory in directories:
            reader.lists(directory, generation, 1.0)
            reader.job.is_shown(directory, generation, 5)
        assert memory()[0] < 5 * len(directories)
    assert reader.job.files_shown == 5 * len(directories)


async def test_fetching_many_files_takes_few_tasks(cache: LocalCache, monkeypatch: pytest.MonkeyPatch) -> None:
    await cache.list([file(f"a/{number}") for number in range(1000)])
    begun, may_end = list[str](), trio.Event()
    fetched, node_of = set[int](), cache.catalog.node
    monkeypatch.setattr(cache.catalog, "node", lambda id: None if id in fetched else node_of(id))

    async def fetch(node: Node, path: str, patience_s: float) -> None:
        begun.append(path)
        await may_end.wait()
        if path.endswith("7"):
            raise RemoteError("refused")
        fetched.add(node.id)

    result: dict[str, Any] = {}

    async def collect() -> None:
        async for progress in file_commands(cache, fetch).fetch(["**"]):
            result.update(progress)

    before = trio.lowlevel.current_statistics().tasks_living
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect)
        while len(begun) < FETCHES_MAX:  # noqa: ASYNC110 - the files are read on a thread
            await trio.sleep(0.01)
        await wait_all_tasks_blocked()
        assert len(begun) == FETCHES_MAX
        assert trio.lowlevel.current_statistics().tasks_living <= before + FETCHES_MAX + 5
        may_end.set()
    assert len(begun) == 1000
    assert result == {"files": 1000, "wanted": 1000, "fetched": 900, "failed": 100, "error": "refused"}


async def no_fetch(node: Node, path: str, patience_s: float) -> None:
    raise AssertionError(path)


async def test_a_file_whose_row_cannot_be_read_is_not_fetched(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(id: int) -> Node:
        raise Unreadable("the disk fails")

    await cache.list([file("a/1"), file("a/2")])
    monkeypatch.setattr(cache.catalog, "node", fail)
    *_, result = [dict(progress) async for progress in file_commands(cache, no_fetch).fetch(["**"])]
    assert result == {"files": 2, "wanted": 2, "fetched": 0, "failed": 2, "error": "the disk fails"}


async def test_a_command_on_many_files_writes_few_at_a_time(cache: LocalCache, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"a/{number}" for number in range(100)]
    await cache.list([file(name) for name in names])
    await cache.admit(*names)
    rows, changed = list[int](), cache.database._writer.total_changes
    write = cache.database.write_now

    def count_rows(function: Callable[[sqlite3.Connection], Any]) -> Any:
        nonlocal changed
        result = write(function)
        rows.append(cache.database._writer.total_changes - changed)
        changed = cache.database._writer.total_changes
        return result

    monkeypatch.setattr(cache.database, "write_now", count_rows)
    monkeypatch.setattr(growfs.daemon.commands, "BATCH_FILES", 10)
    monkeypatch.setattr(growfs.cache.store, "EVICTED_FILES_MAX", 10)
    files = file_commands(cache, no_fetch)
    assert [result async for result in files.pin(["a/1?"])][-1]["files"] == 10
    assert [result async for result in files.pin(["**"])][-1]["files"] == 100
    assert [result async for result in files.unpin(["**"])] == [{"files": 100}]
    evicted = [result async for result in files.evict(["**"])]
    assert evicted == [{"files": 99, "bytes": 99 * BLOCK, "kept": 1}]
    assert len(cache.resident()) == 1
    assert max(rows) <= 2 * 10, "for each file its row, and the generations that showed it"


async def test_a_thread_finds_which_of_many_files_may_be_evicted(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of them are their directories' last ones takes seconds for a million; requests are answered meanwhile."""
    await full_cache(cache)
    threads = list[int]()

    def note_thread(function: Callable[..., list[int]], *arguments: Any) -> list[int]:
        threads.append(threading.get_ident())
        return function(*arguments)

    for name in ("of_these", "pick_victims"):
        monkeypatch.setattr(space, name, partial(note_thread, vars(space)[name]))
    assert await cache.reserve_by_eviction(40 * BLOCK)
    assert await cache.reserve_by_eviction(100 * BLOCK) is None
    picked = len(threads)
    assert [result async for result in file_commands(cache, no_fetch).evict(["**"])][-1]["files"] > 0
    assert len(threads) > picked > 0
    assert threading.get_ident() not in threads


async def test_saving_opens_writes_few_pages(cache: LocalCache) -> None:
    files, opened = 20_000, 4000

    def fill(writer: sqlite3.Connection) -> None:
        writer.executemany(
            "INSERT INTO node (id, parent, name, is_dir, size, version) VALUES (?, 1, ?, 0, 1, ?)",
            ((id, f"image_{id}.jpg", "v" * 40) for id in range(2000, 2000 + files)),
        )
        writer.executemany(
            "INSERT INTO resident (id, parent, suffix, seq, queue_position, opened, bytes, ino, file_mtime_ns, digest)"
            " VALUES (?, 1, 'jpg', ?, ?, 1, 1, 1, 1, ?)",
            ((id, id, id, "d" * 30) for id in range(2000, 2000 + files)),
        )
        writer.execute("INSERT INTO usage (id, fetches) SELECT id, 1 FROM resident")

    cache.database.write_now(fill)
    usage = UsageCounters(cache.database, Budget(cache.database, 0))
    cache.database._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for id in random.Random(1).sample(range(2000, 2000 + files), opened):
        usage.assume_open(id)
    await usage.save()
    assert (cache.folder / "catalog.sqlite-wal").stat().st_size < 100 * opened
    assert cache.database.row("SELECT sum(opens) FROM usage") == (opened,)


async def test_generations_of_which_no_file_is_left_are_forgotten(cache: LocalCache) -> None:
    await cache.list([file(f"a/{number}.bin") for number in range(30)])
    await cache.admit("a/0.bin")
    for number in range(1, 30):
        await cache.admit(f"a/{number}.bin")
        assert await cache.begin()
        if number > 1:
            await cache.store.evict([cache.node(f"a/{number - 1}.bin").id])
    assert len(cache.database.rows("SELECT number FROM generation")) <= 3, "the first file is still cached"
    plan = cache.database.rows(f"EXPLAIN QUERY PLAN SELECT {FIRST_SHOWN} FROM resident r WHERE r.id = 1")
    assert any("generation_by_seq" in step for *_, step in plan)


@pytest.fixture
def prefetch(cache: LocalCache) -> PrefetchState:
    return PrefetchState(StartCondition(), lambda: False, lambda: False, Outage(answers))


def new_drawer(cache: LocalCache, state: PrefetchState) -> Drawer:
    fetcher: Any = None
    return Drawer(cache.catalog, cache.store, fetcher, cache.space, cache.sizes, state, Outage(answers))


def new_prefetcher(cache: LocalCache, state: PrefetchState) -> Prefetcher:
    async def remaining(size_max: int) -> Order:
        connection = read_only(cache.database.path)
        order = draw_order(order_file.candidates(connection, Pass(1, 1)), Pass(1, 1))
        connection.close()
        return order

    order: Any = SimpleNamespace(remaining=remaining, first=Pass(1, 1))
    drawer, fetcher = new_drawer(cache, state), None  # type: Drawer, Any
    sync: Any = SimpleNamespace(file_changed=Signal[[]](), is_endless=False)
    return Prefetcher(cache.catalog, cache.store, sync, order, fetcher, drawer, cache.space, state)


def failed_download(id: int, error: GrowfsError, group: DownloadGroup | None = None) -> Download:
    node = Node(id, ROOT, "x", False, 1, None, "", 0, 0, None)
    return Download(node, "x", "x", group or DownloadGroup(is_drawn=True), Priority.DRAW, error=error)


async def test_a_pass_begins_without_a_look_at_each_directory(cache: LocalCache, prefetch: PrefetchState) -> None:
    directories = 100
    await cache.list([file(f"{number}/{name}", 7) for number in range(directories) for name in "abc"])
    queries = list[str]()
    cache.database._reader.set_trace_callback(queries.append)
    order = await new_prefetcher(cache, prefetch)._begin_order()
    assert await cache.catalog.has_unseeded()
    assert await cache.catalog.folders_with_files() == directories
    cache.database._reader.set_trace_callback(None)
    assert len(queries) < 10
    assert (len(order.seeds), order.seed_bytes) == (directories, 7 * directories)
    assert not prefetch.seeds.seeds_complete
    prefetch.seeds.finish(*order.seeds)
    assert prefetch.seeds.seeds_complete


async def test_requests_are_answered_between_draws_that_wait_for_nothing(
    cache: LocalCache, prefetch: PrefetchState
) -> None:
    drawer, ids, steps = new_drawer(cache, prefetch), range(2, 1002), itertools.count()
    for id in ids:  # there is nothing to draw
        drawer.handle_finished(failed_download(id, NotMade("x")))

    async def answer() -> None:
        while True:
            next(steps)
            await trio.lowlevel.checkpoint()

    async with running(answer):
        assert await drawer.draw_all([id] for id in ids)
    assert next(steps) >= 10


async def test_failed_files_take_little_memory(cache: LocalCache, prefetch: PrefetchState) -> None:
    drawer = new_drawer(cache, prefetch)
    nodes = [Node(id, ROOT, "x", False, 1, None, "", 0, 0, None) for id in range(2, 5_002)]
    ended = [failed_download(2, error) for error in (RemoteError("x"), NotMade("x"))]
    with traced_memory() as memory:
        for node in nodes:
            for download in ended:
                download.node = node
                drawer.handle_finished(download)
        assert memory()[0] < 20 * len(nodes)
    assert drawer.skipped() == [SkippedStatus("the producer failed on it", len(nodes), "")]
    assert list(groups_of(drawer._take_failed())) == [[node.id] for node in nodes]
    assert not drawer.has_failed
    group = DownloadGroup(is_drawn=True, ids=(1, 2))
    for id in (2, 1):
        drawer.handle_finished(failed_download(id, RemoteError("x"), group))
    assert list(groups_of(drawer._take_failed())) == [[1, 2]], "it is drawn again as a whole"


async def test_failed_files_are_tried_again_ever_more_rarely_and_at_least_daily(
    cache: LocalCache, prefetch: PrefetchState, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefetcher = new_prefetcher(cache, prefetch)
    monkeypatch.setattr(prefetcher, "_may_continue", lambda: False)
    tried: list[float] = []

    class FailingDrawer:
        has_failed, excluded = True, 3

        async def wait_until_finished(self) -> bool:
            return True

        async def draw_failed_again(self) -> bool:
            tried.append(trio.current_time())
            self.excluded -= len(tried) == 5  # one of them succeeds
            return True

    monkeypatch.setattr(prefetcher, "_drawer", FailingDrawer())
    began = trio.current_time()
    with trio.move_on_after(10 * 86_400):
        await prefetcher._retry_failed()
    pauses = [round(until - since) for since, until in itertools.pairwise([began, *tried])]
    assert pauses[:7] == [30, 60, 120, 240, 480, 30, 60]
    assert pauses[-1] == 86_400


async def test_evicted_files_do_not_wait_until_failed_ones_are_tried_again(
    cache: LocalCache, prefetch: PrefetchState, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefetcher = new_prefetcher(cache, prefetch)
    drawer = new_drawer(cache, prefetch)
    monkeypatch.setattr(prefetcher, "_may_continue", lambda: False)
    monkeypatch.setattr(prefetcher, "_drawer", drawer)
    monkeypatch.setattr(drawer, "_fetcher", SimpleNamespace(downloads=cache.in_flight()))
    drawer.handle_finished(failed_download(2, RemoteError("x")))
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prefetcher._retry_failed)
        await wait_all_tasks_blocked()
        prefetch.draw_evicted()
    assert trio.current_time() == began
    assert drawer.has_failed, "the next order has them"


async def test_files_that_change_one_by_one_have_the_order_computed_again_now_and_then(
    cache: LocalCache, prefetch: PrefetchState, autojump_clock: MockClock
) -> None:
    """It takes minutes of CPU for ten million files."""
    prefetcher = new_prefetcher(cache, prefetch)
    prefetcher._order_took_s = 40.0
    stale = 0
    async with running(prefetcher._watch_files):
        for _ in range(1000):
            await trio.sleep(1.0)
            prefetcher._catalog_sync.file_changed.notify()
            stale += prefetch.is_stale
            prefetch.begin_order()
        await trio.sleep(1000.0)
        assert prefetch.is_stale, "the last changes are not forgotten"
    assert stale == 2, "at most a tenth of the time"


def test_a_draw_order_takes_few_bytes_for_each_file() -> None:
    files = 6_000
    rest = list(range(1, files + 1))
    random.Random(1).shuffle(rest)

    def candidates() -> Iterator[Candidate]:
        for id in rest:
            yield Candidate(id, id % 100, f"d{id % 100}/f{id}", 1, True, False)

    with traced_memory() as memory:
        assert len(draw_order(candidates(), Pass(1, 2)).rest) == files
        assert memory()[1] < 60 * files, "a list of (key, id) takes at least 150"


async def test_a_worker_sends_heartbeats_while_a_listing_computes(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may read a million names before it returns the first page."""
    monkeypatch.setattr(messages, "HEARTBEAT_S", 0.05)
    sent: list[object] = []

    class Computing(FakeRemote):
        def pages(self, cursor: Any = None) -> Iterator[Page]:
            while StillWorking() not in sent:
                sum(range(10_000))
            yield from super().pages(cursor)

    beats = worker.ListingHeartbeat(sent.append)
    request = ListRemote(cache.database.path, 1)
    assert worker._list(Computing(), RemoteSpec("fake://"), request, sent.append, beats) == 0
    assert StillWorking() in sent


async def test_a_worker_sends_heartbeats_while_it_computes_a_draw_order(
    cache: LocalCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cache.list([file(f"a/{number}") for number in range(FILES)])
    monkeypatch.setattr(order_file, "BEAT_FILES", 10)
    beats: list[bool] = []
    order = make_order(cache.database.path, Pass(0, 1), tmp_path / "order", lambda: beats.append(True))
    assert order.share.files == FILES
    assert len(beats) == FILES // 10


async def test_other_frozen_files_are_marked_a_page_at_a_time(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = 20_000
    monkeypatch.setattr(catalog, "PAGE_FILES", 1000)
    await cache.list([file(f"{number % 100}/{number}.jpg") for number in range(files)], page=files)
    with traced_memory() as memory:
        Catalog(cache.database, ("0*",))
        assert memory()[1] < 100 * files
    ((frozen,),) = cache.database.rows("SELECT count(*) FROM node WHERE pinned > 0")
    assert frozen == files // 100


async def test_one_commit_makes_room_for_all_misses_that_wait(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With links, each one takes 20 ms. Nothing is drawn into that room."""
    await full_cache(cache)
    batches: list[int] = []
    evict = cache.store.evict

    async def note(ids: list[int], return_to_pass: bool = False) -> int:
        batches.append(len(ids))
        assert not cache.space._may_draw
        return await evict(ids, return_to_pass)

    monkeypatch.setattr(cache.store, "evict", note)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(cache.reserve_by_eviction, 2 * BLOCK)
    assert batches == [20]
    assert sum(reserved.bytes for reserved in cache.reserved) == 20 * BLOCK
    assert cache.space._may_draw
