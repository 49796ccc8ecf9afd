"""Makes room: reads from the database which cached files may be evicted, and evicts those that the rules pick."""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import trio

from growfs import disk
from growfs.cache.database import Database
from growfs.cache.schema import Query
from growfs.cache.store import Store
from growfs.rotation.eviction import delisted_groups, draw_candidates, evictable, miss_candidates, pick_victims
from growfs.rotation.generations import Generations
from growfs.rotation.queries import DELISTED, FIELDS, LISTED, UNLISTED
from growfs.rotation.rules import CachedFile, Holds, Kind

log = logging.getLogger(__name__)

ROWS_MAX = (256, 100_000)
"""How many files of each sort are read to make room; the second number where the first was not enough."""
BATCH_PARTS = 500
"""A draw evicts up to one part in 500 of the cache at a time, where so much is delisted: each time costs a commit."""


class Candidates(Protocol):
    """Reads which files may be evicted, in order. in_use: ids of open files. most: how many files of each sort."""

    def __call__(self, ask: Query, in_use: Container[int], most: int) -> list[CachedFile]: ...


class Evictor:
    """Makes room in the store. Owns the lock under which that happens, so that no two calls count on the same bytes.

    holds: returns what readers hold at that moment.
    """

    def __init__(self, database: Database, store: Store, generations: Generations, holds: Callable[[], Holds]) -> None:
        self._db = database
        self._store = store
        self._generations = generations
        self._holds = holds
        self._making_room = trio.Lock()

    @property
    def rotates(self) -> bool:
        """Whether delisted files give way to others."""
        return self._generations.rotates

    async def reserve_by_rotation(self, size: int) -> int | None:
        """As Store.reserve, evicting delisted files that nobody holds where that is needed.

        None also where nothing rotates. Where a generation begins meanwhile, this waits until its changes are written.
        Given up, it would be tried again with the next generation, and so without end for a reader whose epochs are as
        short as the pauses.
        """
        if not self._generations.rotates:
            return None
        async with self._generations.unchanged() as is_written:
            if not is_written:
                return None
            async with self._making_room:
                short = self._store.bytes_short(disk.allocation(size))
                if short > 0:
                    candidates = partial(_for_a_draw, self._holds(), self._store.shown_seq)
                    await self._evict(await self._pick(candidates, short, self._store.limit_bytes // BATCH_PARTS))
                return self._store.reserve(size)  # no other task runs in between

    async def reserve_by_eviction(self, size: int) -> int | None:
        """As Store.reserve, evicting what the rules allow for a miss where that is needed."""
        async with self._making_room:
            short = self._store.bytes_short(disk.allocation(size))
            if short > 0:
                await self._evict(await self._pick(self._for_a_miss(), short), return_to_pass=True)
            return self._store.reserve(size)  # no other task runs in between

    async def shrink(self, limit_bytes: int) -> bool:
        """Change the quota and evict what exceeds it; returns whether the cache is within it now."""
        self._store.set_limit(limit_bytes)
        async with self._making_room:
            if (excess := self._store.used_bytes - limit_bytes) > 0:
                await self._evict(await self._pick(self._for_a_miss(), excess), return_to_pass=True)
            if self._store.used_bytes > limit_bytes:  # all that may go does not free enough, and goes all the same
                everything = await self._pick(self._for_a_miss(), 1, sys.maxsize, ROWS_MAX[-1:])
                await self._store.evict(everything, return_to_pass=True)
        return self._store.used_bytes <= limit_bytes

    async def evictable(self, ids: Sequence[int]) -> set[int]:
        """Which of these files may all go: none is in use, and each directory keeps a file of each extension."""
        open_files, shown_seq = self._store.open_files, self._store.shown_seq
        allowed = await self._db.query_in_thread(partial(_of_these, ids, open_files.ids, shown_seq))
        return {id for id in allowed if id not in open_files}  # opened meanwhile, or mapped

    def _for_a_miss(self) -> Candidates:
        return partial(_for_a_miss, self._holds(), self._store.shown_seq)

    async def _pick(
        self, candidates: Candidates, need: int, ample: int = 0, rows_max: Sequence[int] = ROWS_MAX
    ) -> list[int]:
        """The ids to evict for need bytes, or for ample if the candidates have as many; none where they have too few.

        The candidates are read on a thread: to find that a hundred thousand files are held takes a second.
        """
        in_use = self._store.open_files.ids
        for most in rows_max:
            while True:
                files = await self._db.query_in_thread(partial(candidates, in_use=in_use, most=most))
                chosen = pick_victims(files, max(need, min(ample, sum(file.bytes for file in files))))
                opened = {id for id in chosen if id in self._store.open_files}  # opened meanwhile, or mapped
                if not opened:
                    break
                in_use |= opened
            if chosen:
                return chosen
        return []

    async def _evict(self, ids: list[int], return_to_pass: bool = False) -> None:
        try:
            await self._store.evict(ids, return_to_pass)
        except sqlite3.OperationalError as error:  # nothing is freed, and the caller waits for room
            log.warning("no room could be made: %s", error)


def _for_a_draw(holds: Holds, shown_seq: int, ask: Query, in_use: Container[int], most: int) -> list[CachedFile]:
    """Up to `most` delisted files that a draw may evict, in order."""
    files = list(draw_candidates(delisted_groups(_files(ask, DELISTED, most)), in_use, holds))
    return list(evictable(files, in_use, _counts(ask, files, shown_seq), shown_seq))


def _for_a_miss(holds: Holds, shown_seq: int, ask: Query, in_use: Container[int], most: int) -> list[CachedFile]:
    """What a miss may evict, up to `most` of each sort, in order. shown_seq: the last admission that was listed."""
    files = [
        *_files(ask, UNLISTED, shown_seq, most),
        *_files(ask, DELISTED, most),
        *_files(ask, LISTED, shown_seq, most),
    ]
    in_order = miss_candidates(files, shown_seq, holds)
    return list(evictable(in_order, in_use, _counts(ask, files, shown_seq), shown_seq))


def _of_these(ids: Iterable[int], in_use: Container[int], shown_seq: int, ask: Query) -> set[int]:
    """Which of these files may all go."""
    rows = (row for id in ids for row in ask(f"SELECT {FIELDS} FROM resident r WHERE r.id = ?", id))
    files = [CachedFile(*row) for row in rows]
    return {file.id for file in evictable(files, in_use, _counts(ask, files, shown_seq), shown_seq)}


def _files(ask: Query, query: str, *values: int) -> Iterator[CachedFile]:
    return (CachedFile(*row) for row in ask(f"{query} LIMIT ?", *values))


def _counts(ask: Query, files: Iterable[CachedFile], shown_seq: int) -> Callable[[Kind], tuple[int, int]]:
    """Counts the files of a kind, (listed, cached), up to one more than there are among `files`: one is left then.

    The last admitted are read first, as the first ones may all be delisted.
    """
    candidates = Counter(file.kind for file in files)

    def count(condition: str, kind: Kind, *values: int) -> int:
        query = f"SELECT 1 FROM resident WHERE parent = ? AND suffix = ? AND {condition} ORDER BY seq DESC LIMIT ?"
        return len(ask(query, *kind, *values, candidates[kind] + 1))

    def counts(kind: Kind) -> tuple[int, int]:
        listed = count("left_out IS NULL AND seq <= ?", kind, shown_seq)
        return listed, listed or count("1", kind)

    return counts
