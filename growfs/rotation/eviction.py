"""Which cached files are evicted, and in which order. Pure functions over plain facts.

The daemon (`space`) and the simulation both call these functions. The daemon reads the facts from its database one file
at a time, only as far as needed, and keeps none of them in memory, even with a million files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from operator import attrgetter

from growfs.bitmaps import BitMap64
from growfs.rotation.rules import CachedFile, Kind, LastOfKind


def candidates(
    sorts: Sequence[Iterable[CachedFile]], held: BitMap64, takes_held: bool = False
) -> Iterator[Sequence[CachedFile]]:
    """The groups that may be evicted, in order: those without a held file, and then the others, if it `takes_held`.

    sorts: the files, each group as a whole in one of them; they are read again for the held ones. For a draw, these are
    the delisted files. For others, first come the files that no generation listed, the last admitted first, then the
    delisted ones, then those listed for longest. held: the admissions of the files that are held.
    """
    for is_held in (False, True) if takes_held else (False,):
        groups = in_groups(itertools.chain.from_iterable(sorts))
        yield from (group for group in groups if any(file.seq in held for file in group) is is_held)


def in_groups(files: Iterable[CachedFile]) -> Iterator[Sequence[CachedFile]]:
    """The groups of these files, which come one after the other. A file without a group is its own group."""
    return (tuple(group) for _, group in itertools.groupby(files, key=attrgetter("queue_position")))


def evictable(
    groups: Iterable[Sequence[CachedFile]],
    in_use: Container[int],
    counts: Callable[[Kind], tuple[int, int]],
    shown_seq: int,
    keeps_last: bool = True,
) -> Iterator[CachedFile]:
    """The files of those groups that may all be evicted together, in the same order: each group as a whole, or not.

    None of the files is in use, and one of each kind stays if directories keep their last files. The one that stays is
    a listed file if there is one. Otherwise a directory that has only a delisted file left would be listed as empty.

    counts: how many files of a kind are (listed, cached); called once for each kind.
    """
    keep = LastOfKind({})
    some_listed = set[Kind]()
    for group in groups:
        if any(file.id in in_use for file in group):
            continue
        if not keeps_last:
            yield from group
            continue
        kinds = list[Kind]()
        for file in group:
            kind = file.kind
            if kind not in keep:
                listed, cached = counts(kind)
                keep.count(kind, listed or cached)
                if listed:
                    some_listed.add(kind)
            if kind not in some_listed or (file.delisted is None and file.seq <= shown_seq):
                kinds.append(kind)
        if keep.take(kinds):
            yield from group


def pick_victims(candidates: Iterable[CachedFile], need: int, ample: int = 0) -> list[int]:
    """The ids to evict for `need` bytes, in order; empty if all candidates together have fewer bytes.

    ample: evict this many bytes if the candidates have as many, otherwise all candidates. Consecutive files of one
    group are evicted together. Candidates are read only as far as needed.
    """
    chosen: list[int] = []
    freed = 0
    group: int | None = None
    for file in candidates:
        if freed >= max(need, ample) and file.queue_position != group:
            break
        chosen.append(file.id)
        freed += file.bytes
        group = file.queue_position
    return chosen if freed >= need else []
