"""Which directories contain listed files, and which are hidden because they do not. Pure functions over ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from pyroaring import BitMap64


def with_parents(directories: Iterable[int], parents: Mapping[int, int]) -> set[int]:
    """Those of these directories that have a parent, and all directories above them that have one."""
    found = set[int]()
    for directory in directories:
        while directory in parents and directory not in found:
            found.add(directory)
            directory = parents[directory]
    return found


def hidden_below(listed: set[int], parents: Mapping[int, int]) -> dict[int, BitMap64]:
    """The directories that are not listed, by the nearest directory above them that is."""
    hidden = parents.keys() - listed
    below = defaultdict[int, BitMap64](BitMap64)
    for directory in hidden:
        above = parents[directory]
        while above in hidden:
            above = parents[above]
        below[above].add(directory)
    return dict(below)
