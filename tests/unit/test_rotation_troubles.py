"""Rotation with a full disk, new versions, files of unknown size, and downloads that fail or are left halfway."""

from __future__ import annotations

import errno
import itertools
import os
import sqlite3
import threading
from collections.abc import Iterator
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
from growfs.disk import BLOCK
from growfs.errors import GrowfsError, RemoteError, Unreadable
from growfs.remote.filter import PathFilter
from growfs.scheduler.dispatcher import Dispatcher
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.in_flight import Claim, Download, DownloadState, Priority
from growfs.scheduler.outage import Outage
from growfs.scheduler.prefetcher import VersionUpdater
from growfs.scheduler.readiness import PrefetchState, StartCondition
from growfs.scheduler.refresh import CatalogSync
from growfs.units import CacheSize
from growfs.workers.messages import FetchFailed
from tests.model import in_process
from tests.model.in_process import InProcess, Workers
from tests.model.remote import Remote
from tests.unit.local_cache import LocalCache, answers, file, running

FILES = 10
PATHS = [f"d/{number:02}.x" for number in range(4 * FILES)]


class FetchScene:
    """A cache of ten blocks, and what fetches from a remote. group: the value of --group."""

    def __init__(self, cache: LocalCache, group: str | None = None) -> None:
        self.cache, self.remote, self.outage = cache, Remote(), Outage(answers)
        cache.store.room.limit_bytes = FILES * BLOCK
        workers: Any = Workers(self.remote, PathFilter())
        dispatcher = Dispatcher(workers, 1, 0)
        self.sync = CatalogSync(workers, cache.catalog, cache.store, self.outage, 0)
        self.fetcher = Fetcher(
            cache.in_flight(group),
            cache.store,
            cache.space,
            cache.sizes,
            dispatcher,
            cache.generations,
            self.sync,
            self.outage,
            5.0,
        )
        dispatcher.returned.connect(self.fetcher.handle_result)

    async def list(self, *paths: str, blocks: int = 1) -> list[Node]:
        """List a remote that has these files; returns their nodes."""
        for path in paths:
            self.remote.put(path, blocks)
        await self.cache.list(self.remote.listing())
        return [self.cache.node(path) for path in paths]

    async def fill(self, files: int = 4 * FILES) -> None:
        """Fill the cache, and begin a generation. files: how many the remote has."""
        await self.list(*PATHS[:files])
        for path in PATHS[:FILES]:
            await self.cache.admit(path, content=self.remote.content(path))
        await self.cache.begin()

    def reserve(self, blocks: int) -> Reservation:
        reserved = self.cache.store.room.reserve(blocks * BLOCK)
        assert reserved
        return reserved

    async def until_nothing_is_in_flight(self) -> None:
        while self.fetcher.downloads:
            await self.fetcher.progressed.wait()

    def assert_nothing_is_left(self) -> None:
        assert not self.fetcher.downloads
        assert self.cache.store.room.reserved_bytes == 0


@pytest.fixture
def scene(cache: LocalCache) -> FetchScene:
    return FetchScene(cache)


@pytest.fixture
def pairs(cache: LocalCache) -> FetchScene:
    """Files with the same stem are a group."""
    return FetchScene(cache, "{stem}")


# A full disk.


@pytest.mark.parametrize(("rotation", "listed"), [("auto", FILES - 2), ("never", FILES)])
async def test_a_disk_that_others_fill_does_not_empty_the_listing(
    scene: FetchScene, rotation: str, listed: int
) -> None:
    await scene.fill()
    scene.cache.generations.rotation = rotation
    scene.cache.store.room.min_free = disk.free_bytes(scene.cache.folder) + (1 << 30)
    await scene.cache.begin()
    assert len(scene.cache.listed()) == listed


@pytest.mark.promise(28)
@pytest.mark.parametrize("priority", [Priority.DRAW, Priority.DUE])
async def test_what_is_delisted_is_evicted_even_if_others_have_taken_more(
    scene: FetchScene, monkeypatch: pytest.MonkeyPatch, priority: Priority
) -> None:
    """Otherwise nothing ever changes again: each generation delists a part only of what is cached."""
    await scene.fill()
    cache, left = scene.cache, (FILES + 1) * BLOCK
    monkeypatch.setattr(disk, "room", lambda _: (max(0, left - cache.store.resident_bytes), 1000))
    cache.store.room.min_free = 5 * BLOCK
    found = []
    for _ in range(3):
        newest = await cache.begin()
        assert newest
        found.append((await cache.reserve(BLOCK, priority, newest.listed), cache.store.resident_files))
    assert found == [(None, FILES - 2), (None, FILES - 4), (BLOCK, FILES - 5)]


async def test_a_draw_evicts_nothing_if_others_have_taken_more_than_the_cache(
    scene: FetchScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would find no room in an empty cache either, and readers keep what they list."""
    await scene.fill()
    monkeypatch.setattr(disk, "room", lambda _: (BLOCK, 1000))
    scene.cache.store.room.min_free = (FILES + 1) * BLOCK
    await scene.cache.begin()
    assert await scene.cache.reserve_by_rotation(BLOCK) is None
    assert scene.cache.store.resident_files == FILES


@pytest.mark.promise(7)
async def test_a_cache_that_grows_after_its_first_listing_lets_the_last_files_go(scene: FetchScene) -> None:
    """One file in each folder: at the first listing, one of each takes little, and when the cache is full, all."""
    cache, paths = scene.cache, [f"{number:03}/0.x" for number in range(4 * FILES)]
    await scene.list(*paths)
    await cache.admit(*paths[:2], content=b"x" * BLOCK)
    await cache.begin()
    await cache.admit(*paths[2:FILES], content=b"x" * BLOCK)
    cache.generations.rotation = "never"  # so that the next generation need not be planned
    for _ in range(FILES):
        assert await cache.reserve_by_eviction(BLOCK) == BLOCK
    cache.give_back()
    await cache.admit(paths[-1], content=b"x" * BLOCK)
    newest = await cache.begin()
    assert newest
    assert len(cache.entries(ROOT, newest)) == 1, "an empty folder is listed"


@pytest.mark.parametrize("refusals", [1, 2])
async def test_a_smaller_cache_evicts_on_a_full_disk(
    scene: FetchScene, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, refusals: int
) -> None:
    """The first try frees the room that is kept for the catalog; a disk that goes on refusing is named."""
    await scene.fill()
    evict, tries = Publisher.evict, itertools.count(1)

    def refusing(*arguments: Any) -> Any:
        if next(tries) <= refusals:
            raise sqlite3.OperationalError(disk.DATABASE_FULL)
        return evict(*arguments)

    monkeypatch.setattr(Publisher, "evict", refusing)
    if refusals == 1:
        await scene.cache.space.set_cache_size(CacheSize(bytes=2 * BLOCK))
        assert scene.cache.store.room.used_bytes <= 2 * BLOCK
    else:
        with pytest.raises(GrowfsError, match=disk.DATABASE_FULL):
            await scene.cache.space.set_cache_size(CacheSize(bytes=2 * BLOCK))


async def test_a_list_of_all_files_shows_one_generation_while_it_is_committed(scene: FetchScene) -> None:
    await scene.fill()
    cache, generations = scene.cache, scene.cache.generations
    await cache.database.write(lambda writer: writer.execute("UPDATE node SET pinned = 1 WHERE name = '00.x'"))
    cache.open_all()
    await generations.begin(BitMap64(), frozenset())
    assert generations.current
    rows = _listed(cache.database.path, generations.current)
    expected, paths = cache.listed(), {next(rows)[0]}
    async with running(generations.run):
        await generations.written.wait()
        paths |= {row[0] for row in rows}
    assert paths == expected
    assert len(paths) < FILES


@pytest.mark.promise(28)
async def test_room_that_was_found_when_the_catalog_cannot_be_read_is_given_back(scene: FetchScene) -> None:
    """It could be read a moment before."""
    nodes, known = await scene.list("d/1.x"), iter([True])

    def is_wanted() -> bool:
        if next(known, False):
            return True
        raise Unreadable("disk I/O error")

    with pytest.raises(Unreadable):
        await scene.cache.space.acquire(Claim(nodes, "d/1.x", Priority.DUE, is_wanted))
    scene.assert_nothing_is_left()


async def test_a_catalog_that_cannot_be_read_fails_what_is_to_be_admitted_and_is_not_called_a_bug(
    scene: FetchScene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> int:
        raise Unreadable("disk I/O error")

    [node] = await scene.list("d/1.x")
    monkeypatch.setattr(Catalog, "pass_number", property(fail))
    async with running(scene.fetcher.run):
        with pytest.raises(GrowfsError, match="disk I/O error"):
            await scene.fetcher.ensure(node, "d/1.x")
    assert "bug" not in caplog.text


async def test_a_name_that_the_disk_refuses_is_an_error_of_its_file_and_not_of_the_disk(
    scene: FetchScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all draws would pause, and a part (--exact) would wait for the file."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))

    [node] = await scene.list("d/1.x")
    monkeypatch.setattr(disk, "rename", refuse)
    async with running(scene.fetcher.run):
        with pytest.raises(RemoteError, match=r"^d/1\.x: .* refuses it \(File name too long\); exclude"):
            await scene.fetcher.ensure(node, "d/1.x")
    scene.assert_nothing_is_left()


# New versions.


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[InProcess]:
    daemon = InProcess(tmp_path)
    yield daemon
    daemon.end()


def version(daemon: InProcess, path: str) -> int | None:
    """Which version of a file is cached; None if it is not."""
    cached = daemon.cache / "files" / path
    return daemon.remote.version_of(path, cached.read_bytes()) if cached.exists() else None


@pytest.mark.promise(6, 17)
def test_new_versions_wait_for_room_that_no_reader_holds_and_for_no_larger_ones(daemon: InProcess) -> None:
    for path in PATHS[: FILES - 1]:
        daemon.remote.put(path, 1)
    daemon.mount(cache_size=str(FILES * BLOCK), min_free="0", refresh="0")
    reader = daemon.reader()
    assert len(reader.list("d")) == FILES - 1
    for path, blocks in ((PATHS[0], 2), (PATHS[1], 2), (PATHS[2], 1)):  # as many large ones as are fetched at a time
        daemon.remote.put(path, blocks)
        daemon.list_remote()
        daemon.settle(60)
    assert [version(daemon, path) for path in PATHS[:3]] == [1, 2, daemon.remote.version], "there is a free block"
    for path in PATHS[: FILES - 1]:
        reader.close(reader.open(path))
    assert len(daemon.reader().list("d")) < FILES - 1, "the next generation makes room, though all files are cached"
    assert [version(daemon, path) for path in PATHS[:2]] == [1, 2]
    reader.end()
    daemon.settle(60)
    assert {version(daemon, path) for path in PATHS[:2]} & {10, 11}


@pytest.mark.promise(3)
def test_an_evicted_file_is_not_kept_from_its_new_version(daemon: InProcess) -> None:
    """A user evicts it while its new version waits for room, and a listing finds that once more."""
    for path in PATHS[:FILES]:
        daemon.remote.put(path, 1)
    daemon.mount(cache_size=str(FILES * BLOCK), min_free="0", refresh="0")
    reader = daemon.reader()
    reader.list("d")
    daemon.remote.put(PATHS[0], 2)
    daemon.list_remote()
    assert version(daemon, PATHS[0]) == 1
    daemon.command("evict", globs=[f"/{PATHS[0]}"])
    daemon.list_remote()
    reader.open(PATHS[0])
    assert version(daemon, PATHS[0]) == daemon.remote.version


@pytest.mark.promise(6)
async def test_a_new_version_arrives_before_a_generation_is_decided_or_after_it_is_written(scene: FetchScene) -> None:
    """Else the generation would delist, or list again, an id that nobody has any more."""
    await scene.fill()
    cache, before = scene.cache, scene.cache.listed()
    cache.open_all()
    await cache.generations.begin(BitMap64(), frozenset())
    expected = cache.listed()
    cache.store.room.set_cache_size(CacheSize(bytes=2 * FILES * BLOCK))
    path = min(before - expected)
    scene.remote.put(path, 1)
    found = scene.remote.file(path)
    assert found
    delisted = cache.node(path)._replace(size=found.size, mtime_ns=found.mtime_ns, version=found.version)
    async with running(scene.fetcher.run) as nursery:
        nursery.start_soon(scene.fetcher.update, delisted, path)
        await wait_all_tasks_blocked()
        nursery.start_soon(cache.generations.run)
        while cache.node(path).version != found.version:
            await cache.store.admitted.wait()
    assert cache.listed() == expected


async def test_a_version_that_waits_while_listings_find_it_again_is_noted_once(scene: FetchScene) -> None:
    """As each listing does while the mount is paused: what is noted would grow, and larger ones give way to nothing."""
    await scene.fill(FILES)
    sync, node, found = scene.sync, scene.cache.node(PATHS[0]), file(PATHS[0], BLOCK, "v2")
    for _ in range(3):
        await sync.update_file(node, found)
    update = sync.next_update()
    assert update
    with update:
        assert not sync.has_smaller_update(file(PATHS[1], 2 * BLOCK, "v2"))
        await sync.update_file(node, found)
        assert sync.next_update() is None, "it is being fetched"


async def test_nothing_waits_any_longer_for_a_version_whose_service_failed(
    scene: FetchScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog could not be read. Else every later generation would make room for it."""
    await scene.fill(FILES)
    cache, (path, *_) = scene.cache, PATHS
    assert cache.generations.current
    cache.holds = cache.generations.current.listed
    scene.remote.put(path, 1)
    await scene.sync.update_file(cache.node(path), scene.remote.file(path))
    state = PrefetchState(StartCondition(), lambda: False, lambda: False, scene.outage)
    updater = VersionUpdater(cache.catalog, scene.fetcher, scene.sync, state)

    async def unreadable(*_: object) -> list[int]:
        raise Unreadable("the catalog")

    with pytest.RaisesGroup(Unreadable, flatten_subgroups=True):
        async with running(updater.run):
            with trio.fail_after(30):
                while not cache.waiting.versions:  # noqa: ASYNC110 - nothing notifies of it
                    await trio.sleep(0.01)
            monkeypatch.setattr(cache.space, "_pick", unreadable)
            cache.store.room.freed.notify()
            await trio.sleep_forever()
    assert cache.generations.demand().versions == 0
    assert scene.sync.next_update() is None
    scene.assert_nothing_is_left()


# Files of unknown size. The name of one ends in .u.


async def test_a_drawn_file_that_is_larger_than_expected_waits_for_the_room_that_others_give_back(
    scene: FetchScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = await scene.list("d/large.u", blocks=3)
    own, of_others = scene.reserve(1), scene.reserve(9)
    waits, add = trio.Event(), scene.cache.waiting.add

    def note_waiting(claim: Claim) -> None:
        add(claim)
        waits.set()

    monkeypatch.setattr(scene.cache.waiting, "add", note_waiting)
    async with running(scene.fetcher.run):
        scene.fetcher.draw(nodes, (), Priority.DRAW, own)
        await waits.wait()
        of_others.release()
        await scene.until_nothing_is_in_flight()
    assert (scene.cache.resident(), scene.fetcher.failures.count) == ({"d/large.u"}, 0)


async def test_a_drawn_file_that_no_room_is_given_back_for_fails_and_says_what_is_free(
    scene: FetchScene, autojump_clock: MockClock
) -> None:
    """A larger cache is not needed for it: there is room once readers let go of other files."""
    nodes = await scene.list("d/large.u", blocks=3)
    own, _ = scene.reserve(1), scene.reserve(8)
    async with running(scene.fetcher.run):
        scene.fetcher.draw(nodes, (), Priority.DRAW, own)
        await scene.until_nothing_is_in_flight()
    failure = scene.fetcher.failures.last
    assert failure
    assert f"besides the {2 * BLOCK} that are free; the rest is held by readers" in str(failure.error)


@pytest.mark.promise(18, 22)
async def test_a_drawn_file_that_is_larger_than_expected_evicts_nothing_that_may_stay(
    scene: FetchScene, autojump_clock: MockClock
) -> None:
    """Otherwise a full cache of files without sizes would be fetched again and again, though nobody reads."""
    paths = {f"d/{number}.x" for number in range(9)}
    nodes = await scene.list("d/large.u", *paths, blocks=3)
    await scene.cache.admit(*paths, content=b"x" * BLOCK)
    async with running(scene.fetcher.run):
        scene.fetcher.draw(nodes[:1], (), Priority.DRAW, scene.reserve(1))
        await scene.until_nothing_is_in_flight()
    assert (scene.cache.resident(), scene.fetcher.failures.count) == (paths, 1)


# Downloads that fail or are left halfway.


async def test_a_group_of_thousands_of_files_fails_as_a_whole(scene: FetchScene) -> None:
    nodes = await scene.list(*(f"d/{number}.x" for number in range(3000)))
    fetcher = scene.fetcher
    fetcher.draw(nodes, tuple(node.id for node in nodes), Priority.DRAW, scene.reserve(1))
    download = fetcher.downloads.get(nodes[0].id)
    assert download
    download.move(DownloadState.FETCHING)
    fetcher.handle_result(download, FetchFailed(RemoteError("not readable")))
    assert (len(fetcher.downloads), fetcher.failures.count) == (0, len(nodes))


async def test_a_group_may_fail_while_one_of_its_files_waits_for_an_eviction(
    pairs: FetchScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, node = await pairs.list("d/1.a", "d/1.b")
    pairs.remote.delete("d/1.a")
    space, may_fail, has_failed = pairs.cache.space, trio.Event(), trio.Event()
    reserve_free, reserve = space.reserve_free, space.reserve_by_eviction

    def first_only(claim: Claim) -> Reservation | None:
        return None if pairs.cache.store.room.reserved_bytes else reserve_free(claim)

    async def slow_reserve(size: int, priority: Priority) -> Reservation | None:
        may_fail.set()
        await has_failed.wait()
        return await reserve(size, priority)

    monkeypatch.setattr(in_process, "switch", may_fail.wait)
    monkeypatch.setattr(space, "reserve_free", first_only)
    monkeypatch.setattr(space, "reserve_by_eviction", slow_reserve)
    async with running(pairs.outage.run, pairs.fetcher.run):
        with pytest.raises(RemoteError):
            await pairs.fetcher.ensure(node, "d/1.b")
        has_failed.set()
        await wait_all_tasks_blocked(0.2)
    pairs.assert_nothing_is_left()


@pytest.mark.promise(3)
@pytest.mark.parametrize("is_changed", [True, False])
async def test_a_file_that_a_failed_service_left_halfway_is_fetched_by_its_next_run(
    scene: FetchScene, monkeypatch: pytest.MonkeyPatch, is_changed: bool
) -> None:
    """The catalog was about to be told of another version, or the file was about to be admitted, and still is."""
    [node] = await scene.list("d/1.x")
    listed, disk_is_slow = scene.remote.files["d/1.x"], threading.Event()
    if is_changed:
        scene.remote.put("d/1.x", 1)

    async def never(*_: object) -> None:
        await trio.sleep_forever()

    with monkeypatch.context() as patched:
        patched.setattr(scene.sync, "update_file", never)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.cache.database.run_in_writer, disk_is_slow.wait)
            async with running(scene.fetcher.run) as services:
                services.start_soon(scene.fetcher.ensure, node, "d/1.x")
                await wait_all_tasks_blocked(0.1)
                services.cancel_scope.cancel()  # as an error in one of its tasks does
                disk_is_slow.set()
    assert scene.cache.resident() == (set() if is_changed else {"d/1.x"})
    scene.remote.files["d/1.x"] = listed
    async with running(scene.fetcher.run):
        await scene.fetcher.ensure(node, "d/1.x")
    assert scene.cache.resident() == {"d/1.x"}
    scene.assert_nothing_is_left()


@pytest.mark.promise(24)
@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_group_of_which_a_failed_service_finished_one_file_is_finished_by_its_next_run(
    pairs: FetchScene, is_gone: bool
) -> None:
    """Both were admitted, or one failed, and who is notified of the first failed: the disk may not be readable."""
    paths = {"d/1.a", "d/1.b"}
    node, _ = await pairs.list(*sorted(paths))
    if is_gone:
        pairs.remote.delete("d/1.b")
    finished: list[str] = []

    def note(download: Download) -> None:
        finished.append(download.path)
        if len(finished) == 1:
            raise Unreadable("the catalog")

    pairs.fetcher.finished.connect(note)
    with pytest.RaisesGroup(Unreadable, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pairs.fetcher.run)
            nursery.start_soon(pairs.fetcher.ensure, node, "d/1.a")
    async with running(pairs.fetcher.run):
        await pairs.until_nothing_is_in_flight()
    assert sorted(finished) == sorted(paths)
    assert pairs.cache.resident() == (set() if is_gone else paths)
    pairs.assert_nothing_is_left()


async def test_a_group_whose_paths_cannot_be_read_leaves_nothing_behind(
    pairs: FetchScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither room nor files in flight, which nothing would fetch, and which would be waited for."""
    nodes = await pairs.list("d/1.a", "d/1.b")
    path = pairs.cache.catalog.path

    def half_readable(node: Node) -> str:
        if node == nodes[1]:
            raise Unreadable("the catalog")
        return path(node)

    monkeypatch.setattr(pairs.cache.catalog, "path", half_readable)
    with pytest.raises(Unreadable):
        pairs.fetcher.draw(nodes, tuple(node.id for node in nodes), Priority.DRAW, pairs.reserve(2))
    with pytest.raises(Unreadable):
        await pairs.fetcher.ensure(nodes[0], "d/1.a")
    pairs.assert_nothing_is_left()
