"""Rotation with a full disk, and a group that fails while it waits for an eviction."""

from __future__ import annotations

import errno
import itertools
import os
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from growfs import disk
from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Catalog, Node
from growfs.cache.publish import Publisher
from growfs.cache.room import Reservation
from growfs.cache.schema import ROOT
from growfs.daemon.virtual_files import _listed
from growfs.errors import GrowfsError, RemoteError, Unreadable
from growfs.remote.interface import Fetched, RemoteFile
from growfs.remote.rate_limits import SharedLimits
from growfs.scheduler.dispatcher import Dispatcher
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.in_flight import Claim, Download, DownloadState, Priority
from growfs.scheduler.outage import Outage
from growfs.scheduler.prefetcher import VersionUpdater
from growfs.scheduler.readiness import PrefetchState, StartCondition
from growfs.scheduler.refresh import CatalogSync
from growfs.units import CacheSize
from growfs.workers.messages import FetchFailed, FetchFiles, FetchProgress, FetchRequest
from tests.unit.local_cache import LocalCache, answers, file, open_local_cache

SIZE = 4096
FILES = 10


async def full_cache(folder: Path) -> LocalCache:
    """A full cache, of a remote that is four times as large."""
    cache = open_local_cache(folder, FILES * SIZE)
    await cache.list([file(f"d/{number:03}.bin", SIZE) for number in range(4 * FILES)])
    await cache.admit(*(f"d/{number:03}.bin" for number in range(FILES)), content=b"x" * SIZE)
    await cache.begin()
    return cache


async def test_a_disk_that_others_fill_does_not_empty_the_listing(tmp_path: Path) -> None:
    cache = await full_cache(tmp_path)
    cache.store.room.min_free = disk.free_bytes(tmp_path) + (1 << 30)
    await cache.begin()
    assert len(cache.listed()) == FILES - 2
    cache.close()


@pytest.mark.promise(28)
@pytest.mark.parametrize("priority", [Priority.DRAW, Priority.DUE])
async def test_what_is_delisted_is_evicted_even_if_others_have_taken_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, priority: Priority
) -> None:
    """Otherwise nothing ever changes again: each generation delists a part only of what is cached."""
    cache = await full_cache(tmp_path)
    left = (FILES + 1) * SIZE
    monkeypatch.setattr(disk, "room", lambda _: (max(0, left - cache.store.resident_bytes), 1000))
    cache.store.room.min_free = 5 * SIZE
    found = []
    for _ in range(3):
        newest = await cache.begin()
        assert newest
        holds = newest.listed
        found.append((await cache.reserve(SIZE, priority, holds), cache.store.resident_files))
    assert found == [(None, FILES - 2), (None, FILES - 4), (SIZE, FILES - 5)]
    cache.close()


async def test_a_draw_evicts_nothing_if_others_have_taken_more_than_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would find no room in an empty cache either, and readers keep what they list."""
    cache = await full_cache(tmp_path)
    monkeypatch.setattr(disk, "room", lambda _: (SIZE, 1000))
    cache.store.room.min_free = (FILES + 1) * SIZE
    await cache.begin()
    assert await cache.reserve_by_rotation(SIZE, BitMap64()) is None
    assert cache.store.resident_files == FILES
    cache.close()


@pytest.mark.promise(7)
async def test_a_cache_that_grows_after_its_first_listing_lets_the_last_files_go(tmp_path: Path) -> None:
    """One file in each folder: at the first listing, one of each takes little, and when the cache is full, all."""
    cache = open_local_cache(tmp_path, FILES * SIZE)
    paths = [f"{number:03}/0.bin" for number in range(4 * FILES)]
    await cache.list([file(path, SIZE) for path in paths])
    await cache.admit(*paths[:2], content=b"x" * SIZE)
    await cache.begin()
    await cache.admit(*paths[2:FILES], content=b"x" * SIZE)
    cache.generations.rotation = "never"  # so that the next generation need not be planned
    for _ in range(FILES):
        assert await cache.reserve_by_eviction(SIZE, BitMap64()) == SIZE
    cache.give_back()
    await cache.admit(paths[-1], content=b"x" * SIZE)
    await cache.begin()
    assert cache.generations.current
    assert len(cache.entries(ROOT, cache.generations.current)) == 1, "an empty folder is listed"
    cache.close()


@pytest.mark.parametrize("refusals", [1, 2])
async def test_a_smaller_cache_evicts_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, refusals: int
) -> None:
    """The first try frees the room that is kept for the catalog; a disk that goes on refusing is named."""
    cache = await full_cache(tmp_path)
    evict, tries = Publisher.evict, itertools.count(1)

    def refusing(*arguments: Any) -> Any:
        if next(tries) <= refusals:
            raise sqlite3.OperationalError(disk.DATABASE_FULL)
        return evict(*arguments)

    monkeypatch.setattr(Publisher, "evict", refusing)
    if refusals == 1:
        await cache.space.set_cache_size(CacheSize(bytes=2 * SIZE))
        assert cache.store.room.used_bytes <= 2 * SIZE
    else:
        with pytest.raises(GrowfsError, match=disk.DATABASE_FULL):
            await cache.space.set_cache_size(CacheSize(bytes=2 * SIZE))
    cache.close()


async def test_without_rotation_nothing_is_delisted_even_where_the_disk_is_full(tmp_path: Path) -> None:
    cache = await full_cache(tmp_path)
    cache.generations.rotation = "never"
    cache.store.room.min_free = disk.free_bytes(tmp_path) + (1 << 30)
    await cache.begin()
    assert len(cache.listed()) == FILES
    cache.close()


async def test_a_list_of_all_files_shows_one_generation_while_it_is_committed(tmp_path: Path) -> None:
    cache = await full_cache(tmp_path)
    await cache.database.write(lambda writer: writer.execute("UPDATE node SET pinned = 1 WHERE name = '000.bin'"))
    async with trio.open_nursery() as nursery:
        cache.open_all()
        await cache.generations.begin(BitMap64(), frozenset())
        assert cache.generations.current
        rows = _listed(cache.database.path, cache.generations.current)
        expected, paths = cache.listed(), {next(rows)[0]}
        nursery.start_soon(cache.generations.run)
        await cache.generations.written.wait()
        paths |= {row[0] for row in rows}
        nursery.cancel_scope.cancel()
    assert paths == expected
    assert len(paths) < FILES
    cache.close()


class RefusingPool:
    """A worker pool that is also its only worker. Files that end in .a fail with 403, once the gate is open."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.limits = SharedLimits()
        self._requests, self._received = trio.open_memory_channel[FetchRequest](10)

    def spawn(self) -> RefusingPool:
        return self

    async def aclose(self) -> None:
        pass

    async def send(self, message: FetchFiles) -> None:
        for request in sorted(message.files, key=lambda request: request.file.path, reverse=True):
            await self._requests.send(request)

    async def receive(self) -> FetchProgress:
        request = await self._received.receive()
        if request.file.path.endswith(".a"):
            await self.gate.wait()
            return FetchProgress(0, 0, [(request.id, FetchFailed(RemoteError("403")))], 0)
        Path(request.target).write_bytes(b"x" * SIZE)
        return FetchProgress(SIZE, 0, [(request.id, Fetched(SIZE, request.file.mtime_ns, "0"))], 0)


class ChangedOncePool(RefusingPool):
    """As RefusingPool, but the first file has another version when it is fetched."""

    is_first = True

    async def receive(self) -> FetchProgress:
        progress = await super().receive()
        if not self.is_first:
            return progress
        self.is_first = False
        ((id, _),) = progress.files
        return replace(progress, files=[(id, FetchFailed(RemoteError("changed"), file("d/1.b", SIZE, "v2")))])


class NoVersions:
    """Nobody waits for what a fetch finds."""

    async def update_file(self, node: Node, found: RemoteFile | None) -> None:
        pass


def fetcher_of(
    cache: LocalCache, template: str | None = None, workers: RefusingPool | None = None, outage: Outage | None = None
) -> Fetcher:
    """A fetcher into that cache, with a RefusingPool. template: of its groups."""
    dispatcher = Dispatcher(workers or RefusingPool(), 1, 0)  # type: ignore[arg-type]
    fetcher = Fetcher(
        cache.in_flight(template),
        cache.store,
        cache.space,
        cache.sizes,
        dispatcher,
        cache.generations,
        NoVersions(),  # type: ignore[arg-type]
        outage or Outage(answers),
        5.0,
    )
    dispatcher.returned.connect(fetcher.handle_result)
    return fetcher


async def test_a_group_of_thousands_of_files_fails_as_a_whole(tmp_path: Path) -> None:
    cache = open_local_cache(tmp_path, FILES * SIZE)
    await cache.list([file(f"d/{number}.b", 1) for number in range(3000)])
    nodes = [cache.node(f"d/{number}.b") for number in range(3000)]
    fetcher, reserved = fetcher_of(cache), cache.store.room.reserve(SIZE)
    assert reserved
    fetcher.draw(nodes, tuple(node.id for node in nodes), Priority.DRAW, reserved)
    download = fetcher.downloads.get(nodes[0].id)
    assert download
    download.move(DownloadState.FETCHING)
    fetcher.handle_result(download, FetchFailed(RemoteError("not readable")))
    assert (len(fetcher.downloads), fetcher.failures.count) == (0, len(nodes))
    cache.close()


async def until_versions_wait(cache: LocalCache, bytes: int = SIZE) -> None:
    """Return once new versions of that size wait for room, after queries on threads."""
    with trio.fail_after(30):
        while cache.waiting.versions != bytes:  # noqa: ASYNC110 - nothing notifies of it
            await trio.sleep(0.01)


@pytest.mark.promise(17)
async def test_a_new_version_waits_for_space_that_no_reader_holds(tmp_path: Path) -> None:
    cache = open_local_cache(tmp_path, FILES * SIZE)
    paths = [f"d/{number}.bin" for number in range(FILES)]
    await cache.list([file(path, SIZE) for path in paths])
    await cache.admit(*paths, content=b"x" * SIZE)
    shown = await cache.begin()
    assert shown
    cache.holds = shown.listed
    fetcher = fetcher_of(cache)
    successor = cache.node("d/5.bin")._replace(version="v2")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run)
        nursery.start_soon(fetcher.update, successor, "d/5.bin")
        await until_versions_wait(cache)
        assert len(cache.resident()) == FILES
        await cache.begin()
        assert len(cache.listed()) == FILES - 1, "the next generation makes room, though the whole remote is cached"
        cache.holds = BitMap64()
        cache.store.room.freed.notify()
        while cache.node("d/5.bin").version != "v2":
            await cache.store.admitted.wait()
        assert cache.waiting.versions == 0
        nursery.cancel_scope.cancel()
    assert cache.node("d/5.bin").version == "v2"
    cache.close()


@pytest.mark.promise(6)
async def test_new_versions_that_find_no_room_do_not_keep_back_a_smaller_one(tmp_path: Path) -> None:
    """Two wait, as many as are fetched at a time, in a cache of which everything is held but one block is free."""
    cache = open_local_cache(tmp_path, FILES * SIZE)
    paths = [f"d/{number}.bin" for number in range(FILES - 1)]
    await cache.list([file(path, SIZE) for path in paths])
    await cache.admit(*paths, content=b"x" * SIZE)
    shown = await cache.begin()
    assert shown
    cache.holds = shown.listed
    sync = CatalogSync(RefusingPool(), cache.catalog, cache.store, Outage(answers), 0)  # type: ignore[arg-type]
    state = PrefetchState(StartCondition(), lambda: False, lambda: False, Outage(answers))
    state.changed.connect(cache.store.room.freed.notify)  # as in a daemon
    fetcher = fetcher_of(cache)
    updater = VersionUpdater(cache.catalog, fetcher, sync, state)
    for path in paths[:2]:
        await sync.update_file(cache.node(path), file(path, 3 * SIZE, "v2"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run)
        nursery.start_soon(updater.run)
        await until_versions_wait(cache, 6 * SIZE)
        await sync.update_file(cache.node(paths[2]), file(paths[2], SIZE, "v2"))
        state.invalidate_order()
        with trio.fail_after(30):
            while cache.node(paths[2]).version != "v2":
                await cache.store.admitted.wait()
        await until_versions_wait(cache, 6 * SIZE)
        nursery.cancel_scope.cancel()
    assert [cache.node(path).version for path in paths[:2]] == ["v1", "v1"]
    cache.close()


@pytest.mark.promise(6)
async def test_a_new_version_arrives_before_a_generation_is_decided_or_after_it_is_written(tmp_path: Path) -> None:
    """Else the generation would delist, or list again, an id that nobody has any more."""
    cache = await full_cache(tmp_path)
    fetcher = fetcher_of(cache)
    before = cache.listed()
    cache.open_all()
    await cache.generations.begin(BitMap64(), frozenset())
    expected = cache.listed()
    cache.store.room.set_cache_size(CacheSize(bytes=2 * FILES * SIZE))
    delisted = cache.node(min(before - expected))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run)
        nursery.start_soon(fetcher.update, delisted._replace(version="v2"), f"d/{delisted.name}")
        await wait_all_tasks_blocked()
        nursery.start_soon(cache.generations.run)
        while cache.node("d/" + delisted.name).version != "v2":
            await cache.store.admitted.wait()
        nursery.cancel_scope.cancel()
    assert cache.listed() == expected
    cache.close()


@pytest.mark.promise(3)
async def test_an_evicted_file_is_not_kept_from_its_new_version(tmp_path: Path) -> None:
    """A miss that made room evicted it, while its new version waited for some."""
    cache = await full_cache(tmp_path)
    node = cache.node("d/000.bin")
    sync = CatalogSync(RefusingPool(), cache.catalog, cache.store, Outage(answers), 0)  # type: ignore[arg-type]
    found = file("d/000.bin", SIZE, "v2")
    await sync.update_file(node, found)
    update = sync.next_update()
    assert update
    with update as (id, successor):
        assert (id, successor) == (node.id, found)
        await sync.update_file(node, found)
        assert sync.next_update() is None, "it is being fetched"
        assert cache.node("d/000.bin").version == "v1"
        await cache.store.evict([node.id])
        await sync.update_file(cache.node("d/000.bin"), found)
    assert cache.node("d/000.bin").version == "v2"
    cache.close()


async def test_a_version_that_waits_while_listings_find_it_again_is_noted_once(tmp_path: Path) -> None:
    """As each listing does while the mount is paused: what is noted would grow, and larger ones give way to nothing."""
    cache = await full_cache(tmp_path)
    sync = CatalogSync(RefusingPool(), cache.catalog, cache.store, Outage(answers), 0)  # type: ignore[arg-type]
    for _ in range(3):
        await sync.update_file(cache.node("d/000.bin"), file("d/000.bin", SIZE, "v2"))
    update = sync.next_update()
    assert update
    with update:
        assert not sync.has_smaller_update(file("d/001.bin", 2 * SIZE, "v2"))
    cache.close()


async def test_a_group_may_fail_while_one_of_its_files_waits_for_an_eviction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_local_cache(tmp_path)
    await cache.list([file("d/1.a", SIZE), file("d/1.b", SIZE)])
    workers = RefusingPool()
    reserve_free, reserve = cache.space.reserve_free, cache.space.reserve_by_eviction

    def first_only(claim: Claim) -> Reservation | None:
        return None if cache.store.room.reserved_bytes else reserve_free(claim)

    async def slow_reserve(size: int, priority: Priority) -> Reservation | None:
        workers.gate.set()
        await trio.sleep(0.2)  # as if the eviction took some time
        return await reserve(size, priority)

    monkeypatch.setattr(cache.space, "reserve_free", first_only)
    monkeypatch.setattr(cache.space, "reserve_by_eviction", slow_reserve)
    outage = Outage(answers)
    fetcher = fetcher_of(cache, "{stem}", workers, outage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outage.run)
        nursery.start_soon(fetcher.run)
        with pytest.raises(RemoteError):
            await fetcher.ensure(cache.node("d/1.b"), "d/1.b")
        await trio.sleep(0.4)
        nursery.cancel_scope.cancel()
    assert cache.store.room.reserved_bytes == 0
    assert not fetcher.downloads
    cache.close()


async def test_nothing_waits_any_longer_for_a_version_whose_service_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog could not be read. Else every later generation would make room for it."""
    cache = open_local_cache(tmp_path, FILES * SIZE)
    paths = [f"d/{number}.bin" for number in range(FILES)]
    await cache.list([file(path, SIZE) for path in paths])
    await cache.admit(*paths, content=b"x" * SIZE)
    shown = await cache.begin()
    assert shown
    cache.holds = shown.listed
    sync = CatalogSync(RefusingPool(), cache.catalog, cache.store, Outage(answers), 0)  # type: ignore[arg-type]
    await sync.update_file(cache.node("d/5.bin"), file("d/5.bin", SIZE, "v2"))
    state = PrefetchState(StartCondition(), lambda: False, lambda: False, Outage(answers))
    updater = VersionUpdater(cache.catalog, fetcher_of(cache), sync, state)

    async def unreadable(*_: object) -> list[int]:
        raise Unreadable("the catalog")

    with pytest.RaisesGroup(Unreadable, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(updater.run)
            await until_versions_wait(cache)
            monkeypatch.setattr(cache.space, "_pick", unreadable)
            cache.store.room.freed.notify()
    assert cache.waiting.versions == 0
    assert cache.generations.demand().versions == 0
    assert cache.store.room.reserved_bytes == 0
    assert sync.next_update() is None
    cache.close()


async def run_halfway(fetcher: Fetcher, node: Node, disk_is_slow: threading.Event) -> None:
    """Run a fetcher, and end it, as an error in one of its tasks does, when it can do no more for that file."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run)
        nursery.start_soon(fetcher.ensure, node, "d/1.b")
        await wait_all_tasks_blocked(0.1)
        nursery.cancel_scope.cancel()
        disk_is_slow.set()


@pytest.mark.promise(3)
@pytest.mark.parametrize("is_changed", [True, False])
async def test_a_file_that_a_failed_service_left_halfway_is_fetched_by_its_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_changed: bool
) -> None:
    """The catalog was about to be told of another version, or the file was about to be admitted, and still is."""
    cache = open_local_cache(tmp_path)
    await cache.list([file("d/1.b", SIZE)])
    node, disk_is_slow = cache.node("d/1.b"), threading.Event()
    fetcher = fetcher_of(cache, workers=ChangedOncePool() if is_changed else RefusingPool())

    async def never(*_: object) -> None:
        await trio.sleep_forever()

    with monkeypatch.context() as patched:
        patched.setattr(NoVersions, "update_file", never)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cache.database.run_in_writer, disk_is_slow.wait)
            await run_halfway(fetcher, node, disk_is_slow)
    assert cache.resident() == (set() if is_changed else {"d/1.b"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run)
        await fetcher.ensure(node, "d/1.b")
        nursery.cancel_scope.cancel()
    assert cache.resident() == {"d/1.b"}
    assert cache.store.room.reserved_bytes == 0
    cache.close()


@pytest.mark.promise(28)
async def test_room_that_was_found_when_the_catalog_cannot_be_read_is_given_back(tmp_path: Path) -> None:
    """It could be read a moment before."""
    cache = open_local_cache(tmp_path)
    await cache.list([file("d/1.b", SIZE)])
    answers = iter([True])

    def is_wanted() -> bool:
        if next(answers, False):
            return True
        raise Unreadable("disk I/O error")

    with pytest.raises(Unreadable):
        await cache.space.acquire(Claim([cache.node("d/1.b")], "d/1.b", Priority.DUE, is_wanted))
    assert cache.store.room.reserved_bytes == 0
    cache.close()


async def test_a_catalog_that_cannot_be_read_fails_what_is_to_be_admitted_and_is_not_called_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> int:
        raise Unreadable("disk I/O error")

    cache = open_local_cache(tmp_path)
    await cache.list([file("d/1.b", SIZE)])
    fetcher = fetcher_of(cache)
    monkeypatch.setattr(Catalog, "pass_number", property(fail))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run)
        with pytest.raises(GrowfsError, match="disk I/O error"):
            await fetcher.ensure(cache.node("d/1.b"), "d/1.b")
        nursery.cancel_scope.cancel()
    assert "bug" not in caplog.text
    cache.close()


async def test_a_name_that_the_disk_refuses_is_an_error_of_its_file_and_not_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all draws would pause, and a part (--exact) would wait for the file."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))

    cache = open_local_cache(tmp_path)
    await cache.list([file("d/1.b", SIZE)])
    fetcher = fetcher_of(cache)
    monkeypatch.setattr(disk, "rename", refuse)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run)
        with pytest.raises(RemoteError, match=r"^d/1\.b: .* refuses it \(File name too long\); exclude"):
            await fetcher.ensure(cache.node("d/1.b"), "d/1.b")
        nursery.cancel_scope.cancel()
    assert cache.store.room.reserved_bytes == 0
    cache.close()


@pytest.mark.promise(24)
@pytest.mark.parametrize("other", ["d/1.c", "d/1.a"])
async def test_a_group_of_which_a_failed_service_finished_one_file_is_finished_by_its_next_run(
    tmp_path: Path, other: str
) -> None:
    """Both were admitted, or one was refused, and who is notified of the first failed: the disk may not be readable."""
    cache, workers = open_local_cache(tmp_path), RefusingPool()
    workers.gate.set()
    await cache.list([file("d/1.b", SIZE), file(other, SIZE)])
    fetcher, finished = fetcher_of(cache, "{stem}", workers), list[str]()

    def note(download: Download) -> None:
        finished.append(download.path)
        if len(finished) == 1:
            raise Unreadable("the catalog")

    fetcher.finished.connect(note)
    with pytest.RaisesGroup(Unreadable, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetcher.run)
            nursery.start_soon(fetcher.ensure, cache.node("d/1.b"), "d/1.b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run)
        with trio.fail_after(10):
            while fetcher.downloads:
                await fetcher.progressed.wait()
        nursery.cancel_scope.cancel()
    assert sorted(finished) == sorted(["d/1.b", other])
    assert cache.resident() == (set(finished) if other == "d/1.c" else set())
    assert cache.store.room.reserved_bytes == 0
    cache.close()


async def test_a_group_whose_paths_cannot_be_read_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither room nor files in flight, which nothing would fetch, and which would be waited for."""
    cache = open_local_cache(tmp_path, FILES * SIZE)
    await cache.list([file("d/1.a", SIZE), file("d/1.b", SIZE)])
    nodes = [cache.node("d/1.a"), cache.node("d/1.b")]
    fetcher = fetcher_of(cache, "{stem}")
    path = cache.catalog.path

    def half_readable(node: Node) -> str:
        if node == nodes[1]:
            raise Unreadable("the catalog")
        return path(node)

    monkeypatch.setattr(cache.catalog, "path", half_readable)
    reserved = cache.store.room.reserve(2 * SIZE)
    assert reserved
    with pytest.raises(Unreadable):
        fetcher.draw(nodes, tuple(node.id for node in nodes), Priority.DRAW, reserved)
    with pytest.raises(Unreadable):
        await fetcher.ensure(nodes[0], "d/1.a")
    assert cache.store.room.reserved_bytes == 0
    assert not fetcher.downloads
    cache.close()
