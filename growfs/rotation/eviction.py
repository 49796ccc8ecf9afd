"""Making room: which resident files may go, in which order, and their eviction.

The facts come from the database and the open files; the rules are rotation's.
"""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any

import trio

from growfs import disk
from growfs.cache.database import Database
from growfs.cache.open_files import OpenFiles
from growfs.cache.schema import Query
from growfs.cache.store import Store
from growfs.rotation.generations import Generations
from growfs.rotation.rules import Holds, Kind, Victim, eviction

log = logging.getLogger(__name__)

ROW = "r.id, r.parent, r.suffix, r.bytes, r.turn, r.seq, r.left_out"
LEFT_OUT = "r.left_out IS NOT NULL", "r.left_out, r.turn"
UNSHOWN = "r.left_out IS NULL AND r.seq > ?", "r.seq DESC"
LISTED = "r.left_out IS NULL AND r.seq <= ?", "r.turn"


LOOKS = (256, 100_000)
"""How many files of each sort are looked at when room is made; the second number where the first was not enough."""
ROOM_SHARE = 500
"""One part in 500 of the cache is made room at a time, where that much is left out: each time costs a commit."""


class Evictor:
    """Makes room in the store. Owns the lock under which that happens, so that no two calls count on the same bytes.

    holds: what readers hold at that moment.
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
        """As Store.reserve, deleting what is left out and not held where that is needed.

        None also where nothing rotates. Where a generation begins meanwhile, what it decided is waited for: given up,
        it would be tried again with the next one, and so for ever by a reader whose epochs are as short as the pauses.
        """
        if not self._generations.rotates:
            return None
        async with self._generations.unchanged() as is_written:
            if not is_written:
                return None
            async with self._making_room:
                over = self._store.bytes_short(disk.allocation(size))
                if over > 0:
                    may_go = partial(expendable, holds=self._holds(), shown_seq=self._store.shown_seq)
                    await self._evict(await self._chosen(may_go, over, self._store.limit_bytes // ROOM_SHARE))
                return self._store.reserve(size)  # before anybody else runs

    async def reserve_by_eviction(self, size: int) -> int | None:
        """As Store.reserve, evicting what the rules allow where that is needed: see `victims` for their order."""
        async with self._making_room:
            over = self._store.bytes_short(disk.allocation(size))
            if over > 0:
                await self._evict(await self._chosen(self._victims(), over), return_to_pass=True)
            return self._store.reserve(size)  # before anybody else runs

    async def shrink(self, limit_bytes: int) -> bool:
        """Change the quota; evicts what it must, and says whether that was enough."""
        self._store.set_limit(limit_bytes)
        async with self._making_room:
            if (over := self._store.used_bytes - limit_bytes) > 0:
                await self._evict(await self._chosen(self._victims(), over), return_to_pass=True)
            if self._store.used_bytes > limit_bytes:  # all that may go is not enough, and goes all the same
                everything = await self._chosen(self._victims(), 1, sys.maxsize, LOOKS[-1:])
                await self._store.evict(everything, return_to_pass=True)
        return self._store.used_bytes <= limit_bytes

    def evictable(self, files: list[tuple[int, Kind]]) -> set[int]:
        """Which of these may all go: none is open, and each directory keeps one of each extension."""
        return evictable(self._db.rows, self._store.open_files, files, self._store.shown_seq)

    def _victims(self) -> Callable[..., list[Victim]]:
        return partial(victims, holds=self._holds(), shown_seq=self._store.shown_seq)

    async def _chosen(
        self, may_go: Callable[..., list[Victim]], need: int, ample: int = 0, looks: Sequence[int] = LOOKS
    ) -> list[int]:
        return await choose(self._db, self._store.open_files, may_go, need, ample, looks)

    async def _evict(self, ids: list[int], return_to_pass: bool = False) -> None:
        try:
            await self._store.evict(ids, return_to_pass)
        except sqlite3.OperationalError as error:  # there is no room then, and who asked for it waits
            log.warning("no room could be made: %s", error)


async def choose(
    db: Database,
    open: OpenFiles,
    may_go: Callable[..., list[Victim]],
    need: int,
    ample: int = 0,
    looks: Sequence[int] = LOOKS,
) -> list[int]:
    """The ids of files to evict for need bytes, or for ample if there are as many; none where that cannot be.

    may_go: `expendable` or `victims`. It looks on a thread: to find that a hundred thousand files are held takes a
    second.
    """
    in_use = open.ids
    for most in looks:
        while True:
            files = await db.query_in_thread(partial(may_go, in_use=in_use, most=most))
            chosen = eviction(files, max(need, min(ample, sum(file.bytes for file in files))))
            if not (taken := {id for id in chosen if id in open}):  # opened meanwhile, or mapped
                break
            in_use |= taken
        if chosen:
            return chosen
    return []


def expendable(ask: Query, in_use: Container[int], holds: Holds, shown_seq: int, most: int) -> list[Victim]:
    """Up to `most` files that are left out and that nobody holds, in the order in which they are to go.

    Of what leaves as one, nothing goes while any of it is held or open.
    """
    rows = _rows(ask, LEFT_OUT, most)
    kept = {row[4] for row in rows if row[0] in in_use or holds.cover(row[1], *row[5:])}
    return _allowed(ask, in_use, (row for row in rows if row[4] not in kept), shown_seq)


def victims(ask: Query, in_use: Container[int], holds: Holds, shown_seq: int, most: int) -> list[Victim]:
    """What a miss may take the place of, up to `most` of each sort, in that order.

    Files that no reader saw listed, the last first; those left out, first what nobody holds; those listed, the oldest
    first. shown_seq: the last admission that a generation showed.
    """
    left_out = _rows(ask, LEFT_OUT, most)
    held = [holds.cover(row[1], *row[5:]) for row in left_out]
    return _allowed(
        ask,
        in_use,
        [
            *_rows(ask, UNSHOWN, most, shown_seq),
            *(row for row, kept in zip(left_out, held, strict=True) if not kept),
            *(row for row, kept in zip(left_out, held, strict=True) if kept),
            *_rows(ask, LISTED, most, shown_seq),
        ],
        shown_seq,
    )


def evictable(ask: Query, in_use: Container[int], files: Iterable[tuple[int, Kind]], shown_seq: int) -> set[int]:
    """Which of these may all go: none is in use, and each directory keeps one of each extension.

    One that is listed, if any is: its listing would be empty else, although a file is there that is left out and open.
    """
    files = list(files)
    asked = Counter(kind for _, kind in files)
    left: dict[Kind, set[int]] = {}
    allowed = set()
    for id, kind in files:
        if kind not in left:
            most = asked[kind] + 1  # of these one is left, if all that are asked for go
            left[kind] = _ids(ask, kind, "left_out IS NULL AND seq <= ?", shown_seq, most) or _ids(ask, kind, "1", most)
        if id not in in_use and left[kind] != {id}:
            left[kind].discard(id)
            allowed.add(id)
    return allowed


def _rows(ask: Query, which: tuple[str, str], most: int, *values: object) -> list[Any]:
    condition, order = which
    return ask(
        f"SELECT {ROW} FROM resident r JOIN node n USING (id)"
        f" WHERE r.suffix IS NOT NULL AND n.pinned = 0 AND {condition} ORDER BY {order} LIMIT ?",
        *values,
        most,
    )


def _allowed(ask: Query, in_use: Container[int], rows: Iterable[Any], shown_seq: int) -> list[Victim]:
    rows = list(rows)
    allowed = evictable(ask, in_use, [(row[0], (row[1], row[2])) for row in rows], shown_seq)
    return [Victim(row[0], row[3], row[4]) for row in rows if row[0] in allowed]


def _ids(ask: Query, kind: Kind, condition: str, *values: int) -> set[int]:
    """Files of that extension in a directory, up to so many; the last ones, as the first may all be left out."""
    query = f"SELECT id FROM resident WHERE parent = ? AND suffix = ? AND {condition} ORDER BY seq DESC LIMIT ?"
    return {id for (id,) in ask(query, *kind, *values)}
