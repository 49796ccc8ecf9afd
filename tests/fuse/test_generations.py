"""Which files a listing shows: it is frozen, and the same for every reader, until a rule begins a generation.

No file is delisted here; test_rotation.py tests that.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import full_cache, mount_status
from tests.harness import Growfs, make_tree, until

SIZE = 4096
SETTLED_S = "1h"
"""Long enough that rule (b) never applies."""

Grow = Callable[[int], None]


@pytest.fixture
def grow(growfs: Growfs, tmp_path: Path) -> Grow:
    """A mount of 12 files in two directories, 4 of them local; the function changes how many are local."""
    make_tree(tmp_path / "remote", directories=2, files=6, size=SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", 4 * SIZE, "--settle", SETTLED_S, "--rotation", "never")

    growfs.until_cached(4)
    return partial(growfs.resize, each=SIZE)


def count(reader: Reader) -> int:
    return len(reader.list("class0")) + len(reader.list("class1"))


@pytest.mark.promise(5, 6)
def test_a_listing_is_frozen_for_everyone_across_all_directories(grow: Grow, reader: Reader, other: Reader) -> None:
    assert count(reader) == 4
    grow(8)
    assert count(reader) == 4
    assert count(other) == 4
    first = reader.list("class0")
    grow(12)
    assert reader.list("class0") == first
    assert reader.list() == other.list() == {"class0", "class1"}
    reader.read(f"class0/{min(first)}")
    assert count(other) == 4


@pytest.mark.promise(6)
def test_the_second_rank_joins_the_generation_of_the_first(grow: Grow, reader: Reader, other: Reader) -> None:
    names = min(reader.list("class0")), min(other.list("class0"))
    for files in (8, 12):
        reader.read(f"class0/{names[0]}")
        other.read(f"class0/{names[1]}")
        grow(files)
        shown = reader.list("class0")
        assert other.list("class0") == shown
        assert count(reader) == count(other)


@pytest.mark.promise(6, 17)
def test_an_open_by_a_child_counts_for_its_parent(growfs: Growfs, grow: Grow) -> None:
    """Also if it has listed. The parent then opens the rest of its few files, all of which are an epoch."""
    for files, opens in ((5, "forked_read"), (6, "spawned_read"), (12, "forked_list_and_read")):
        with Reader(growfs.mountpoint) as reader:
            first, *others = sorted(reader.list("class0"))
            assert len(others) in (1, 2)
            grow(files)
            reader.request(opens, "class0" if opens == "forked_list_and_read" else f"class0/{first}")
            assert reader.list("class0") == {first, *others}
            reader.read_all(f"class0/{name}" for name in others)
            assert count(reader) == files


@pytest.mark.promise(6)
def test_reading_files_or_index_counts_as_a_listing(growfs: Growfs, grow: Grow, reader: Reader, other: Reader) -> None:
    shown = reader.lines(".growfs/files")
    assert len(shown) == 4
    assert other.list("class0") | other.list("class1") == {path.partition("/")[2] for path in shown}
    other.read(min(shown))  # a reader that has opened nothing would keep the generation
    grow(8)
    assert len(reader.lines(".growfs/index.csv")) == 1 + 4
    assert reader.lines(".growfs/files") == shown
    reader.read_all(sorted(shown)[:3])
    listed = reader.lines(".growfs/files")
    assert len(listed) == 8
    reader.read_all(sorted(listed)[:4])
    grow(12)
    assert len(reader.lines(".growfs/index.csv")) == 1 + 12
    assert len(reader.lines(".growfs/files")) == 12
    assert growfs.status()["generation"] == 3


@pytest.mark.promise(6)
def test_status_names_the_readers_but_not_those_of_status_or_log(
    growfs: Growfs, grow: Grow, reader: Reader, other: Reader
) -> None:
    for name in ("status", "status.json", "metrics", "log"):
        other.lines(f".growfs/{name}")
    other.list(".growfs")
    for path in ("class0", "class0/0000.bin", "."):
        assert (growfs.mountpoint / path).exists()
    assert (growfs.status()["generation"], growfs.status()["readers"]) == (0, [])
    shown = reader.list("class0")
    reader.read(f"class0/{min(shown)}")
    other.read(f"class0/{min(shown)}")
    readers = {row["pid"]: row for row in growfs.status()["readers"]}
    listed = readers[reader.pid]
    assert (listed["files_shown"], listed["files_opened"], listed["generation"]) == (len(shown), 1, 1)
    assert listed["listed_at"] > 0
    assert listed["command"].startswith("python")
    assert readers[other.pid]["listed_at"] is None
    assert "never listed" in readers[other.pid]["advice"]
    grow(12)
    reader.list("class0")
    assert f"{reader.pid}" in (growfs.mountpoint / ".growfs/status").read_text()
    reader.kill()
    until(lambda: [row["pid"] for row in growfs.status()["readers"]] == [other.pid])


SCAN = """
import os, sys, threading
kept = []
thread = threading.Thread(target=lambda: kept.append(os.scandir(sys.argv[1])))
thread.start()
thread.join()
print(len(list(kept[0])), flush=True)
sys.stdin.readline()
"""


def test_the_thread_that_opened_a_directory_may_end_before_it_is_read(growfs: Growfs, tmp_path: Path) -> None:
    full_cache(growfs, tmp_path / "remote")
    command = [sys.executable, "-c", SCAN, str(growfs.mountpoint / "class0")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as scan:
        assert scan.stdout
        scan.stdout.readline()
        readers = mount_status(growfs)["readers"]
        assert [reader["pid"] for reader in readers] == [scan.pid], "it counts as its process"
        scan.communicate("\n")
