"""The advice on readers: the text of each, and when there is none."""

from __future__ import annotations

import pytest

from growfs.daemon.snapshot import OPENS_MIN, advice
from growfs.rotation.holds import Reader
from growfs.rotation.readers import FOREIGN
from growfs.rotation.rules import Generation

FIRST, SECOND = Generation(1, 10, 0.0), Generation(2, 20, 0.0)
HOUR_S = 3600.0


@pytest.fixture
def reader() -> Reader:
    return Reader(4711, "99", "python")


def list_files(reader: Reader, files: int, generation: Generation = FIRST, now: float = 0.0) -> None:
    reader.lists(7, generation, now)
    reader.is_shown(7, files)


def open_files(reader: Reader, count: int, times: int = 1, waited: bool = False) -> None:
    for _ in range(times):
        for id in range(count):
            reader.opened(id, FIRST, 0.0, waited)


def advice_for(
    reader: Reader, now: float = 3 * HOUR_S, share: float = 0.08, unread: tuple[str, ...] = ()
) -> str | None:
    return advice(reader, now, share, unread)


def test_a_reader_in_another_pid_namespace() -> None:
    foreign = Reader(FOREIGN, "", "another pid namespace")
    text = advice_for(foreign) or ""
    assert text.startswith("is in another pid namespace, so nothing is delisted while it reads: ")
    assert "shareProcessNamespace" in text


def test_a_reader_whose_opens_wait(reader: Reader) -> None:
    list_files(reader, 100)
    open_files(reader, OPENS_MIN, waited=True)
    open_files(reader, OPENS_MIN)
    assert (
        advice_for(reader)
        == "50% of its opens waited for a download: take file names from a listing or .growfs/index.csv"
    )


def test_a_few_opens_that_waited_give_no_advice(reader: Reader) -> None:
    list_files(reader, 100)
    open_files(reader, OPENS_MIN - 1, waited=True)
    assert advice_for(reader) is None


def test_a_reader_that_never_listed(reader: Reader) -> None:
    open_files(reader, 1)
    assert advice_for(reader) == "opens by name and never listed: it waits for each file that is not cached"


def test_a_reader_that_listed_once(reader: Reader) -> None:
    list_files(reader, 1200)
    open_files(reader, 1200, times=6)
    assert advice_for(reader) == (
        "listed once 3 hours ago, has opened its 1,200 files 6.0 times, and will see nothing new until it lists again;"
        " it sees 8% of the data"
    )


def test_a_reader_that_listed_once_and_opened_all_once(reader: Reader) -> None:
    list_files(reader, 20)
    open_files(reader, 20)
    assert "has opened its 20 files, and will see nothing new" in (advice_for(reader) or "")


def test_a_reader_that_listed_the_whole_remote_needs_none(reader: Reader) -> None:
    list_files(reader, 20)
    open_files(reader, 20, times=6)
    assert advice_for(reader, share=1.0) is None


def test_a_reader_that_has_files_left_to_open_needs_none(reader: Reader) -> None:
    list_files(reader, 20)
    open_files(reader, 19)
    assert advice_for(reader) is None


def test_a_reader_that_lists_again_needs_none(reader: Reader) -> None:
    list_files(reader, 20)
    open_files(reader, 20)
    list_files(reader, 20, SECOND)
    open_files(reader, 20)
    assert advice_for(reader) is None


@pytest.mark.parametrize(("unread", "ending"), [((), ""), (("json", "txt"), "; consider --exclude '*.json'")])
def test_a_reader_that_leaves_much_unread(reader: Reader, unread: tuple[str, ...], ending: str) -> None:
    list_files(reader, 20)
    open_files(reader, 15)
    list_files(reader, 20, SECOND)
    assert advice_for(reader, unread=unread) == f"never opened 25% of the files that it listed{ending}"


def test_a_reader_that_leaves_little_unread_needs_none(reader: Reader) -> None:
    list_files(reader, 20)
    open_files(reader, 17)
    list_files(reader, 20, SECOND)
    assert advice_for(reader, unread=("json",)) is None
