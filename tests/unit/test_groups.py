"""The group of a single file, which agrees with the groups in the draw order of a pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from growfs.cache.schema import PINNED
from growfs.rotation.holds import DirectoryHolds, Hold, Holds
from growfs.rotation.pass_order import group_of
from growfs.rotation.queries import Listed, for_a_draw
from tests.unit.local_cache import LocalCache, file

PATHS = ["a/x.jpg", "a/x.json", "a/x", "a/xy.jpg", "a/x.tar.gz", "b/x.jpg", "b/y.txt", "x.jpg", ".x", ".x.jpg", "a/x."]


async def members(cache: LocalCache, template: str | None, path: str) -> set[str]:
    downloads = cache.in_flight(template)
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
@pytest.mark.parametrize("template", [None, "{stem}", "{name}", "{parent}", "{name}-{parent}"])
async def test_the_group_of_an_open_is_that_of_the_pass(cache: LocalCache, template: str | None) -> None:
    await cache.list([file(path) for path in PATHS])
    for path in PATHS:
        same = {other for other in PATHS if group_of(template, other) == group_of(template, path)}
        assert await members(cache, template, path) == same


async def admit(cache: LocalCache, *paths: str, group: tuple[str, ...] = ()) -> None:
    """Admit files that belong to a group; by default they are all of it."""
    ids = tuple(cache.node(path).id for path in group or paths)
    assert (await cache.store.admit([replace(cache.stage(path, b"x" * 100), group=ids) for path in paths])).admitted


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


@pytest.mark.promise(24)
async def test_a_pin_of_one_file_keeps_its_group_listed(cache: LocalCache) -> None:
    names = await pairs(cache, 8)
    pinned, partner = names[0]
    pin = PINNED, cache.node(pinned).id
    await cache.database.write(lambda writer: writer.execute("UPDATE node SET pinned = ? WHERE id = ?", pin))
    await cache.begin()
    cache.generations.turnover = 0.5
    cache.share = (1000, 1 << 40)
    await cache.shrink(16 * 4096)
    for _ in range(6):
        await cache.begin(opened=frozenset(cache.node(path).id for pair in names for path in pair))
        listed = cache.listed()
        assert len(listed) < 16
        assert {pinned, partner} <= listed
        assert all((jpg in listed) == (json in listed) for jpg, json in names)


@pytest.mark.promise(17, 24)
async def test_a_group_that_is_fetched_again_in_part_stays_held_and_is_listed_as_a_whole(cache: LocalCache) -> None:
    names = await pairs(cache, 8)
    first = await cache.begin()
    assert first
    hold = Holds([DirectoryHolds(Hold(first.number, first.last_seq))])
    cache.generations.turnover = 0.5
    cache.share = (1000, 1 << 40)
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
        chosen = for_a_draw(cache.database.rows, Holds(), Listed(cache.store.last_seq, True), (), most)
        assert {victim.id for victim in chosen} == {cache.node(path).id for path in paths}
