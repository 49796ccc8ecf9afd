"""Which cached files are evicted, and in which order. Pure functions over plain facts.

The daemon (`evictor`) and the simulation both call these functions. The daemon reads the facts from its database.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from growfs.rotation.rules import CachedFile, Holds, Kind, LastOfKind, delisted_key, listed_key


def delisted_groups(files: Iterable[CachedFile]) -> dict[int, list[CachedFile]]:
    """The delisted ones among these files by queue position, in the order in which a draw evicts them."""
    groups: dict[int, list[CachedFile]] = {}
    for file in sorted([file for file in files if file.delisted is not None], key=delisted_key):
        groups.setdefault(file.queue_position, []).append(file)
    return groups


def draw_candidates(
    groups: Mapping[int, Sequence[CachedFile]], in_use: Container[int], holds: Holds
) -> Iterator[CachedFile]:
    """What a draw may evict, in order. groups: as `delisted_groups` returns them.

    A group goes as a whole, and not while any of it is held or in use.
    """
    for group in groups.values():
        for file in group:
            if file.id in in_use or holds.cover(file.directory, file.seq, file.delisted):
                break
        else:
            yield from group


def miss_candidates(
    files: Iterable[CachedFile], shown_seq: int, holds: Holds, spares_held: bool = False
) -> Iterator[CachedFile]:
    """What a miss may evict, in order: all of these files.

    First those that no generation listed, the last admitted first; then the delisted ones, first those that nobody
    holds; then the listed ones, those listed for longest first. shown_seq: the last admission that a generation lists.
    spares_held: without those that somebody holds, for what no reader waits for.
    """
    unlisted: list[CachedFile] = []
    delisted: list[CachedFile] = []
    listed: list[CachedFile] = []
    for file in files:
        if spares_held and holds.cover(file.directory, file.seq, file.delisted):
            continue
        (delisted if file.delisted is not None else listed if file.seq <= shown_seq else unlisted).append(file)
    yield from sorted(unlisted, key=attrgetter("seq"), reverse=True)
    held: list[CachedFile] = []
    for file in sorted(delisted, key=delisted_key):
        if holds.cover(file.directory, file.seq, file.delisted):
            held.append(file)
        else:
            yield file
    yield from held
    yield from sorted(listed, key=listed_key)


def evictable(
    files: Iterable[CachedFile], in_use: Container[int], counts: Callable[[Kind], tuple[int, int]], shown_seq: int
) -> Iterator[CachedFile]:
    """Those of the files that may all be evicted, in the same order: none is in use, and one of each kind stays.

    That one is listed, if any is: else a directory would be listed as empty although it has a file that is delisted.

    counts: how many files of a kind are (listed, cached); called once for each kind.
    """
    keep = LastOfKind({})
    some_listed = set[Kind]()
    for file in files:
        if file.id in in_use:
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


def pick_victims(candidates: Iterable[CachedFile], need: int) -> list[int]:
    """The ids to evict for need bytes, in order; none where all candidates together have fewer bytes.

    Files of one group that follow each other go together. Candidates are read only as far as needed.
    """
    chosen: list[int] = []
    freed = 0
    group: int | None = None
    for file in candidates:
        if freed >= need and file.queue_position != group:
            break
        chosen.append(file.id)
        freed += file.bytes
        group = file.queue_position
    return chosen if freed >= need else []
