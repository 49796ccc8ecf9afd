"""Whole epochs in a folder that growfs keeps filled (--exact)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import growfs as api
from growfs.daemon.control_client import call
from growfs.errors import UsageError
from tests.extensions.fill.conftest import Fill
from tests.generation_readers import Readers
from tests.harness import files_below, make_tree, until
from tests.part_ranks import JOBS, assert_each_once_in_each_pass, run_ranks

SIZE = 4096
CAPACITY = 10


def fill(growfs: Fill, remote: Path, *flags: str) -> dict[str, bytes]:
    """Fill with a third of the files. The second pass has fewer parts than the first one."""
    tree = make_tree(remote, directories=3, files=10, size=SIZE)
    size = "--cache-size", CAPACITY * SIZE, "--part-size", "80%"
    growfs.fill(remote, "--exact", *size, "--start", "2/1", *flags)
    return tree


@pytest.mark.promise(47, 48)
def test_the_parts_of_an_epoch_have_each_file_once_and_a_position_is_resumed(growfs: Fill, tmp_path: Path) -> None:
    tree = fill(growfs, tmp_path / "remote")
    for number in (2, 3):
        parts = list[dict[str, bytes]]()
        for part in api.epoch(growfs.mountpoint, number):
            assert part == growfs.mountpoint / "passes" / str(number) / str(len(parts) + 1)
            if (number, len(parts)) == (3, 2):
                saved = api.position(part)
            parts.append({name: (part / name).read_bytes() for name in files_below(part)})
            assert growfs.used_bytes() <= CAPACITY * SIZE
            assert {path.name for path in part.iterdir()} == {"class0", "class1", "class2"}
        assert len(parts) > 3
        assert sum(map(len, parts)) == len(tree)
        assert {name: content for part in parts for name, content in part.items()} == tree
    again = [
        {name: (part / name).read_bytes() for name in files_below(part)}
        for part in api.epoch(growfs.mountpoint, **saved)
    ]
    assert again == parts[2:]
    assert not (growfs.mountpoint / "passes/2").exists()


@pytest.mark.promise(47)
def test_ranks_get_the_same_parts(growfs: Fill, tmp_path: Path, readers: Readers) -> None:
    fill(growfs, tmp_path / "remote")
    ranks = [readers.new() for _ in range(2)]
    for number in range(4):
        first, second = (ranks[(number + place) % 2].next_generation(growfs.mountpoint) for place in range(2))
        assert first == second
        assert growfs.status()["exact"]["part"] == number + 1


def test_passes_and_parts_that_are_not_numbered_from_1_are_refused(growfs: Fill, tmp_path: Path) -> None:
    fill(growfs, tmp_path / "remote")
    before = growfs.generations
    no_numbers = 0, -1, 1.5, "", None, 1 << 64
    requests: list[dict[str, Any]] = [
        *({"command": "describe", "number": number} for number in no_numbers),
        *({"command": "part", "number": number, "part": 1} for number in no_numbers),
        *({"command": "part", "number": 2, "part": part} for part in no_numbers),
    ]
    for request in requests:
        with pytest.raises(UsageError, match="is not a part"):
            call(growfs.cache, **request)
    assert growfs.generations == before


def test_a_part_stays_until_the_next_one_is_asked_for(growfs: Fill, tmp_path: Path) -> None:
    """Programs that list the folder again see the same files."""
    fill(growfs, tmp_path / "remote")
    shown = files_below(growfs.current)
    for name in shown:
        (growfs.current / name).read_bytes()
    until(lambda: growfs.status()["state"] == "ahead")
    assert files_below(growfs.current) == shown
    growfs.run("next", growfs.mountpoint)
    assert not files_below(growfs.current) & shown


@pytest.mark.promise(47)
@pytest.mark.parametrize("name", ["one comes late", "one is killed, and goes on"])
def test_ranks_without_a_barrier_read_each_file_once(growfs: Fill, tmp_path: Path, name: str) -> None:
    """tests/extensions/exact/test_named_parts.py has the other jobs."""
    job = JOBS[name]
    tree = fill(growfs, tmp_path / "remote", "--settle", "0.5s")
    lines = run_ranks(growfs.mountpoint, tmp_path / "out", replace(job, through_growfs=True))
    assert_each_once_in_each_pass(lines, tree, job.passes)


@pytest.mark.promise(47)
def test_ranks_that_need_more_parts_than_there_is_room_for_are_told(growfs: Fill, tmp_path: Path) -> None:
    """A plain file that is gone cannot be waited for, so no rank loses the part that it reads."""
    fill(growfs, tmp_path / "remote", "--settle", "0")
    with Readers() as ranks:
        slow = ranks.new()
        slow.begin_part(growfs.mountpoint, 2, 1)
        names = slow.names()
        fast = ranks.new()
        fast.begin_part(growfs.mountpoint, 2, 2)
        growfs.run("set", growfs.mountpoint, "miss-timeout=1s")
        with pytest.raises(OSError, match="gave up waiting for part 2/3: other parts took its space for 1 s"):
            fast.begin_part(growfs.mountpoint, 2, 3)
        growfs.run("set", growfs.mountpoint, "miss-timeout=1m")
        for name in names:
            slow.read(name)
        slow.begin_part(growfs.mountpoint, 2, 2)
        fast.begin_part(growfs.mountpoint, 2, 3)


@pytest.mark.promise(47)
def test_an_epoch_holds_no_part_while_it_waits_for_the_next_one(growfs: Fill, tmp_path: Path) -> None:
    """Otherwise two ranks at different parts would wait for each other."""
    fill(growfs, tmp_path / "remote", "--settle", "0.5s")
    with Readers() as ranks:
        behind, ahead = ranks.new(), ranks.new()
        behind.begin_part(growfs.mountpoint, 2, 1)
        ahead.begin_part(growfs.mountpoint, 2, 4)
        behind.next_part()
        ahead.next_part()


@pytest.mark.promise(47)
def test_a_part_that_is_opened_again_does_not_keep_the_files_of_the_next_one(growfs: Fill, tmp_path: Path) -> None:
    fill(growfs, tmp_path / "remote")
    parts = growfs.mountpoint / "passes/2"
    with Readers() as ranks, Readers() as others, ThreadPoolExecutor() as threads:
        ahead, behind = ranks.new(), others.new()
        ahead.begin_part(growfs.mountpoint, 2, 1)
        names = ahead.names()
        with (parts / "1" / min(names)).open():  # so its folder stays, although the part makes room
            for name in names:
                ahead.read(name)
            ahead.next_part()
            last, *rest = ahead.names()
            for name in rest:
                ahead.read(name)
            until(lambda: (exact := growfs.status()["exact"])["in_use"] == "2/2" and exact["missing_files"])
            waiting = threads.submit(ahead.next_part)
            until(lambda: growfs.status()["exact"]["waiting"])
            behind.begin_part(growfs.mountpoint, 2, 1)
            (parts / "2" / last).read_bytes()
            waiting.result()


@pytest.mark.promise(47)
def test_a_job_that_failed_goes_back_although_the_newest_part_was_not_read(growfs: Fill, tmp_path: Path) -> None:
    fill(growfs, tmp_path / "remote", "--settle", "0.5s")
    with Readers() as ranks:
        for part in (4, 5, 1, 2):
            rank = ranks.new()
            rank.begin_part(growfs.mountpoint, 2, part)
            assert rank.names()
            rank.end(kill=True)


@pytest.mark.promise(44, 47)
def test_a_part_that_no_process_reads_makes_room_for_the_one_after_the_next(growfs: Fill, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=3, files=10, size=SIZE)
    size = "--cache-size", CAPACITY * SIZE
    growfs.fill(tmp_path / "remote", "--exact", *size, "--part-size", "50%", "--start", "2/1")
    for part in range(2, 6):
        growfs.run("next", growfs.mountpoint)
        assert growfs.status()["exact"]["part"] == part
