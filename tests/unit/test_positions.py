"""The position of --exact: processes that go on from a saved one, and a pass that is divided again."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from growfs.errors import GrowfsError
from growfs.rotation.division import read_division
from growfs.rotation.parts import SavedPosition
from growfs.rotation.pass_order import Pass
from growfs.scheduler import exact
from growfs.scheduler.exact import Parts
from growfs.units import CacheSize
from growfs.workers.messages import Compute
from growfs.workers.pool import WorkerLost
from tests.unit.local_cache import LocalCache, file

BLOCK = 4096
SIZES = 20 * BLOCK, 8 * BLOCK


@pytest.fixture
def divided_in_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long a worker takes for each division, in seconds; if that is used up, no time."""
    times: list[float] = []

    async def compute(_: object, message: Compute) -> Any:
        await trio.sleep(times.pop(0) if times else 0)
        return message.function(lambda: None)

    monkeypatch.setattr(exact, "call_worker", compute)
    return times


@pytest.fixture
def parts(cache: LocalCache) -> Parts:
    """Parts of a cache for half of the files."""

    async def mark(*_: object) -> bool:
        return True

    cache.store.limit_bytes = SIZES[0]
    no_workers: Any = None
    part_size = CacheSize(bytes=SIZES[1])
    return Parts(
        no_workers, cache.database, cache.catalog, cache.store, Pass(0, 1), part_size, None, mark, None, lambda: None
    )


FILES = [file(f"a/{number:02}.bin", BLOCK) for number in range(40)]
SAVED = SavedPosition(0, 3, 2, *SIZES, None, None, None)


async def test_a_rank_that_resumes_after_another_has_listed_does_not_go_back(
    cache: LocalCache, parts: Parts, divided_in_s: list[float], clock: MockClock
) -> None:
    await cache.list(FILES)
    divided_in_s.extend((1.0, 10.0))
    went, has_gone = [], trio.Event()

    async def resume() -> None:
        went.append(await parts.go_to(SAVED, False))
        has_gone.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(resume)
        nursery.start_soon(resume)
        await has_gone.wait()
        parts.note_begun()
    assert went == [True, False]
    assert (parts.status().part, parts.status().next_part) == (2, 3)


async def test_a_worker_that_dies_is_named_to_the_process_that_resumes(
    cache: LocalCache, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: object) -> None:
        raise WorkerLost

    await cache.list(FILES)
    monkeypatch.setattr(exact, "call_worker", die)
    with pytest.raises(GrowfsError, match="the process that divides the pass died"):
        await parts.go_to(SAVED, False)


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
            parts.note_begun()
    division = read_division(cache.database.rows, 1)
    assert division
    assert division.catalog.files == 40 + (not begins)
