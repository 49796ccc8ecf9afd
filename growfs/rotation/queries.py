"""The queries that read cached files from the database as the rules need them. Their order is that of the rules."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter

from growfs.cache.schema import Query
from growfs.rotation.eviction import draw_candidates, evictable, miss_candidates
from growfs.rotation.rules import DELISTED_ORDER, LISTED_ORDER, CachedFile, Holds, Kind

COLUMNS = {
    "id": "r.id",
    "directory": "r.parent",
    "suffix": "r.suffix",
    "bytes": "r.bytes",
    "seq": "r.seq",
    "queue_position": "r.queue_position",
    "delisted": "r.delisted",
    "opened": "r.opened",
}
FIELDS = ", ".join(f"{COLUMNS[field]} AS {field}" for field in CachedFile._fields)
"""What a CachedFile is made of."""


def _query(condition: str, order: str) -> str:
    return (
        f"SELECT {FIELDS} FROM resident r JOIN node n USING (id)"
        f" WHERE r.suffix IS NOT NULL AND n.pinned = 0 AND {condition} ORDER BY {order}"
    )


def _columns(order: tuple[str, ...]) -> str:
    return ", ".join(COLUMNS[field] for field in order)


DELISTED = _query("r.delisted IS NOT NULL", _columns(DELISTED_ORDER))
LISTED = _query("r.delisted IS NULL AND r.seq <= ?", _columns(LISTED_ORDER))
"""Given the last admission that a generation showed."""
UNLISTED = _query("r.delisted IS NULL AND r.seq > ?", "r.seq DESC")
"""Given the last admission that a generation showed."""


@dataclass(frozen=True, slots=True)
class _Files:
    """The cached files that a query selects, in its order. Each iteration reads them anew, one by one.

    None is kept: to sort a hundred thousand, or to free them, takes the interpreter's lock for tens of milliseconds.
    """

    ask: Query
    query: str
    values: tuple[int, ...]

    def __iter__(self) -> Iterator[CachedFile]:
        return itertools.starmap(CachedFile, self.ask(self.query, *self.values))

    def kinds(self) -> Counter[Kind]:
        """How many of them there are of each kind."""
        query = f"SELECT directory, suffix, count(*) FROM ({self.query}) GROUP BY directory, suffix"
        return Counter({(directory, suffix): count for directory, suffix, count in self.ask(query, *self.values)})


def for_a_draw(ask: Query, holds: Holds, shown_seq: int, in_use: Container[int], most: int) -> Iterator[CachedFile]:
    """Which of up to `most` delisted files a draw may evict, in order."""
    delisted = _Files(ask, f"{DELISTED} LIMIT ?", (most,))
    groups = (list(group) for _, group in itertools.groupby(delisted, key=attrgetter("queue_position")))
    candidates = draw_candidates(groups, in_use, holds)
    return evictable(candidates, in_use, _counts(ask, delisted.kinds, shown_seq), shown_seq)


def for_a_miss(
    ask: Query, holds: Holds, shown_seq: int, in_use: Container[int], most: int, keep_held: bool
) -> Iterator[CachedFile]:
    """What a miss may evict, up to `most` of each sort, in order. shown_seq: the last admission that was listed.

    keep_held: without what is held.
    """
    unlisted = _Files(ask, f"{UNLISTED} LIMIT ?", (shown_seq, most))
    delisted = _Files(ask, f"{DELISTED} LIMIT ?", (most,))
    listed = _Files(ask, f"{LISTED} LIMIT ?", (shown_seq, most))

    def kinds() -> Counter[Kind]:
        return unlisted.kinds() + delisted.kinds() + listed.kinds()

    in_order = miss_candidates(unlisted, delisted, listed, holds, keep_held)
    return evictable(in_order, in_use, _counts(ask, kinds, shown_seq), shown_seq)


def of_these(ids: Iterable[int], in_use: Container[int], shown_seq: int, ask: Query) -> set[int]:
    """Which of these files may all go."""
    rows = (row for id in ids for row in ask(f"SELECT {FIELDS} FROM resident r WHERE r.id = ?", id))
    files = [CachedFile(*row) for row in rows]
    counts = _counts(ask, lambda: Counter(file.kind for file in files), shown_seq)
    return {file.id for file in evictable(files, in_use, counts, shown_seq)}


def kept_bytes(ask: Query) -> int:
    """What pinned and frozen files take, and at least a file of each kind that has none of these."""
    ((bytes,),) = ask(
        "SELECT coalesce(sum(coalesce(pinned, least)), 0) FROM"
        " (SELECT sum(iif(n.pinned > 0, r.bytes, NULL)) AS pinned, min(r.bytes) AS least FROM resident r"
        " JOIN node n USING (id) WHERE r.suffix IS NOT NULL GROUP BY r.parent, r.suffix)"
    )
    return int(bytes)


def _counts(
    ask: Query, candidates: Callable[[], Mapping[Kind, int]], shown_seq: int
) -> Callable[[Kind], tuple[int, int]]:
    """Counts the files of a kind, (listed, cached), up to one more than there are candidates: one is left then.

    candidates: counts those, when the first kind is counted. The last admitted are read first, as the first ones may
    all be delisted.
    """
    candidates = cache(candidates)

    def count(condition: str, kind: Kind, *values: int) -> int:
        query = f"SELECT 1 FROM resident WHERE parent = ? AND suffix = ? AND {condition} ORDER BY seq DESC LIMIT ?"
        ((files,),) = ask(f"SELECT count(*) FROM ({query})", *kind, *values, candidates()[kind] + 1)
        return int(files)

    def counts(kind: Kind) -> tuple[int, int]:
        listed = count("delisted IS NULL AND seq <= ?", kind, shown_seq)
        return listed, listed or count("1", kind)

    return counts
