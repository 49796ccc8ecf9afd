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
    def act(reader: Reader) -> None:
        reader.lists(7, generation, 0.0)
        reader.job.is_shown(7, generation, files)

    return act


def opens(count: int, times: int = 1, waited: bool = False) -> Act:
    def act(reader: Reader) -> None:
        for id in [*range(count)] * times:
            reader.opened(id, FIRST, 0.0, waited)

    return act


def releases(reader: Reader) -> None:
    """Its holds end, as after --hold-idle."""
    reader.release()


def after(*acts: Act) -> Reader:
    reader = Reader(4711, "99", "python")
    for act in acts:
        act(reader)
    return reader


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        (after(lists(100), opens(OPENS_MIN, waited=True), opens(OPENS_MIN)), "50% of its opens waited for a download"),
        (after(lists(100), opens(OPENS_MIN - 1, waited=True)), ""),
        (after(opens(1, waited=True)), "opens files by name and never listed them: it waits for each file"),
        # Another process listed, and gave it the names.
        (after(opens(100)), "opens files by name and never listed them, so all files listed when it first opened one"),
        (after(opens(1), releases), ""),
        (
            after(lists(1200), opens(1200, times=6)),
            "listed once 3 hours ago, has opened its 1,200 files 6.0 times, and",
        ),
        (after(lists(20), opens(20)), "listed once 3 hours ago, has opened its 20 files, and will see nothing new"),
        (after(lists(20), opens(19)), ""),  # some are left to open
        (after(lists(20), opens(20), lists(20, SECOND), opens(20)), ""),  # it lists again
        (after(lists(20), opens(15), lists(20, SECOND)), "never opened 25% of the files that it listed; consider"),
        (after(lists(20), opens(17), lists(20, SECOND)), ""),
        (
            Reader(FOREIGN, "", "another pid namespace"),
            "is in another pid namespace: each generation that it lists stays",
        ),
    ],
)
def test_the_advice_fits_what_a_reader_did(reader: Reader, expected: str) -> None:
    text = advice(reader, 3 * HOUR_S, SHARE, ("json", "txt")) or ""
    assert text.startswith(expected)
    assert bool(text) == bool(expected)


def test_the_advice_names_what_is_not_seen_or_read_if_there_is_such() -> None:
    sees_no_more = after(lists(20), opens(20, times=6))
    assert (advice(sees_no_more, HOUR_S, SHARE, ()) or "").endswith("it sees 8% of the data")
    assert advice(sees_no_more, HOUR_S, 1.0, ()) is None
    skips = after(lists(20), opens(15), lists(20, SECOND))
    assert (advice(skips, HOUR_S, SHARE, ("json", "txt")) or "").endswith("consider --exclude '*.json'")
    assert advice(skips, HOUR_S, SHARE, ()) == "never opened 25% of the files that it listed"
