"""How long the daemon waits for a worker that lists or computes, and what it says of one that is silent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from growfs.errors import RemoteBusy
from growfs.scheduler.outage import Outage
from growfs.scheduler.refresh import CatalogSync
from growfs.workers import messages
from growfs.workers.messages import Done, ListRemote, StillWorking
from growfs.workers.pool import Channel, WorkerLost, WorkerSilent
from tests.unit.local_cache import LocalCache, answers

STALL_S = 0.4
REQUEST = ListRemote(Path("/no/catalog"), 1)


@pytest.fixture(autouse=True)
def short_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.workers.pool.STALL_S", STALL_S)


class ListingPool:
    """Stands in for WorkerPool: its only worker is the other end of `theirs`."""

    url = "s3://bucket/train"

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    def spawn(self) -> Channel:
        return Channel(self.ours)


@pytest.fixture
def pool() -> Iterator[ListingPool]:
    """A pool whose sockets are closed after the test."""
    pool = ListingPool()
    yield pool
    pool.ours.close()
    pool.theirs.close()


async def test_a_worker_that_computes_is_waited_for(pool: ListingPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.workers.pool.STALL_S", 1.5)
    received: list[object] = []

    async def note(message: object) -> None:
        received.append(message)

    async def compute() -> None:
        for message in (StillWorking(), StillWorking(), StillWorking(), "a page", Done(7)):
            await trio.sleep(0.4)  # more than STALL_S in all
            messages.send(pool.theirs, message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(compute)
        assert await pool.spawn().call(REQUEST, note) == 7
    assert received == ["a page"]


async def test_a_worker_that_died_and_one_that_is_silent_are_told_apart(pool: ListingPool) -> None:
    with pytest.raises(WorkerSilent):
        await pool.spawn().call(REQUEST)
    pool.theirs.close()
    with pytest.raises(WorkerLost) as caught:
        await pool.spawn().call(REQUEST)
    assert not isinstance(caught.value, WorkerSilent)


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
