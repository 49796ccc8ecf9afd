"""The queries that read cached files from the database, in the order that the rules expect."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from growfs.bitmaps import BitMap64
from growfs.cache.schema import Query
from growfs.rotation.eviction import candidates, evictable, in_groups
from growfs.rotation.rules import DELISTED_ORDER, LISTED_ORDER, CachedFile, Kind

FIELDS = ", ".join(f"r.{field} AS {field}" for field in CachedFile._fields).replace("r.directory", "r.parent")
"""The columns of a CachedFile."""
IS_PINNED = (
    "r.queue_position IN (SELECT o.queue_position FROM node p CROSS JOIN resident o USING (id) WHERE p.pinned > 0)"
)
"""Whether a file in the group of r is pinned or frozen. A file without a group is its own group."""


def group_has(condition: str) -> str:
    """SQL for whether a condition holds for a file o in the group of r. Uses o.delisted and o.seq, for the index."""
    group = "o.suffix IS NOT NULL AND o.queue_position = r.queue_position"
    return f"EXISTS (SELECT 1 FROM resident o WHERE {group} AND {condition})"


def _query(condition: str, order: str) -> str:
    is_candidate = f"r.suffix IS NOT NULL AND {condition} AND NOT {IS_PINNED}"
    return f"SELECT {FIELDS} FROM resident r WHERE {is_candidate} ORDER BY {order}"


def _columns(order: tuple[str, ...]) -> str:
    return ", ".join(f"r.{field}" for field in order)


# Each group is in exactly one of these sorts, as a whole, unless it has a pinned file.
DELISTED = _query(f"r.delisted IS NOT NULL AND NOT {group_has('o.delisted IS NULL')}", _columns(DELISTED_ORDER))
LISTED = _query(
    f"{group_has('o.delisted IS NULL')} AND (r.seq <= ? OR {group_has('o.seq <= ?')})", _columns(LISTED_ORDER)
)
"""Also groups of which a file was fetched again. Parameter, twice: the last admission that a generation showed."""
UNLISTED = _query(
    f"r.queue_position > ? AND NOT {group_has('o.seq <= ?')} AND {group_has('o.delisted IS NULL')}",
    "r.queue_position DESC",
)
"""Parameter, twice: the last admission that a generation showed."""
DELISTABLE = _query(
    f"r.delisted IS NULL AND r.seq <= ? AND NOT {group_has('o.delisted IS NULL AND o.seq > ?')}",
    _columns(LISTED_ORDER),
)
"""Those of the listed groups that the next generation may delist: without one of which a file was fetched again.
Parameter, twice: the last admission that a generation showed."""


OF_THESE = _query(
    "r.queue_position IN (SELECT o.queue_position FROM json_each(?) wanted JOIN resident o ON o.id = wanted.value)",
    _columns(LISTED_ORDER),
)
"""Parameter: ids, as JSON."""
_GROUPS = "SELECT queue_position, sum(bytes) AS bytes FROM resident WHERE suffix IS NOT NULL GROUP BY queue_position"
KINDS = (
    "SELECT r.parent, r.suffix, count(*), min(g.bytes), r.queue_position"
    f" FROM ({_GROUPS}) g CROSS JOIN resident r USING (queue_position)"
    " WHERE r.suffix IS NOT NULL AND r.seq <= ? GROUP BY r.parent, r.suffix"
)
"""The kinds of the files up to an admission, each with the size and the place of its smallest group. (SQLite takes a
column without an aggregate from the row of the minimum, if there is no maximum.) A file without a group is its own."""


class Listed(NamedTuple):
    """The facts that decide which files are the last of their kind."""

    seq: int
    """The last admission that a generation showed."""
    keeps_last: bool
    """Whether directories keep their last files."""


@dataclass(frozen=True, slots=True)
class _Files:
    """The first `most` cached files that a query selects, and the rest of the last one's group, in its order.

    Each iteration reads them anew, one by one, and keeps none: sorting a hundred thousand files, or freeing them, would
    hold the interpreter's lock for tens of milliseconds.
    """

    ask: Query
    query: str
    most: int
    values: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[CachedFile]:
        group: int | None = None
        for place, file in enumerate(itertools.starmap(CachedFile, self.ask(self.query, *self.values))):
            if place >= self.most and file.queue_position != group:
                return
            group = file.queue_position
            yield file

    def kinds(self) -> Counter[Kind]:
        """A lower bound on the number of these files of each kind."""
        last = f"SELECT queue_position FROM ({self.query} LIMIT 1 OFFSET {self.most - 1})"
        rest = f"SELECT count(*) FROM resident WHERE suffix IS NOT NULL AND queue_position = ({last})"
        limited = f"{self.query} LIMIT {self.most} + ({rest})"
        query = f"SELECT directory, suffix, count(*) FROM ({limited}) GROUP BY directory, suffix"
        return Counter({(folder, suffix): count for folder, suffix, count in self.ask(query, *self.values * 2)})


def may_go(
    ask: Query, held: BitMap64, listed: Listed, in_use: Container[int], most: int, is_draw: bool, takes_held: bool
) -> Iterator[CachedFile]:
    """The files that may be evicted, in order: `most` of each sort in whole groups, for a draw only delisted ones.

    takes_held: also files that are held, for readers who wait.
    """
    shown = listed.seq, listed.seq
    queries: list[tuple[str, tuple[int, ...]]] = [(UNLISTED, shown), (DELISTED, ()), (LISTED, shown)]
    sorts = [_Files(ask, query, most, values) for query, values in (queries[1:2] if is_draw else queries)]

    def kinds() -> Counter[Kind]:
        return sum((files.kinds() for files in sorts), Counter())

    return evictable(candidates(sorts, held, takes_held), in_use, _counts(ask, kinds, listed.seq), *listed)


def of_these(ids: Sequence[int], in_use: Container[int], listed: Listed, ask: Query) -> list[int]:
    """The files of the groups of these files that may all be evicted together, in the same order."""
    files = list(itertools.starmap(CachedFile, ask(OF_THESE, json.dumps(list(ids)))))
    places = {id: place for place, id in enumerate(ids)}
    groups = sorted(in_groups(files), key=lambda group: min(places.get(file.id, len(places)) for file in group))
    counts = _counts(ask, lambda: Counter(file.kind for file in files), listed.seq)
    return [file.id for file in evictable(groups, in_use, counts, *listed)]


def delisted_sizes(ask: Query) -> Iterable[tuple[int, int]]:
    """The admission and the size on disk of each file that is delisted and not yet evicted."""
    return ask("SELECT seq, bytes FROM resident WHERE delisted IS NOT NULL AND suffix IS NOT NULL")


def least_bytes(ask: Query, without: Container[Kind] = ()) -> int:
    """The total size of the smallest group of each kind but some."""
    kinds = (row for row in ask(KINDS, sys.maxsize) if row[:2] not in without)
    return sum({group: least for *_, least, group in kinds}.values())


def kept_bytes(keeps_last: bool, ask: Query) -> int:
    """The bytes of pinned and frozen files, and if directories keep their last files, of a file of each other kind;
    of whole groups.
    """
    pinned = f"FROM resident r WHERE r.suffix IS NOT NULL AND {IS_PINNED}"
    ((bytes,),) = ask(f"SELECT coalesce(sum(r.bytes), 0) {pinned}")
    if keeps_last:
        bytes += least_bytes(ask, without=set(ask(f"SELECT DISTINCT r.parent, r.suffix {pinned}")))
    return int(bytes)


def _counts(ask: Query, kinds: Callable[[], Mapping[Kind, int]], shown_seq: int) -> Callable[[Kind], tuple[int, int]]:
    """A function that counts the (listed, cached) files of a kind, up to one more than the candidates: one is left
    then.

    kinds: counts the candidates, when the first kind is counted. The last admitted files are read first, because
    the first ones may all be delisted.
    """
    kinds = cache(kinds)

    def count(condition: str, kind: Kind, *values: int) -> int:
        query = f"SELECT 1 FROM resident WHERE parent = ? AND suffix = ? AND {condition} ORDER BY seq DESC LIMIT ?"
        ((files,),) = ask(f"SELECT count(*) FROM ({query})", *kind, *values, kinds()[kind] + 1)
        return int(files)

    def counts(kind: Kind) -> tuple[int, int]:
        listed = count("delisted IS NULL AND seq <= ?", kind, shown_seq)
        return listed, listed or count("1", kind)

    return counts
