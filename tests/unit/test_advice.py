"""The advice on readers: the text of each, and when there is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from growfs.bitmaps import BitMap64
from growfs.daemon.snapshot import OPENS_MIN, advice
from growfs.rotation.reader import Reader
from growfs.rotation.readers import FOREIGN
from growfs.rotation.rules import Generation

FIRST, SECOND = (Generation(number, 10, listed=BitMap64([number])) for number in (1, 2))
HOUR_S = 3600.0
SHARE = 0.08
"""Of the data, what a generation shows."""

Act = Callable[[Reader], None]


def lists(files: int, generation: Generation = FIRST) -> Act:
    """It lists so many files."""

    def act(reader: Reader) -> None:
        reader.lists(7, generation, 0.0)
        reader.job.is_shown(7, generation, files)

    return act


def opens(count: int, times: int = 1, waited: bool = False) -> Act:
    """It opens so many files, each so often."""

    def act(reader: Reader) -> None:
        for id in [*range(count)] * times:
            reader.opened(id, FIRST, 0.0, waited)

    return act


def releases(reader: Reader) -> None:
    """Its holds end, as after --hold-idle."""
    reader.release()


@pytest.mark.parametrize(
    ("acts", "share", "unread", "expected"),
    [
        (
            [lists(100), opens(OPENS_MIN, waited=True), opens(OPENS_MIN)],
            SHARE,
            (),
            "50% of its opens waited for a download: take file names from a listing or .growfs/index.csv",
        ),
        ([lists(100), opens(OPENS_MIN - 1, waited=True)], SHARE, (), None),
        (
            [opens(1, waited=True)],
            SHARE,
            (),
            "opens files by name and never listed them: it waits for each file that is not cached",
        ),
        (  # another process listed, and gave it the names
            [opens(100)],
            SHARE,
            (),
            "opens files by name and never listed them, so all files listed when it first opened one stay cached"
            " until it exits: have it list every epoch",
        ),
        ([opens(1), releases], SHARE, (), None),
        (
            [lists(1200), opens(1200, times=6)],
            SHARE,
            (),
            "listed once 3 hours ago, has opened its 1,200 files 6.0 times, and will see nothing new until it lists"
            " again; it sees 8% of the data",
        ),
        (
            [lists(20), opens(20)],
            SHARE,
            (),
            "listed once 3 hours ago, has opened its 20 files, and will see nothing new until it lists again; it sees"
            " 8% of the data",
        ),
        ([lists(20), opens(20, times=6)], 1.0, (), None),  # all that there is
        ([lists(20), opens(19)], SHARE, (), None),  # some are left to open
        ([lists(20), opens(20), lists(20, SECOND), opens(20)], SHARE, (), None),  # it lists again
        ([lists(20), opens(15), lists(20, SECOND)], SHARE, (), "never opened 25% of the files that it listed"),
        (
            [lists(20), opens(15), lists(20, SECOND)],
            SHARE,
            ("json", "txt"),
            "never opened 25% of the files that it listed; consider --exclude '*.json'",
        ),
        ([lists(20), opens(17), lists(20, SECOND)], SHARE, ("json",), None),
    ],
)
def test_the_advice_fits_what_a_reader_did(
    acts: list[Act], share: float, unread: tuple[str, ...], expected: str | None
) -> None:
    reader = Reader(4711, "99", "python")
    for act in acts:
        act(reader)
    assert advice(reader, 3 * HOUR_S, share, unread) == expected


def test_a_reader_in_another_pid_namespace() -> None:
    foreign = Reader(FOREIGN, "", "another pid namespace")
    text = advice(foreign, 3 * HOUR_S, SHARE, ()) or ""
    assert text.startswith("is in another pid namespace: each generation that it lists stays cached for --hold-idle")
