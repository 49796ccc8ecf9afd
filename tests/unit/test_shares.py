"""The share of the remote that a mount draws, while listings change it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from trio.testing import MockClock

from growfs.errors import GrowfsError
from growfs.rotation.pass_order import Amount, Order, Pass
from growfs.scheduler import rotating
from growfs.scheduler.rotating import Rotation
from growfs.workers.messages import Compute
from growfs.workers.pool import WorkerSilent
from tests.unit.local_cache import LocalCache, file


@pytest.fixture
def ordered(cache: LocalCache, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[Rotation]]:
    """A function that computes the order of half of the files, without a worker."""

    async def compute(_: object, message: Compute) -> Order:
        order: Order = message.function(lambda: None)
        return order

    async def ordered() -> Rotation:
        no_workers: Any = None
        order = Rotation(
            no_workers, cache.database, cache.catalog, cache.store, cache.folder / "partial", Pass(0, 1, (0, 2))
        )
        await order.remaining(cache.store.room.max_file_bytes)
        return order

    monkeypatch.setattr(rotating, "call_worker", compute)
    return ordered


async def test_a_group_that_takes_too_long_for_the_names_of_the_remote_is_refused_at_first(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Later, it is tried again: the disk may be slow, and the mount goes on without."""
    found: list[Order | Exception] = [Order(), WorkerSilent(), Order()]
    no_workers: Any = None

    async def compute(_: object, message: Compute) -> Order:
        (cache.folder / "partial/order").touch()
        if isinstance(outcome := found.pop(), Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(rotating, "call_worker", compute)
    first = Pass(0, 1, group="(.*).*.*x")
    order = Rotation(no_workers, cache.database, cache.catalog, cache.store, cache.folder / "partial", first)
    await order.remaining(cache.store.room.max_file_bytes)
    await order.remaining(cache.store.room.max_file_bytes)
    assert not found
    found = [WorkerSilent()]
    order = Rotation(no_workers, cache.database, cache.catalog, cache.store, cache.folder / "partial", first)
    with pytest.raises(GrowfsError, match="simplify it"):
        await order.remaining(cache.store.room.max_file_bytes)


@pytest.mark.promise(26)
async def test_until_the_next_order_only_new_files_are_assumed_to_be_in_the_share(
    cache: LocalCache, ordered: Callable[[], Awaitable[Rotation]]
) -> None:
    files = [file(f"a/{number:02}.bin") for number in range(40)]
    await cache.list(files)
    order = await ordered()
    share = order.share
    assert 10 < share.files < 30
    await cache.list(files)
    assert order.share == share, "the listing has changed nothing"
    await cache.list([*files, file("a/new.bin")])
    assert order.share == share + Amount(1, 100)
    await cache.list(files[:-2])
    assert order.share == share - Amount(2, 200)
