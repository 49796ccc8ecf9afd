"""Which process is a reader, the generation it is shown, and the reader that an open is counted for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

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
from growfs.rotation.readers import FOREIGN, Readers
from growfs.rotation.rules import Contents, Generation
from growfs.vfs.filesystem import Misses, Vfs
from growfs.vfs.generation_names import GENERATIONS_ID
from growfs.vfs.virtual import VirtualFolder
from tests.unit.local_cache import LocalCache, file, running

ME = os.getpid()
SETTLE_S = 60.0
HOLD_IDLE_S = 3600.0
FILE = 5000
"""The id of a file that is opened."""


@pytest.fixture
async def readers(cache: LocalCache) -> AsyncIterator[Readers]:
    await cache.list([file("a/1")])
    await cache.admit("a/1")
    readers = Readers(cache.generations, HOLD_IDLE_S, frozenset)
    async with running(readers.run, cache.generations.run):
        await wait_all_tasks_blocked()
        yield readers


@pytest.fixture
def other() -> Iterator[int]:
    """Another process, a child of this one."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield child.pid
    child.communicate()


def sleeper() -> subprocess.Popen[bytes]:
    """A process that sleeps until the test ends it."""
    return subprocess.Popen(["sleep", "100"])


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


async def end(readers: Readers, process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and return when the registry has released its reader."""
    process.kill()
    process.wait()
    with trio.fail_after(10):
        while any(reader.pid == process.pid for reader in readers.active()):
            await readers.released.wait()


LETTERS = str.maketrans("0123456789", "abcdefghij")
"""Ranks may differ in their numbers."""


class CommandLines:
    """Stands for /proc: the command lines of processes that start together, each with a parent of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changed: dict[str, bytes] = {}
        """By path; the others are the path, with letters for its digits."""
        self.reads: list[str] = []
        monkeypatch.setattr("growfs.proc.Path", lambda path: SimpleNamespace(read_bytes=lambda: self.read(path)))
        monkeypatch.setattr("growfs.proc.process", lambda pid: None)
        monkeypatch.setattr("growfs.rotation.readers.process", lambda pid: Process(pid, 1000 + pid, "1", "python"))
        monkeypatch.setattr("growfs.rotation.readers.thread_group", lambda tid: tid)
        monkeypatch.setattr("growfs.rotation.readers._watched", lambda pid: None)

    def read(self, path: str) -> bytes:
        self.reads.append(path)
        return self.changed.get(path, path.translate(LETTERS).encode())


async def test_the_command_lines_of_many_processes_are_read_once(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is compared with all others: those that started together and have the same one are ranks of a job."""
    lines, pids = CommandLines(monkeypatch), range(100, 150)
    for pid in pids:
        await lists(readers, pid)
    assert sorted(lines.reads) == [f"/proc/{pid}/cmdline" for pid in pids]
    assert len({reader.job for reader in readers.active()}) == len(pids)


@pytest.mark.promise(6)
async def test_a_rank_whose_script_has_begun_its_program_is_in_the_job_of_those_that_still_list(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapper script may list the files that it gives to the program, with exec."""
    lines, ranks = CommandLines(monkeypatch), range(100, 103)
    for pid in ranks:
        lines.changed[f"/proc/{pid}/cmdline"] = b"sh\0rank.sh\0"
        await lists(readers, pid)
        lines.changed[f"/proc/{pid}/cmdline"] = f"python\0train.py\0{pid}\0".encode()
    assert len({reader.job for reader in readers.active()}) == 1


@pytest.mark.promise(6)
async def test_a_rank_sees_what_its_job_sees_however_late_it_lists(
    readers: Readers, other: int, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = sleeper()
    monkeypatch.setattr(Process, "age_s", property(lambda _: trio.current_time()))  # it started before anybody listed
    reader, shown = await lists(readers, ME)
    reader.job.is_shown(1, shown, 1)
    mock_clock.jump(10 * SETTLE_S)
    assert await generation(readers, stranger.pid) == shown.number + 1 == 2
    assert await generation(readers, other) == 1, "a child that runs the same program"
    stranger.kill()
    stranger.wait()


@pytest.mark.promise(6)
async def test_what_a_process_starts_long_after_it_listed_is_a_job_of_its_own(
    readers: Readers, other: int, mock_clock: MockClock
) -> None:
    """A notebook that has looked at the folder runs a training script, which lists once."""
    assert await generation(readers, ME) == 1
    mock_clock.jump(10 * SETTLE_S)
    assert await generation(readers, other) == 2


@pytest.mark.promise(17)
async def test_an_open_counts_for_the_nearest_process_that_listed_or_else_for_its_own(
    cache: LocalCache, readers: Readers, other: int
) -> None:
    opens(readers, other)
    (reader,) = readers.active()
    assert (reader.pid, reader.opens, reader.listed_at) == (other, 1, None)
    ancestor, shown = await lists(readers, ME)
    ancestor.job.is_shown(1, shown, 1)
    opens(readers, other, cache.node("a/1").id)
    assert (reader.opens, ancestor.opens) == (1, 1)
    assert await generation(readers, ME) == 2
    await generation(readers, other)
    opens(readers, other)
    assert (reader.opens, ancestor.opens) == (2, 1)


async def test_a_thread_counts_as_its_process(readers: Readers) -> None:
    tids: list[int] = []
    done = threading.Event()

    def run() -> None:
        tids.append(threading.get_native_id())
        done.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    while not tids:
        await trio.lowlevel.checkpoint()
    assert thread_group(tids[0]) == ME
    assert await generation(readers, tids[0]) == 1
    opens(readers, tids[0])
    assert [reader.pid for reader in readers.active()] == [ME]
    done.set()
    thread.join()


async def test_readers_that_the_kernel_does_not_identify_are_one(readers: Readers) -> None:
    assert await generation(readers, 0) == 1
    opens(readers, 0)
    await generation(readers, ME)
    living = {reader.pid: reader for reader in readers.active()}
    assert set(living) == {0, ME}
    assert (living[0].opens, living[0].command) == (1, "another pid namespace")


async def test_readers_that_ended_are_forgotten(readers: Readers) -> None:
    for _ in range(5):
        child = sleeper()
        await generation(readers, child.pid)
        number = opens(readers, child.pid)
        await end(readers, child)
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
        assert (info.pid, info.parent) == (child.pid, ME)
        assert info.command == name.decode(errors="replace")
        assert int(info.start) > 0
        assert thread_group(child.pid) == child.pid
        child.communicate()


# Holds.


async def test_a_reader_holds_what_it_listed_until_it_ends(autojump_clock: MockClock, readers: Readers) -> None:
    """At first it may be about to list more."""
    child = sleeper()
    reader = readers.reader_of(child.pid)
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
    await end(readers, child)
    assert not readers.holds()


@pytest.mark.promise(17)
async def test_readers_that_end_while_their_registry_has_failed_are_forgotten_by_its_next_run(
    cache: LocalCache,
) -> None:
    readers = Readers(cache.generations, HOLD_IDLE_S, frozenset)
    known, new = sleeper(), sleeper()
    async with running(readers.run):
        await wait_all_tasks_blocked()
        opens(readers, known.pid)
    opens(readers, new.pid)
    for child in (known, new):
        child.kill()
        child.wait()
    async with running(readers.run):
        while readers.active():
            await readers.released.wait()


async def test_an_open_without_any_listing_holds_everything_of_that_moment(
    readers: Readers, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("growfs.rotation.readers.are_ranks", lambda *_: False)
    child = sleeper()
    _, shown = await lists(readers, child.pid)
    opens(readers, other, waited=True)
    (reader,) = [reader for reader in readers.active() if reader.pid == other]
    assert (reader.opens, reader.waited, reader.listed_at) == (1, 1, None)
    assert reader.held == shown.listed
    await end(readers, child)


async def test_holds_end_after_a_long_silence(readers: Readers, autojump_clock: MockClock) -> None:
    _, shown = await lists(readers, ME, 7)
    number = opens(readers, ME)
    await trio.sleep(2 * HOLD_IDLE_S)
    assert shown.last_seq in readers.holds()  # it has a file open
    readers.closed(number)
    await trio.sleep(HOLD_IDLE_S)
    assert shown.last_seq in readers.holds()
    await trio.sleep(10)
    assert shown.last_seq not in readers.holds()
    assert [reader.pid for reader in readers.active()] == [ME]


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
    cache: LocalCache, readers: Readers, other: int
) -> None:
    cache.generations.settle_s = 0
    _, first = await lists(readers, other)
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
    cache: LocalCache, readers: Readers
) -> None:
    cache.generations.settle_s = 0
    child, asked = sleeper(), await readers.begin_after(0)
    readers.open_generation(asked, child.pid)
    readers.close_generation(asked)
    await readers.begin_number(2)
    assert asked.last_seq in readers.holds()
    assert list(readers.named_generations()) == [1, 2]
    second = readers.named_generations()[2]
    readers.open_generation(second, child.pid)
    readers.close_generation(second)
    assert list(readers.named_generations()) == [2]
    readers.open_generation(asked, ME)  # an earlier one changes nothing for the process that opened a later one
    readers.open_generation(asked, child.pid)
    readers.close_generation(asked)
    assert [each.newest for each in readers.active()] == [second, asked]
    await end(readers, child)
    assert [each.newest for each in readers.active()] == [asked]


@pytest.mark.promise(47)
async def test_a_part_is_held_while_it_is_in_use_although_another_one_is_the_newest(
    cache: LocalCache, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = PartsInUse()
    monkeypatch.setattr(cache.generations.planner, "use", lambda part: parts.open(part, 0))
    monkeypatch.setattr(cache.generations.planner, "in_use", lambda: [use.part for use in parts.uses.values()])
    part = Part(
        1, 2, listed=BitMap64([1, 2]), contents=Contents({}, 0), position=PassPosition(1, 1), to_read=BitMap64([FILE])
    )
    newest = Generation(2, 2)
    readers.open_generation(part, ME)
    readers.close_generation(part)
    cache.generations.current, cache.generations.kept = newest, [newest]
    assert part.listed <= readers.holds()
    assert list(readers.named_generations()) == [1, 2]
    parts.note_opened(FILE, 0)
    assert parts.end(0, 0, None, set(), readers.has_open_folder)
    assert not readers.holds()
    assert list(readers.named_generations()) == [2]


@pytest.mark.promise(49)
async def test_a_generation_is_held_for_ranks_that_have_yet_to_come_to_it(cache: LocalCache, readers: Readers) -> None:
    fast, slow = sleeper(), sleeper()
    generations = [await readers.begin_after(0)]
    for number in range(2, 6):
        await readers.begin_number(number)
        generations.append(readers.named_generations()[number])

    def held(*opens: tuple[subprocess.Popen[bytes], int]) -> list[int]:
        for rank, number in opens:
            readers.open_generation(generations[number - 1], rank.pid)
            readers.close_generation(generations[number - 1])
        return list(readers.named_generations())

    assert held((fast, 1), (fast, 2), (fast, 3)) == [1, 3, 5], "other ranks may start later, with the first one"
    assert held((slow, 1), (fast, 4)) == [1, 3, 4, 5], "the slow one has yet to come to 3"
    assert held((slow, 3), (slow, 4)) == [1, 3, 4, 5]
    readers._release_silent(trio.current_time() + 2 * cache.generations.settle_s)
    assert held() == [4, 5]
    await end(readers, slow)
    await end(readers, fast)


async def test_the_next_generation_begins_only_if_there_is_something_new(cache: LocalCache, readers: Readers) -> None:
    assert (await readers.begin_after(0)).number == 1
    assert (await readers.begin_after(0)).number == 1, "another process that begins at about the same time"
    assert (await readers.begin_after(1)).number == 1
    await cache.list([file("a/1"), file("a/2")])
    await cache.admit("a/2")
    assert (await readers.begin_after(1)).number == 2
    assert (await readers.begin_after(1)).number == 2, "another rank"


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


async def test_with_rotation_always_only_readers_with_unopened_files_hold(cache: LocalCache, readers: Readers) -> None:
    cache.generations.set_rotation("always")
    reader, shown = await lists(readers, ME, 7)
    reader.job.is_shown(7, shown, 2)
    opens(readers, ME)
    opens(readers, ME)
    assert readers.holds()
    opens(readers, ME, FILE + 1)
    assert not readers.holds()


@pytest.mark.promise(6)
async def test_simultaneous_listings_begin_one_generation(readers: Readers, other: int) -> None:
    numbers = []

    async def begin(pid: int) -> None:
        numbers.append(await generation(readers, pid))

    async with trio.open_nursery() as nursery:
        for pid in (ME, other, FOREIGN):
            nursery.start_soon(begin, pid)
    assert numbers == [1, 1, 1]


@pytest.mark.promise(6)
async def test_a_rank_that_opened_few_files_joins_the_generation_that_another_begins(
    readers: Readers, other: int
) -> None:
    for pid in (ME, other):
        reader, shown = await lists(readers, pid)
        reader.job.is_shown(1, shown, 10)
    for id in range(5):
        opens(readers, ME, id)
    opens(readers, other, 5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lists, readers, ME)
        while not readers._beginning.locked():
            await trio.lowlevel.checkpoint()
        assert await generation(readers, other) == 2


async def test_the_number_of_a_reader_is_given_to_no_other_while_it_lives(
    monkeypatch: pytest.MonkeyPatch, readers: Readers, other: int
) -> None:
    """Opens are counted by it, and a training run outlives any number of short commands."""
    monkeypatch.setattr("growfs.rotation.readers.NUMBERS", 3)
    training, _ = await lists(readers, os.getpid())
    for _ in range(5):
        short = sleeper()
        reader, _ = await lists(readers, short.pid)
        assert reader.number != training.number
        await end(readers, short)
