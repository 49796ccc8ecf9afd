"""What generations leave out, show again and let go of, over a real database and real files. A file is a block."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from growfs.cache.catalog import Share
from growfs.cache.schema import FROZEN, PINNED
from growfs.cache.store import Store
from growfs.disk import BLOCK
from growfs.rotation.rules import EVERYWHERE, Generation, GenerationPlan, Hold, Holds, TurnoverInput
from growfs.rotation.turnover import plan_generation
from tests.unit.local_cache import LocalCache, file, open_local_cache


class Scene:
    """A cache of so many blocks in which generations begin. A name is a file of folder a, or a path."""

    def __init__(self, cache: LocalCache) -> None:
        self.cache = cache
        self.store = cache.store
        self.names: list[str] = []

    async def remote(self, *names: str, lacking: int = 100) -> None:
        """The remote has these files, and so many that are not to be had."""
        self.names = list(names)
        more = [f"lacking/{number}" for number in range(lacking)]
        await self.cache.list([file(path(name), BLOCK) for name in names] + [file(name, BLOCK) for name in more])

    def id(self, name: str) -> int:
        return self.cache.node(path(name)).id

    async def admit(self, *names: str) -> None:
        """Have files be resident; the cache is full of them then."""
        for name in names:
            self.store.limit_bytes += BLOCK
            await self.cache.admit(path(name), content=b"x" * BLOCK)

    async def admit_as_one(self, *names: str) -> None:
        """Have files be resident that leave as one."""
        self.store.limit_bytes += len(names) * BLOCK
        staged = [self.cache.stage(path(name), b"x" * BLOCK) for name in names]
        group = tuple(map(self.id, names))
        assert await self.store.admit([replace(staged_file, group=group) for staged_file in staged]) == set(group)

    async def admit_again(self, name: str, *group: str) -> None:
        """Have a file be resident that leaves as one with the group."""
        self.store.limit_bytes += BLOCK
        staged_file = self.cache.stage(path(name), b"x" * BLOCK)
        assert await self.store.admit([replace(staged_file, group=tuple(map(self.id, group)))])

    async def begin(self, leave_out: int = 0, unrenewed: Holds | None = None, opened: str | None = None) -> Generation:
        """Have a generation begin that leaves out so many blocks (two at least, once it leaves anything out).

        opened: the names of what was opened, in place of all.
        """
        self.cache.generations.share = leave_out * BLOCK / self.store.limit_bytes
        self.cache.generations.rotates = leave_out > 0
        ids = [self.id(name) for name in (self.names if opened is None else opened) if self.here(name)]
        generation = await self.cache.begin(unrenewed, frozenset(ids))
        assert generation
        return generation

    def here(self, name: str) -> bool:
        return path(name) in self.cache.resident()

    def listed(self, generation: Generation | None = None) -> str:
        """The names that a generation lists, or the current one, in order."""
        return "".join(sorted(name.removeprefix("a/") for name in self.cache.listed(generation)))

    def resident(self) -> str:
        return "".join(sorted(name.removeprefix("a/") for name in self.cache.resident()))

    def row(self, name: str) -> tuple[int, int, int | None, int]:
        """(seq, turn, left_out, opened)."""
        query = "SELECT seq, turn, left_out, opened FROM resident WHERE id = ?"
        row: tuple[int, int, int | None, int] = self.cache.database.row(query, self.id(name))
        return row

    async def mark(self, name: str, pinned: int) -> None:
        marks = pinned, self.id(name)
        await self.cache.database.write(lambda writer: writer.execute("UPDATE node SET pinned = ? WHERE id = ?", marks))

    def plan(self, number: int, **changes: object) -> tuple[int, dict[int, int | None]]:
        """(how many files it lists, its changes)."""
        store: Store = self.store
        facts: dict[str, object] = {
            "limit": store.limit_bytes,
            "share": 0.2,
            "largest": 0,
            "lacking": 100 * BLOCK,
            "free": 0,
            "shown_seq": store.shown_seq,
            "last_seq": store.last_seq,
            "unrenewed": Holds(),
            "opened": frozenset(),
        }
        next = plan_generation(self.cache.database.path, number, TurnoverInput(**(facts | changes)))  # type: ignore[arg-type]
        return next.files, next.changes


def path(name: str) -> str:
    return name if "/" in name else f"a/{name}"


@pytest.fixture
def scene(cache: LocalCache) -> Scene:
    cache.store.limit_bytes = 0
    return Scene(cache)


async def shown(scene: Scene, names: str, lacking: int = 100) -> None:
    """A full cache of files that the first generation shows."""
    await scene.remote(*names, lacking=lacking)
    await scene.admit(*names)
    await scene.begin()


# Where nothing is to be decided.


async def test_where_all_stays_nothing_is_asked(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning takes a worker milliseconds, for which whoever lists waits."""
    asked: list[TurnoverInput] = []
    decide = scene.cache.generations._decide

    async def noted(number: int, question: TurnoverInput) -> GenerationPlan:
        asked.append(question)
        return await decide(number, question)

    monkeypatch.setattr(scene.cache.generations, "_decide", noted)
    await shown(scene, "1234", lacking=0)
    generation = scene.cache.generations.current
    assert not asked
    assert generation
    assert scene.listed() == "1234"
    assert (generation.files, generation.changes) == scene.plan(1, lacking=0) == (4, {})
    await scene.remote(*"1234")
    await scene.begin(leave_out=2)  # it makes room
    await scene.remote(*"1234", lacking=0)
    assert (await scene.begin()).files == 4  # and what was left out is shown again
    assert len(asked) == 2
    assert (await scene.begin()).files == 4
    assert len(asked) == 2


# Who is left out.


@pytest.mark.promise(18)
async def test_what_was_shown_for_longest_is_left_out(scene: Scene) -> None:
    await shown(scene, "123456")
    first = scene.cache.generations.current
    second = await scene.begin(leave_out=2)
    assert (scene.listed(), second.files) == ("3456", 4)
    assert scene.listed(first) == "123456"  # who lists it still sees all
    assert scene.resident() == "123456"
    assert scene.cache.generations.delisted_bytes(scene.cache.database.rows) == 2 * BLOCK


async def test_arrivals_are_shown_and_not_left_out(scene: Scene) -> None:
    await shown(scene, "1234")
    await scene.remote(*"123456")
    await scene.admit("5", "6")
    await scene.begin(leave_out=4)
    assert scene.listed() == "56"


async def test_what_is_left_out_and_not_chosen_again_is_shown_again(scene: Scene) -> None:
    await shown(scene, "123456")
    await scene.begin(leave_out=4)
    assert scene.listed() == "56"
    third = await scene.begin(leave_out=2)
    assert scene.listed() == "3456"
    assert {name: scene.row(name)[2] for name in "1234"} == {"1": 2, "2": 2, "3": None, "4": None}
    assert third.files == 4
    await scene.begin()
    assert scene.listed() == "123456"


async def test_nothing_is_left_out_where_all_is_local(scene: Scene) -> None:
    await shown(scene, "123456", lacking=0)
    await scene.begin(leave_out=4)
    assert scene.listed() == "123456"


@pytest.mark.promise(18)
async def test_no_more_is_left_out_than_is_lacking(scene: Scene) -> None:
    await shown(scene, "123456", lacking=0)
    scene.cache.catalog.share = Share(7, 7 * BLOCK)
    await scene.begin(leave_out=4)
    assert scene.listed() == "23456"


async def test_what_is_free_already_need_not_be_left_out(scene: Scene) -> None:
    await shown(scene, "123456")
    scene.store.limit_bytes += 2 * BLOCK
    await scene.begin(leave_out=3)
    assert scene.listed() == "23456"


async def test_room_for_a_large_file_that_waits(scene: Scene) -> None:
    await shown(scene, "123456")
    scene.store.wanted_bytes = 2 * BLOCK
    await scene.begin(leave_out=1)
    assert scene.listed() == "56"


@pytest.mark.promise(21)
async def test_nothing_is_left_out_while_readers_cannot_be_told_apart(scene: Scene) -> None:
    await shown(scene, "123456")
    await scene.begin(leave_out=2, unrenewed=Holds(foreign=True))
    assert scene.listed() == "123456"


@pytest.mark.promise(18, 23)
@pytest.mark.parametrize("pinned", [PINNED, FROZEN, PINNED | FROZEN])
async def test_pinned_and_frozen_files_never_leave(scene: Scene, pinned: int) -> None:
    await shown(scene, "12345")
    for name in "13":
        await scene.mark(name, pinned)
    for _ in range(3):
        await scene.begin(leave_out=5)
        assert scene.listed() == "13"
        assert await scene.cache.reserve_by_rotation(scene.store.limit_bytes, Holds()) is None
    assert {"1", "3"} <= set(scene.resident())


async def test_a_file_that_is_pinned_after_it_was_left_out_is_shown_again(scene: Scene) -> None:
    await shown(scene, "12345")
    await scene.begin(leave_out=2)
    await scene.mark("1", PINNED)
    await scene.begin(leave_out=2)
    assert scene.listed() == "145"


@pytest.mark.promise(7, 18)
async def test_a_directory_keeps_the_last_of_each_extension(scene: Scene) -> None:
    names = ["a/1.jpg", "a/1.txt", "b/1.jpg", "b/2.jpg", "a/2.jpg", "README"]
    await scene.remote(*names)
    await scene.admit(*names)
    await scene.begin()
    await scene.begin(leave_out=6)
    assert scene.cache.listed() == {"a/1.txt", "a/2.jpg", "b/2.jpg", "a/README"}
    await scene.begin(leave_out=6)
    assert scene.cache.listed() == {"a/1.txt", "a/2.jpg", "b/2.jpg", "a/README"}


async def test_the_last_of_a_kind_leaves_when_its_successor_is_there(scene: Scene) -> None:
    await scene.remote("a/1.jpg", "a/2.jpg")
    await scene.admit("a/1.jpg")
    await scene.begin()
    await scene.begin(leave_out=1)
    assert scene.cache.listed() == {"a/1.jpg"}
    await scene.admit("a/2.jpg")
    await scene.begin(leave_out=2)
    assert scene.cache.listed() == {"a/2.jpg"}


@pytest.mark.promise(24)
async def test_a_group_leaves_as_one(scene: Scene) -> None:
    await scene.remote(*"123456")
    await scene.admit_as_one("1", "4")
    await scene.admit("2")
    await scene.admit_as_one("3", "5", "6")
    assert scene.row("1")[1] == scene.row("4")[1]
    await scene.begin()
    await scene.begin(leave_out=2)
    assert scene.listed() == "2356"
    await scene.begin(leave_out=3)
    assert scene.listed() == "356"
    await scene.begin(leave_out=4)
    assert scene.listed() == "356"  # the last three leave as one or not at all


async def test_a_group_that_comes_in_parts_is_one(scene: Scene) -> None:
    """Its first file was here before the others came."""
    await scene.remote(*"1234")
    await scene.admit("1", "2", "3")
    await scene.admit_again("4", "1", "4")
    assert scene.row("1")[1] == scene.row("4")[1]
    await scene.begin()
    await scene.begin(leave_out=2)
    assert scene.listed() == "14"


@pytest.mark.promise(18)
async def test_a_file_never_opened_is_spared_once(scene: Scene) -> None:
    await shown(scene, "1234")
    await scene.begin(leave_out=2, opened="234")
    assert scene.listed() == "14"
    assert await scene.cache.reserve_by_rotation(2 * BLOCK, Holds())
    scene.store.unreserve(2 * BLOCK)
    scene.store.limit_bytes -= 2 * BLOCK
    await scene.admit("2", "3")
    await scene.begin(leave_out=2, opened="4")
    assert scene.listed() == "23"  # 1 has had its second turn; what came was not shown before


async def test_opens_that_were_written_count(scene: Scene) -> None:
    await shown(scene, "1234")
    await scene.cache.database.write(lambda writer: writer.execute("UPDATE resident SET opened = 1 WHERE id > 0"))
    await scene.begin(leave_out=2, opened="")
    assert scene.listed() == "34"


@pytest.mark.promise(18)
async def test_what_a_reader_holds_that_listed_once_is_left_out_last(scene: Scene) -> None:
    await shown(scene, "1234")
    unrenewed = Holds([{EVERYWHERE: Hold(1, scene.row("2")[0])}])
    await scene.begin(leave_out=2, unrenewed=unrenewed)
    assert scene.listed() == "12"
    await scene.begin(leave_out=3, unrenewed=unrenewed)
    assert scene.listed() == "2"


async def test_the_plan_reads_and_changes_nothing(scene: Scene) -> None:
    await shown(scene, "12345")
    ids = {scene.id("1"): 9, scene.id("2"): 9}
    assert scene.plan(9, opened=frozenset(map(scene.id, "12345"))) == (3, ids)
    assert scene.plan(9, opened=frozenset(map(scene.id, "12345"))) == (3, ids)
    assert scene.plan(9, rotates=False) == (5, {})
    assert scene.listed() == "12345"


# --show-files: each generation lists exactly so many.


async def test_a_number_of_files_is_shown_whatever_arrives(scene: Scene) -> None:
    names = [*"123456789", "b/1", "b/2"]
    await scene.remote(*names)
    scene.cache.generations.show_files = 4
    await scene.admit(*"123456")
    first = await scene.begin(leave_out=1)
    assert (scene.listed(), first.files) == ("1234", 4)
    second = await scene.begin(leave_out=1)
    assert (scene.listed(), second.files) == ("3456", 4)
    await scene.admit("7", "8", "9", "b/1", "b/2")
    for _ in range(4):
        generation = await scene.begin(leave_out=1)
        assert len(scene.cache.listed()) == generation.files == 4


async def test_no_directory_is_shown_whose_files_are_not(scene: Scene) -> None:
    await scene.remote("1", "b/1")
    scene.cache.generations.show_files = 1
    await scene.admit("1", "b/1")
    generation = await scene.begin()
    assert [entry.name for entry in scene.cache.entries(1, generation, 10)] == ["a"]


async def test_fewer_files_than_are_to_be_shown_begin_no_generation(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.remote(*"1234")
    scene.cache.generations.show_files = 3
    await scene.admit("1", "2")
    assert await scene.cache.begin() is None
    assert "--show-files asks for 3 files, and 2 are here" in caplog.text
    await scene.admit("3")
    assert (await scene.begin()).number == 1
    assert scene.listed() == "123"


@pytest.mark.promise(25)
@settings(max_examples=25)
@given(st.data())
def test_exactly_so_many_are_shown(data: st.DataObject) -> None:
    """Over any sequence of arrivals, deletions and generations, as long as there are so many; pins are kept."""
    show = data.draw(st.integers(4, 8))
    names = [f"{folder}/{number}.{suffix}" for number in range(12) for folder in "ab" for suffix in ("x", "y")]

    async def run(folder: str) -> None:
        cache = open_local_cache(Path(folder))
        scene = Scene(cache)
        await scene.remote(*names)
        cache.generations.show_files = show
        waiting = data.draw(st.permutations(names))
        pinned: set[str] = set()
        for _ in range(6):
            count = data.draw(st.integers(0, 8))
            arrived, waiting = waiting[:count], waiting[count:]
            await scene.admit(*arrived)
            before = cache.generations.number
            if len(cache.resident()) < show:
                continue
            generation = await scene.begin(data.draw(st.integers(0, 8)), opened="")
            assert generation.number == before + 1
            assert len(cache.listed()) == generation.files == show
            assert pinned <= cache.listed()
            if not pinned and show > 4:
                name = data.draw(st.sampled_from(sorted(cache.listed())))
                await scene.mark(name, PINNED)
                pinned.add(name)
            if data.draw(st.booleans()):
                await cache.reserve_by_rotation(data.draw(st.integers(1, 4)) * BLOCK, Holds())
                cache.store.unreserve(cache.store.reserved_bytes)
                assert len(cache.listed()) == show
        cache.database.close()

    with tempfile.TemporaryDirectory() as folder:
        trio.run(run, folder)


# Numbers and places.


async def test_numbers_of_admission_are_never_given_twice(scene: Scene) -> None:
    await shown(scene, "1234")
    await scene.begin(leave_out=2)
    await scene.store.evict([scene.id("2")])
    scene.store.limit_bytes -= BLOCK
    await scene.admit("2")
    seqs = [scene.row(name)[0] for name in "1234"]
    assert len(set(seqs)) == 4
    assert max(seqs) == scene.row("2")[0]
    await scene.begin()
    assert scene.listed() == "1234"


async def test_a_renewed_version_keeps_its_place(scene: Scene) -> None:
    await shown(scene, "1234")
    await scene.begin(leave_out=2)
    before = {name: scene.row(name) for name in "13"}
    scene.store.limit_bytes += BLOCK
    for name in "13":
        old = scene.id(name)
        await scene.cache.renew(path(name), b"y" * BLOCK)
        assert scene.id(name) != old
        assert scene.row(name) == before[name]
    assert scene.listed() == "34"
    scene.store.limit_bytes -= BLOCK
    await scene.begin(leave_out=2)
    assert scene.listed() == "34"


# What may be deleted.


async def rotated(scene: Scene) -> list[str]:
    """What rotation deletes, one after the other."""
    gone: list[str] = []
    while True:
        before = scene.resident()
        if await scene.cache.reserve_by_rotation(BLOCK, Holds()) is None:
            return gone
        gone.append("".join(sorted(set(before) - set(scene.resident()))))


async def test_rotation_deletes_what_is_left_out_in_order(scene: Scene) -> None:
    await shown(scene, "123456")
    assert await rotated(scene) == []
    await scene.begin(leave_out=3)
    assert await rotated(scene) == ["1", "2", "3"]
    assert scene.resident() == scene.listed() == "456"
    assert scene.cache.cached().keys() == {"a/4", "a/5", "a/6"}


@pytest.mark.promise(17)
async def test_rotation_spares_what_is_held(scene: Scene) -> None:
    await shown(scene, "123456")
    await scene.begin(leave_out=3)
    holds = Holds([{scene.cache.node("a").id: Hold(1, scene.row("2")[0])}])
    assert await scene.cache.reserve_by_rotation(2 * BLOCK, holds) is None
    assert scene.resident() == "123456"  # nothing goes in vain
    assert await scene.cache.reserve_by_rotation(BLOCK, holds) == BLOCK
    assert scene.resident() == "12456"
    assert await scene.cache.reserve_by_rotation(BLOCK, Holds(foreign=True)) is None
    elsewhere = Holds([{scene.cache.node("a").id + 1: Hold(1, 1 << 40)}])
    assert await scene.cache.reserve_by_rotation(BLOCK, elsewhere) == BLOCK
    later = Holds([{EVERYWHERE: Hold(2, 1 << 40)}])
    assert await scene.cache.reserve_by_rotation(BLOCK, later) == BLOCK


async def test_rotation_spares_what_is_open(scene: Scene) -> None:
    await shown(scene, "123456")
    await scene.begin(leave_out=3)
    assert scene.store.open(scene.id("1"))
    assert await rotated(scene) == ["2", "3"]
    scene.store.close_file(scene.id("1"))
    assert await rotated(scene) == ["1"]


async def test_a_generation_shows_nothing_again_that_rotation_is_deleting(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shown(scene, "123456")
    await scene.begin(leave_out=3)
    deleting, may_delete = trio.Event(), trio.Event()
    evict = scene.store.evict

    async def slow_evict(ids: list[int], return_to_pass: bool) -> int:
        deleting.set()
        await may_delete.wait()
        return await evict(ids, return_to_pass)

    async def rotate() -> None:
        monkeypatch.setattr(scene.store, "evict", slow_evict)
        await scene.cache.reserve_by_rotation(BLOCK, Holds())

    async def begin() -> None:
        await scene.begin()
        listed.append(scene.listed())

    listed: list[str] = []
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rotate)
            await deleting.wait()
            nursery.start_soon(begin)
            await trio.testing.wait_all_tasks_blocked(0.1)  # its decision is made on a thread
            may_delete.set()
    assert listed == ["23456"]


async def test_what_was_left_out_is_not_drawn_again_in_this_pass(scene: Scene) -> None:
    await shown(scene, "1234")
    await scene.begin(leave_out=2)
    await scene.cache.reserve_by_rotation(BLOCK, Holds())
    assert scene.cache.node("a/1").drawn == 1
    query = "SELECT first_shown, last_shown FROM node WHERE id = ?"
    assert scene.cache.database.row(query, scene.id("1")) == (1, 1)


async def test_rotation_frees_nothing_where_there_is_room(scene: Scene) -> None:
    await shown(scene, "1234")
    await scene.begin(leave_out=2)
    scene.store.limit_bytes += BLOCK
    assert await scene.cache.reserve_by_rotation(BLOCK, Holds()) == BLOCK
    assert scene.resident() == "1234"


@pytest.mark.promise(19)
async def test_a_miss_takes_room_in_the_order_of_the_rules(scene: Scene) -> None:
    """Unshown, the newest first; left out and not held; left out and held; listed, the oldest first."""
    await shown(scene, "1234567")
    await scene.begin(leave_out=4)
    await scene.remote(*"123456789")
    await scene.admit("8", "9")
    holds = Holds([{EVERYWHERE: Hold(1, scene.row("2")[0])}])
    gone = []
    while True:
        before = scene.resident()
        reserved = await scene.cache.reserve_by_eviction(BLOCK, holds)
        if reserved is None:
            break
        gone.append("".join(sorted(set(before) - set(scene.resident()))))
    assert gone == ["9", "8", "3", "4", "1", "2", "5", "6"]
    assert scene.resident() == "7"


async def test_what_a_miss_took_the_place_of_may_be_drawn_again_where_it_was_not_left_out(scene: Scene) -> None:
    await shown(scene, "1234")
    await scene.begin(leave_out=2)
    told = []
    scene.store.returned_to_pass.connect(lambda: told.append(True))
    assert await scene.cache.reserve_by_eviction(3 * BLOCK, Holds())
    assert scene.resident() == "4"
    assert told
    assert [scene.cache.node(path(name)).drawn for name in "123"] == [1, 1, 0]


# What is kept.


async def test_generations_that_say_nothing_any_more_are_forgotten(scene: Scene) -> None:
    await shown(scene, "1234")
    await scene.begin(leave_out=2)
    query = "SELECT number FROM generation ORDER BY number"
    assert scene.cache.database.rows(query) == [(1,), (2,)]
    await scene.remote(*"12345")
    await scene.admit("5")
    await scene.store.evict([scene.id(name) for name in "1234"])
    await scene.begin()
    assert scene.cache.database.rows(query) == [(3,)]


async def test_what_is_left_out_is_so_after_a_restart(scene: Scene) -> None:
    await shown(scene, "1234")
    second = await scene.begin(leave_out=2)
    scene.cache.store.stop()
    again = open_local_cache(scene.cache.folder, scene.store.limit_bytes)
    assert (again.store.shown_seq, again.generations.number) == (second.last_seq, 0)
    generation = await again.begin()
    assert generation
    assert generation.number == 3
    assert again.listed() == {"a/3", "a/4"}
    again.database.close()


async def test_held_bytes(scene: Scene) -> None:
    await shown(scene, "1234")
    await scene.begin(leave_out=2)
    generations = scene.cache.generations
    assert generations.held_bytes(scene.cache.database.rows, Hold(1, 1 << 40)) == 2 * BLOCK
    assert generations.held_bytes(scene.cache.database.rows, Hold(1, scene.row("1")[0])) == BLOCK
    assert generations.held_bytes(scene.cache.database.rows, Hold(2, 1 << 40)) == 0


# Groups come and go as one, on the disk as well.


async def pairs(scene: Scene) -> None:
    """Two pairs and two single files, all shown; the next generation leaves the pairs out."""
    await scene.remote(*"123456")
    await scene.admit_as_one("1", "2")
    await scene.admit_as_one("3", "4")
    await scene.admit("5", "6")
    await scene.begin()
    await scene.begin(leave_out=4)
    assert scene.listed() == "56"


async def test_rotation_deletes_a_group_whole(scene: Scene) -> None:
    await pairs(scene)
    assert await scene.cache.reserve_by_rotation(BLOCK, Holds())
    assert scene.resident() == "3456"


async def test_rotation_spares_a_group_of_which_one_is_open(scene: Scene) -> None:
    await pairs(scene)
    assert scene.store.open(scene.id("2"))
    assert await scene.cache.reserve_by_rotation(BLOCK, Holds())
    assert scene.resident() == "1256"


async def test_rotation_spares_a_group_of_which_one_is_held(scene: Scene) -> None:
    await pairs(scene)
    assert await scene.cache.reserve_by_rotation(BLOCK, Holds([{EVERYWHERE: Hold(1, scene.row("1")[0])}]))
    assert scene.resident() == "1256"


async def test_a_group_of_which_a_part_is_left_out_is_shown_whole_once_the_rest_comes(scene: Scene) -> None:
    await pairs(scene)
    await scene.store.evict([scene.id("1")])
    scene.store.limit_bytes -= BLOCK
    await scene.admit_again("1", "2")
    assert scene.row("1")[1] == scene.row("2")[1]
    assert scene.listed() == "56"
    await scene.begin(leave_out=3)
    assert scene.listed() == "126"


@pytest.mark.promise(7, 19)
async def test_a_miss_leaves_a_directory_one_listed_file(scene: Scene) -> None:
    """A file that is left out, or not shown yet, and open is no successor of the last that is listed."""
    await shown(scene, "12")
    await scene.begin(leave_out=1)
    assert scene.listed() == "2"
    assert scene.store.open(scene.id("1"))
    assert await scene.cache.reserve_by_eviction(BLOCK, Holds()) is None
    assert scene.listed() == "2"


async def test_a_file_that_nobody_saw_and_that_is_open_is_no_successor_either(scene: Scene) -> None:
    await shown(scene, "1")
    await scene.remote(*"12")
    await scene.admit("2")
    assert scene.store.open(scene.id("2"))
    assert await scene.cache.reserve_by_eviction(BLOCK, Holds()) is None
    assert scene.listed() == "1"


async def test_a_directory_that_is_not_listed_yet_keeps_a_file_as_well(scene: Scene) -> None:
    await scene.remote(*"123")
    await scene.admit(*"123")
    assert await scene.cache.reserve_by_eviction(3 * BLOCK, Holds()) is None
    assert await scene.cache.reserve_by_eviction(2 * BLOCK, Holds())
    assert scene.resident() == "1"


# Between the beginning of a generation and the commit of what it decided.


async def test_what_a_generation_shows_again_is_shown_before_its_files_tell(scene: Scene) -> None:
    await shown(scene, "1234")
    await scene.begin(leave_out=2)
    generations = scene.cache.generations
    generations.rotates = False
    told = [generations.is_written]
    await generations.begin(Holds(), frozenset())
    assert scene.listed() == "1234"
    assert scene.row("1")[2] == 2
    told.append(generations.is_written)  # nothing is deleted to make room as long as it is not
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generations.run)
        await generations.written.wait()
        nursery.cancel_scope.cancel()
    told.append(generations.is_written)
    assert told == [True, False, True]
    assert scene.row("1")[2] is None
    assert scene.listed() == "1234"


async def test_what_a_generation_leaves_out_is_left_out_before_its_files_tell(scene: Scene) -> None:
    await shown(scene, "1234")
    generations, first = scene.cache.generations, scene.cache.generations.current
    generations.rotates, generations.share = True, 0.5
    await generations.begin(Holds(), frozenset(map(scene.id, "1234")))
    assert scene.row("1")[2] is None
    assert scene.listed() == "34"
    assert scene.listed(first) == "1234"
