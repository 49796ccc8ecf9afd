"""The watches of an open counter."""

from __future__ import annotations

from pathlib import Path

import pytest

from growfs.vfs.open_counter import OpenCounter


@pytest.mark.parametrize("sees_processes", [False, True])
def test_a_directory_of_a_tree_that_is_reused_is_no_longer_one_of_the_earlier_tree(
    tmp_path: Path, sees_processes: bool
) -> None:
    counter = OpenCounter(lambda *_: None, processes_in=tmp_path if sees_processes else None)
    tree = tmp_path / "0"
    tree.mkdir()
    for number in range(1, 6):
        tree = tree.rename(tmp_path / str(number))
        counter.watch(number, {7: tree})
    counter.close()
    assert [number for number in range(6) if counter.is_watched(number, 7)] == [5]
