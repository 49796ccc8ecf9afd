"""Who a reader is, which generation it is shown, and whom an open is credited to. Processes are real."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from growfs import readers as module
from growfs.readers import EVERYWHERE, Readers, process, thread_group
from tests.unit.rooms import Rooms, file

ME = os.getpid()
SETTLE_S = 60.0


@pytest.fixture
def readers(rooms: Rooms) -> Readers:
    return Readers(rooms.store, SETTLE_S)


@pytest.fixture
def other() -> Iterator[int]:
    """Another process, a child of this one."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield child.pid
    child.communicate()


def sleeper() -> subprocess.Popen[bytes]:
    """A process that the test ends."""
    return subprocess.Popen(["sleep", "100"])


def generation(readers: Readers, pid: int, directory: int = 1) -> int:
    return readers.listing(pid, directory)[1].number


async def test_the_first_listing_begins_the_first_generation(readers: Readers) -> None:
    assert generation(readers, ME) == 1


async def test_an_epoch_is_a_generation(readers: Readers) -> None:
    assert [generation(readers, ME), generation(readers, ME)] == [1, 1]
    readers.opened(ME)
    assert generation(readers, ME) == 2
    assert generation(readers, ME) == 2


async def test_the_directories_of_one_walk_are_of_one_generation(readers: Readers) -> None:
    for directory in (1, 2, 3):
        assert generation(readers, ME, directory) == 1
        readers.opened(ME)
    assert generation(readers, ME, 1) == 2
    assert generation(readers, ME, 2) == 2


async def test_a_second_process_joins(readers: Readers, other: int) -> None:
    assert generation(readers, ME) == 1
    readers.opened(ME)
    assert generation(readers, other) == 1


async def test_who_only_looks_sees_growth_when_it_has_settled(
    readers: Readers, other: int, autojump_clock: MockClock
) -> None:
    assert generation(readers, ME) == 1
    await trio.sleep(SETTLE_S)
    assert generation(readers, ME) == 1
    await trio.sleep(0.1)
    assert generation(readers, ME) == 2
    await trio.sleep(SETTLE_S + 0.1)
    assert generation(readers, other) == 3
    await trio.sleep(SETTLE_S + 0.1)
    assert generation(readers, ME, 7) == 3


async def test_a_listing_of_everything_is_a_listing(readers: Readers) -> None:
    assert generation(readers, ME, EVERYWHERE) == 1
    readers.opened(ME)
    assert generation(readers, ME, EVERYWHERE) == 2


async def test_an_open_is_credited_to_the_ancestor_that_listed(readers: Readers, other: int) -> None:
    assert generation(readers, ME) == 1
    readers.opened(other)
    (reader,) = readers.living()
    assert (reader.pid, reader.opens) == (ME, 1)
    assert generation(readers, ME) == 2


async def test_an_opener_that_listed_itself_has_its_own_opens(readers: Readers, other: int) -> None:
    generation(readers, ME)
    generation(readers, other)
    readers.opened(other)
    assert {reader.pid: reader.opens for reader in readers.living()} == {ME: 0, other: 1}


async def test_an_opener_without_any_lister_is_a_reader(readers: Readers, other: int) -> None:
    readers.opened(other)
    (reader,) = readers.living()
    assert (reader.pid, reader.opens, reader.listed_at) == (other, 1, None)


async def test_a_thread_is_its_process(readers: Readers) -> None:
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
    assert generation(readers, tids[0]) == 1
    readers.opened(tids[0])
    assert [reader.pid for reader in readers.living()] == [ME]
    done.set()
    thread.join()


async def test_a_process_that_ended_is_no_reader(readers: Readers) -> None:
    child = sleeper()
    generation(readers, child.pid)
    assert [reader.pid for reader in readers.living()] == [child.pid]
    child.kill()
    child.wait()
    assert readers.living() == []


async def test_readers_that_the_kernel_does_not_name_are_one(readers: Readers) -> None:
    assert generation(readers, 0) == 1
    readers.opened(0)
    generation(readers, ME)
    living = {reader.pid: reader for reader in readers.living()}
    assert set(living) == {0, ME}
    assert (living[0].opens, living[0].command) == (1, "another pid namespace")


async def test_a_crowd_of_readers_that_ended_is_forgotten(readers: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READERS_MAX", 2)
    for _ in range(5):
        child = sleeper()
        generation(readers, child.pid)
        child.kill()
        child.wait()
    assert len(readers._readers) <= 2


def test_what_proc_tells_of_this_process() -> None:
    me = process(ME)
    assert me
    assert (me.pid, me.parent) == (ME, os.getppid())
    assert me.command in Path(f"/proc/{ME}/comm").read_text()
    assert process(2**22 + 1) is None


@pytest.mark.parametrize("name", [b"a) R (b", b"x" * 14 + b"\xc3", b"", b"two words"])
def test_a_process_may_have_any_name(name: bytes) -> None:
    script = f"import ctypes, sys; ctypes.CDLL(None).prctl(15, {name!r}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        found = process(child.pid)
        assert found
        assert (found.pid, found.parent) == (child.pid, ME)
        assert found.command == name.decode(errors="replace")
        assert int(found.start) > 0
        assert thread_group(child.pid) == child.pid
        child.communicate()


async def test_what_a_reader_is_shown_counts_from_its_listing(readers: Readers, rooms: Rooms) -> None:
    await rooms.list([file("a/1")])
    reader, _ = readers.listing(ME, 1)
    reader.shown[1] = 5
    readers.listing(ME, 2)
    assert reader.shown[1] == 5
    readers.opened(ME)
    readers.listing(ME, 1)
    assert (sum(reader.shown.values()), reader.generation) == (0, 2)
