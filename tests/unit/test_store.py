"""The quota, admission and eviction, open files, and the order of eviction."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from growfs import disk
from growfs.bitmaps import BitMap64
from growfs.cache import open_files, store
from growfs.cache.full_disk import QUOTA_RETRY_S
from growfs.cache.open_files import OpenFile
from growfs.cache.publish import Published, Publisher
from growfs.cache.recovery import recover, verify_content
from growfs.cache.room import Reservation
from growfs.cache.schema import DirectoryPaths, Query
from growfs.disk import BLOCK
from growfs.errors import DiskFull, NoRoom, TooManyOpen
from growfs.paths import StrPath
from growfs.rotation.rules import Generation
from growfs.scheduler import space
from growfs.scheduler.in_flight import Claim, Priority
from tests.harness import mapped_only
from tests.unit.local_cache import LocalCache, file, open_local_cache


async def pin(cache: LocalCache, path: str) -> None:
    id = cache.node(path).id
    await cache.database.write(lambda writer: writer.execute("UPDATE node SET pinned = 1 WHERE id = ?", (id,)))


def open_file(cache: LocalCache, path: str) -> OpenFile:
    handle = cache.store.open(cache.node(path).id)
    assert handle
    return handle


async def list_files(cache: LocalCache, *paths: str) -> None:
    await cache.list([file(path) for path in paths])


async def test_reserved_bytes_count_towards_the_limit(cache: LocalCache) -> None:
    cache.store.room.limit_bytes = 3 * BLOCK
    first = cache.store.room.reserve(BLOCK + 1)
    assert first
    assert first.bytes == cache.store.room.used_bytes == 2 * BLOCK
    assert cache.store.room.reserve(BLOCK + 1) is None
    second = cache.store.room.reserve(1)
    assert second
    assert second.bytes == BLOCK
    assert cache.store.room.reserve(1) is None
    second.release()
    second.release()
    assert cache.store.room.reserved_bytes == 2 * BLOCK, "it is given back once"
    assert cache.store.room.reserve(BLOCK)


async def test_a_reservation_is_divided_among_the_files_of_a_group(cache: LocalCache) -> None:
    whole = cache.store.room.reserve(3 * BLOCK)
    assert whole
    part = whole.split(2 * BLOCK)
    assert (whole.bytes, part.bytes, cache.store.room.reserved_bytes) == (BLOCK, 2 * BLOCK, 3 * BLOCK)
    whole.release()
    part.spend()
    part.release()
    assert cache.store.room.reserved_bytes == 0


async def test_an_empty_file_needs_no_space(cache: LocalCache) -> None:
    await cache.list([file("a", 0)])
    cache.store.room.limit_bytes = 0
    await cache.admit("a", content=b"")
    assert cache.store.room.used_bytes == 0


async def test_nothing_is_reserved_below_the_minimum_of_free_space(cache: LocalCache) -> None:
    cache.store.room.min_free = disk.free_bytes(cache.folder) + (1 << 30)
    assert cache.store.room.reserve(1) is None


async def test_a_quota_that_statvfs_does_not_tell_is_found_by_what_it_refuses(
    cache: LocalCache, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one for 40 blocks, when 32 of files in flight are written and a file of 8 is refused."""
    store, tried = cache.store, list[int]()

    def has_room_for(bytes: int) -> bool:
        tried.append(bytes)
        return store.room.used_bytes + bytes <= 40 * BLOCK

    def note_refusal(written: int) -> bool:
        return store.room.note_refusal(DiskFull("full"), trio.current_time() + 1, lambda: written)

    monkeypatch.setattr(cache.database.spare, "has_room_for", has_room_for)
    used, refused = store.room.reserve(32 * BLOCK), store.room.reserve(8 * BLOCK)
    assert used
    assert refused
    assert not await store.room.probe(BLOCK, at_once=True), "nothing is known of a quota"
    assert note_refusal(32 * BLOCK)
    assert store.room.quota.overdraft(store.room.used_bytes)
    refused.release()
    assert cache.database.spare.lacking_bytes, "the catalog needs room, too"
    cache.database.write_now(lambda _: None)
    assert cache.database.spare.lacking_bytes, "and keeps it"
    assert store.room.quota.bytes == 31 * BLOCK
    assert store.room.short(8 * BLOCK) == 9 * BLOCK
    assert not await store.room.probe(BLOCK, at_once=True), "what is in flight may not be written yet"
    used.spend()
    store.resident_bytes = 32 * BLOCK
    for at_once in (False, True):
        assert not await store.room.probe(9 * BLOCK, at_once)
    assert not await store.room.probe(BLOCK, at_once=False), "it is left alone for a while"
    await trio.sleep(QUOTA_RETRY_S)
    assert await store.room.probe(2 * BLOCK, at_once=False)
    assert tried == [9 * BLOCK, 9 * BLOCK, 2 * BLOCK]
    assert store.room.short(0) == -2 * BLOCK
    assert note_refusal(2 * BLOCK)
    assert store.room.quota.bytes == 17 * BLOCK, "files took the room that was left free, and give it back; but not all"
    store.room.min_free = 1 << 60
    store.room.quota.bytes = None
    assert not note_refusal(0)
    assert store.room.quota.bytes is None, "others fill the disk, which statvfs tells"


@pytest.mark.parametrize("renews", [False, True])
async def test_files_that_the_disk_refuses_while_the_daemon_stops_are_removed(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch, renews: bool
) -> None:
    await list_files(cache, "a/1")
    if renews:
        await cache.admit("a/1", content=b"old")
    staged = cache.stage("a/1", b"new")._replace(renews=renews)
    publish = Publisher.publish

    def stopped_and_refused(*arguments: Any) -> None:
        publish(*arguments)
        trio.from_thread.run_sync(scope.cancel)
        raise sqlite3.OperationalError(disk.DATABASE_FULL)

    monkeypatch.setattr(Publisher, "publish", stopped_and_refused)
    with trio.CancelScope() as scope, pytest.raises(sqlite3.OperationalError):
        await cache.store.admit([staged])
    path = cache.folder / "files/a/1"
    assert (path.read_bytes() == b"old") if renews else not path.exists()


async def test_eviction_frees_space_and_notifies(cache: LocalCache) -> None:
    await list_files(cache, "a/1", "a/2")
    await cache.admit("a/1", "a/2")
    notified = []
    cache.store.room.freed.connect(lambda: notified.append(True))
    assert await cache.store.evict([cache.node("a/1").id]) == BLOCK
    assert notified
    assert set(cache.cached()) == cache.resident() == {"a/2"}
    assert (cache.store.evicted_files, cache.store.evicted_bytes) == (1, BLOCK)
    assert cache.store.room.used_bytes == BLOCK
    assert await cache.store.evict([cache.node("a/1").id]) == 0


async def test_an_evicted_file_that_is_open_counts_until_its_last_close(cache: LocalCache) -> None:
    await list_files(cache, "a/1")
    await cache.admit("a/1", content=b"y" * 100)
    id = cache.node("a/1").id
    handle = open_file(cache, "a/1")
    assert open_file(cache, "a/1") is handle
    await cache.store.evict([id])
    assert cache.store.resident_bytes == 0
    assert cache.store.open_files.orphan_bytes == cache.store.room.used_bytes == BLOCK
    assert os.pread(handle.fd, 200, 0) == b"y" * 100
    cache.store.close_file(id)
    assert cache.store.open_files.orphan_bytes == BLOCK
    notified = []
    cache.store.room.freed.connect(lambda: notified.append(True))
    cache.store.close_file(id)
    assert notified
    assert cache.store.room.used_bytes == 0
    assert cache.store.open_files.get(id) is None


async def test_a_file_is_closed_before_its_eviction_frees_its_blocks(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freeing them takes a while. The writing thread does it, rather than the one that answers the kernel."""
    await list_files(cache, "a/1", "a/2")
    await cache.admit("a/1", "a/2")
    id, unlink, open_at_unlink = cache.node("a/1").id, disk.unlink, []
    fd = open_file(cache, "a/1").fd
    cache.store.close_file(id)

    def watched(label: str, path: StrPath) -> None:
        open_at_unlink.append(os.path.exists(f"/proc/self/fd/{fd}"))
        unlink(label, path)

    assert os.path.exists(f"/proc/self/fd/{fd}"), "kept for the next reader"
    monkeypatch.setattr(disk, "unlink", watched)
    await cache.store.evict([id])
    assert open_at_unlink == [False]


async def test_mapped_files_count_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "IDLE_MAX", 4)
    monkeypatch.setattr(open_files, "IDLE_CANDIDATES", 2)
    (tmp_path / "partial").mkdir()
    cache = open_local_cache(tmp_path)
    store, paths = cache.store, [f"a/{number:02}" for number in range(20)]
    await list_files(cache, *paths)
    await cache.admit(*paths)
    ids = [cache.node(path).id for path in paths]
    with ExitStack() as mappings:
        for number, path in enumerate(paths):
            open_file(cache, path)
            if number < 10:
                mappings.enter_context(mapped_only(cache.folder / "files" / path))
            store.close_file(ids[number])
        assert [id in store.open_files for id in ids] == 10 * [True] + 10 * [False]
        await store.evict(ids)
        assert store.room.used_bytes == store.open_files.orphan_bytes == 10 * BLOCK
    store.room.collect_orphans()
    assert store.room.used_bytes == 0
    cache.close()


async def test_a_refused_open_names_the_number_of_files_that_are_open_or_mapped(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    await list_files(cache, "a", "b")
    await cache.admit("a", "b")
    open_file(cache, "a")
    with mapped_only(cache.folder / "files/a"):
        await cache.store.evict([cache.node("a").id])
        cache.store.close_file(cache.node("a").id)
        monkeypatch.setattr(cache.store.open_files, "_descriptors_max", 1)
        with pytest.raises(TooManyOpen, match="1 files are open or mapped"):
            open_file(cache, "b")


async def test_a_file_counts_as_in_use_if_no_descriptor_is_left_to_tell(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With links, the daemon has to open it for that."""
    await list_files(cache, "a")
    await cache.admit("a")
    monkeypatch.setattr(cache.store, "keep_readers_away", nullcontext)
    with monkeypatch.context() as patch:
        patch.setattr(cache.store.open_files, "_descriptors_max", 0)
        assert cache.store.is_in_use(cache.node("a").id)
    assert not cache.store.is_in_use(cache.node("a").id)


async def test_while_readers_are_kept_from_a_file_that_is_to_go_others_are_admitted(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With links, each eviction waits for readers. It holds up no other write."""
    await list_files(cache, "a", "b")
    await cache.admit("a")
    waiting, ready = trio.Event(), trio.Event()

    @asynccontextmanager
    async def keep_away(ids: Sequence[int]) -> AsyncIterator[None]:
        assert ids == [cache.node("a").id]
        waiting.set()
        await ready.wait()
        yield
        assert "a" not in cache.cached()

    monkeypatch.setattr(cache.store, "keep_readers_away", keep_away)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.evict, [cache.node("a").id])
        await waiting.wait()
        await cache.admit("b")
        assert set(cache.cached()) == cache.resident() == {"a", "b"}
        ready.set()
    assert set(cache.cached()) == cache.resident() == {"b"}


async def test_a_staged_file_of_an_old_version_is_not_admitted(cache: LocalCache) -> None:
    await list_files(cache, "a/1", "a/2")
    staged = [cache.stage("a/1", b"x"), cache.stage("a/2", b"x")]
    await cache.list([file("a/1", version="v2"), file("a/2")])
    assert set((await cache.store.admit(staged)).admitted) == {cache.node("a/2").id}
    assert cache.resident() == set(cache.cached()) == {"a/2"}
    assert cache.store.room.reserved_bytes == 0
    assert list((cache.folder / "partial").iterdir()) == []


async def test_if_one_file_of_several_cannot_be_published_none_is_and_an_old_version_stays(cache: LocalCache) -> None:
    await list_files(cache, "a/1", "a/2", "a/3")
    await cache.admit("a/1", content=b"old")
    staged = [cache.stage("a/3", b"x"), cache.stage("a/1", b"new")._replace(renews=True), cache.stage("a/2", b"x")]
    os.unlink(staged[2].file)
    with pytest.raises(FileNotFoundError):
        await cache.store.admit(staged)
    assert cache.resident() == {"a/1"}
    assert cache.cached() == {"a/1": b"old"}
    assert cache.store.room.used_bytes == BLOCK
    await cache.admit("a/2", "a/3")


def test_a_tree_may_link_to_a_new_version_before_the_old_one_is_removed(tmp_path: Path) -> None:
    """It may be made after the file is renamed, and before the rows are committed."""
    path, old = tmp_path / "files/1", tmp_path / "partial/7.old"
    publisher = Publisher(path.parent, DirectoryPaths(), 0)
    publisher.mirrors = [tmp_path / str(number) for number in range(3)]
    for folder in (path.parent, old.parent, *publisher.mirrors):
        folder.mkdir()
    path.write_text("new")
    old.write_text("old")
    for tree, version in zip(publisher.mirrors, (path, old, path), strict=True):
        (tree / "1").hardlink_to(version)
    publisher.finish(Published({str(path): str(old)}))
    assert [(tree / "1").read_text() for tree in publisher.mirrors] == 3 * ["new"]
    assert list(old.parent.iterdir()) == []
    assert not publisher.left_behind


async def test_a_resident_file_survives_the_admission_of_a_second_copy(cache: LocalCache) -> None:
    await list_files(cache, "a/1", "a/2")
    await cache.admit("a/1", content=b"whole")
    staged = [cache.stage("a/2", b"x"), cache.stage("a/1", b"whole")]
    assert set((await cache.store.admit(staged)).admitted) == {cache.node("a/2").id}
    assert cache.cached() == {"a/1": b"whole", "a/2": b"x"}
    assert cache.resident() == {"a/1", "a/2"}
    assert cache.store.room.used_bytes == 2 * BLOCK


@pytest.mark.promise(5)
async def test_files_are_listed_in_the_order_of_admission(cache: LocalCache) -> None:
    paths = [f"a/{number}" for number in (3, 1, 2)]
    await list_files(cache, *paths)
    await cache.store.admit([cache.stage(path, b"x") for path in paths])
    everything = Generation(1, 9, listed=BitMap64(range(10)))
    assert [node.name for node in cache.entries(cache.node("a").id, everything, 10)] == ["3", "1", "2"]


async def fill(cache: LocalCache, count: int = 6, shown: int = 3) -> None:
    """Fill a cache with `count` files of one directory, of which a generation has shown the first ones."""
    paths = [f"a/{number}.jpg" for number in range(count)]
    await list_files(cache, *paths, "a/more.jpg")
    await cache.admit(*paths[:shown])
    await cache.begin()
    await cache.admit(*paths[shown:])
    cache.store.room.limit_bytes = count * BLOCK


def claim_of_another_file(cache: LocalCache, priority: Priority, is_wanted: Callable[[], bool] = lambda: True) -> Claim:
    """What waits for room for the file of `fill` that is not cached."""
    return Claim([cache.node("a/more.jpg")], "a/more.jpg", priority, is_wanted, patience_s=5.0)


async def evict_all(cache: LocalCache) -> list[str]:
    """Evict one file after the other until none may be evicted; returns their names in this order."""
    order: list[str] = []
    while True:
        before = cache.resident()
        reserved = await cache.reserve_by_eviction(BLOCK, BitMap64())
        if reserved is None:
            return order
        cache.give_back()
        (gone,) = before - cache.resident()
        order.append(gone.removeprefix("a/").removesuffix(".jpg"))
        cache.store.room.limit_bytes -= BLOCK


async def test_open_and_pinned_files_are_not_evicted(cache: LocalCache) -> None:
    await fill(cache)
    open_file(cache, "a/5.jpg")
    open_file(cache, "a/0.jpg")
    await pin(cache, "a/3.jpg")
    await pin(cache, "a/1.jpg")
    assert await evict_all(cache) == ["4", "2"]
    assert not await cache.shrink(0)
    assert cache.resident() == {"a/5.jpg", "a/0.jpg", "a/3.jpg", "a/1.jpg"}


@pytest.mark.promise(17, 19)
@pytest.mark.parametrize("priority", [Priority.DUE, Priority.READER])
@pytest.mark.parametrize("lists_all", [False, True])
async def test_a_file_that_a_process_lists_while_others_are_picked_is_not_evicted_before_them(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch, priority: Priority, lists_all: bool
) -> None:
    """To find what may go takes a second if much is cached. If a process then lists all, a miss evicts one file, and a
    new version none; neither goes through the files one by one to find that out.
    """
    await fill(cache, count=4, shown=4)
    first, query, queries = cache.node("a/0.jpg").seq, cache.database.query_in_thread, list[object]()
    assert first

    async def slow_query(function: Callable[[Query], Any]) -> Any:
        picked = await query(function)
        cache.holds = cache.holds | BitMap64(range(1000) if lists_all else [first])
        queries.append(function)
        return picked

    if lists_all:
        monkeypatch.setattr(space, "ROWS_MAX", (1000,))
        monkeypatch.setattr(space.Space._pick, "__defaults__", (0, (1000,)))
    monkeypatch.setattr(cache.database, "query_in_thread", slow_query)
    reserved = await cache.space.reserve_by_eviction(BLOCK, priority)
    assert bool(reserved) == (not lists_all or priority is Priority.READER)
    assert len(cache.resident()) == (3 if reserved else 4)
    assert lists_all or cache.resident() == {"a/0.jpg", "a/2.jpg", "a/3.jpg"}
    assert not lists_all or len(queries) <= 4
    if reserved:
        reserved.release()


@pytest.mark.parametrize(
    ("rows_max", "kept"), [(space.ROWS_MAX, {"a/1.jpg", "a/2.jpg"}), ((1, 2), {"a/2.jpg", "a/3.jpg"})]
)
async def test_a_lower_limit_evicts_down_to_it_however_much_is_read_at_a_time(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch, rows_max: tuple[int, ...], kept: set[str]
) -> None:
    monkeypatch.setattr(space, "ROWS_MAX", rows_max)
    monkeypatch.setattr(space.Space._pick, "__defaults__", (0, rows_max))
    await fill(cache)
    assert await cache.shrink(2 * BLOCK)
    assert cache.store.room.used_bytes == 2 * BLOCK
    assert cache.resident() == kept


async def test_a_lower_limit_waits_for_files_that_were_just_closed_and_for_downloads_that_end(
    cache: LocalCache,
) -> None:
    """The kernel tells of a close only after close(2) has returned."""
    await fill(cache, count=2)
    cache.store.room.limit_bytes = 3 * BLOCK
    reserved = cache.store.room.reserve(BLOCK)
    assert reserved
    opened = open_file(cache, "a/0.jpg"), open_file(cache, "a/1.jpg")
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _() -> None:
            await trio.sleep(0.1)
            for file in opened:
                cache.store.open_files.close(file.id)
            reserved.release()

        assert await cache.shrink(BLOCK)
    assert cache.store.room.used_bytes <= BLOCK  # less if the download ended while victims for it were picked


async def test_what_finds_no_room_waits_no_longer_than_it_has_patience(
    cache: LocalCache, autojump_clock: MockClock
) -> None:
    """What looks again after 0.5, 1.5, 3.5 and 7.5 s gives up after 5 s."""
    await fill(cache)
    for path in cache.resident():
        open_file(cache, path)
    claim = claim_of_another_file(cache, Priority.DUE)
    began = trio.current_time()
    with pytest.raises(NoRoom):
        await cache.space.acquire(claim)
    assert trio.current_time() - began == pytest.approx(5.0)


async def test_a_drawn_file_evicts_nothing_while_others_may_give_room_back(
    cache: LocalCache, autojump_clock: MockClock
) -> None:
    """Their sizes may be guesses: what they do not need comes back when they have arrived."""
    await fill(cache, count=2)
    cache.store.room.limit_bytes = 4 * BLOCK
    others = cache.store.room.reserve(2 * BLOCK)
    assert others
    claim = claim_of_another_file(cache, Priority.DUE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.space.acquire, claim)
        await trio.sleep(1)
        others.resize(BLOCK)
    assert len(cache.resident()) == 2
    assert await cache.space.acquire(claim), "in the end it does"
    assert len(cache.resident()) == 1


async def test_a_draw_that_is_no_longer_wanted_gives_its_room_back_at_once(cache: LocalCache) -> None:
    """Even if that happens while files are evicted for it: the next draw may need the room."""
    await fill(cache, count=2)
    cache.store.room.limit_bytes = 2 * BLOCK
    answers = iter([True, False])
    claim = claim_of_another_file(cache, Priority.READER, lambda: next(answers))
    assert await cache.space.acquire(claim) is None
    assert len(cache.resident()) == 1
    assert cache.store.room.reserved_bytes == 0


async def test_room_that_comes_up_during_a_look_is_seen_at_once(
    cache: LocalCache, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cache)
    for path in cache.resident():
        open_file(cache, path)
    look = cache.space._look
    looks = []

    async def slow_look(claim: Claim) -> Reservation | None:
        found = await look(claim)
        looks.append(found)
        if len(looks) == 1:
            cache.store.room.limit_bytes *= 2
            cache.store.room.freed.notify()
        return found

    monkeypatch.setattr(cache.space, "_look", slow_look)
    began = trio.current_time()
    assert await cache.space.acquire(claim_of_another_file(cache, Priority.READER))
    assert looks[0] is None
    assert trio.current_time() == began


async def test_a_file_that_a_reader_waits_for_gets_all_that_was_evicted_for_a_guess(cache: LocalCache) -> None:
    """A draw would take the rest, and there would be no room if the file is larger."""
    await cache.list([file("a/large.jpg", 3 * BLOCK), file("a/small.jpg", BLOCK), file("a/unknown.jpg", None)])
    cache.store.room.limit_bytes = 4 * BLOCK
    await cache.admit("a/large.jpg", content=b"x" * 3 * BLOCK)
    await cache.admit("a/small.jpg", content=b"x" * BLOCK)
    await cache.begin()
    cache.sizes.bytes = 4 * BLOCK
    claim = Claim([cache.node("a/unknown.jpg")], "a/unknown.jpg", Priority.READER, lambda: True)
    reserved = await cache.space.acquire(claim)
    assert reserved
    assert cache.resident() == {"a/small.jpg"}
    assert reserved.bytes == 3 * BLOCK


async def test_a_file_that_has_arrived_needs_no_more_than_it_has(cache: LocalCache) -> None:
    """Although an earlier version was larger than expected."""
    await cache.list([file("a/1", size=100)])
    node = cache.node("a/1")
    cache.sizes.exceeded(node, 10 * BLOCK)
    assert cache.sizes.most([node]) > BLOCK
    cache.sizes.arrived(node, 100)
    assert cache.sizes.most([node]) == BLOCK


async def test_concurrent_reservations_evict_a_file_each(cache: LocalCache) -> None:
    await fill(cache)

    async def reserve() -> None:
        assert await cache.reserve_by_eviction(BLOCK, BitMap64())

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(reserve)
    assert len(cache.resident()) == 2
    assert cache.store.room.used_bytes == cache.store.room.limit_bytes


async def renew(cache: LocalCache) -> None:
    await cache.renew("a/1", b"new")


async def evict_and_admit(cache: LocalCache) -> None:
    await cache.store.evict([cache.node("a/1").id])
    await cache.admit("a/1", content=b"other")


@pytest.mark.parametrize("change", [renew, evict_and_admit])
@pytest.mark.parametrize("after_sync", [False, True])
async def test_a_file_that_changes_hands_while_it_is_verified_is_not_damaged(
    cache: LocalCache,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[LocalCache], Awaitable[None]],
    after_sync: bool,
) -> None:
    await list_files(cache, "a/1")
    await cache.admit("a/1")

    def verify(path: Path, digest: str) -> bool:
        trio.from_thread.run(change, cache)
        return bool(verify_content(path, digest))

    damaged: list[int] = []
    cache.store.damaged.connect(damaged.append)
    id = cache.node("a/1").id
    if after_sync:
        monkeypatch.setattr(store, "verify_on_medium", verify)
        monkeypatch.setattr(disk, "_fault_label", "SYNC")
        monkeypatch.setattr(disk, "_fault_kind", "EIO")
        with pytest.raises(OSError, match="injected"):
            await cache.store.make_durable()
    else:
        monkeypatch.setattr(store, "verify_content", verify)
        assert not await cache.store.verify(id)
    assert (cache.resident(), damaged) == ({"a/1"}, [])


@pytest.mark.promise(29)
async def test_a_sync_makes_durable_what_was_admitted_before_it_began(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    await list_files(cache, "a/1", "a/2", "a/3")
    await cache.admit("a/1", "a/2")
    begun, ended = threading.Event(), threading.Event()

    def sync(label: str, folder: int) -> None:
        begun.set()
        ended.wait(60)

    monkeypatch.setattr(disk, "syncfs", sync)
    query = "SELECT n.name FROM resident r JOIN node n USING (id) WHERE n.is_dir = 0 AND r.durable = 1"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.make_durable)
        await trio.to_thread.run_sync(begun.wait)
        try:
            with trio.fail_after(30):
                await cache.admit("a/3")
                await cache.renew("a/2", b"y" * 100)
        finally:
            ended.set()
    assert cache.database.rows(query) == [("1",)]
    await cache.store.make_durable()
    assert len(cache.database.rows(query)) == 3


async def test_what_a_failed_sync_has_lost_is_dropped(cache: LocalCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sync succeeds, because the kernel tells an error once."""
    await cache.list([file("a/kept"), file("a/lost"), file("a/synced")])
    await cache.admit("a/synced")
    await cache.store.make_durable()
    await cache.admit("a/kept", "a/lost")

    def lose(label: str, folder: int) -> None:
        (cache.folder / "files/a/lost").write_bytes(bytes(100))
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "syncfs", lose)
        with pytest.raises(OSError, match="Input/output error"):
            await cache.store.make_durable()
    await cache.store.make_durable()
    assert cache.resident() == {"a/kept", "a/synced"}
    assert cache.store.resident_files == 2


async def test_after_a_stop_whose_sync_failed_only_what_was_synced_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_local_cache(tmp_path)
    await cache.list([file("a/1"), file("a/2")])
    await cache.admit("a/1")
    await cache.store.make_durable()
    await cache.admit("a/2")

    def refuse(label: str, folder: int) -> None:
        raise OSError(errno.EIO, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "syncfs", refuse)
        with pytest.raises(OSError, match="refused"):
            cache.store.stop()
    cache.database.close()
    cache = open_local_cache(tmp_path)
    assert cache.resident() == {"a/1"}
    cache.database.close()


async def test_totals_that_come_back_after_a_power_loss_do_not_count(tmp_path: Path) -> None:
    cache = open_local_cache(tmp_path)
    await cache.list([file("a/1"), file("a/2")])
    await cache.admit("a/1", "a/2")
    cache.close()
    (tmp_path / "files/a/1").unlink()
    database = sqlite3.connect(tmp_path / "catalog.sqlite")
    database.execute("UPDATE meta SET value = 0 WHERE key = 'clean'")  # what the next daemon wrote and synced first
    database.commit()
    database.close()
    cache = open_local_cache(tmp_path)
    assert (cache.resident(), cache.store.resident_files) == ({"a/2"}, 1)
    assert cache.store.resident_bytes == BLOCK
    cache.database.close()


@pytest.mark.parametrize("refusal", [errno.ENAMETOOLONG, errno.EMLINK, errno.EPERM])
async def test_a_path_that_cannot_be_published_fails_alone(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """A name that the disk does not take, or a hard link: others of the same batch are admitted."""
    await cache.list([file("a/1"), file("b/2")])
    rename = disk.rename

    def refuse(label: str, source: StrPath, target: StrPath) -> None:
        if Path(target).name == "2":
            raise OSError(refusal, "refused")
        rename(label, source, target)

    monkeypatch.setattr(disk, "rename", refuse)
    done = await cache.store.admit([cache.stage(path, b"x" * 100) for path in ("a/1", "b/2")])
    assert set(done.admitted) == {cache.node("a/1").id}
    assert [error.errno for error in done.refused.values()] == [refusal]
    assert cache.resident() == {"a/1"}


def test_a_file_takes_its_size_at_least() -> None:
    """ZFS tells the blocks of a new file when its transaction group commits."""
    late = os.stat_result((0o100600, 1, 1, 1, 0, 0, 10_000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 512, 1, 0))
    assert (late.st_size, late.st_blocks) == (10_000, 1)
    assert disk.allocated(late) == 10_000


async def test_inode_numbers_of_64_bits(cache: LocalCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite stores signed numbers."""

    def far(stat: os.stat_result) -> os.stat_result:
        others = {name: getattr(stat, name) for name in ("st_mtime_ns", "st_blocks")}
        return os.stat_result([stat.st_mode, stat.st_ino + (1 << 63), *stat[2:]], others)

    for name in ("stat", "lstat", "fstat"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *arguments, real=real, **options: far(real(*arguments, **options)))
    await list_files(cache, "a/1.bin")
    await cache.admit("a/1.bin")
    id = cache.node("a/1.bin").id
    assert cache.store.open(id)
    assert not await cache.store.verify(id)
    recover(cache.database, cache.folder)
    assert cache.node("a/1.bin").seq
