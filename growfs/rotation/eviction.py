"""Which cached files are evicted, and in which order. Pure functions over plain facts.

The daemon (`space`) and the simulation both call these functions. The daemon reads the facts from its database one file
at a time, only as far as needed, and keeps none of them in memory, even with a million files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from operator import attrgetter

from growfs.rotation.holds import Holds
from growfs.rotation.rules import CachedFile, Kind, LastOfKind


def draw_candidates(delisted: Iterable[CachedFile], holds: Holds) -> Iterator[Sequence[CachedFile]]:
    """The groups that a draw may evict, in order: those without a held file. delisted: in `rules.DELISTED_ORDER`."""
    return (group for group in in_groups(delisted) if not _is_held(group, holds))


def miss_candidates(
    unlisted: Iterable[CachedFile],
    delisted: Iterable[CachedFile],
    listed: Iterable[CachedFile],
    holds: Holds,
    keep_held: bool = False,
) -> Iterator[Sequence[CachedFile]]:
    """The groups that a miss may evict, in order; these are all of the given files.

    unlisted: groups that no generation listed, the last admitted first. delisted: in `rules.DELISTED_ORDER`; those
    without a hold go first, so it is read twice. listed: the other groups, listed for longest first. keep_held: leave
    out groups with a held file, for fetches that no reader waits for.
    """
    if keep_held:
        sorts = map(in_groups, (unlisted, delisted, listed))
        yield from (group for group in itertools.chain(*sorts) if not _is_held(group, holds))
        return
    yield from in_groups(unlisted)
    yield from draw_candidates(delisted, holds)
    yield from (group for group in in_groups(delisted) if _is_held(group, holds))
    yield from in_groups(listed)


def in_groups(files: Iterable[CachedFile]) -> Iterator[Sequence[CachedFile]]:
    """The groups of these files, which come one after the other. A file without a group is its own group."""
    return (tuple(group) for _, group in itertools.groupby(files, key=attrgetter("queue_position")))


def _is_held(group: Iterable[CachedFile], holds: Holds) -> bool:
    # A loop, not any(), which takes twice as long: a draw asks this of every delisted file.
    for file in group:  # noqa: SIM110
        if holds.cover(file.directory, file.seq, file.delisted):
            return True
    return False


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
