"""Generations by path: .growfs/generations/N is the same for every process, whoever lists it, and when."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import growfs as api
import growfs.client.generation as generation_module
from growfs.errors import GrowfsError
from growfs.vfs.generation_names import NUMBERS
from growfs.vfs.virtual import CONTENTS_MAX
from tests.fuse.conftest import SHOW_FILES, only, opened
from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import (
    CAPACITY,
    HALF,
    SIZE,
    epoch,
    full_cache,
    local,
    mount_status,
    mounted_in_a_pid_namespace,
    waited_opens,
)
from tests.fuse.test_open_files import relist, until_size
from tests.generation_readers import Reader as Rank
from tests.generation_readers import Readers
from tests.harness import ENGINES, GROWFS, Growfs, files_below, make_tree, until

TREES = ".growfs/generations"


@pytest.fixture
def tree(growfs: Growfs, tmp_path: Path) -> dict[str, bytes]:
    """The remote's files. A quarter of them is cached. With --settle 0, a generation ends with its last hold."""
    return full_cache(growfs, tmp_path / "remote", *HALF, "--settle", "0")


def generation(growfs: Growfs, number: object) -> Path:
    return growfs.mountpoint / TREES / str(number)


def next_number(growfs: Growfs, after: object = 0) -> int:
    """Begin the generation after another, if there is something new; returns the number of the newest."""
    return int((growfs.mountpoint / TREES / f"after-{after}").read_text())


def names(path: Path) -> set[str]:
    return set(files_below(path))


def walk(reader: Reader, number: object) -> set[str]:
    """What a process finds below a generation."""
    top = f"{TREES}/{number}/"
    return {path.removeprefix(top) for path in reader.walk(top.rstrip("/"))}


def rotate(growfs: Growfs, reader: Reader, after: int) -> None:
    """Read a generation, begin the one after it, and wait until what that delists has been replaced if it may be."""
    epoch(reader, f"{TREES}/{after}")
    os.listdir(generation(growfs, after + 1))


def assert_can_be_replaced(growfs: Growfs, files: set[str], after: int) -> None:
    """Assert that later generations, each of which is read, replace one of these files."""
    for number in range(after, after + 5):
        with Reader(growfs.mountpoint) as reader:
            rotate(growfs, reader, number)
        until(lambda: mount_status(growfs)["cache"]["left_out_bytes"] == 0)
        if files - local(growfs):
            return
    pytest.fail("none was replaced")


@pytest.mark.promise(49)
@only("either", "links")
def test_a_generation_stays_the_same_while_a_folder_of_it_is_open(
    growfs: Growfs, tree: dict[str, bytes], reader: Reader
) -> None:
    assert next_number(growfs) == 1
    with opened(generation(growfs, 1)):
        first = walk(reader, 1)
        assert first
        with Reader(growfs.mountpoint) as other:
            rotate(growfs, other, 1)
            assert names(generation(growfs, 2)) != first
            rotate(growfs, other, 2)
        assert walk(reader, 1) == names(generation(growfs, 1)) == first
        assert {path: (generation(growfs, 1) / path).read_bytes() for path in first} == {
            path: tree[path] for path in first
        }
        assert waited_opens(growfs) == 0
        assert set(os.listdir(growfs.mountpoint / TREES)) >= {"1", "3"}
        reader.end()
    until(lambda: "1" not in os.listdir(growfs.mountpoint / TREES))
    assert_can_be_replaced(growfs, first, after=3)
    with pytest.raises(OSError, match="Stale") as error:
        os.listdir(generation(growfs, 1))
    assert error.value.errno == errno.ESTALE
    assert {path: (generation(growfs, 1) / path).read_bytes() for path in first} == {path: tree[path] for path in first}


@pytest.mark.promise(49)
@only(*ENGINES)
def test_files_are_the_same_in_every_generation_and_folders_are_not(
    growfs: Growfs, tree: dict[str, bytes], reader: Reader
) -> None:
    """The kernel would move the working directory of a process to the last folder that it found with the same id."""
    next_number(growfs)
    reader.request("chdir", f"{TREES}/1/class0")
    (file, *_) = os.listdir(generation(growfs, 1) / "class0")
    os.listdir(generation(growfs, 2) / "class0")
    os.listdir(growfs.mountpoint / "class0")
    places = [growfs.mountpoint / "class0", *(generation(growfs, number) / "class0" for number in (1, 2))]
    assert len({os.stat(place).st_ino for place in places}) == 3
    assert len({os.stat(place / file, follow_symlinks=False).st_ino for place in places}) == 1
    assert {os.stat(place).st_nlink for place in (*places, places[1] / file)} == {1}, "2: no subfolders, for fts(3)"
    assert os.readlink(f"/proc/{reader.pid}/cwd") == str(generation(growfs, 1) / "class0")


@only(*SHOW_FILES)
def test_current_names_the_newest_generation_and_other_names_are_none(
    growfs: Growfs, tree: dict[str, bytes], reader: Reader
) -> None:
    current = growfs.mountpoint / ".growfs/current"
    assert not os.path.lexists(current)
    epoch(reader)
    for number in (1, 2, 3):
        assert os.readlink(current) == f"generations/{number}"
        assert names(current) == walk(reader, f"{number:04}")
        assert "current" in os.listdir(growfs.mountpoint / ".growfs")
        os.listdir(generation(growfs, number + 1))
    found = subprocess.run(["find", growfs.mountpoint / ".growfs"], capture_output=True, text=True, check=True)
    assert f"{TREES}/4/class0" in found.stdout
    assert "after" not in found.stdout
    assert os.readlink(current) == "generations/4", "it began no generation"
    for name in ("0", "6", "-1", "1a", "x", "after-", "²", "4/.growfs"):
        with pytest.raises(FileNotFoundError):
            os.stat(generation(growfs, name))
    assert os.stat(generation(growfs, 5)).st_ino != os.stat(generation(growfs, 4)).st_ino
    assert next_number(growfs, 99) == 5, "a number of another cache counts as none"
    growfs.run("set", growfs.mountpoint, "settle=60")
    with ExitStack() as stack:
        for _ in range(CONTENTS_MAX + 10):
            fd = stack.enter_context(opened(growfs.mountpoint / TREES / "after-4"))
            assert os.read(fd, 100) == b"5\n", "any number of processes may ask at a time"
    assert [next_number(growfs, name) for name in (0, "current", 0)] == [5, 6, 6]


def test_generations_whose_numbers_do_not_fit_in_ids(growfs: Growfs, tree: dict[str, bytes]) -> None:
    growfs.umount()
    before = NUMBERS - 3
    with closing(sqlite3.connect(growfs.cache / "catalog.sqlite")) as catalog, catalog:
        catalog.execute("INSERT INTO generation VALUES (?, 0, 0)", (before,))
    growfs.mount(growfs.mountpoint.parent / "remote", "--cache-size", CAPACITY * SIZE, *HALF, "--settle", "0")
    for number in range(before + 1, before + 7):
        assert names(generation(growfs, number))
        assert os.listdir(growfs.mountpoint / TREES)[-1] == str(number)
        assert os.readlink(growfs.mountpoint / ".growfs/current") == f"generations/{number}"
    assert next_number(growfs, number) == number


@pytest.mark.promise(49)
def test_a_process_holds_the_generation_that_it_listed_until_it_ends(
    growfs: Growfs, tree: dict[str, bytes], reader: Reader
) -> None:
    next_number(growfs)
    first = walk(reader, 1)
    with Reader(growfs.mountpoint) as other:
        rotate(growfs, other, 1)
        rotate(growfs, other, 2)
    reader.read_all(f"{TREES}/1/{path}" for path in first)
    assert walk(reader, 1) == first
    assert waited_opens(growfs) == 0
    assert mount_status(growfs)["readers"][0]["generation"] == 1
    reader.kill()
    until(lambda: "1" not in os.listdir(growfs.mountpoint / TREES))
    assert_can_be_replaced(growfs, first, after=3)


@pytest.mark.promise(49)
def test_kept_generations_can_be_listed_again_after_a_restart(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    flags = (*HALF, "--settle", "0", "--keep-generations", 3)
    full_cache(growfs, tmp_path / "remote", *flags)
    next_number(growfs)
    for number in (1, 2, 3):
        rotate(growfs, reader, number)
    reader.end()
    kept = ["2", "3", "4"]
    until(lambda: sorted(os.listdir(growfs.mountpoint / TREES)) == kept)
    before = {number: names(generation(growfs, number)) for number in kept}
    growfs.umount()
    growfs.mount(tmp_path / "remote", "--cache-size", CAPACITY * SIZE, *flags)
    assert os.readlink(growfs.mountpoint / ".growfs/current") == "generations/4"
    assert sorted(os.listdir(growfs.mountpoint / TREES)) == kept
    assert {number: names(generation(growfs, number)) for number in kept} == before
    assert next_number(growfs, 4) == 5


def test_what_the_remote_deletes_is_gone_from_every_generation(
    growfs: Growfs, tree: dict[str, bytes], reader: Reader
) -> None:
    next_number(growfs)
    first = walk(reader, 1)
    gone = min(first)
    (growfs.mountpoint.parent / "remote" / gone).unlink()
    relist(growfs)
    until(lambda: gone not in walk(reader, 1))
    with pytest.raises(FileNotFoundError):
        until(lambda: (generation(growfs, 1) / gone).read_bytes() and None)


@only("links")
def test_a_new_version_is_found_in_a_generation_that_has_ended(growfs: Growfs, tmp_path: Path) -> None:
    """Its name there may be a link to the earlier version, which leads nowhere once the new one is not cached."""
    make_tree(tmp_path / "remote", directories=1, files=3, size=SIZE)
    growfs.mount(tmp_path / "remote", "--rotation", "never", "--settle", "0", "--wait-files", "3")
    file = generation(growfs, next_number(growfs)) / "class0/0000.bin"
    assert names(generation(growfs, 1)) == files_below(tmp_path / "remote")
    assert len(file.read_bytes()) == SIZE
    os.listdir(generation(growfs, 2))
    until(lambda: os.listdir(growfs.mountpoint / TREES) == ["2"])
    (tmp_path / "remote/class0/0000.bin").write_bytes(b"new")
    relist(growfs)
    until(lambda: (growfs.cache / "files/class0/0000.bin").read_bytes() == b"new")
    until(lambda: growfs.run("evict", growfs.mountpoint, "class0/0000.bin").stdout.startswith("1 file"))
    assert file.read_bytes() == b"new"
    assert waited_opens(growfs) == 1


@only(*SHOW_FILES)
def test_the_attributes_in_a_generation_that_has_ended_change_with_the_remote(growfs: Growfs, tmp_path: Path) -> None:
    """Those of open files once they are closed."""
    make_tree(tmp_path / "remote", directories=1, files=5, size=SIZE)
    growfs.mount(tmp_path / "remote", "--rotation", "never", "--settle", "0", "--wait-files", "5")
    ended = generation(growfs, next_number(growfs))
    closed, kept_open = ("class0/0000.bin", "class0/0001.bin"), ("class0/0002.bin", "class0/0003.bin")
    assert {(ended / path).stat().st_size for path in (*closed, *kept_open)} == {SIZE}
    os.listdir(generation(growfs, 2))
    until(lambda: os.listdir(growfs.mountpoint / TREES) == ["2"])
    with ExitStack() as opened:
        for path in kept_open:
            opened.enter_context((growfs.mountpoint / path).open("rb"))
        for replaced, deleted in (closed, kept_open):
            (tmp_path / "remote" / replaced).write_bytes(b"new")
            (tmp_path / "remote" / deleted).unlink()
        relist(growfs)
        for top, (replaced, deleted) in ((growfs.mountpoint, closed), (growfs.mountpoint, kept_open), (ended, closed)):
            until_size(top / replaced, 3)
            until(lambda gone=top / deleted: not gone.exists())  # type: ignore[misc]
        assert [(ended / path).stat().st_size for path in kept_open] == [SIZE, SIZE]
    until_size(ended / kept_open[0], 3)
    until(lambda: not (ended / kept_open[1]).exists())


# growfs.next_generation, and growfs next.


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    with Readers() as readers:
        yield [readers.new() for _ in range(3)]


@pytest.mark.promise(50)
def test_ranks_that_ask_by_number_get_one_generation_without_a_barrier(
    growfs: Growfs, tree: dict[str, bytes], ranks: list[Rank]
) -> None:
    """The last rank asks when the others have gone on, which held the generation until then."""
    first, second, late = ranks
    growfs.run("set", growfs.mountpoint, "settle=60")
    shown = before = set[str]()
    for number in range(1, 6):
        assert first.next_generation(growfs.mountpoint, number) == generation(growfs, number)
        before, shown = shown, first.names()
        assert second.next_generation(growfs.mountpoint, number) == generation(growfs, number)
        assert second.names() == shown
        if number > 1:
            late.next_generation(growfs.mountpoint, number - 1)
            assert late.names() == before
        assert all(first.read(path) for path in shown)
    assert waited_opens(growfs) == 0
    growfs.run("release", growfs.mountpoint)
    for number in (1, 9):
        with pytest.raises(OSError, match=f"{TREES}/{number}: has ended"):
            first.next_generation(growfs.mountpoint, number)


@pytest.mark.promise(50)
def test_the_next_generation_is_held_until_the_process_asks_again_or_is_killed(
    growfs: Growfs, tree: dict[str, bytes], ranks: list[Rank]
) -> None:
    slow, fast, _ = ranks
    held = slow.next_generation(growfs.mountpoint)
    shown = slow.names()
    for _ in range(3):
        assert all(fast.read(path) for path in (fast.next_generation(growfs.mountpoint), fast.names())[1])
    assert slow.names() == shown
    assert all(slow.read(path) for path in shown)
    assert held.name in os.listdir(growfs.mountpoint / TREES)
    newest = slow.next_generation(growfs.mountpoint)
    until(lambda: held.name not in os.listdir(growfs.mountpoint / TREES))
    fast.next_generation(growfs.mountpoint)
    fast.next_generation(growfs.mountpoint)
    assert newest.name in os.listdir(growfs.mountpoint / TREES)
    slow.end(kill=True)
    until(lambda: newest.name not in os.listdir(growfs.mountpoint / TREES))
    assert waited_opens(growfs) == 0


@pytest.mark.promise(50)
def test_a_process_holds_its_generation_again_after_a_crash_and_not_what_it_has_read_although_its_worker_lives_on(
    growfs: Growfs, tree: dict[str, bytes], ranks: list[Rank]
) -> None:
    rank, *_ = ranks
    held = rank.next_generation(growfs.mountpoint, 1)
    growfs.kill()
    growfs.mount(growfs.mountpoint.parent / "remote", "--cache-size", CAPACITY * SIZE, *HALF, "--settle", "0")
    assert rank.next_generation(growfs.mountpoint, 1) == held
    for number in (2, 3):
        os.listdir(generation(growfs, number))
    assert held.name in os.listdir(growfs.mountpoint / TREES)
    rank.fork()
    for _ in range(2):
        assert all(rank.read(path) for path in rank.names())
        rank.next_generation(growfs.mountpoint)
    until(lambda: held.name not in os.listdir(growfs.mountpoint / TREES))


@pytest.mark.promise(50)
def test_a_command_runs_in_the_next_generation_and_holds_it(growfs: Growfs, tree: dict[str, bytes]) -> None:
    read = 'pwd; cat */* >/dev/null; echo "$GROWFS_GENERATION"'
    for number in (1, 2, 3):
        printed = growfs.run("next", growfs.mountpoint, "--", "sh", "-c", read).stdout.splitlines()
        assert printed == 2 * [str(generation(growfs, number))]
    assert growfs.run("next", growfs.mountpoint).stdout == f"{generation(growfs, 4)}\n"
    done = growfs.run("next", growfs.mountpoint, "--", "sh", "-c", "(yes; echo $? >&2) | head -1")
    assert (done.stdout, done.stderr) == ("y\n", f"{128 + signal.SIGPIPE}\n"), "Python ignores this signal"
    command = [*GROWFS, "next", str(growfs.mountpoint), "--", "sleep", "100"]
    with subprocess.Popen(command, env=growfs.env) as shell:
        until(lambda: Path(f"/proc/{shell.pid}/comm").read_text() == "sleep\n")
        held = Path(os.readlink(f"/proc/{shell.pid}/cwd")).name
        for number in range(int(held) + 1, int(held) + 3):
            os.listdir(generation(growfs, number))
        assert held in os.listdir(growfs.mountpoint / TREES)
        shell.kill()
    until(lambda: held not in os.listdir(growfs.mountpoint / TREES))
    growfs.kill()
    refused = growfs.run("next", growfs.mountpoint, check=False)
    assert "no generation can begin: Transport endpoint is not connected" in refused.stderr
    refused = growfs.run("next", growfs.cache_dir, check=False)
    assert "is neither a growfs mount nor a folder filled by growfs fill" in refused.stderr


@pytest.mark.promise(50)
def test_an_epoch_without_parts_is_the_next_generation(growfs: Growfs, tree: dict[str, bytes]) -> None:
    for number in (1, 2):
        (part,) = api.epoch(growfs.mountpoint)
        assert part == generation(growfs, number)
        assert all((part / path).read_bytes() == tree[path] for path in names(part))
        with pytest.raises(GrowfsError, match="is not a part of a pass"):
            api.position(part)
    os.close(generation_module._held.pop(growfs.mountpoint).lock)


# Processes that cannot be told apart.


@pytest.mark.promise(21, 49)
def test_an_open_folder_holds_its_generation_for_processes_of_other_pid_namespaces(
    growfs: Growfs, tmp_path: Path, reader: Reader
) -> None:
    make_tree(tmp_path / "remote", directories=2, files=20, size=SIZE)
    flags = "--cache-size", CAPACITY * SIZE, *HALF, "--hold-idle", "1s", "--settle", "0"
    with mounted_in_a_pid_namespace(growfs, tmp_path / "remote", *flags):
        growfs.until_cached(CAPACITY)
        next_number(growfs)
        with opened(generation(growfs, 1)):
            first = walk(reader, 1)
            os.listdir(generation(growfs, 2))
            until(lambda: os.listdir(growfs.mountpoint / TREES) == ["1", "2"])
            epoch(reader, f"{TREES}/2")
            os.listdir(generation(growfs, 3))
            until(lambda: os.listdir(growfs.mountpoint / TREES) == ["1", "3"])
            assert walk(reader, 1) == first
            assert waited_opens(growfs) == 0
        assert_can_be_replaced(growfs, first, after=3)
