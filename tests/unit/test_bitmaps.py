"""Sets of numbers: whether a daemon may use them for weeks."""

from __future__ import annotations

import ctypes
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import growfs
from growfs.bitmaps import BitMap64

CALLS = 10_000
LEAK = 16 * CALLS
"""Bytes. The smallest block of malloc(3) takes more, and other threads may allocate a little meanwhile."""


FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in FIELDS)


def heap_in_use() -> int:
    """Bytes that malloc(3) has handed out (mallinfo(3)). Python allocates its small objects by itself."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("this C library is not glibc 2.33 or later")
    libc.mallinfo2.restype = Mallinfo2
    found = libc.mallinfo2()
    return int(found.uordblks + found.hblkhd)


PICKLED = pickle.dumps(BitMap64([1, 2**40]))


@pytest.mark.parametrize(
    "use",
    [
        lambda: list(BitMap64()),
        lambda: next(iter(BitMap64([1, 2]))),
        lambda: list(BitMap64([1]) - BitMap64([1])),
        lambda: pickle.loads(PICKLED),
        lambda: BitMap64.deserialize(BitMap64([3]).serialize()) | BitMap64().union(BitMap64([4])),
    ],
    ids=["iterate an empty one", "iterate a part", "iterate an empty difference", "unpickle", "union"],
)
def test_they_leak_no_memory(use: Callable[[], Any]) -> None:
    for _ in range(100):
        use()
    before = heap_in_use()
    for _ in range(CALLS):
        use()
    assert heap_in_use() - before < LEAK


def test_what_is_computed_or_received_is_of_the_same_class() -> None:
    one, two = BitMap64([1, 2]), BitMap64([2, 2**40])
    changed = BitMap64(one)
    changed |= two
    changed -= one
    received = pickle.loads(pickle.dumps(two))
    assert received == two
    sets = (one | two, one & two, one - two, BitMap64().union(one, two), BitMap64.deserialize(one.serialize()))
    assert {type(each) for each in (*sets, changed, received)} == {BitMap64}
    assert [list(each) for each in (one | two, one - two, one - one)] == [[1, 2, 2**40], [1], []]


def test_no_other_class_of_sets_is_used() -> None:
    package = Path(growfs.__file__).parent
    importing = re.compile(r"^(from|import) pyroaring", re.MULTILINE)
    assert [path.name for path in package.rglob("*.py") if importing.search(path.read_text())] == ["bitmaps.py"]
