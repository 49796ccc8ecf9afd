"""What generations delist, list again and evict, over a real database and real files. Each file is one block."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from growfs.bitmaps import BitMap64
from growfs.cache.schema import FROZEN, PINNED
from growfs.disk import BLOCK
from growfs.rotation.rules import Generation, GenerationPlan, TurnoverInput
from growfs.scheduler.in_flight import Priority
from tests.unit.local_cache import LocalCache, file, open_local_cache, run_in_memory, running


class TurnoverScene:
    """A cache whose limit grows with each admitted file. A name is that of a file in folder a, or a path."""

    def __init__(self, cache: LocalCache) -> None:
        self.cache = cache
        self.store = cache.store
        self.names: list[str] = []

    async def remote(self, *names: str, missing: int = 100) -> None:
        """List a remote that has these files, and `missing` more that are never fetched."""
        self.names = list(names)
        more = [f"missing/{number}" for number in range(missing)]
        await self.cache.list([file(path(name), BLOCK) for name in names] + [file(name, BLOCK) for name in more])

    def id(self, name: str) -> int:
        return self.cache.node(path(name)).id

    async def admit(self, *names: str) -> None:
        """Admit files, and raise the limit so that they just fit."""
        for name in names:
            self.store.room.limit_bytes += BLOCK
            await self.cache.admit(path(name), content=b"x" * BLOCK)

    async def admit_group(self, *names: str, others: str = "") -> None:
        """Admit files that are delisted and evicted as one group, perhaps with others, which may be resident."""
        self.store.room.limit_bytes += len(names) * BLOCK
        group = tuple(map(self.id, (*names, *others)))
        staged = [self.cache.stage(path(name), b"x" * BLOCK)._replace(group=group) for name in names]
        assert len((await self.store.admit(staged)).admitted) == len(names)

    async def begin(
        self, delist: int = 0, lasting_holds: BitMap64 | None = None, opened: str | None = None
    ) -> Generation:
        """Begin a generation that delists this many blocks; if not 0, at least two.

        opened: the names of the files that were opened; by default all.
        """
        self._set_turnover(delist)
        ids = [self.id(name) for name in (self.names if opened is None else opened) if self.is_resident(name)]
        generation = await self.cache.begin(lasting_holds, frozenset(ids))
        assert generation
        return generation

    async def decide(self, delist: int = 0) -> None:
        """Begin a generation whose changes are not committed yet."""
        self._set_turnover(delist)
        self.cache.open_all()
        await self.cache.generations.begin(BitMap64(), frozenset())

    def _set_turnover(self, delist: int) -> None:
        self.cache.generations.turnover = delist * BLOCK / self.store.room.limit_bytes
        self.cache.generations.rotation = "auto" if delist > 0 else "never"

    def is_resident(self, name: str) -> bool:
        return path(name) in self.cache.resident()

    def listed(self, generation: Generation | None = None) -> str:
        """The names that a generation lists (by default the current one), sorted."""
        return "".join(sorted(name.removeprefix("a/") for name in self.cache.listed(generation)))

    def resident(self) -> str:
        return "".join(sorted(name.removeprefix("a/") for name in self.cache.resident()))

    def row(self, name: str) -> tuple[int, int, int | None, int]:
        """(seq, queue_position, delisted, opened)."""
        query = "SELECT seq, queue_position, delisted, opened FROM resident WHERE id = ?"
        row: tuple[int, int, int | None, int] = self.cache.database.row(query, self.id(name))
        return row

    async def mark(self, name: str, pinned: int) -> None:
        marks = pinned, self.id(name)
        await self.cache.database.write(lambda writer: writer.execute("UPDATE node SET pinned = ? WHERE id = ?", marks))


def path(name: str) -> str:
    return name if "/" in name else f"a/{name}"


@pytest.fixture
def scene(cache: LocalCache) -> TurnoverScene:
    cache.store.room.limit_bytes = 0
    return TurnoverScene(cache)


async def show_all(scene: TurnoverScene, names: str, missing: int = 100) -> None:
    """Fill the cache with files, all of which the first generation lists."""
    await scene.remote(*names, missing=missing)
    await scene.admit(*names)
    await scene.begin()


# Generations that need no plan.


async def test_a_generation_that_delists_nothing_needs_no_plan(
    scene: TurnoverScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning takes a worker milliseconds, and the process that lists waits for it."""
    inputs: list[TurnoverInput] = []
    planner = scene.cache.generations.planner
    plan = planner.plan

    async def recorded(number: int, turnover: TurnoverInput) -> GenerationPlan | None:
        inputs.append(turnover)
        return await plan(number, turnover)

    monkeypatch.setattr(planner, "plan", recorded)
    await show_all(scene, "1234", missing=0)
    generation = scene.cache.generations.current
    assert not inputs
    assert generation
    assert scene.listed() == "1234"
    assert generation.files == 4
    await scene.remote(*"1234")
    await scene.begin(delist=2)
    await scene.remote(*"1234", missing=0)
    assert (await scene.begin()).files == 4  # the delisted files are listed again
    assert len(inputs) == 2
    assert (await scene.begin()).files == 4
    assert len(inputs) == 2


# Which files are delisted.


@pytest.mark.promise(18)
async def test_the_files_shown_for_longest_are_delisted(scene: TurnoverScene) -> None:
    await show_all(scene, "123456")
    first = scene.cache.generations.current
    second = await scene.begin(delist=2)
    assert (scene.listed(), second.files) == ("3456", 4)
    assert scene.listed(first) == "123456"  # a reader of that generation still sees all
    assert scene.resident() == "123456"


@pytest.mark.promise(18, 23)
@pytest.mark.parametrize("pinned", [PINNED, FROZEN, PINNED | FROZEN])
async def test_pinned_and_frozen_files_are_never_delisted_or_evicted(scene: TurnoverScene, pinned: int) -> None:
    """One that is delisted already is listed again."""
    await show_all(scene, "12345")
    await scene.begin(delist=2)
    assert scene.listed() == "345"
    for name in "13":
        await scene.mark(name, pinned)
    for _ in range(3):
        await scene.begin(delist=5)
        assert scene.listed() == "13"
        assert await scene.cache.reserve_by_rotation(scene.store.room.limit_bytes) is None
    assert {"1", "3"} <= set(scene.resident())


@pytest.mark.promise(24)
async def test_a_group_is_delisted_as_a_whole(scene: TurnoverScene) -> None:
    """Also one whose first file was cached before the others."""
    await scene.remote(*"123456")
    await scene.admit("1", "2")
    await scene.admit_group("4", others="1")
    await scene.admit_group("3", "5", "6")
    await scene.begin()
    await scene.begin(delist=2)
    assert scene.listed() == "356"
    await scene.begin(delist=4)
    assert scene.listed() == "356"  # the last three are one group, and some file must stay listed


async def test_opens_recorded_in_the_database_count(scene: TurnoverScene) -> None:
    await show_all(scene, "1234")
    await scene.cache.database.write(lambda writer: writer.execute("UPDATE resident SET opened = 1 WHERE id > 0"))
    await scene.begin(delist=2, opened="")
    assert scene.listed() == "34"


# --show-files: each generation lists exactly this many files.


async def test_a_directory_without_listed_files_is_not_listed(scene: TurnoverScene) -> None:
    await scene.remote("1", "b/1")
    scene.cache.generations.show_files = 1
    await scene.admit("1", "b/1")
    generation = await scene.begin()
    assert [entry.name for entry in scene.cache.entries(1, generation, 10)] == ["a"]


async def test_no_generation_begins_with_fewer_files_than_show_files(
    scene: TurnoverScene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.remote(*"1234")
    scene.cache.generations.show_files = 3
    await scene.admit("1", "2")
    assert await scene.cache.begin() is None
    assert "--show-files needs 3 files, but only 2 can be listed" in caplog.text
    await scene.admit("3")
    assert (await scene.begin()).number == 1
    assert scene.listed() == "123"


@pytest.mark.promise(25)
@settings(max_examples=10)
@given(st.data())
def test_show_files_always_lists_exactly_that_many(data: st.DataObject) -> None:
    """Over any sequence of admissions, evictions and generations, as long as enough are resident; pins are kept."""
    show = data.draw(st.integers(4, 8))
    names = [f"{folder}/{number}.{suffix}" for number in range(12) for folder in "ab" for suffix in ("x", "y")]

    async def run(folder: Path) -> None:
        cache = open_local_cache(folder)
        scene = TurnoverScene(cache)
        await scene.remote(*names)
        cache.generations.show_files = show
        waiting = data.draw(st.permutations(names))
        pinned: set[str] = set()
        for _ in range(6):
            count = data.draw(st.integers(0, 8))
            admitted, waiting = waiting[:count], waiting[count:]
            await scene.admit(*admitted)
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
                await cache.reserve_by_rotation(data.draw(st.integers(1, 4)) * BLOCK, BitMap64())
                cache.give_back()
                assert len(cache.listed()) == show
        cache.database.close()

    run_in_memory(run)


# Sequence numbers and queue positions.


@pytest.mark.promise(2, 6)
async def test_every_generation_shows_a_new_version_just_where_it_showed_the_old_one(scene: TurnoverScene) -> None:
    await show_all(scene, "1234")
    first, second = scene.cache.generations.current, await scene.begin(delist=2)
    before = {name: (scene.id(name), scene.row(name)) for name in "13"}
    scene.store.room.limit_bytes += BLOCK
    for name, (old, row) in before.items():
        await scene.cache.renew(path(name), b"y" * BLOCK)
        assert scene.id(name) != old
        assert scene.row(name) == row
    assert (scene.listed(first), scene.listed(second)) == ("1234", "34")
    scene.store.room.limit_bytes -= BLOCK
    await scene.begin(delist=2)
    assert scene.listed() == "34"


# What rotation and misses may evict.


async def test_a_file_that_rotation_is_evicting_is_not_listed_again(
    scene: TurnoverScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await show_all(scene, "123456")
    await scene.begin(delist=3)
    evicting, may_evict = trio.Event(), trio.Event()
    evict = scene.store.evict

    async def slow_evict(ids: list[int], return_to_pass: bool) -> int:
        evicting.set()
        await may_evict.wait()
        return await evict(ids, return_to_pass)

    async def rotate() -> None:
        monkeypatch.setattr(scene.store, "evict", slow_evict)
        await scene.cache.reserve_by_rotation(BLOCK)

    async def begin() -> None:
        await scene.begin()
        listed.append(scene.listed())

    listed: list[str] = []
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rotate)
            await evicting.wait()
            nursery.start_soon(begin)
            await trio.testing.wait_all_tasks_blocked(0.1)  # the plan is made on a thread
            may_evict.set()
    assert listed == ["23456"]


async def test_only_a_listed_file_that_a_miss_evicts_may_be_drawn_again_in_this_pass(scene: TurnoverScene) -> None:
    await show_all(scene, "1234")
    await scene.begin(delist=2)
    returned: list[bool] = []
    scene.store.returned_to_pass.connect(lambda: returned.append(True))
    assert await scene.cache.reserve_by_rotation(BLOCK)
    query = "SELECT first_shown, last_shown FROM node WHERE id = ?"
    assert scene.cache.database.row(query, scene.id("1")) == (1, 1)
    assert not returned
    assert await scene.cache.reserve_by_eviction(2 * BLOCK)
    assert scene.resident() == "4"
    assert returned
    assert [scene.cache.node(path(name)).drawn for name in "123"] == [1, 1, 0]


@pytest.mark.promise(19)
async def test_a_miss_evicts_in_the_order_of_the_rules(scene: TurnoverScene) -> None:
    """Files not shown yet, newest first; delisted; listed, oldest first; and then in this order those that are held."""
    await show_all(scene, "1234567")
    await scene.begin(delist=4)
    await scene.remote(*"123456789")
    await scene.admit("8", "9")
    holds = BitMap64(scene.row(name)[0] for name in "126")
    gone = []
    while True:
        before = scene.resident()
        reserved = await scene.cache.reserve_by_eviction(BLOCK, holds)
        if reserved is None:
            break
        gone.append("".join(sorted(set(before) - set(scene.resident()))))
    assert gone == ["9", "8", "3", "4", "5", "7", "1", "2"]
    assert scene.resident() == "6"


@pytest.mark.promise(17)
async def test_what_no_reader_waits_for_evicts_nothing_that_is_held(scene: TurnoverScene) -> None:
    await show_all(scene, "1234")
    await scene.remote(*"12345")
    await scene.admit("5")
    holds = BitMap64(scene.row(name)[0] for name in "123")
    for left in ("1234", "123"):
        assert await scene.cache.reserve(BLOCK, Priority.DUE, holds)
        assert scene.resident() == left
    assert await scene.cache.reserve(BLOCK, Priority.DUE, holds) is None
    assert await scene.cache.reserve(BLOCK, Priority.READER, holds)
    assert scene.resident() == "23"


async def test_a_disk_that_refuses_to_evict_is_logged_once_a_minute(
    scene: TurnoverScene,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mock_clock: trio.testing.MockClock,
) -> None:
    """Every draw and every miss tries it again."""

    async def refuse(ids: list[int], return_to_pass: bool = False) -> None:
        raise sqlite3.DatabaseError("disk I/O error")

    await show_all(scene, "1234")
    monkeypatch.setattr(scene.store, "evict", refuse)
    for times in (1, 2):
        for _ in range(3):
            assert await scene.cache.reserve_by_eviction(BLOCK) is None
        assert caplog.text.count("cannot make room: disk I/O error") == times
        mock_clock.jump(60)


async def test_if_the_disk_frees_less_than_the_files_took_more_are_evicted(
    scene: TurnoverScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await show_all(scene, "1234")
    store, short = scene.store, scene.store.room.short
    monkeypatch.setattr(store.room, "short", lambda need: short(need) + BLOCK * (store.evicted_files == 1))
    assert await scene.cache.reserve_by_eviction(BLOCK)
    assert scene.resident() == "34"


# What the database keeps.


async def test_a_delisted_file_is_still_delisted_after_a_restart(scene: TurnoverScene) -> None:
    await show_all(scene, "1234")
    second = await scene.begin(delist=2)
    scene.cache.store.stop()
    reopened = open_local_cache(scene.cache.folder, scene.store.room.limit_bytes)
    assert (reopened.generations.shown_seq, reopened.generations.number) == (second.last_seq, 0)
    generation = await reopened.begin()
    assert generation
    assert generation.number == 3
    assert reopened.listed() == {"a/3", "a/4"}
    reopened.database.close()


# Groups are evicted as a whole.


async def delist_pairs(scene: TurnoverScene) -> None:
    """Two pairs and two single files, all shown; a second generation delists the pairs."""
    await scene.remote(*"123456")
    await scene.admit_group("1", "2")
    await scene.admit_group("3", "4")
    await scene.admit("5", "6")
    await scene.begin()
    await scene.begin(delist=4)
    assert scene.listed() == "56"


@pytest.mark.parametrize(("used", "left"), [("", "3456"), ("open", "1256"), ("held", "1256")])
async def test_rotation_evicts_a_group_as_a_whole_if_none_of_its_files_is_used(
    scene: TurnoverScene, used: str, left: str
) -> None:
    await delist_pairs(scene)
    if used == "open":
        assert scene.store.open(scene.id("2"))
    holds = BitMap64([scene.row("1")[0]] if used == "held" else [])
    assert await scene.cache.reserve_by_rotation(BLOCK, holds)
    assert scene.resident() == left


async def test_a_partly_delisted_group_is_listed_whole_once_the_rest_is_admitted(scene: TurnoverScene) -> None:
    await delist_pairs(scene)
    await scene.store.evict([scene.id("1")])
    scene.store.room.limit_bytes -= BLOCK
    await scene.admit_group("1", others="2")
    assert scene.row("1")[1] == scene.row("2")[1]
    assert scene.listed() == "56"
    await scene.begin(delist=3)
    assert scene.listed() == "126"


async def test_a_directory_not_listed_yet_keeps_a_file_as_well(scene: TurnoverScene) -> None:
    await scene.remote(*"123")
    await scene.admit(*"123")
    assert await scene.cache.reserve_by_eviction(3 * BLOCK) is None
    assert await scene.cache.reserve_by_eviction(2 * BLOCK)
    assert scene.resident() == "1"


# Between the beginning of a generation and the commit of its changes.


async def test_a_generation_shows_its_changes_before_they_are_committed(scene: TurnoverScene) -> None:
    await show_all(scene, "1234")
    generations, first = scene.cache.generations, scene.cache.generations.current
    for delist, listed, rows in ((2, "34", (None, 2)), (0, "1234", (2, None))):
        written = [generations.is_written]
        await scene.decide(delist)
        assert (scene.listed(first), scene.listed(), scene.row("1")[2]) == ("1234", listed, rows[0])
        written.append(generations.is_written)
        async with running(generations.run):
            await generations.written.wait()
        written.append(generations.is_written)
        assert written == [True, False, True], "nothing is evicted meanwhile"
        assert (scene.listed(), scene.row("1")[2]) == (listed, rows[1])


@pytest.mark.promise(7)
async def test_a_miss_evicts_nothing_by_rows_that_a_generation_is_about_to_change(scene: TurnoverScene) -> None:
    """By the rows, an open file that is delisted would still be listed, and the only listed one could go."""
    await show_all(scene, "12")
    await scene.decide(delist=1)
    assert scene.listed() == "2"
    assert scene.store.open(scene.id("1"))
    generations = scene.cache.generations
    async with running(partial(scene.cache.reserve_by_eviction, BLOCK)) as nursery:
        await trio.testing.wait_all_tasks_blocked(0.1)
        nursery.start_soon(generations.run)
        await generations.written.wait()
        await trio.testing.wait_all_tasks_blocked(0.1)
    assert scene.resident() == "12"
