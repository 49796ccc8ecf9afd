"""Whole epochs in a folder that growfs keeps filled (--exact)."""

from __future__ import annotations

from pathlib import Path

import pytest

import growfs as api
from tests.folder.conftest import Fill
from tests.folder.readers import Readers
from tests.harness import files_below, make_tree, until

SIZE = 4096
CAPACITY = 20


def fill(growfs: Fill, remote: Path) -> dict[str, bytes]:
    """Fill with a third of the files."""
    tree = make_tree(remote, directories=3, files=20, size=SIZE)
    growfs.fill(remote, "--exact", "--cache-size", CAPACITY * SIZE, "--part-size", "80%")
    return tree


@pytest.mark.promise(47, 48)
def test_the_parts_of_an_epoch_have_each_file_once_and_a_position_is_resumed(growfs: Fill, tmp_path: Path) -> None:
    tree = fill(growfs, tmp_path / "remote")
    for _ in range(2):
        parts = []
        for part in api.epoch(growfs.mountpoint):
            parts.append({name: (part / name).read_bytes() for name in files_below(part)})
            assert growfs.used_bytes() <= CAPACITY * SIZE
            assert {path.name for path in part.iterdir()} == {"class0", "class1", "class2"}
        assert len(parts) > 3
        assert sum(map(len, parts)) == len(tree)
        assert {name: content for part in parts for name, content in part.items()} == tree
    api.resume(growfs.mountpoint, api.position(growfs.mountpoint) | {"part": 3})
    assert [files_below(part) for part in api.epoch(growfs.mountpoint)] == [set(part) for part in parts[2:]]


@pytest.mark.promise(47)
def test_ranks_get_the_same_parts(growfs: Fill, tmp_path: Path, readers: Readers) -> None:
    fill(growfs, tmp_path / "remote")
    ranks = [readers.new() for _ in range(2)]
    for number in range(4):
        first, second = (ranks[(number + place) % 2].next_generation(growfs.mountpoint) for place in range(2))
        assert first == second
        assert growfs.status()["exact"]["part"] == number + 1


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


@pytest.mark.promise(44, 47)
def test_a_part_that_no_process_reads_makes_room_for_the_one_after_the_next(growfs: Fill, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=3, files=20, size=SIZE)
    size = "--cache-size", CAPACITY * SIZE
    growfs.fill(tmp_path / "remote", "--exact", *size, "--part-size", "50%", "--start", "2/1")
    for part in range(2, 6):
        growfs.run("next", growfs.mountpoint)
        assert growfs.status()["exact"]["part"] == part
