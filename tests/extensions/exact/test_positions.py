"""The passes of --exact: how one is divided again until it begins, and which parts are to be cached."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from growfs.bitmaps import BitMap64
from growfs.errors import GrowfsError
from growfs.extensions.exact import parts as parts_module
from growfs.extensions.exact.division import read_division
from growfs.extensions.exact.parts import Parts
from growfs.extensions.exact.passes import Passes
from growfs.remote.interface import NO_OTHER
from growfs.rotation.parts import Part, PassPosition
from growfs.rotation.pass_order import Pass
from growfs.rotation.rules import Contents, Generation
from growfs.scheduler import rotating
from growfs.scheduler.in_flight import Download, DownloadGroup, DownloadState, Priority
from growfs.units import CacheSize
from growfs.workers.messages import Compute
from growfs.workers.pool import WorkerLost
from tests.unit.local_cache import LocalCache, file

BLOCK = 4096


@pytest.fixture
def divided_in_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long a worker takes for each division, in seconds; if that is used up, no time."""
    times: list[float] = []

    async def compute(_: object, message: Compute) -> Any:
        await trio.sleep(times.pop(0) if times else 0)
        return message.function(lambda: None)

    monkeypatch.setattr(rotating, "call_worker", compute)
    return times


@pytest.fixture
def parts(cache: LocalCache) -> Parts:
    """Parts of a cache for half of the files."""

    async def mark(*_: object) -> bool:
        return True

    cache.store.room.limit_bytes = 20 * BLOCK
    mount: Any = SimpleNamespace(
        workers=None,
        database=cache.database,
        catalog=cache.catalog,
        store=cache.store,
        other_source=NO_OTHER,
        generations=cache.generations,
        holders=SimpleNamespace(has_open_folder=lambda _: False),
        space=SimpleNamespace(mark=mark),
        fetcher=SimpleNamespace(miss_timeout_s=60.0),
    )
    first, part_size = Pass(0, 1), CacheSize(bytes=8 * BLOCK)
    return Parts(mount, Passes(mount.workers, cache.database, cache.catalog, cache.store, first, part_size, None))


FILES = [file(f"a/{number:02}.bin", BLOCK) for number in range(40)]


def begin(cache: LocalCache, parts: Parts, position: PassPosition, streamed: BitMap64 | None = None) -> Generation:
    """Begin the generation that is a part."""
    to_read = streamed or BitMap64()
    generation = Part(1, 1, files=1, contents=Contents({}, 1), position=position, to_read=to_read)
    cache.generations.current = generation
    parts.note_begun()
    return generation


def finish(cache: LocalCache, parts: Parts, id: int, renews: bool = False) -> None:
    """Have a download be admitted."""
    node = cache.catalog.node(id)
    assert node
    download = Download(node, node.name, "", DownloadGroup(), Priority.DRAW, renews, state=DownloadState.ADMITTED)
    parts.note_finished(download)


async def test_a_worker_that_dies_is_named_to_the_process_that_asks_about_a_pass(
    cache: LocalCache, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: object) -> None:
        raise WorkerLost

    await cache.list(FILES)
    monkeypatch.setattr(rotating, "call_worker", die)
    with pytest.raises(GrowfsError, match="the process that divides the pass died"):
        await parts.describe(1)


@pytest.mark.promise(47)
@pytest.mark.parametrize("begins", [True, False])
async def test_a_pass_is_divided_again_until_it_begins(
    cache: LocalCache, parts: Parts, divided_in_s: list[float], clock: MockClock, begins: bool
) -> None:
    await cache.list(FILES)
    await parts.remaining(0)
    await cache.list([*FILES, file("a/new.bin", BLOCK)])
    divided_in_s.append(10.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.remaining, 0)
        await trio.sleep(5)
        if begins:
            begin(cache, parts, PassPosition(1, 1))
    division = read_division(cache.database.rows, 1)
    assert division
    assert division.catalog.files == 40 + (not begins)


@pytest.mark.promise(47)
async def test_parts_that_are_waited_for_come_first_and_there_is_room_for_two(
    cache: LocalCache, parts: Parts, divided_in_s: list[float], clock: MockClock
) -> None:
    await cache.list(FILES)
    await parts.remaining(0)
    assert parts._window() == ((), (PassPosition(1, 1), PassPosition(1, 2)))
    generation = begin(cache, parts, PassPosition(1, 1), BitMap64([1]))
    assert parts._window() == ((PassPosition(1, 1),), (PassPosition(1, 2),))
    parts.use(generation)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.wait, PassPosition(3, 4))
        nursery.start_soon(parts.wait, PassPosition(1, 5))
        await wait_all_tasks_blocked()
        assert parts._window()[1] == (PassPosition(1, 5),), "a rank that is behind comes first"
        parts.note_opened(1)
        nursery.start_soon(parts.run)
        await trio.sleep(1)
        assert parts._window() == ((), (PassPosition(1, 5), PassPosition(3, 4)))
        nursery.cancel_scope.cancel()


@pytest.mark.promise(47)
async def test_a_pass_that_others_have_gone_past_before_it_began_follows_the_catalog(
    cache: LocalCache, parts: Parts, divided_in_s: list[float]
) -> None:
    await cache.list(FILES)
    for number in (1, 2, 3):
        await parts.describe(number)
    begin(cache, parts, PassPosition(3, 1))
    await cache.list([*FILES, file("a/new.bin", BLOCK)])
    found = [(await parts.describe(number))["catalog"]["files"] for number in (2, 3)]
    assert found == [41, 40]


@pytest.mark.promise(47)
async def test_a_file_that_arrives_while_the_missing_ones_are_looked_up_is_not_missing(
    cache: LocalCache, parts: Parts, divided_in_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.store.room.limit_bytes = len(FILES) * BLOCK
    await cache.list(FILES)
    await parts.remaining(0)
    first, *others = parts._to_come.lacking[PassPosition(1, 1)]

    async def compute(*arguments: Any) -> Any:
        due = await rotating.compute_soon(*arguments)
        finish(cache, parts, first)
        return due

    monkeypatch.setattr(parts_module, "compute_soon", compute)
    await parts.remaining(0)
    for id in others:
        finish(cache, parts, id)
    assert parts.is_ready(PassPosition(1, 1))
    assert first not in parts._to_come._wanted
    assert parts.missing.files == len(parts._to_come._wanted)


async def test_a_file_that_is_opened_by_name_does_not_decide_anew_at_once_what_is_drawn(
    cache: LocalCache, parts: Parts, divided_in_s: list[float]
) -> None:
    """That takes long with many files, and nothing is drawn meanwhile."""
    await cache.list(FILES)
    await parts.remaining(0)
    files = cache.database.rows("SELECT id FROM node WHERE is_dir = 0")
    stray, renewed, *_ = (id for (id,) in files if id not in parts._to_come._wanted)
    wanted, changes = parts._to_come._wanted.min(), parts.changed.count
    finish(cache, parts, stray)
    assert parts.changed.count == changes
    assert parts.strayed.count == 1
    finish(cache, parts, wanted)
    finish(cache, parts, renewed, renews=True)
    assert (parts.changed.count, parts.strayed.count) == (changes, 1)


async def test_a_question_about_a_pass_before_the_first_listing_is_answered_if_it_cannot_be_divided(
    cache: LocalCache, parts: Parts, divided_in_s: list[float]
) -> None:
    cache.store.room.limit_bytes = 15 * BLOCK

    async def ask() -> None:
        with pytest.raises(GrowfsError, match="raise --cache-size"):
            await parts.describe(1)
        nursery.cancel_scope.cancel()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            await cache.list([file(f"a/{number}.bin", 10 * BLOCK) for number in range(4)])
            nursery.start_soon(parts.remaining, 0)


async def test_a_pass_whose_division_is_being_deleted_is_divided_again(
    cache: LocalCache, parts: Parts, divided_in_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cache.list(FILES)
    await parts.describe(2)
    deleted, goes_on = trio.Event(), trio.Event()
    write, asked = cache.database.write_with_retry, PassPosition(2, 1)

    async def write_slowly(function: Any) -> None:
        await write(function)
        deleted.set()
        await goes_on.wait()

    monkeypatch.setattr(cache.database, "write_with_retry", write_slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.describe, 5)
        await deleted.wait()
        nursery.start_soon(parts.wait, asked)
        nursery.start_soon(parts.remaining, 0)
        await wait_all_tasks_blocked()
        goes_on.set()
        with trio.fail_after(10):
            while asked not in parts._to_come.lacking:
                await parts._to_come.changed.wait()
        nursery.cancel_scope.cancel()
