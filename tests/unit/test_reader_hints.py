"""The advice on a reader: each sentence, and when there is none."""

from __future__ import annotations

import pytest

from growfs.daemon.reader_hints import OPENS_MIN, hint
from growfs.rotation.reader import Reader
from growfs.rotation.reader_registry import FOREIGN
from growfs.rotation.rules import Generation

FIRST, SECOND = Generation(1, 10, 0.0), Generation(2, 20, 0.0)
HOUR_S = 3600.0


@pytest.fixture
def reader() -> Reader:
    return Reader(4711, "99", "python")


def shown(reader: Reader, files: int, generation: Generation = FIRST, now: float = 0.0) -> None:
    reader.lists(7, generation, now)
    reader.is_shown(7, files)


def opens(reader: Reader, count: int, times: int = 1, waited: bool = False) -> None:
    for _ in range(times):
        for id in range(count):
            reader.opened(id, FIRST, 0.0, waited)


def hint_for(reader: Reader, now: float = 3 * HOUR_S, share: float = 0.08, unread: tuple[str, ...] = ()) -> str:
    return hint(reader, now, share, unread)


def test_a_reader_in_another_pid_namespace() -> None:
    foreign = Reader(FOREIGN, "", "another pid namespace")
    assert hint_for(foreign).startswith("is in another pid namespace, so nothing is delisted while it reads: ")
    assert "shareProcessNamespace" in hint_for(foreign)


def test_a_reader_whose_opens_wait(reader: Reader) -> None:
    shown(reader, 100)
    opens(reader, OPENS_MIN, waited=True)
    opens(reader, OPENS_MIN)
    assert (
        hint_for(reader)
        == "50% of its opens waited for a download: take file names from a listing or .growfs/index.csv"
    )


def test_a_few_opens_that_waited_say_nothing(reader: Reader) -> None:
    shown(reader, 100)
    opens(reader, OPENS_MIN - 1, waited=True)
    assert hint_for(reader) == ""


def test_a_reader_that_never_listed(reader: Reader) -> None:
    opens(reader, 1)
    assert hint_for(reader) == "opens by name and never listed: it waits for each file that is not cached"


def test_a_reader_that_listed_once(reader: Reader) -> None:
    shown(reader, 1200)
    opens(reader, 1200, times=6)
    assert hint_for(reader) == (
        "listed once 3 hours ago, has opened its 1,200 files 6.0 times, and will see nothing new until it lists again;"
        " it sees 8% of the data"
    )


def test_a_reader_that_listed_once_and_opened_all_once(reader: Reader) -> None:
    shown(reader, 20)
    opens(reader, 20)
    assert "has opened its 20 files, and will see nothing new" in hint_for(reader)


def test_a_reader_that_listed_all_that_there_is_misses_nothing(reader: Reader) -> None:
    shown(reader, 20)
    opens(reader, 20, times=6)
    assert hint_for(reader, share=1.0) == ""


def test_a_reader_that_has_files_left_to_open_needs_no_advice(reader: Reader) -> None:
    shown(reader, 20)
    opens(reader, 19)
    assert hint_for(reader) == ""


def test_a_reader_that_lists_again_needs_no_advice(reader: Reader) -> None:
    shown(reader, 20)
    opens(reader, 20)
    shown(reader, 20, SECOND)
    opens(reader, 20)
    assert hint_for(reader) == ""


@pytest.mark.parametrize(("unread", "ending"), [((), ""), (("json", "txt"), "; consider --exclude '*.json'")])
def test_a_reader_that_leaves_much_unread(reader: Reader, unread: tuple[str, ...], ending: str) -> None:
    shown(reader, 20)
    opens(reader, 15)
    shown(reader, 20, SECOND)
    assert hint_for(reader, unread=unread) == f"never opened 25% of the files that it listed{ending}"


def test_a_reader_that_leaves_little_unread(reader: Reader) -> None:
    shown(reader, 20)
    opens(reader, 17)
    shown(reader, 20, SECOND)
    assert hint_for(reader, unread=("json",)) == ""
