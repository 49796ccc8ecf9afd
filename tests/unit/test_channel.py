"""How long the daemon waits for a worker that lists or computes, and what it says of one that is silent."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from growfs.cache.listing_diff import ListingDiff
from growfs.errors import RemoteBusy
from growfs.scheduler.outage import Outage
from growfs.scheduler.refresh import CatalogSync
from growfs.workers import messages
from growfs.workers.messages import Done, ListRemote, StillWorking
from growfs.workers.pool import Channel, WorkerLost, WorkerSilent
from tests.unit.local_cache import LocalCache, answers, file

STALL_S = 0.4
REQUEST = ListRemote(Path("/no/catalog"), 1)


@pytest.fixture(autouse=True)
def short_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.workers.pool.STALL_S", STALL_S)


class ListingPool:
    """Stands in for WorkerPool: its workers are the other ends of `theirs`, one after the other."""

    url = "s3://bucket/train"

    def __init__(self, workers: int = 1) -> None:
        self._ours, self.theirs = zip(*(socket.socketpair() for _ in range(workers)), strict=True)
        self._left = deque(self._ours)

    def spawn(self) -> Channel:
        self._left.rotate(-1)
        return Channel(self._left[-1])

    def close(self) -> None:
        for end in (*self._ours, *self.theirs):
            end.close()


@pytest.fixture
def pool() -> Iterator[ListingPool]:
    """A pool of one worker."""
    with closing(ListingPool()) as pool:
        yield pool


async def test_a_worker_that_computes_is_waited_for(pool: ListingPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.workers.pool.STALL_S", 1.5)
    received: list[object] = []

    async def note(message: object) -> None:
        received.append(message)

    async def compute() -> None:
        for message in (StillWorking(), StillWorking(), StillWorking(), "a page", Done(7)):
            await trio.sleep(0.4)  # more than STALL_S in all
            messages.send(pool.theirs[0], message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(compute)
        assert await pool.spawn().call(REQUEST, note) == 7
    assert received == ["a page"]


async def test_a_worker_that_died_and_one_that_is_silent_are_told_apart(pool: ListingPool) -> None:
    with pytest.raises(WorkerSilent):
        await pool.spawn().call(REQUEST)
    pool.theirs[0].close()
    with pytest.raises(WorkerLost) as caught:
        await pool.spawn().call(REQUEST)
    assert not isinstance(caught.value, WorkerSilent)


async def test_files_that_a_listing_found_before_it_failed_are_announced_by_the_next_one(cache: LocalCache) -> None:
    """That one finds nothing new. Else nobody would draw them."""
    await cache.list([file("d/0", 1)])
    pool = ListingPool(workers=2)
    sync = CatalogSync(pool, cache.catalog, cache.store, Outage(answers), every_s=0.2)  # type: ignore[arg-type]
    sync.complete = True
    changes: list[None] = []
    sync.changed.connect(lambda: changes.append(None))
    for worker, new in zip(pool.theirs, ([file("d/1", 1)], []), strict=True):
        messages.send(worker, ListingDiff(cache.catalog.listing + 1, new=new))
    pool.theirs[0].shutdown(socket.SHUT_WR)
    messages.send(pool.theirs[1], Done(2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sync.run)
        with trio.fail_after(20):
            await sync.changed.wait()
        nursery.cancel_scope.cancel()
    assert len(changes) == 1
    pool.close()


async def test_a_server_that_never_answers_the_listing_is_named_and_the_listing_tried_again(
    cache: LocalCache, pool: ListingPool
) -> None:
    sync = CatalogSync(pool, cache.catalog, cache.store, Outage(answers), every_s=3600)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sync.run)
        with trio.fail_after(20):
            while sync.failure is None:  # noqa: ASYNC110 - it is no signal
                await trio.sleep(0.02)
        assert not nursery.cancel_scope.cancel_called, "the daemon goes on"
        nursery.cancel_scope.cancel()
    assert isinstance(sync.failure.error, RemoteBusy)
    assert str(sync.failure.error).startswith("s3://bucket/train: its server has not answered the listing request for")
