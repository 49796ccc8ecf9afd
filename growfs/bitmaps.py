"""Sets of many numbers: the compressed bitmaps of pyroaring, without its memory leaks. A daemon runs for weeks.

In pyroaring 1.2, each bitmap that is unpickled leaks 208 bytes, and each iteration of an empty one leaks 224.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyroaring


class BitMap64(pyroaring.BitMap64):
    """A set of numbers from 0 to 2^64 - 1. Its operators return sets of this class."""

    __slots__ = ()

    def __iter__(self) -> Iterator[int]:
        return super().__iter__() if self else iter(())

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return type(self).deserialize, (self.serialize(),)
