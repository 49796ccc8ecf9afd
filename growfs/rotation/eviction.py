"""Which cached files are evicted, and in which order. Pure functions over plain facts.

The daemon (`space`) and the simulation both call these functions. The daemon reads the facts from its database, file
by file and no further than needed: of a million files, none is kept in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from growfs.rotation.rules import CachedFile, Holds, Kind, LastOfKind


def draw_candidates(
    groups: Iterable[Sequence[CachedFile]], in_use: Container[int], holds: Holds
) -> Iterator[CachedFile]:
    """What a draw may evict, in order. groups: the delisted files by queue position, in `rules.DELISTED_ORDER`.

    A group goes as a whole, and not while any of it is held or in use.
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
    """What a miss may evict, in order: all of these files.

    unlisted: those that no generation listed, the last admitted first. delisted: in `rules.DELISTED_ORDER`; first go
    those that nobody holds, so it is read twice. listed: those listed for longest first. keep_held: without those
    that somebody holds, for what no reader waits for.
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
    """Those of the files that may all be evicted, in the same order: none is in use, and one of each kind stays, if
    directories keep their last files.

    That one is listed, if any is: else a directory would be listed as empty although it has a file that is delisted.

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
    """The ids to evict for need bytes, in order; none where all candidates together have fewer bytes.

    ample: for so many bytes where the candidates have as many, else all candidates. Files of one group that follow each
    other go together. Candidates are read only as far as needed.
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
