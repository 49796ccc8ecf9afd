"""Every promise of SEMANTICS.md has a test, and docs/promises.md lists them."""

from __future__ import annotations

from collections import Counter

from tests.promise_faults import FAULTS
from tests.promises import TABLE, marks, promises, table

REAL_MOUNTS = (
    *("tests/fuse/", "tests/crash/", "tests/s3/", "tests/cli/"),
    *("tests/extensions/fill/", "tests/extensions/peers/test_nodes.py"),
    "tests/extensions/producers/test_producers.py",
)


def test_the_promises_are_numbered_without_gaps() -> None:
    assert list(promises()) == list(range(1, len(promises()) + 1))


def test_every_mark_names_a_promise() -> None:
    assert [mark for mark in marks() if mark.promise not in promises()] == []


def test_no_test_has_a_mark_twice() -> None:
    assert [mark for mark, count in Counter(marks()).items() if count > 1] == []


def test_every_promise_has_a_test_with_a_real_mount() -> None:
    held = {mark.promise for mark in marks() if mark.path.startswith(REAL_MOUNTS)}
    assert set(promises()) - held == set()


def test_a_test_of_each_promise_injects_a_fault_that_threatens_it() -> None:
    assert FAULTS.keys() == promises().keys()
    named = {(number, path, test) for number, (_, path, test) in FAULTS.items()}
    assert named - {tuple(mark) for mark in marks()} == set()


def test_the_table_is_up_to_date() -> None:
    assert TABLE.read_text() == table(), "update it: python -m tests.promises"
