"""What must not grow with the catalog or the cache: the work of the thread that answers the kernel, and memory."""

from __future__ import annotations

import random
import sqlite3
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from growfs.cache.schema import ROOT, read_only
from growfs.disk import BLOCK
from growfs.rotation.draw_order import Candidate, Pass, draw_order
from growfs.rotation.rules import EVERYWHERE, Hold, Holds
from growfs.vfs.attributes import Entry
from growfs.vfs.directory import visible_entries
from growfs.workers import worker
from growfs.workers.messages import MakeOrder, StillWorking
from tests.unit.local_cache import LocalCache, file, open_local_cache

FILES = 60
SMALL = ("generation", "meta", "g")
"""Tables that have a row for each of something that is few."""


def scans(cache: LocalCache, queries: set[str]) -> set[str]:
    """Those of the queries that read a whole table, or sort what they read."""
    connection = read_only(cache.database.path)
    found = set()
    for query in queries:
        for _, _, _, step in connection.execute(f"EXPLAIN QUERY PLAN {query}"):
            what, _, table = step.partition(" ")
            if (what == "SCAN" and table.split()[0] not in SMALL) or "TEMP B-TREE" in step:
                found.add(f"{step}: {query}")
    connection.close()
    return found


def asked(connection: sqlite3.Connection) -> set[str]:
    """The queries of a connection from now on."""
    queries = set[str]()
    connection.set_trace_callback(lambda query: queries.add(query) if query.startswith("SELECT") else None)
    return queries


async def full(cache: LocalCache) -> list[str]:
    """A full cache of which a generation has delisted some files; returns all names."""
    names = [f"a/{number}.bin" for number in range(FILES)]
    await cache.list([file(name, BLOCK) for name in [*names, *(f"b/{number}" for number in range(FILES))]])
    await cache.admit(*names, content=b"x" * BLOCK)
    await cache.admit("b/0", content=b"x" * BLOCK)
    cache.store.limit_bytes = cache.store.used_bytes
    cache.generations.share = 0.5
    ids = frozenset(cache.node(name).id for name in names)
    for _ in range(2):
        assert await cache.begin(opened=ids)
    return names


async def test_the_thread_that_answers_scans_no_table(tmp_path: Path) -> None:
    cache = open_local_cache(tmp_path)
    names = await full(cache)
    generation = cache.generations.current
    assert generation
    assert generation.files < FILES
    queries = asked(cache.database._reader)
    held = Holds([{EVERYWHERE: Hold(generation.number - 1, generation.last_seq)}])
    assert await cache.reserve_by_rotation(BLOCK, held) is None
    assert await cache.reserve_by_rotation(BLOCK, Holds())
    assert await cache.reserve_by_eviction(40 * BLOCK, Holds())
    resident = sorted(cache.resident())
    cache.find(names[0])
    cache.node(resident[-1])
    cache.entries(cache.node("a").id, generation)
    assert cache.store.open(cache.node(resident[-1]).id)
    assert cache.catalog.undrawn(10)
    assert cache.catalog.pass_number == 1
    cache.database._reader.set_trace_callback(None)
    kept = {query for query in queries if "n.is_dir = 0" not in query}  # queries of this test
    assert len(kept) > 5
    assert not scans(cache, kept)
    cache.close()


async def test_delisted_files_are_skipped_step_by_step(tmp_path: Path) -> None:
    cache = open_local_cache(tmp_path)
    await full(cache)
    generation = cache.generations.current
    assert generation
    folder = cache.node("a").id
    left_out = FILES + 1 - generation.files
    assert left_out > 20
    passed: int | None = 0
    entries, steps = list[Entry](), 0
    while passed is not None:
        entries, passed = visible_entries(cache.store, folder, passed, generation, 5, 0)
        steps += 1
    assert steps > left_out // 5, "no step looks at more than five files"
    assert entries
    assert visible_entries(cache.store, ROOT, 0, generation, 5, 0)[1] is None
    cache.close()


async def test_totals_outlive_a_clean_stop(tmp_path: Path) -> None:
    cache = open_local_cache(tmp_path)
    names = await full(cache)
    await cache.store.evict([cache.node(name).id for name in ("a/50.bin", "a/59.bin")])
    await cache.renew("a/58.bin", b"shorter")
    more = [file(f"c/{number}", None if number % 2 else 7) for number in range(9)]
    await cache.list([file(name, BLOCK) for name in names if not name.endswith("2.bin")] + more)
    known = totals(cache)
    cache.close()
    for clean in (True, False):
        cache = open_local_cache(tmp_path)
        assert totals(cache) == known, clean
        assert cache.database.meta("catalog") is cache.database.meta("resident") is None, "or a crash would keep them"
        if clean:
            cache.close()
            connection = sqlite3.connect(cache.database.path)
            assert {key for (key,) in connection.execute("SELECT key FROM meta")} >= {"catalog", "resident"}
            connection.execute("DELETE FROM meta WHERE key IN ('catalog', 'resident')")
            connection.commit()
            connection.close()
    cache.close()


def totals(cache: LocalCache) -> tuple[int, ...]:
    catalog, store = cache.catalog, cache.store
    resident = store.resident_files, store.resident_bytes, store.resident_content_bytes
    return catalog.files, catalog.bytes, catalog.directories, *resident


def test_an_order_takes_few_bytes_for_each_file() -> None:
    files = 30_000
    rest = list(range(1, files + 1))
    random.Random(1).shuffle(rest)

    def candidates() -> Iterator[Candidate]:
        for id in rest:
            yield Candidate(id, id % 100, f"d{id % 100}/f{id}", 1, True, False)

    tracemalloc.start()
    try:
        order = draw_order(candidates(), Pass(1, 2))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(order.rest) == files
    assert peak < 60 * files  # a list of (key, id) takes 150 and more


async def test_a_worker_sends_heartbeats_while_it_computes_an_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_local_cache(tmp_path)
    await cache.list([file(f"a/{number}") for number in range(FILES)])
    monkeypatch.setattr(worker, "HEARTBEAT_FILES", 10)
    sent: list[object] = []
    made = worker._make_order(MakeOrder(cache.database.path, Pass(0, 1), tmp_path / "order"), sent.append)
    assert made.files == FILES
    assert sent == [StillWorking()] * (FILES // 10)
    cache.close()
