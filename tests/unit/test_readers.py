"""Which process is a reader, the generation it is shown, and the reader that an open is counted for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Removed
from growfs.cache.usage import Budget, UsageCounters
from growfs.extensions.exact.part_states import PartsInUse
from growfs.proc import Process, process, thread_group
from growfs.rotation.parts import Part, PassPosition
from growfs.rotation.reader import Reader
from growfs.rotation.readers import FOREIGN, Readers, _process_of
from growfs.rotation.rules import Contents, Generation
from growfs.vfs.filesystem import Misses, Vfs
from growfs.vfs.generation_names import GENERATIONS_ID
from growfs.vfs.virtual import VirtualFolder
from tests.model.in_process import ModelProcess, Processes
from tests.unit.local_cache import LocalCache, file, running

SETTLE_S = 60.0
HOLD_IDLE_S = 3600.0
FILE = 5000
"""The id of a file that is opened."""


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """Stands for /proc."""
    processes = Processes()
    monkeypatch.setattr("growfs.proc.process", processes.get)
    monkeypatch.setattr("growfs.rotation.readers.process", processes.get)
    monkeypatch.setattr("growfs.rotation.readers.thread_group", lambda tid: tid)
    monkeypatch.setattr("growfs.rotation.readers._watched", processes.watch)
    yield processes
    processes.end_all()


@pytest.fixture
def me(processes: Processes) -> int:
    return processes.start()


@pytest.fixture
def child(processes: Processes, me: int) -> int:
    """A process that `me` has started, and that runs the same program."""
    return processes.start(me, is_forked=False)


@pytest.fixture
async def readers(cache: LocalCache, processes: Processes) -> AsyncIterator[Readers]:
    await cache.list([file("a/1")])
    await cache.admit("a/1")
    readers = Readers(cache.generations, HOLD_IDLE_S, frozenset)
    async with running(readers.run, cache.generations.run):
        await wait_all_tasks_blocked()
        yield readers


async def lists(readers: Readers, pid: int, directory: int = 1) -> tuple[Reader, Generation]:
    """The reader that lists, and the generation that it is shown, all of it in that directory."""
    reader = readers.reader_of(pid)
    await readers.begin(reader, directory)
    shown = readers.listing(reader, directory)
    reader.is_shown(shown.listed, shown)
    readers.close_generation(shown)
    return reader, shown


async def generation(readers: Readers, pid: int, directory: int = 1) -> int:
    _, shown = await lists(readers, pid, directory)
    return shown.number


def opens(readers: Readers, tid: int, id: int = FILE, waited: bool = False) -> int:
    """Open a file; returns the number of the reader that the open is counted for."""
    number = readers.opener(tid)
    readers.opened(number, id, waited)
    return number


async def end(readers: Readers, processes: Processes, pid: int) -> None:
    """Kill a process, and return when the registry has released its reader."""
    processes.end(pid)
    while any(reader.pid == pid for reader in readers.active()):
        await readers.released.wait()


async def test_the_command_lines_of_many_processes_are_read_once(
    readers: Readers, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is compared with all others: those that started together and have the same one are ranks of a job."""
    read: list[int] = []

    def command_line(process: Process) -> bytes:
        read.append(process.pid)
        return b"x" * process.pid  # numbers do not count

    monkeypatch.setattr(ModelProcess, "command_line", property(command_line))
    pids = [processes.start() for _ in range(50)]
    for pid in pids:
        await lists(readers, pid)
    assert sorted(read) == pids
    assert len({reader.job for reader in readers.active()}) == len(pids)


@pytest.mark.promise(6)
async def test_a_rank_whose_script_has_begun_its_program_is_in_the_job_of_those_that_still_list(
    readers: Readers, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapper script may list the files that it gives to the program, with exec."""
    programs: dict[int, bytes] = {}
    lines = property(lambda process: programs.get(process.pid, b"sh\0rank.sh\0"))
    monkeypatch.setattr(ModelProcess, "command_line", lines)
    for _ in range(3):
        pid = processes.start()
        await lists(readers, pid)
        programs[pid] = f"python\0train.py\0{pid}\0".encode()
    assert len({reader.job for reader in readers.active()}) == 1


@pytest.mark.promise(6)
async def test_a_rank_sees_what_its_job_sees_however_late_it_lists(
    readers: Readers, processes: Processes, me: int, child: int, mock_clock: MockClock
) -> None:
    reader, shown = await lists(readers, me)
    reader.job.is_shown(1, shown, 1)
    mock_clock.jump(10 * SETTLE_S)
    assert await generation(readers, processes.start()) == shown.number + 1 == 2
    assert await generation(readers, child) == 1


@pytest.mark.promise(6)
async def test_what_a_process_starts_long_after_it_listed_is_a_job_of_its_own(
    readers: Readers, me: int, child: int, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook that has looked at the folder runs a training script, which lists once."""
    monkeypatch.setattr(ModelProcess, "age_s", 0.0)
    assert await generation(readers, me) == 1
    mock_clock.jump(10 * SETTLE_S)
    assert await generation(readers, child) == 2


@pytest.mark.promise(17)
async def test_an_open_counts_for_the_nearest_process_that_listed_or_else_for_its_own(
    cache: LocalCache, readers: Readers, child: int, me: int
) -> None:
    opens(readers, child)
    (reader,) = readers.active()
    assert (reader.pid, reader.opens, reader.listed_at) == (child, 1, None)
    ancestor, shown = await lists(readers, me)
    ancestor.job.is_shown(1, shown, 1)
    opens(readers, child, cache.node("a/1").id)
    assert (reader.opens, ancestor.opens) == (1, 1)
    assert await generation(readers, me) == 2
    await generation(readers, child)
    opens(readers, child)
    assert (reader.opens, ancestor.opens) == (2, 1)


async def test_a_thread_counts_as_its_process() -> None:
    def run() -> tuple[int, int]:
        return thread_group(threading.get_native_id()), _process_of(threading.get_native_id()).pid

    assert await trio.to_thread.run_sync(run) == (os.getpid(), os.getpid())


async def test_readers_that_the_kernel_does_not_identify_are_one(readers: Readers, me: int) -> None:
    assert await generation(readers, 0) == 1
    opens(readers, 0)
    await generation(readers, me)
    living = {reader.pid: reader for reader in readers.active()}
    assert set(living) == {0, me}
    assert (living[0].opens, living[0].command) == (1, "another pid namespace")


async def test_readers_that_ended_are_forgotten(readers: Readers, processes: Processes) -> None:
    for _ in range(5):
        pid = processes.start()
        await generation(readers, pid)
        number = opens(readers, pid)
        await end(readers, processes, pid)
        readers.closed(number)  # the kernel reports the close later
    assert readers.active() == []
    assert not readers._readers
    assert not readers._by_number


@pytest.mark.parametrize("name", [b"a) R (b", b"x" * 14 + b"\xc3", b"", b"two words"])
def test_a_process_may_have_any_name(name: bytes) -> None:
    script = f"import ctypes, sys; ctypes.CDLL(None).prctl(15, {name!r}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        info = process(child.pid)
        assert info
        assert (info.pid, info.parent) == (child.pid, os.getpid())
        assert info.command == name.decode(errors="replace")
        assert int(info.start) > 0
        assert thread_group(child.pid) == child.pid
        child.communicate()


# Holds.


async def test_a_reader_holds_what_it_listed_until_it_ends(
    autojump_clock: MockClock, readers: Readers, processes: Processes, me: int
) -> None:
    """At first it may be about to list more."""
    reader = readers.reader_of(me)
    await readers.begin(reader, 7)
    shown = readers.listing(reader, 7)
    readers.close_generation(shown)
    assert readers.holds() == shown.listed
    readers.listing(reader, 7)
    await trio.sleep(SETTLE_S + 0.1)
    assert readers.holds() == shown.listed, "it is still listing"
    readers.close_generation(shown)
    assert not readers.holds()
    reader.is_shown([shown.last_seq], shown)
    assert {*readers.holds()} == {shown.last_seq}
    await end(readers, processes, me)
    assert not readers.holds()


@pytest.mark.promise(17)
async def test_readers_that_end_while_their_registry_has_failed_are_forgotten_by_its_next_run(
    cache: LocalCache, processes: Processes
) -> None:
    readers = Readers(cache.generations, HOLD_IDLE_S, frozenset)
    known, new = processes.start(), processes.start()
    async with running(readers.run):
        await wait_all_tasks_blocked()
        opens(readers, known)
    opens(readers, new)
    for pid in (known, new):
        processes.end(pid)
    async with running(readers.run):
        while readers.active():
            await readers.released.wait()


async def test_an_open_without_any_listing_holds_everything_of_that_moment(
    readers: Readers, processes: Processes, me: int
) -> None:
    _, shown = await lists(readers, processes.start())
    opens(readers, me, waited=True)
    (reader,) = [reader for reader in readers.active() if reader.pid == me]
    assert (reader.opens, reader.waited, reader.listed_at) == (1, 1, None)
    assert reader.held == shown.listed


async def test_holds_end_after_a_long_silence(readers: Readers, autojump_clock: MockClock, me: int) -> None:
    _, shown = await lists(readers, me, 7)
    number = opens(readers, me)
    await trio.sleep(2 * HOLD_IDLE_S)
    assert shown.last_seq in readers.holds()  # it has a file open
    readers.closed(number)
    await trio.sleep(HOLD_IDLE_S)
    assert shown.last_seq in readers.holds()
    await trio.sleep(10)
    assert shown.last_seq not in readers.holds()
    assert [reader.pid for reader in readers.active()] == [me]


@pytest.mark.promise(21)
async def test_what_unknown_readers_listed_is_held_for_a_while(readers: Readers, autojump_clock: MockClock) -> None:
    _, shown = await lists(readers, FOREIGN)
    await trio.sleep(HOLD_IDLE_S / 2)
    assert shown.last_seq in readers.holds()
    assert shown.last_seq + 1 not in readers.holds(), "it holds the generation that it listed, no other"
    await lists(readers, FOREIGN)
    await trio.sleep(HOLD_IDLE_S - 10)
    assert shown.last_seq in readers.holds()
    await trio.sleep(HOLD_IDLE_S)
    assert shown.last_seq not in readers.holds()


# Generations that are opened by their path.


async def test_a_generation_is_held_while_a_folder_of_it_is_open(
    cache: LocalCache, readers: Readers, child: int
) -> None:
    cache.generations.settle_s = 0
    _, first = await lists(readers, child)
    readers.release()
    readers.open_generation(first, FOREIGN)
    readers.release()
    assert first.last_seq in readers.holds()
    await readers.begin_number(2)
    await readers.begin_number(2)
    assert list(readers.named_generations()) == [1, 2], "the newest is kept"
    readers.close_generation(first)
    assert list(readers.named_generations()) == [2]
    assert first.last_seq not in readers.holds()


async def test_a_process_holds_the_last_generation_that_it_opened_until_it_ends(
    cache: LocalCache, readers: Readers, processes: Processes
) -> None:
    cache.generations.settle_s = 0
    reader, other, asked = processes.start(), processes.start(), await readers.begin_after(0)
    readers.open_generation(asked, reader)
    readers.close_generation(asked)
    await readers.begin_number(2)
    assert asked.last_seq in readers.holds()
    assert list(readers.named_generations()) == [1, 2]
    second = readers.named_generations()[2]
    readers.open_generation(second, reader)
    readers.close_generation(second)
    assert list(readers.named_generations()) == [2]
    readers.open_generation(asked, other)  # an earlier one changes nothing for the process that opened a later one
    readers.open_generation(asked, reader)
    readers.close_generation(asked)
    assert [each.newest for each in readers.active()] == [second, asked]
    await end(readers, processes, reader)
    assert [each.newest for each in readers.active()] == [asked]


@pytest.mark.promise(47)
async def test_a_part_is_held_while_it_is_in_use_although_another_one_is_the_newest(
    cache: LocalCache, readers: Readers, monkeypatch: pytest.MonkeyPatch, me: int
) -> None:
    parts = PartsInUse()
    monkeypatch.setattr(cache.generations.planner, "use", lambda part: parts.open(part, 0))
    monkeypatch.setattr(cache.generations.planner, "in_use", lambda: [use.part for use in parts.uses.values()])
    part = Part(
        1, 2, listed=BitMap64([1, 2]), contents=Contents({}, 0), position=PassPosition(1, 1), to_read=BitMap64([FILE])
    )
    newest = Generation(2, 2)
    readers.open_generation(part, me)
    readers.close_generation(part)
    cache.generations.current, cache.generations.kept = newest, [newest]
    assert part.listed <= readers.holds()
    assert list(readers.named_generations()) == [1, 2]
    parts.note_opened(FILE, 0)
    assert parts.end(0, 0, None, set(), readers.has_open_folder)
    assert not readers.holds()
    assert list(readers.named_generations()) == [2]


@pytest.mark.promise(49)
async def test_a_generation_is_held_for_ranks_that_have_yet_to_come_to_it(
    cache: LocalCache, readers: Readers, processes: Processes
) -> None:
    fast, slow = processes.start(), processes.start()
    generations = [await readers.begin_after(0)]
    for number in range(2, 6):
        await readers.begin_number(number)
        generations.append(readers.named_generations()[number])

    def held(*opens: tuple[int, int]) -> list[int]:
        for rank, number in opens:
            readers.open_generation(generations[number - 1], rank)
            readers.close_generation(generations[number - 1])
        return list(readers.named_generations())

    assert held((fast, 1), (fast, 2), (fast, 3)) == [1, 3, 5], "other ranks may start later, with the first one"
    assert held((slow, 1), (fast, 4)) == [1, 3, 4, 5], "the slow one has yet to come to 3"
    assert held((slow, 3), (slow, 4)) == [1, 3, 4, 5]
    readers._release_silent(trio.current_time() + 2 * cache.generations.settle_s)
    assert held() == [4, 5]


async def test_the_next_generation_begins_only_if_there_is_something_new(cache: LocalCache, readers: Readers) -> None:
    assert (await readers.begin_after(0)).number == 1
    assert (await readers.begin_after(0)).number == 1, "another process that begins at about the same time"
    assert (await readers.begin_after(1)).number == 1
    await cache.list([file("a/1"), file("a/2")])
    await cache.admit("a/2")
    assert (await readers.begin_after(1)).number == 2
    assert (await readers.begin_after(1)).number == 2, "another rank"


@pytest.mark.parametrize(("leaves", "stay"), [(1, False), (0, True), (2, True)])
async def test_files_that_others_read_make_room_last(
    leaves: int,
    stay: bool,
    cache: LocalCache,
    readers: Readers,
    processes: Processes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the newest generation, too, unless it is for its readers that the next one begins."""
    cache.generations.settle_s = 0
    first = await readers.begin_after(0)
    readers.open_generation(first, processes.start())
    await cache.list([file("a/1"), file("a/2")])
    await cache.admit("a/2")
    held = list[BitMap64]()
    begin = cache.generations.begin

    async def begin_and_note(lasting_holds: BitMap64, *more: Any) -> bool:
        held.append(lasting_holds)
        return await begin(lasting_holds, *more)

    monkeypatch.setattr(cache.generations, "begin", begin_and_note)
    assert (await readers.begin_after(leaves)).number == 2
    assert held == [first.listed if stay else BitMap64()]


async def test_the_generations_are_looked_up_once_for_all_names_that_are_gone(
    cache: LocalCache, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, all readers are asked what they hold. The remote may delete a million files."""
    usage = UsageCounters(cache.database, Budget(cache.database, 0))
    vfs = Vfs(
        cache.catalog, cache.store, cache.generations, readers, usage, Misses(), VirtualFolder([], Path("/")), None
    )
    first, told = await readers.begin_after(0), set[tuple[int, str]]()
    vfs.name_invalidated.connect(lambda parent, name: told.add((parent, name)))
    named, lookups = readers.named_generations, list[int]()

    def counted() -> dict[int, Generation]:
        lookups.append(1)
        return named()

    monkeypatch.setattr(readers, "named_generations", counted)
    vfs.forget_names([Removed(id, 1, str(id), str(id), 0, 0) for id in range(100, 110)])
    top = vfs.lookup(GENERATIONS_ID, str(first.number).encode()).id
    assert told == {(parent, str(id)) for parent in (1, top) for id in range(100, 110)}
    assert len(lookups) == 1


async def test_a_process_that_is_behind_does_not_wait_until_the_next_generation_can_begin(
    cache: LocalCache, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await readers.begin_after(0)
    await cache.list([file("a/1"), file("a/2")])
    await cache.admit("a/2")

    async def never(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(cache.generations, "begin", never)
    async with running(partial(readers.begin_after, 1)):
        await wait_all_tasks_blocked()
        assert (await readers.begin_after(0)).number == 1


async def test_with_rotation_always_only_readers_with_unopened_files_hold(
    cache: LocalCache, readers: Readers, me: int
) -> None:
    cache.generations.set_rotation("always")
    reader, shown = await lists(readers, me, 7)
    reader.job.is_shown(7, shown, 2)
    opens(readers, me)
    opens(readers, me)
    assert readers.holds()
    opens(readers, me, FILE + 1)
    assert not readers.holds()


@pytest.mark.promise(6)
async def test_simultaneous_listings_begin_one_generation(readers: Readers, child: int, me: int) -> None:
    numbers = []

    async def begin(pid: int) -> None:
        numbers.append(await generation(readers, pid))

    async with trio.open_nursery() as nursery:
        for pid in (me, child, FOREIGN):
            nursery.start_soon(begin, pid)
    assert numbers == [1, 1, 1]


@pytest.mark.promise(6)
async def test_a_rank_that_opened_few_files_joins_the_generation_that_another_begins(
    readers: Readers, child: int, me: int
) -> None:
    for pid in (me, child):
        reader, shown = await lists(readers, pid)
        reader.job.is_shown(1, shown, 10)
    for id in range(5):
        opens(readers, me, id)
    opens(readers, child, 5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lists, readers, me)
        while not readers._beginning.locked():
            await trio.lowlevel.checkpoint()
        assert await generation(readers, child) == 2


async def test_the_number_of_a_reader_is_given_to_no_other_while_it_lives(
    monkeypatch: pytest.MonkeyPatch, readers: Readers, processes: Processes
) -> None:
    """Opens are counted by it, and a training run outlives any number of short commands."""
    monkeypatch.setattr("growfs.rotation.readers.NUMBERS", 3)
    training, _ = await lists(readers, processes.start())
    for _ in range(5):
        short = processes.start()
        reader, _ = await lists(readers, short)
        assert reader.number != training.number
        await end(readers, processes, short)
