"""Makes room: reads from the database which cached files may be evicted, and evicts those that the rules pick."""

from __future__ import annotations

import logging
import math
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Protocol

import trio
from humanfriendly import format_size

from growfs import disk
from growfs.cache.database import Database
from growfs.cache.schema import Query
from growfs.cache.store import Store
from growfs.errors import GrowfsError
from growfs.rotation.eviction import pick_victims
from growfs.rotation.generations import Generations
from growfs.rotation.queries import for_a_draw, for_a_miss, kept_bytes, of_these
from growfs.rotation.rules import CachedFile, Holds
from growfs.signal import Signal
from growfs.units import CacheSize

log = logging.getLogger(__name__)

ROWS_MAX = (256, 100_000)
"""How many files of each sort are read to make room; the second number where the first was not enough."""
CHECKED_FILES_MAX = 1000
"""Files that are checked in one step for whether they are open or mapped: 2 us each."""
EXCESS_POLL_S = 2.0
"""How often eviction is tried again while the cache exceeds its quota: a mapping may end unnoticed."""
WARN_EVERY_S = 60.0
"""How often the log says that the disk refuses to evict: each draw and each miss tries it again."""
BATCH_PARTS = 500
"""A draw evicts up to one part in 500 of the cache at a time, where so much is delisted: each time costs a commit."""


class Candidates(Protocol):
    """Reads which files may be evicted, in order. in_use: ids of open files. most: how many files of each sort."""

    def __call__(self, ask: Query, in_use: Container[int], most: int) -> Iterator[CachedFile]: ...


class Space:
    """Makes room in the store. Owns the lock under which that happens, so that no two calls count on the same bytes.

    holds: returns what readers hold at that moment. are_awaited: whether a draw is not to evict these files yet,
    because another node is about to draw some of them from this one.
    """

    def __init__(
        self,
        database: Database,
        store: Store,
        generations: Generations,
        holds: Callable[[], Holds],
        are_awaited: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        self._db = database
        self._store = store
        self._generations = generations
        self._holds = holds
        self.resized = Signal[[]]()
        self._making_room = trio.Lock()
        self._warns_from = -math.inf
        self._are_awaited = are_awaited

    @property
    def rotates(self) -> bool:
        """Whether delisted files give way to others."""
        return self._generations.rotates

    def unchanged_generation(self) -> AbstractAsyncContextManager[bool]:
        """As Generations.unchanged, for what gives a listed file another id."""
        return self._generations.unchanged()

    async def run(self) -> None:
        """Evict what exceeds the quota, once that is possible: after it was lowered, files may still be in use."""
        while True:
            while self._store.used_bytes <= self._store.limit_bytes:
                await self._store.space_freed.wait()
            await self._evict_excess()
            await trio.sleep(EXCESS_POLL_S)

    async def reserve_by_rotation(self, size: int) -> int | None:
        """As Store.reserve, evicting delisted files that nobody holds where that is needed.

        None also where nothing rotates, and while the files are awaited. Where a generation begins meanwhile, this
        waits until its changes are written. Given up, it would be tried again with the next generation, and so without
        end for a reader whose epochs are as short as the pauses.
        """
        if not self._generations.rotates:
            return None
        async with self._by_what_is_listed() as is_known:
            if not is_known:
                return None
            short = self._store.bytes_short(disk.allocation(size))
            if short > 0:
                candidates = partial(for_a_draw, self._holds(), self._store.shown_seq)
                chosen = await self._pick(candidates, short, self._store.limit_bytes // BATCH_PARTS)
                if chosen and self._are_awaited and self._are_awaited(chosen):
                    return None
                await self._evict(chosen)
            return self._store.reserve(size)  # no other task runs in between

    async def reserve_by_eviction(self, size: int, keep_held: bool = False) -> int | None:
        """As Store.reserve, evicting what the rules allow for a miss where that is needed.

        keep_held: but not what readers hold. None also where the disk refuses to write a generation.
        """
        if (reserved := self._store.reserve(size)) is not None:
            return reserved  # without waiting for a generation
        async with self._by_what_is_listed() as is_known:
            if not is_known:
                return None
            short = self._store.bytes_short(disk.allocation(size))
            if short > 0:
                await self._evict(await self._pick(self._for_a_miss(keep_held), short), return_to_pass=True)
            return self._store.reserve(size)  # no other task runs in between

    @asynccontextmanager
    async def _by_what_is_listed(self) -> AsyncIterator[bool]:
        """No generation begins within, and nothing else is evicted. Yields whether the rows say what is listed.

        Else the last file that a directory lists might be evicted, because another one was listed before.
        """
        async with self._generations.unchanged() as is_written, self._making_room:
            yield is_written

    async def may_ever_fit(self, size: int) -> bool:
        """Whether a file may fit once nothing is open or in flight: unless pinned and last files take too much."""
        kept = await self._db.query_in_thread(kept_bytes)
        return kept + disk.allocation(size) <= self._store.limit_bytes

    async def set_cache_size(self, size: CacheSize) -> None:
        """Change the quota, and evict what exceeds it. Raises GrowfsError if not all of that can go."""
        store = self._store
        store.set_cache_size(size)
        await self._evict_excess()
        self.resized.notify()
        if store.used_bytes > store.limit_bytes:
            raise GrowfsError(
                f"cache-size is {format_size(store.limit_bytes)} now, but {format_size(store.used_bytes)} cannot be"
                " evicted: open files, which go once they are closed, pinned files, or a directory's last files"
            )

    async def _evict_excess(self) -> None:
        store = self._store
        async with self._by_what_is_listed() as is_known:
            if is_known and (excess := store.used_bytes - store.limit_bytes) > 0:
                candidates = self._for_a_miss()
                chosen = await self._pick(candidates, excess)
                # Where all that may go does not free enough, it goes all the same.
                chosen = chosen or await self._pick(candidates, 1, sys.maxsize, ROWS_MAX[-1:])
                await self._evict(chosen, return_to_pass=True)

    async def evict(self, ids: Sequence[int]) -> int:
        """Evict those of these files that are not in use, but of each directory keep a file of each extension.

        Returns the bytes that they took.
        """
        store = self._store
        async with self._by_what_is_listed() as is_known:
            if not is_known:
                return 0
            allowed = await self._db.query_in_thread(partial(of_these, ids, store.open_files.ids, store.shown_seq))
            allowed -= await self._opened(list(allowed))
            return await store.evict([id for id in ids if id in allowed])

    def _for_a_miss(self, keep_held: bool = False) -> Candidates:
        return partial(for_a_miss, self._holds(), self._store.shown_seq, keep_held)

    async def _pick(
        self, candidates: Candidates, need: int, ample: int = 0, rows_max: Sequence[int] = ROWS_MAX
    ) -> list[int]:
        """The ids to evict for need bytes, or for ample if the candidates have as many; none where they have too few.

        A thread reads the candidates and picks: to find that a hundred thousand files are held takes a second.
        """
        in_use = self._store.open_files.ids
        for most in rows_max:
            while True:
                chosen = await self._db.query_in_thread(partial(_pick, candidates, in_use, most, need, ample))
                opened = await self._opened(chosen)
                if not opened:
                    break
                in_use |= opened
            if chosen:
                return chosen
        return []

    async def _opened(self, ids: Sequence[int]) -> set[int]:
        """Which of these files were opened since a thread picked them, or are mapped. Requests are answered meanwhile.

        A file that is opened between this and its eviction stays readable.
        """
        opened = set[int]()
        for start in range(0, len(ids), CHECKED_FILES_MAX):
            opened.update(id for id in ids[start : start + CHECKED_FILES_MAX] if id in self._store.open_files)
            await trio.lowlevel.checkpoint()
        return opened

    async def _evict(self, ids: list[int], return_to_pass: bool = False) -> None:
        try:
            await self._store.evict(ids, return_to_pass)
        except sqlite3.DatabaseError as error:  # nothing is freed, and the caller waits for room
            if trio.current_time() >= self._warns_from:
                log.warning("no room could be made: %s; look at the cache's disk (dmesg)", error)
                self._warns_from = trio.current_time() + WARN_EVERY_S


def _pick(candidates: Candidates, in_use: Container[int], most: int, need: int, ample: int, ask: Query) -> list[int]:
    """The ids of the candidates to evict for need bytes, or for ample where they have as many."""
    return pick_victims(candidates(ask, in_use, most), need, ample)
