"""Files whose size is known only when they are fetched: what a wrong estimate costs."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from growfs.cache.room import Reservation
from growfs.remote.interface import Fetched
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.in_flight import Claim, Priority
from growfs.workers.messages import FetchFailed, FetchProgress, SizeExceeded
from tests.unit.local_cache import LocalCache, file, open_local_cache
from tests.unit.test_rotation_troubles import RefusingPool, fetcher_of

BLOCK = 4096
SIZE = 3 * BLOCK


class MeasuringPool(RefusingPool):
    """A worker pool that is also its only worker. Each of its files has SIZE bytes."""

    async def receive(self) -> FetchProgress:
        request = await self._received.receive()
        if request.size_max < SIZE:
            error = SizeExceeded(f"{request.file.path}: larger than {request.size_max} bytes")
            return FetchProgress(0, 0, [(request.id, FetchFailed(error))], 0)
        Path(request.target).write_bytes(b"x" * SIZE)
        return FetchProgress(SIZE, 0, [(request.id, Fetched(SIZE, request.file.mtime_ns, "0"))], 0)


async def draw_large(cache: LocalCache, fetcher: Fetcher, reserved: Reservation) -> None:
    """Draw the file d/large, and return when it has arrived or failed."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run)
        fetcher.draw([cache.node("d/large")], (), Priority.DRAW, reserved)
        while fetcher.downloads:
            await fetcher.progressed.wait()
        nursery.cancel_scope.cancel()


async def test_a_drawn_file_that_is_larger_than_expected_waits_for_the_room_that_others_give_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_local_cache(tmp_path, 10 * BLOCK)
    await cache.list([file("d/large", None)])
    fetcher = fetcher_of(cache, workers=MeasuringPool())
    own, of_others = cache.store.room.reserve(BLOCK), cache.store.room.reserve(9 * BLOCK)
    assert own
    assert of_others
    waits, add = trio.Event(), cache.waiting.add

    def note_waiting(claim: Claim) -> None:
        add(claim)
        waits.set()

    monkeypatch.setattr(cache.waiting, "add", note_waiting)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run)
        fetcher.draw([cache.node("d/large")], (), Priority.DRAW, own)
        with trio.fail_after(20):
            await waits.wait()
            of_others.release()
            while fetcher.downloads:
                await fetcher.progressed.wait()
        nursery.cancel_scope.cancel()
    assert (cache.resident(), fetcher.failures.count) == ({"d/large"}, 0)
    cache.close()


async def test_a_drawn_file_that_no_room_is_given_back_for_fails_and_says_what_is_free(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A larger cache is not needed for it: there is room once readers let go of other files."""
    cache = open_local_cache(tmp_path, 10 * BLOCK)
    await cache.list([file("d/large", None)])
    fetcher = fetcher_of(cache, workers=MeasuringPool())
    own, of_others = cache.store.room.reserve(BLOCK), cache.store.room.reserve(8 * BLOCK)
    assert own
    assert of_others
    await draw_large(cache, fetcher, own)
    failure = fetcher.failures.last
    assert failure
    assert f"besides the {2 * BLOCK} that are free; the rest is held by readers" in str(failure.error)
    of_others.release()
    cache.close()


@pytest.mark.promise(18, 22)
async def test_a_drawn_file_that_is_larger_than_expected_evicts_nothing_that_may_stay(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Otherwise a full cache of files without sizes would be fetched again and again, though nobody reads."""
    cache = open_local_cache(tmp_path, 10 * BLOCK)
    paths = {f"d/{number}" for number in range(9)}
    await cache.list([file("d/large", None), *(file(path, BLOCK) for path in paths)])
    await cache.admit(*paths, content=b"x" * BLOCK)
    fetcher = fetcher_of(cache, workers=MeasuringPool())
    own = cache.store.room.reserve(BLOCK)
    assert own
    await draw_large(cache, fetcher, own)
    assert (cache.resident(), fetcher.failures.count) == (paths, 1)
    cache.close()
