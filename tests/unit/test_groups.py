"""The group of a single file, which agrees with the groups in the draw order of a pass."""

from __future__ import annotations

import pytest

from growfs.bitmaps import BitMap64
from growfs.remote.groups import group_of
from growfs.rotation.pass_order import Amount
from growfs.rotation.queries import Listed, kept_bytes, may_go
from tests.unit.local_cache import LocalCache, file

BLOCK = 4096
PATHS = ["a/x.jpg", "a/x.json", "a/x", "a/xy.jpg", "a/x.tar.gz", "b/x.jpg", "b/y.txt", "x.jpg", ".x", ".x.jpg", "a/x."]
PATHS += ["a/c/x.jpg", "a/c/y", "a/c/d/x", "a/b/x.jpg", "b/c/d/e", "b/c/d/f"]
GROUPS = ["{stem}", "{name}", "{parent}", "{name}-{parent}", "{top}", "{dir:2}", "{dir:3}{dir:1}", "{top}{name}"]
GROUPS += ["{parent}{top}", "([^/]+)$", "carvana", "^(a/.|b)", "(c/).", "x(.?)", "(d)|(y)|x"]


async def members(cache: LocalCache, group: str | None, path: str) -> set[str]:
    downloads = cache.in_flight(group)
    return {cache.catalog.path(node) for node in await downloads.members(cache.node(path), 1 << 40)}


async def test_a_miss_asks_nothing_of_a_million_directories_on_the_answering_thread(cache: LocalCache) -> None:
    await cache.list([file(f"{folder}/x.{suffix}") for folder in range(300) for suffix in ("jpg", "txt")])
    queries: list[str] = []
    node = cache.node("7/x.jpg")
    cache.database._reader.set_trace_callback(queries.append)
    found = await cache.in_flight("{name}").members(node, 1 << 40)
    cache.database._reader.set_trace_callback(None)
    assert (len(found), queries) == (600, [])


@pytest.mark.promise(24)
@pytest.mark.parametrize("group", [None, *GROUPS])
async def test_the_group_of_an_open_is_that_of_the_pass(cache: LocalCache, group: str | None) -> None:
    await cache.list([file(path) for path in PATHS])
    for path in PATHS:
        same = {other for other in PATHS if group_of(group, other) == group_of(group, path)}
        assert await members(cache, group, path) == same


async def admit(cache: LocalCache, *paths: str, group: tuple[str, ...] = ()) -> None:
    """Admit files that belong to a group; by default they are all of it."""
    ids = tuple(cache.node(path).id for path in group or paths)
    assert (await cache.store.admit([cache.stage(path, b"x" * 100)._replace(group=ids) for path in paths])).admitted


async def pairs(cache: LocalCache, count: int) -> list[tuple[str, str]]:
    """List one more pair of files in a directory, and admit `count`; returns these."""
    listed = [(f"a/{number}.jpg", f"a/{number}.json") for number in range(count + 1)]
    await cache.list([file(path) for pair in listed for path in pair])
    for pair in listed[:count]:
        await admit(cache, *pair)
    return listed[:count]


async def test_a_group_of_many_files_is_joined_once(cache: LocalCache) -> None:
    paths = [f"a/{number}" for number in range(200)]
    await cache.list([file(path) for path in paths])
    statements: list[str] = []
    cache.database._writer.set_trace_callback(statements.append)
    await admit(cache, *paths)
    cache.database._writer.set_trace_callback(None)
    assert len(statements) < 5 * len(paths)


@pytest.mark.promise(17, 24)
async def test_a_group_that_is_fetched_again_in_part_stays_held_and_is_listed_as_a_whole(cache: LocalCache) -> None:
    names = await pairs(cache, 8)
    first = await cache.begin()
    assert first
    hold = first.listed
    cache.generations.turnover = 0.5
    cache.share = Amount(1000, 1 << 40)
    await cache.shrink(18 * 4096)
    everything = frozenset(cache.node(path).id for pair in names for path in pair)
    await cache.begin(opened=everything)
    shown = cache.listed()
    jpg, json = next(pair for pair in names if pair[0] not in shown)
    await cache.store.evict([cache.node(json).id])
    await admit(cache, json, group=(jpg, json))
    assert cache.listed() == shown
    await admit(cache, "a/8.jpg", "a/8.json")
    for turnover in (0.2, 0.5, 0.9, 0.9):
        cache.generations.turnover = turnover
        await cache.begin(opened=everything)
        listed = cache.listed()
        assert all((one in listed) == (other in listed) for one, other in names)
        assert await cache.reserve_by_rotation(1, hold) is None
        assert cache.resident() >= {name for pair in names for name in pair}


@pytest.mark.promise(24)
async def test_a_group_that_is_larger_than_what_is_read_is_evicted_as_a_whole(cache: LocalCache) -> None:
    paths = [f"a/{number}" for number in range(20)]
    await cache.list([file(path) for path in [*paths, "a/other"]])
    await admit(cache, *paths)
    await cache.admit("a/other")
    await cache.begin()
    delist, kept = "UPDATE resident SET delisted = 2 WHERE suffix IS NOT NULL AND id != ?", cache.node("a/other").id
    await cache.database.write(lambda writer: writer.execute(delist, (kept,)))
    for most in (1, 7, 20, 100):
        chosen = may_go(cache.database.rows, BitMap64(), Listed(cache.store.last_seq, True), (), most, True, False)
        assert {victim.id for victim in chosen} == {cache.node(path).id for path in paths}


@pytest.mark.promise(19, 24)
async def test_a_miss_evicts_no_group_with_an_open_file(cache: LocalCache) -> None:
    names = await pairs(cache, 8)
    for jpg, _ in names[1:]:
        assert cache.store.open(cache.node(jpg).id)
    await cache.shrink(16 * BLOCK)
    assert await cache.reserve_by_eviction(2 * BLOCK, BitMap64())
    assert await cache.reserve_by_eviction(2 * BLOCK, BitMap64()) is None
    assert cache.resident() == {name for pair in names[1:] for name in pair}


@pytest.mark.promise(19, 24)
async def test_a_miss_evicts_a_group_of_which_a_file_is_held_as_a_whole(cache: LocalCache) -> None:
    """A process holds what it saw of one of the two folders."""
    names = [(f"a/{number}", f"b/{number}") for number in range(4)]
    await cache.list([file(path) for pair in names for path in pair])
    for pair in names:
        await admit(cache, *pair)
    generation = await cache.begin()
    assert generation
    delist = "UPDATE resident SET delisted = 2 WHERE suffix IS NOT NULL AND queue_position > 3"
    await cache.database.write(lambda writer: writer.execute(delist))
    await cache.shrink(8 * BLOCK)
    of_a = "SELECT seq FROM resident WHERE parent = ?"
    held = BitMap64(seq for (seq,) in cache.database.rows(of_a, cache.node("a").id))
    assert await cache.reserve_by_eviction(BLOCK, held)
    left = cache.resident()
    assert len(left) == 6
    assert all((one in left) == (other in left) for one, other in names)


@pytest.mark.promise(24)
async def test_evicting_one_file_evicts_its_group(cache: LocalCache) -> None:
    names = await pairs(cache, 3)
    await cache.space.evict([cache.node(names[0][0]).id])
    assert cache.resident() == {name for pair in names[1:] for name in pair}


@pytest.mark.promise(7, 24)
async def test_a_group_counts_once_although_it_has_files_of_two_kinds(cache: LocalCache) -> None:
    groups = [("a/0.jpg", "a/0.json"), ("a/1.jpg", "a/1.json", "a/1.txt"), ("a/2.jpg", "a/2.json")]
    await cache.list([file(path) for group in groups for path in group])
    for group in groups:
        await admit(cache, *group)
    assert kept_bytes(True, cache.database.rows) == 5 * BLOCK, "a pair, and the group of three"
