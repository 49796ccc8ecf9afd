"""The group of a single file, which agrees with the groups in the draw order of a pass."""

from __future__ import annotations

import pytest

from growfs.rotation.pass_order import group_of
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
