"""Which files a listing shows, and when that changes: frozen, the same for everyone, until rule (a) or (b) says so.

Nothing is left out here: what is, and when, is test_rotation's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse.reader import Reader
from tests.harness import Growfs, make_tree, until

SIZE = 4096
SETTLED_S = "1h"
"""So long that rule (b) never applies."""

Grow = Callable[[int], None]


@pytest.fixture
def grow(growfs: Growfs, tmp_path: Path) -> Grow:
    """A mount of 12 files in two directories, 4 of them local; the function has so many be local."""
    make_tree(tmp_path / "remote", directories=2, files=6, size=SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", 4 * SIZE, "--settle", SETTLED_S, "--rotation", "never")

    def local(files: int) -> None:
        growfs.run("set", growfs.mountpoint, f"cache-size={files * SIZE}")
        until(lambda: growfs.status()["cache"]["files"] == files)

    local(4)
    return local


def count(reader: Reader) -> int:
    """How many files a reader is shown in all."""
    return len(reader.list("class0")) + len(reader.list("class1"))


@pytest.mark.promise(5, 6)
def test_the_first_listing_shows_what_is_local_then(grow: Grow, reader: Reader) -> None:
    grow(6)
    assert count(reader) == 6


@pytest.mark.promise(6)
def test_a_listing_is_frozen_for_everyone(grow: Grow, reader: Reader, other: Reader) -> None:
    assert count(reader) == 4
    grow(8)
    assert count(reader) == 4
    assert count(other) == 4
    reader.read("class0/" + min(reader.list("class0")))
    assert count(other) == 4


@pytest.mark.promise(6)
def test_it_is_frozen_over_all_directories(grow: Grow, reader: Reader, other: Reader) -> None:
    first = reader.list("class0")
    grow(12)
    assert len(first) + len(reader.list("class1")) == 4
    assert reader.list("class0") == first
    assert reader.list() == other.list() == {"class0", "class1"}


@pytest.mark.promise(6)
def test_listing_again_after_an_open_begins_the_next(growfs: Growfs, grow: Grow, reader: Reader) -> None:
    shown = reader.list("class0")
    grow(12)
    reader.read(f"class0/{min(shown)}")
    assert len(reader.list("class0")) == 6
    assert len(reader.list("class1")) == 6
    assert growfs.status()["generation"] == 2


@pytest.mark.promise(6)
def test_a_first_listing_of_another_directory_joins(growfs: Growfs, grow: Grow, reader: Reader) -> None:
    shown = reader.list("class0")
    grow(12)
    reader.read(f"class0/{min(shown)}")
    reader.list("class1")
    reader.list()
    assert growfs.status()["generation"] == 1


@pytest.mark.promise(6)
def test_an_open_before_the_listing_does_not_count(growfs: Growfs, grow: Grow, reader: Reader) -> None:
    reader.read("class0/0000.bin")
    reader.list("class0")
    reader.list("class0")
    assert growfs.status()["generation"] == 1


@pytest.mark.promise(6)
def test_the_second_rank_joins_what_the_first_began(grow: Grow, reader: Reader, other: Reader) -> None:
    names = min(reader.list("class0")), min(other.list("class0"))
    for files in (8, 12):
        reader.read(f"class0/{names[0]}")
        other.read(f"class0/{names[1]}")
        grow(files)
        shown = reader.list("class0")
        assert other.list("class0") == shown
        assert count(reader) == count(other)


@pytest.mark.promise(6)
def test_a_stranger_does_not_disturb_a_job(growfs: Growfs, grow: Grow, reader: Reader, other: Reader) -> None:
    shown = reader.list("class0")
    grow(12)
    other.read(f"class0/{min(shown)}")
    assert other.list("class0") == other.list("class0") == shown
    assert reader.list("class0") == shown
    assert growfs.status()["generation"] == 1


@pytest.mark.promise(6, 17)
@pytest.mark.parametrize("opens", ["forked_read", "spawned_read"])
def test_an_open_by_a_child_is_its_parents(grow: Grow, reader: Reader, opens: str) -> None:
    shown = reader.list("class0")
    grow(12)
    getattr(reader, opens)(f"class0/{min(shown)}")
    assert len(reader.list("class0")) == 6


@pytest.mark.promise(6, 17)
def test_a_child_that_listed_opens_for_itself(growfs: Growfs, grow: Grow, reader: Reader) -> None:
    reader.list("class0")
    reader.forked_list_and_read("class0")
    reader.list("class0")
    assert growfs.status()["generation"] == 1


@pytest.mark.promise(6)
def test_threads_are_one_process(grow: Grow, reader: Reader) -> None:
    shown = reader.list_in_thread("class0")
    grow(12)
    assert reader.list_in_thread("class0") == shown
    reader.read(f"class0/{min(shown)}")
    assert len(reader.list_in_thread("class0")) == 6


@pytest.mark.promise(6)
def test_one_that_polls_sees_growth_when_the_generation_has_settled(growfs: Growfs, grow: Grow, reader: Reader) -> None:
    assert count(reader) == 4
    grow(8)
    assert count(reader) == 4
    growfs.run("set", growfs.mountpoint, "settle=0")
    assert count(reader) == 8
    growfs.run("set", growfs.mountpoint, f"settle={SETTLED_S}")
    grow(12)
    assert count(reader) == 8


@pytest.mark.promise(6)
def test_a_new_process_sees_growth_when_the_generation_has_settled(
    growfs: Growfs, grow: Grow, reader: Reader, other: Reader
) -> None:
    shown = reader.list("class0")
    grow(12)
    growfs.run("set", growfs.mountpoint, "settle=0")
    assert len(other.list("class0")) == 6
    growfs.run("set", growfs.mountpoint, f"settle={SETTLED_S}")
    assert reader.list("class0") > shown  # joins
    assert growfs.status()["generation"] == 2


@pytest.mark.promise(6)
def test_one_that_has_listed_another_directory_is_not_new(growfs: Growfs, grow: Grow, reader: Reader) -> None:
    reader.list("class0")
    grow(12)
    growfs.run("set", growfs.mountpoint, "settle=0")
    reader.list("class1")
    assert growfs.status()["generation"] == 1


@pytest.mark.promise(6)
def test_files_and_index_are_listings(growfs: Growfs, grow: Grow, reader: Reader, other: Reader) -> None:
    shown = reader.lines(".growfs/files")
    assert len(shown) == 4
    assert other.list("class0") | other.list("class1") == {path.partition("/")[2] for path in shown}
    other.read(min(shown))  # one that still looks would keep the generation
    grow(8)
    assert len(reader.lines(".growfs/index.csv")) == 1 + 4
    assert reader.lines(".growfs/files") == shown
    reader.read(min(shown))
    assert len(reader.lines(".growfs/files")) == 8
    reader.read(min(shown))
    grow(12)
    assert len(reader.lines(".growfs/index.csv")) == 1 + 12
    assert len(reader.lines(".growfs/files")) == 12
    assert growfs.status()["generation"] == 3


@pytest.mark.promise(6)
def test_status_and_log_are_no_listings(growfs: Growfs, grow: Grow, reader: Reader) -> None:
    for name in ("status", "status.json", "metrics", "log"):
        reader.lines(f".growfs/{name}")
    reader.list(".growfs")
    assert growfs.status()["generation"] == 0
    assert growfs.status()["readers"] == []


@pytest.mark.promise(6)
def test_stat_and_access_are_no_listings(growfs: Growfs, grow: Grow) -> None:
    for path in ("class0", "class0/0000.bin", "."):
        assert (growfs.mountpoint / path).exists()
    assert growfs.status()["generation"] == 0


def test_status_names_the_readers(growfs: Growfs, grow: Grow, reader: Reader, other: Reader) -> None:
    shown = reader.list("class0")
    reader.read(f"class0/{min(shown)}")
    other.read(f"class0/{min(shown)}")
    readers = {told["pid"]: told for told in growfs.status()["readers"]}
    listed = readers[reader.pid]
    assert (listed["files_shown"], listed["files_opened"], listed["generation"]) == (len(shown), 1, 1)
    assert listed["listed_at"] > 0
    assert listed["command"].startswith("python")
    assert readers[other.pid]["listed_at"] is None
    assert "never listed" in readers[other.pid]["advice"]
    grow(12)
    reader.list("class0")
    assert f"{reader.pid}" in (growfs.mountpoint / ".growfs/status").read_text()


def test_a_reader_that_ended_is_forgotten(growfs: Growfs, grow: Grow) -> None:
    with Reader(growfs.mountpoint) as reader:
        reader.list("class0")
        assert [told["pid"] for told in growfs.status()["readers"]] == [reader.pid]
    until(lambda: growfs.status()["readers"] == [])


@pytest.mark.promise(6)
def test_generations_go_on_counting_after_a_remount(growfs: Growfs, grow: Grow, reader: Reader) -> None:
    reader.list("class0")
    reader.read("class0/" + min(reader.list("class0")))
    reader.list("class0")
    assert growfs.status()["generation"] == 2
    growfs.umount()
    growfs.mount(growfs.mountpoint.parent / "remote")
    reader.list("class0")
    assert growfs.status()["generation"] == 3
