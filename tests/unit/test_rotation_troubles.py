"""Full disks, large groups and bad moments: rotation goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from growfs import disk
from growfs.daemon.virtual_files import _listed
from growfs.errors import RemoteError
from growfs.remote.protocol import Fetched
from growfs.remote.rate_limits import SharedLimits
from growfs.rotation.rules import Holds
from growfs.scheduler.dispatcher import Dispatcher
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.groups import Groups
from growfs.scheduler.in_flight import InFlightTable
from growfs.scheduler.size_estimate import SizeEstimate
from growfs.workers.messages import FetchFailed, FetchFiles, FetchProgress, FetchRequest
from tests.unit.local_cache import LocalCache, file, open_local_cache

SIZE = 4096
FILES = 10


async def full(folder: Path) -> LocalCache:
    """A full cache, of a remote that is four times as large."""
    cache = open_local_cache(folder, FILES * SIZE)
    await cache.list([file(f"d/{number:03}.bin", SIZE) for number in range(4 * FILES)])
    await cache.admit(*(f"d/{number:03}.bin" for number in range(FILES)), content=b"x" * SIZE)
    await cache.begin()
    return cache


async def test_a_disk_that_others_fill_does_not_empty_the_listing(tmp_path: Path) -> None:
    cache = await full(tmp_path)
    cache.store.min_free = disk.free_bytes(tmp_path) + (1 << 30)
    await cache.begin()
    assert len(cache.listed()) == FILES - 2
    cache.close()


async def test_nothing_is_left_out_without_rotation_even_where_the_disk_is_full(tmp_path: Path) -> None:
    cache = await full(tmp_path)
    cache.generations.rotates = False
    cache.store.min_free = disk.free_bytes(tmp_path) + (1 << 30)
    await cache.begin()
    assert len(cache.listed()) == FILES
    cache.close()


async def test_nothing_is_left_out_for_foreign_readers_even_where_the_cache_shrank(tmp_path: Path) -> None:
    cache = await full(tmp_path)
    cache.store.limit_bytes = 4 * SIZE
    await cache.begin(Holds([], foreign=True))
    assert len(cache.listed()) == FILES
    cache.close()


async def test_a_list_of_all_files_is_of_one_generation_while_that_is_written(tmp_path: Path) -> None:
    cache = await full(tmp_path)
    await cache.database.write(lambda writer: writer.execute("UPDATE node SET pinned = 1 WHERE name = '000.bin'"))
    async with trio.open_nursery() as nursery:
        await cache.generations.begin(Holds(), frozenset())
        assert cache.generations.current
        rows = _listed(cache.database.path, cache.generations.current.as_of_now())
        expected, got = cache.listed(), {next(rows)[0]}
        nursery.start_soon(cache.generations.run)
        await cache.generations.written.wait()
        got |= {row[0] for row in rows}
        nursery.cancel_scope.cancel()
    assert got == expected
    assert len(got) < FILES
    cache.close()


class Refusing:
    """A worker pool and its worker. The remote refuses files that end in .a, once the gate is open."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.limits = SharedLimits()
        self._requests, self._received = trio.open_memory_channel[FetchRequest](10)

    def spawn(self) -> Refusing:
        return self

    async def aclose(self) -> None:
        pass

    async def send(self, message: FetchFiles) -> None:
        for wanted in sorted(message.files, key=lambda wanted: wanted.file.path, reverse=True):
            await self._requests.send(wanted)

    async def receive(self) -> FetchProgress:
        wanted = await self._received.receive()
        if wanted.file.path.endswith(".a"):
            await self.gate.wait()
            return FetchProgress(0, 0, [(wanted.id, FetchFailed(RemoteError("403")))])
        wanted.target.write_bytes(b"x" * SIZE)
        return FetchProgress(SIZE, 0, [(wanted.id, Fetched(wanted.file, SIZE, "0"))])


async def test_a_group_may_fail_while_one_of_it_waits_for_an_eviction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_local_cache(tmp_path)
    await cache.list([file("d/1.a", SIZE), file("d/1.b", SIZE)])
    workers = Refusing()
    reserve = cache.evictor.reserve_by_eviction
    calls = 0

    async def slow(size: int) -> int | None:
        nonlocal calls
        calls += 1
        if calls > 1:  # as if its eviction took a while
            workers.gate.set()
            await trio.sleep(0.2)
        return await reserve(size)

    async def replace(*_: object) -> None:
        pass

    monkeypatch.setattr(cache.evictor, "reserve_by_eviction", slow)
    groups = Groups(cache.catalog, "{stem}")
    downloads = InFlightTable(cache.catalog, groups, tmp_path / "partial", SizeEstimate())
    dispatcher = Dispatcher(workers, 1, 0)  # type: ignore[arg-type]
    fetcher = Fetcher(downloads, cache.store, cache.evictor, dispatcher, replace, 5.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run)
        with pytest.raises(RemoteError):
            await fetcher.ensure(cache.node("d/1.b"), "d/1.b")
        await trio.sleep(0.4)
        nursery.cancel_scope.cancel()
    assert cache.store.reserved_bytes == 0
    assert fetcher.in_flight == 0
    cache.close()
