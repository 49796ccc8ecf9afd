"""Which cached files are evicted, and in which order. Pure functions over plain facts.

The daemon (`space`) and the simulation both call these functions. The daemon reads the facts from its database one file
at a time, only as far as needed, and keeps none of them in memory, even with a million files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from growfs.rotation.holds import Holds
from growfs.rotation.rules import CachedFile, Kind, LastOfKind


def draw_candidates(
    groups: Iterable[Sequence[CachedFile]], in_use: Container[int], holds: Holds
) -> Iterator[CachedFile]:
    """The files that a draw may evict, in order.

    groups: the delisted files by queue position, in `rules.DELISTED_ORDER`. A group is evicted as a whole, and only if
    none of its files is held or in use.
    """
    for group in groups:
        for file in group:
            if file.id in in_use or holds.cover(file.directory, file.seq, file.delisted):
                break
        else:
            yield from group


def miss_candidates(
    unlisted: Iterable[CachedFile],
    delisted: Iterable[CachedFile],
    listed: Iterable[CachedFile],
    holds: Holds,
    keep_held: bool = False,
) -> Iterator[CachedFile]:
    """The files that a miss may evict, in order; these are all of the given files.

    unlisted: files that no generation listed, the last admitted first. delisted: in `rules.DELISTED_ORDER`; those
    without a hold go first, so it is read twice. listed: files listed for longest first. keep_held: leave out held
    files, for fetches that no reader waits for.
    """

    def is_held(file: CachedFile) -> bool:
        return holds.cover(file.directory, file.seq, file.delisted)

    if keep_held:
        yield from itertools.filterfalse(is_held, itertools.chain(unlisted, delisted, listed))
        return
    yield from unlisted
    yield from itertools.filterfalse(is_held, delisted)
    yield from filter(is_held, delisted)
    yield from listed


def evictable(
    files: Iterable[CachedFile],
    in_use: Container[int],
    counts: Callable[[Kind], tuple[int, int]],
    shown_seq: int,
    keeps_last: bool = True,
) -> Iterator[CachedFile]:
    """The files that may all be evicted together, in the same order.

    None of them is in use, and one of each kind stays if directories keep their last files. The one that stays is a
    listed file if there is one. Otherwise a directory that has only a delisted file left would be listed as empty.

    counts: how many files of a kind are (listed, cached); called once for each kind.
    """
    keep = LastOfKind({})
    some_listed = set[Kind]()
    for file in files:
        if file.id in in_use:
            continue
        if not keeps_last:
            yield file
            continue
        kind = file.kind
        if kind not in keep:
            listed, cached = counts(kind)
            keep.count(kind, listed or cached)
            if listed:
                some_listed.add(kind)
        counted = kind not in some_listed or (file.delisted is None and file.seq <= shown_seq)
        if not counted or keep.take((kind,)):
            yield file


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
