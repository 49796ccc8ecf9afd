"""The quota, coming and going, open files, and who leaves first."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from growfs import disk
from growfs.cache.open_files import OpenFile
from growfs.disk import BLOCK
from growfs.rotation.rules import Generation, Holds
from tests.unit.rooms import Rooms, file, open_rooms


async def pin(rooms: Rooms, path: str) -> None:
    id = rooms.node(path).id
    await rooms.database.write(lambda writer: writer.execute("UPDATE node SET pinned = 1 WHERE id = ?", (id,)))


def opened(rooms: Rooms, path: str) -> OpenFile:
    found = rooms.store.open(rooms.node(path).id)
    assert found
    return found


async def listed(rooms: Rooms, *paths: str) -> None:
    await rooms.list([file(path) for path in paths])


async def test_a_file_that_is_admitted_is_resident(rooms: Rooms) -> None:
    await listed(rooms, "a/1", "a/2")
    await rooms.admit("a/1", content=b"x" * 5000)
    store = rooms.store
    assert rooms.cached() == {"a/1": b"x" * 5000}
    assert (store.resident_files, store.resident_bytes, store.resident_content_bytes) == (1, 2 * BLOCK, 5000)
    assert (store.reserved_bytes, store.orphan_bytes, store.used_bytes) == (0, 0, 2 * BLOCK)
    assert rooms.node("a/1").seq
    assert rooms.node("a").seq
    assert rooms.node("a/2").seq is None


async def test_what_is_in_flight_counts(rooms: Rooms) -> None:
    rooms.store.limit_bytes = 3 * BLOCK
    first = rooms.store.reserve(BLOCK + 1)
    assert first == rooms.store.used_bytes == 2 * BLOCK
    assert rooms.store.reserve(BLOCK + 1) is None
    second = rooms.store.reserve(1)
    assert second == BLOCK
    assert rooms.store.reserve(1) is None
    rooms.store.unreserve(second)
    assert rooms.store.reserve(BLOCK) == BLOCK


async def test_a_file_of_no_bytes_takes_no_room(rooms: Rooms) -> None:
    await rooms.list([file("a", 0)])
    rooms.store.limit_bytes = 0
    await rooms.admit("a", content=b"")
    assert rooms.store.used_bytes == 0


async def test_settling_takes_what_the_file_needs(rooms: Rooms) -> None:
    reserved = rooms.store.reserve(100 * BLOCK)
    assert reserved
    assert rooms.store.adjust_reservation(reserved, BLOCK + 1) == rooms.store.used_bytes == 2 * BLOCK


async def test_the_disk_keeps_its_reserve(rooms: Rooms) -> None:
    rooms.store.min_free = disk.free_bytes(rooms.folder) + (1 << 30)
    assert rooms.store.reserve(1) is None


async def test_the_largest_file_is_whole_blocks(rooms: Rooms) -> None:
    rooms.store.limit_bytes = 2 * BLOCK + 100
    assert rooms.store.max_file_bytes == 2 * BLOCK
    assert rooms.store.reserve(rooms.store.max_file_bytes)


async def test_eviction_frees(rooms: Rooms) -> None:
    await listed(rooms, "a/1", "a/2")
    await rooms.admit("a/1", "a/2")
    woken = []
    rooms.store.space_freed.connect(lambda: woken.append(True))
    assert await rooms.store.evict([rooms.node("a/1").id]) == BLOCK
    assert woken
    assert set(rooms.cached()) == rooms.resident() == {"a/2"}
    assert (rooms.store.evicted_files, rooms.store.evicted_bytes) == (1, BLOCK)
    assert rooms.store.used_bytes == BLOCK
    assert await rooms.store.evict([rooms.node("a/1").id]) == 0


async def test_an_evicted_file_that_is_open_counts_until_its_last_close(rooms: Rooms) -> None:
    await listed(rooms, "a/1")
    await rooms.admit("a/1", content=b"y" * 100)
    id = rooms.node("a/1").id
    handle = opened(rooms, "a/1")
    assert opened(rooms, "a/1") is handle
    await rooms.store.evict([id])
    assert (rooms.store.resident_bytes, rooms.store.orphan_bytes, rooms.store.used_bytes) == (0, BLOCK, BLOCK)
    assert os.pread(handle.fd, 200, 0) == b"y" * 100
    rooms.store.close_file(id)
    assert rooms.store.orphan_bytes == BLOCK
    woken = []
    rooms.store.space_freed.connect(lambda: woken.append(True))
    rooms.store.close_file(id)
    assert woken
    assert rooms.store.used_bytes == 0
    assert rooms.store.opened(id) is None


async def test_a_file_that_comes_back_while_it_is_open_counts_twice(rooms: Rooms) -> None:
    await listed(rooms, "a/1")
    await rooms.admit("a/1")
    id = rooms.node("a/1").id
    opened(rooms, "a/1")
    await rooms.store.evict([id])
    await rooms.admit("a/1")
    assert rooms.store.used_bytes == 2 * BLOCK
    await rooms.store.evict([id])
    assert rooms.store.used_bytes == BLOCK
    rooms.store.close_file(id)
    assert rooms.store.used_bytes == 0


async def test_a_file_that_was_replaced_while_it_is_open_keeps_its_content(rooms: Rooms) -> None:
    await listed(rooms, "a/1")
    await rooms.admit("a/1", content=b"old" * 10)
    handle = opened(rooms, "a/1")
    old = handle.id
    await rooms.list([file("a/1", version="v2")])
    await rooms.admit("a/1", content=b"new" * 10)
    assert os.pread(handle.fd, 100, 0) == b"old" * 10
    assert rooms.store.used_bytes == 2 * BLOCK
    rooms.store.close_file(old)
    assert rooms.store.used_bytes == BLOCK


async def test_a_draft_of_a_version_that_is_gone_is_not_admitted(rooms: Rooms) -> None:
    await listed(rooms, "a/1", "a/2")
    drafts = [rooms.draft("a/1", b"x"), rooms.draft("a/2", b"x")]
    await rooms.list([file("a/1", version="v2"), file("a/2")])
    assert await rooms.store.admit(drafts) == {rooms.node("a/2").id}
    assert rooms.resident() == set(rooms.cached()) == {"a/2"}
    assert rooms.store.reserved_bytes == 0
    assert list((rooms.folder / "partial").iterdir()) == []


async def test_where_one_file_of_several_cannot_be_published_none_is(rooms: Rooms) -> None:
    await listed(rooms, "a/1", "a/2")
    drafts = [rooms.draft("a/1", b"x"), rooms.draft("a/2", b"x")]
    drafts[1].file.unlink()
    with pytest.raises(FileNotFoundError):
        await rooms.store.admit(drafts)
    assert rooms.resident() == set(rooms.cached()) == set()
    assert rooms.store.used_bytes == 0
    await rooms.admit("a/1", "a/2")


async def test_where_a_new_version_cannot_be_published_the_old_one_stays(rooms: Rooms) -> None:
    await listed(rooms, "a/1", "a/2")
    await rooms.admit("a/1", content=b"old")
    newer = file("a/1", 3, "v2")
    draft = rooms.draft("a/1", b"new")
    draft = replace(draft, renews=True, fetched=replace(draft.fetched, file=newer))
    lost = rooms.draft("a/2", b"x")
    lost.file.unlink()
    with pytest.raises(FileNotFoundError):
        await rooms.store.admit([draft, lost])
    assert rooms.resident() == {"a/1"}
    assert rooms.cached() == {"a/1": b"old"}


async def test_a_file_that_is_resident_is_not_lost_to_a_second_draft(rooms: Rooms) -> None:
    await listed(rooms, "a/1", "a/2")
    await rooms.admit("a/1", content=b"whole")
    drafts = [rooms.draft("a/2", b"x"), rooms.draft("a/1", b"whole")]
    assert await rooms.store.admit(drafts) == {rooms.node("a/2").id}
    assert rooms.cached() == {"a/1": b"whole", "a/2": b"x"}
    assert rooms.resident() == {"a/1", "a/2"}
    assert rooms.store.used_bytes == 2 * BLOCK


@pytest.mark.promise(5)
async def test_the_order_of_admission_is_kept(rooms: Rooms) -> None:
    paths = [f"a/{number}" for number in (3, 1, 2)]
    await listed(rooms, *paths)
    await rooms.store.admit([rooms.draft(path, b"x") for path in paths])
    everything = Generation(1, 1 << 40, 0.0)
    assert [node.name for node in rooms.entries(rooms.node("a").id, everything, 10)] == ["3", "1", "2"]


async def test_a_generation_is_frozen(rooms: Rooms) -> None:
    await rooms.list([file("a/1", 100), file("a/2", 50), file("a/3")])
    await rooms.admit("a/1")
    first = await rooms.begin()
    assert first
    await rooms.admit("a/2", content=b"x" * 50)
    folder = rooms.node("a").id
    assert [node.name for node in rooms.entries(folder, first, 10)] == ["1"]
    assert (first.files, *rooms.totals()) == (1, 1, 100)
    second = await rooms.begin()
    assert second
    assert second.number == first.number + 1
    assert [node.name for node in rooms.entries(folder, second, 10)] == ["1", "2"]
    assert [node.name for node in rooms.entries(folder, first, 10)] == ["1"]
    assert (second.files, *rooms.totals()) == (2, 2, 150)


async def full(rooms: Rooms, count: int = 6, shown: int = 3) -> None:
    """A full cache: files 0 to count of one directory, of which a generation has shown the first ones."""
    paths = [f"a/{number}.jpg" for number in range(count)]
    await listed(rooms, *paths, "a/more.jpg")
    await rooms.admit(*paths[:shown])
    await rooms.begin()
    await rooms.admit(*paths[shown:])
    rooms.store.limit_bytes = count * BLOCK


async def leaving(rooms: Rooms) -> list[str]:
    """Who leaves, one after the other, as long as somebody may."""
    order: list[str] = []
    while True:
        before = rooms.resident()
        reserved = await rooms.reserve_by_eviction(BLOCK, Holds())
        if reserved is None:
            return order
        rooms.store.unreserve(reserved)
        (gone,) = before - rooms.resident()
        order.append(gone.removeprefix("a/").removesuffix(".jpg"))
        rooms.store.limit_bytes -= BLOCK


@pytest.mark.promise(19)
async def test_the_newest_that_nobody_saw_leave_first_then_the_oldest_shown(rooms: Rooms) -> None:
    await full(rooms)
    assert await leaving(rooms) == ["5", "4", "3", "0", "1"]
    assert rooms.resident() == {"a/2.jpg"}


async def test_what_is_open_or_pinned_stays(rooms: Rooms) -> None:
    await full(rooms)
    opened(rooms, "a/5.jpg")
    opened(rooms, "a/0.jpg")
    await pin(rooms, "a/3.jpg")
    await pin(rooms, "a/1.jpg")
    assert await leaving(rooms) == ["4", "2"]
    assert rooms.resident() == {"a/5.jpg", "a/0.jpg", "a/3.jpg", "a/1.jpg"}


@pytest.mark.promise(7)
async def test_a_directory_keeps_one_of_each_extension(rooms: Rooms) -> None:
    paths = ["a/1.jpg", "a/2.jpg", "a/1.txt", "b/1.jpg", "b/2.jpg"]
    await listed(rooms, *paths)
    await rooms.admit(*paths)
    await rooms.begin()
    assert not await rooms.evictor.shrink(0)
    rooms.store.limit_bytes = 4 * BLOCK
    assert await rooms.reserve_by_eviction(BLOCK, Holds())
    kinds = {(path.partition("/")[0], path.rpartition(".")[2]) for path in rooms.resident()}
    assert kinds == {("a", "jpg"), ("a", "txt"), ("b", "jpg")}


async def test_nobody_leaves_where_room_is_left(rooms: Rooms) -> None:
    await full(rooms)
    rooms.store.limit_bytes += BLOCK
    assert await rooms.reserve_by_eviction(BLOCK, Holds())
    assert len(rooms.resident()) == 6


async def test_making_room_for_many_blocks(rooms: Rooms) -> None:
    await full(rooms)
    assert await rooms.reserve_by_eviction(3 * BLOCK, Holds()) == 3 * BLOCK
    assert rooms.store.used_bytes == rooms.store.limit_bytes
    assert rooms.resident() == {"a/0.jpg", "a/1.jpg", "a/2.jpg"}


async def test_a_lower_limit_evicts_down_to_it(rooms: Rooms) -> None:
    await full(rooms)
    assert await rooms.evictor.shrink(2 * BLOCK)
    assert rooms.store.used_bytes == 2 * BLOCK
    assert rooms.resident() == {"a/1.jpg", "a/2.jpg"}


async def test_a_limit_under_what_must_stay_is_told(rooms: Rooms) -> None:
    await full(rooms, count=1, shown=1)
    assert not await rooms.evictor.shrink(0)
    assert rooms.resident() == {"a/0.jpg"}


async def test_room_that_is_wanted_twice_is_made_twice(rooms: Rooms) -> None:
    await full(rooms)

    async def take() -> None:
        assert await rooms.reserve_by_eviction(BLOCK, Holds())

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(take)
    assert len(rooms.resident()) == 2
    assert rooms.store.used_bytes == rooms.store.limit_bytes


@pytest.mark.parametrize("tamper", [lambda path: path.unlink(), lambda path: os.truncate(path, 3)])
async def test_a_cached_file_that_is_not_what_was_admitted_is_not_opened(rooms: Rooms, tamper: object) -> None:
    await listed(rooms, "a/1")
    await rooms.admit("a/1")
    tamper(rooms.folder / "files/a/1")  # type: ignore[operator]
    assert rooms.store.open(rooms.node("a/1").id) is None
    assert rooms.store.opened(rooms.node("a/1").id) is None
    await rooms.store.recheck(rooms.node("a/1").id)
    assert rooms.resident() == set()


@pytest.mark.parametrize("whole", [True, False])
async def test_the_digest_decides_of_a_cached_file_that_only_changed_its_time(rooms: Rooms, whole: bool) -> None:
    await listed(rooms, "a/1")
    await rooms.admit("a/1")
    path = rooms.folder / "files/a/1"
    if whole:
        os.link(path, rooms.folder / "copy")
    else:
        path.write_bytes(bytes(100))
    id = rooms.node("a/1").id
    assert rooms.store.open(id) is None
    await rooms.store.recheck(id)
    assert (rooms.store.open(id) is not None) == whole
    assert ("a/1" in rooms.resident()) == whole


async def test_the_books_are_the_same_after_a_restart(tmp_path: Path) -> None:
    rooms = open_rooms(tmp_path)
    await rooms.list([file("a/1", 100), file("a/2", 5000), file("b/3")])
    await rooms.admit("a/1")
    await rooms.admit("a/2", content=b"x" * 5000)
    await rooms.begin()
    rooms.close()
    again = open_rooms(tmp_path)
    for name in ("resident_files", "resident_bytes", "resident_content_bytes", "used_bytes", "last_seq"):
        assert getattr(again.store, name) == getattr(rooms.store, name)
    for name in ("files", "bytes", "directories"):
        assert getattr(again.catalog, name) == getattr(rooms.catalog, name)
    second = await again.begin()
    assert second
    assert second.number == 2
    again.close()


@pytest.mark.promise(29)
async def test_what_was_there_at_a_sync_is_durable(rooms: Rooms) -> None:
    await listed(rooms, "a/1", "a/2")
    await rooms.admit("a/1")
    await rooms.store.make_durable()
    await rooms.admit("a/2")
    query = "SELECT n.name FROM resident r JOIN node n USING (id) WHERE n.is_dir = 0 AND r.durable = 1"
    assert rooms.database.rows(query) == [("1",)]
    await rooms.store.make_durable()
    assert len(rooms.database.rows(query)) == 2


async def test_a_new_version_in_an_old_place_is_durable_after_the_next_sync_alone(rooms: Rooms) -> None:
    await listed(rooms, "a/1", "a/2")
    await rooms.admit("a/1")
    await rooms.admit("a/2")
    await rooms.store.make_durable()
    draft = rooms.draft("a/1", b"y" * 100)
    await rooms.store.admit([replace(draft, node=replace(draft.node, version="v2"), renews=True)])
    query = "SELECT n.name FROM resident r JOIN node n USING (id) WHERE r.durable = 0"
    assert rooms.database.rows(query) == [("1",)]
    await rooms.store.make_durable()
    assert rooms.database.rows(query) == []


async def test_what_is_admitted_during_a_sync_is_durable_after_the_next(rooms: Rooms) -> None:
    await listed(rooms, "a/1", "a/2")
    await rooms.admit("a/1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rooms.store.make_durable)
        nursery.start_soon(rooms.admit, "a/2")
    await rooms.store.make_durable()
    assert rooms.database.row("SELECT count(*) FROM resident WHERE durable = 0") == (0,)


async def test_after_a_sync_that_failed_nothing_counts_as_durable(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    await listed(rooms, "a/1")
    await rooms.admit("a/1")

    def refuse(label: str, folder: Path) -> None:
        raise OSError(errno.EIO, "refused")

    monkeypatch.setattr(disk, "syncfs", refuse)
    with pytest.raises(OSError, match="refused"):
        await rooms.store.make_durable()
    assert rooms.database.row("SELECT count(*) FROM resident WHERE durable = 1") == (0,)
    monkeypatch.undo()
    await rooms.store.make_durable()
    assert rooms.database.row("SELECT count(*) FROM resident WHERE durable = 0") == (0,)
