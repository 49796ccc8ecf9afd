"""What a pass of --exact needs in the cache, and what may go, from the rows of the database."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from growfs.bitmaps import BitMap64
from growfs.cache.database import Database
from growfs.extensions.exact.division import Due, divide_catalog, find_due, save_division
from growfs.rotation.circle import is_own, owner
from growfs.rotation.parts import Division, ExactPass, PassPosition
from tests.unit.local_cache import LocalCache, file

BLOCK = 4096


async def divided(cache: LocalCache, files: int = 40) -> tuple[Division, list[list[int]]]:
    """The first pass over files of a block in a cache for half of them, and the streamed ids of each part."""
    await cache.list([file(f"a/{number:03}.bin") for number in range(files)])
    return divide_pass(cache, 1, files)


def divide_pass(cache: LocalCache, number: int, files: int = 40) -> tuple[Division, list[list[int]]]:
    """The same for any pass over these files. The divisions of the first two passes stay stored."""
    pass_ = ExactPass(seed=0, number=number, cache_bytes=files // 2 * BLOCK, part_bytes=files // 10 * BLOCK)
    division, ids = divide_catalog(cache.database.path, pass_, lambda: None)
    cache.database.write_now(lambda writer: save_division(writer, division, ids, [1, 2]))
    return division, [[*ids[part.start : part.kept]] for part in division.parts]


async def admit(cache: LocalCache, ids: list[int]) -> None:
    await cache.admit(*(node_path(cache.database, id) for id in ids))


def node_path(database: Database, id: int) -> str:
    ((name,),) = database.rows("SELECT name FROM node WHERE id = ?", id)
    return f"a/{name}"


def listed(cache: LocalCache, ids: list[int]) -> BitMap64:
    """The admissions of these cached files, as of a generation that lists them."""
    return BitMap64(seq for id in ids for (seq,) in cache.database.rows("SELECT seq FROM resident WHERE id = ?", id))


async def test_a_part_that_makes_room_may_go_and_is_not_mistaken_for_an_older_one(cache: LocalCache) -> None:
    """Other jobs may still hold it, and its room is only for the part after the next one."""
    division, streamed = await divided(cache)
    for part in (1, 2, 3):
        await admit(cache, streamed[part])
    begun, following = PassPosition(1, 3), [PassPosition(1, 4), PassPosition(1, 5)]

    def due(is_over: bool) -> Due:
        read, coming = ([], following) if is_over else ([begun], following[:1])
        return find_due(cache.database.path, read, coming, None, lambda: None)

    read, left = due(is_over=False), due(is_over=True)
    assert sorted(read.unneeded) == sorted(streamed[1])
    assert sorted(left.unneeded) == sorted([*streamed[1], *streamed[2]])
    assert not set(streamed[4]) & {*read.missing}
    assert set(streamed[4]) < {*left.missing}
    assert len(division.parts) > 5


async def test_a_new_version_of_a_listed_file_is_held_like_the_old_one(cache: LocalCache) -> None:
    _, streamed = await divided(cache)
    await admit(cache, streamed[0])
    shown = listed(cache, streamed[0])
    path = node_path(cache.database, streamed[0][0])
    await cache.renew(path, b"new")
    due = find_due(cache.database.path, [PassPosition(1, 1)], [PassPosition(1, 2)], None, lambda: None)
    assert [*due.unneeded] == [cache.node(path).id]
    assert listed(cache, [*due.unneeded]) <= shown


async def test_files_that_left_the_catalog_are_not_fetched(cache: LocalCache) -> None:
    """Nor is a group of which only such files are missing."""
    names = [f"a/{number:02}.{suffix}" for number in range(20) for suffix in ("bin", "txt")]
    await cache.list([file(name) for name in names])
    pass_ = ExactPass(seed=0, number=1, cache_bytes=40 * BLOCK, part_bytes=20 * BLOCK, group="{stem}")
    division, ids = divide_catalog(cache.database.path, pass_, lambda: None)
    cache.database.write_now(lambda writer: save_division(writer, division, ids, []))
    await cache.admit("a/00.bin")
    await cache.list([file(name) for name in names if name not in ("a/00.txt", "a/01.bin")])
    due = find_due(cache.database.path, [], [PassPosition(1, 1)], None, lambda: None)
    assert {*due.lacking} == {cache.node(name).id for name in names[3:]}
    assert due.bytes == 100 * len(due.lacking)
    assert not {*map(abs, due.missing)} & {cache.node("a/00.bin").id}


async def test_a_node_fetches_its_own_files_first(cache: LocalCache) -> None:
    """The other nodes get them from it. The files of the next part still come before those of later ones."""
    await divided(cache, files=400)
    coming = [PassPosition(1, 1), PassPosition(1, 2)]
    names = "one", "other"
    alone, one, other = (
        find_due(cache.database.path, [], coming, owns, lambda: None)
        for owns in (None, *(partial(is_own, partial(owner, 0, None), names, name) for name in names))
    )
    first = {*alone.of_parts[0]}
    assert len(first) > 4
    for due in (one, other):
        assert sorted(due.missing) == sorted(alone.missing)
        assert {*due.missing[: len(first)]} == first
    own = {id for id in alone.missing if owner(0, None, node_path(cache.database, id), names) == "one"}
    for due, its in ((one, own), (other, {*alone.missing} - own)):
        for part in (due.missing[: len(first)], due.missing[len(first) :]):
            owned = [id in its for id in part]
            assert owned == sorted(owned, reverse=True)
            assert any(owned)
            assert not all(owned)


def test_a_node_that_leaves_takes_no_files_from_the_others() -> None:
    """Nor does one that joins. Its files are divided among all others."""
    names = tuple(f"node{number}" for number in range(8))
    gone, *left = names
    before, after = (
        {path: owner(0, None, path, nodes) for path in map(str, range(500))} for nodes in (names, tuple(left))
    )
    moved = {path for path in before if before[path] != after[path]}
    assert moved == {path for path in before if before[path] == gone}
    assert {after[path] for path in moved} == {*left}


async def test_a_file_that_an_older_pass_always_lists_stays_until_that_pass_has_ended(cache: LocalCache) -> None:
    """It was pinned when that pass was divided, and unpinned before the next one was: a part later on has it."""

    def pin(pinned: int) -> None:
        cache.database.write_now(
            lambda writer: writer.execute("UPDATE node SET pinned = ? WHERE id = ?", (pinned, unpinned))
        )

    def due(read: Sequence[PassPosition], coming: Sequence[PassPosition]) -> Due:
        return find_due(cache.database.path, read, coming, None, lambda: None)

    await divided(cache)
    _, streamed = divide_pass(cache, 2)
    unpinned = streamed[2][0]
    pin(1)
    older, _ = divide_pass(cache, 1)
    pin(0)
    divide_pass(cache, 2)
    last, following = PassPosition(1, len(older.parts)), PassPosition(2, 1)
    await admit(cache, [unpinned])
    assert unpinned not in due([], [last, following]).unneeded
    await cache.store.evict([unpinned])
    found = due([], [last, following])
    assert unpinned in found.of_parts[0]
    assert due([following], [last]).lacking == found.lacking, "the same if a rank is behind the others"


async def test_marks_for_another_part_than_the_one_that_began_are_not_made(cache: LocalCache) -> None:
    _, streamed = await divided(cache)
    await admit(cache, streamed[1])
    await cache.begin()
    with trio.fail_after(10):
        assert not await cache.space.mark(streamed[1], [], lambda: False)
        assert cache.database.row("SELECT count(*) FROM resident WHERE delisted IS NOT NULL") == (0,)
        assert await cache.space.mark(streamed[1], [], lambda: True)
    assert cache.database.row("SELECT count(*) FROM resident WHERE delisted = ?", cache.generations.number) == (
        len(streamed[1]),
    )
