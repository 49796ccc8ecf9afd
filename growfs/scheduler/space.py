"""Finds room for misses, draws and new versions, in a single loop. Nothing else reserves space for a download.

The difficulties, and their solutions:

1. Two tasks might count on the same bytes. `_by_what_is_listed` is a lock: a task that evicts reserves within it.
2. A generation might begin meanwhile, and a directory lose the last file that it lists. None begins within that lock.
3. Finding the files that may be evicted among a million takes a second. A thread reads and picks; then `_taken` checks
   which of them were opened or listed meanwhile. A file that is opened later stays readable: it becomes an orphan.
4. A request may be out of date once there is room: a reader now fetches the file, or the order of the pass has changed.
   `acquire` asks the claim before and after each look; then no task runs until the caller has the room.
5. An error between two lines must not leak bytes. A Reservation is given back once, by its owner; the waiting bytes are
   counted from the waiting claims (`WaitingClaims`), each of which leaves in a `finally`.
6. Other programs fill and free the disk, and mappings end, unnoticed. So a claim looks again by itself, less and less
   often unless a reader waits for it; a notice of `Room.freed` makes it look sooner.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial

import trio

from growfs import disk
from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Node
from growfs.cache.database import Database
from growfs.cache.room import Reservation, SizeEstimate
from growfs.cache.schema import Query
from growfs.cache.store import Store
from growfs.cache.usage import Budget
from growfs.errors import GrowfsError, NoRoom
from growfs.remote.interface import NO_OTHER, OtherSource
from growfs.rotation.eviction import pick_victims
from growfs.rotation.generations import Generations
from growfs.rotation.queries import Listed, kept_bytes, may_go, of_these
from growfs.scheduler.in_flight import Claim, Priority
from growfs.scheduler.outage import OTHERS_AGAIN_S, Outage
from growfs.signal import Signal
from growfs.units import CacheSize, format_size

log = logging.getLogger(__name__)

LOOK_AGAIN_S_MIN, LOOK_AGAIN_S_MAX = 0.5, 5.0
"""Pause before a claim looks for room again by itself; doubled each time, unless a reader waits."""
NOTICE_S = 0.2
"""Pause after a notice before a claim without a reader looks again, unless files are in flight whose room it may wait
for. While a reader lists its folders, holds end by the hundred, and each look is costly."""
ROWS_MAX = (256, 100_000)
"""How many files of each sort are read to make room; the second number is for when the first was not enough."""


class WaitingClaims:
    """Owns the claims that wait because they found no room: the next generation has to make room for them."""

    def __init__(self) -> None:
        self._changes = 0
        """How often something happened that may give them room."""
        self._claims: dict[Claim, int] = {}
        """For each claim, the number of these changes at its last look."""

    def add(self, claim: Claim) -> None:
        """Note that a claim waits."""
        claim.waits_since = trio.current_time() if claim.waits_since is None else claim.waits_since
        self._claims[claim] = self._changes

    def remove(self, claim: Claim) -> None:
        """Note that a claim does not wait, or no longer."""
        self._claims.pop(claim, None)

    def reconsider(self) -> None:
        """Note that there may be room now: a download finished, perhaps with less than its reservation."""
        self._changes += 1

    @property
    def is_draw_held(self) -> bool:
        """Whether files of the pass wait and had no room at their last look, with no change since."""
        return any(self._claims[claim] == self._changes for claim in self._draws())

    @property
    def largest(self) -> int:
        """Bytes of the largest waiting draw."""
        return max((claim.least for claim in self._draws()), default=0)

    @property
    def versions(self) -> int:
        """Bytes of the waiting new versions."""
        return sum(claim.least for claim in self._claims if claim.renews)

    def _draws(self) -> Iterator[Claim]:
        return (claim for claim in self._claims if claim.is_draw)


class Space:
    """Makes room in the store, and owns the lock for doing so.

    rotated: notified when a draw gets room that had to be made. resized: notified when the limit was changed.
    """

    def __init__(
        self,
        database: Database,
        store: Store,
        generations: Generations,
        budget: Budget,
        outage: Outage,
        sizes: SizeEstimate,
        waiting: WaitingClaims,
        holds: Callable[[], BitMap64],
        other: OtherSource = NO_OTHER,
    ) -> None:
        """holds: returns the admissions of the files that readers hold. other: decides which files draws may evict."""
        self.rotated = Signal[[]]()
        self.resized = Signal[[]]()
        self.waiting = waiting
        self._db = database
        self._store, self._room = store, store.room
        self._generations = generations
        self._budget = budget
        self._outage = outage
        self._sizes = sizes
        self._holds = holds
        self._other = other
        self._making_room = trio.Lock()
        self._missed_bytes = 0  # of the misses that wait for room to be made; meanwhile, no draw gets any
        self._warns_from = -math.inf
        self._draws_from = -math.inf

    @property
    def rotates(self) -> bool:
        """Whether delisted files are evicted for others."""
        return self._generations.rotates

    async def run(self) -> None:
        """Evict the excess over the limit when possible: after the limit is lowered, files may still be in use."""
        while True:
            while self._room.used_bytes <= self._room.limit_bytes:
                await self._room.freed.wait()
            await self._evict_excess()
            await trio.sleep(2.0)  # a mapping may end unnoticed

    # Space needed by a file.

    def is_too_large(self, nodes: Sequence[Node]) -> bool:
        """Whether files would not fit together even into an empty cache."""
        return self._sizes.most(nodes) > self._room.max_file_bytes

    # Room for a claim.

    async def acquire(self, claim: Claim, waits_first: bool = False) -> Reservation | None:
        """Reserve the space for a claim as soon as there is room; None if the claim is no longer wanted.

        Raises NoRoom, or the error of a disk that refuses to evict, if the claim has waited long enough or there never
        will be room; Unreadable. waits_first: the last reservation did not help.
        """
        pause_s, freed = LOOK_AGAIN_S_MIN, self._room.freed.count
        if waits_first:
            self.waiting.add(claim)
        try:
            while True:
                if waits_first:
                    await self._wait(claim, pause_s, freed)
                    if claim.priority is not Priority.READER:
                        pause_s = min(2 * pause_s, LOOK_AGAIN_S_MAX)
                waits_first = True
                while (self._outage.is_on if claim.is_draw else self._outage.blocks(claim.path)) and claim.is_wanted():
                    with trio.move_on_after(OTHERS_AGAIN_S):  # nothing is evicted for files that may not be fetched
                        await self._outage.ended.wait()
                if not claim.is_wanted():
                    return None
                freed = self._room.freed.count
                reservation = await self._look(claim)
                with reservation or nullcontext():
                    is_wanted = claim.is_wanted()
                if not is_wanted:
                    if reservation:
                        reservation.release()
                    return None
                if reservation:
                    return reservation
                if await self._is_hopeless(claim):
                    raise self.no_room(claim)
                self.waiting.add(claim)
        finally:
            self.waiting.remove(claim)

    def reserve_free(self, claim: Claim) -> Reservation | None:
        """Reserve the space for a claim from the free space, without waiting or evicting. Raises Unreadable."""
        is_allowed = self._may_draw or not claim.is_draw
        need = self._sizes.most(claim.nodes)
        if is_allowed and (reserved := self._room.reserve(need)):
            return reserved
        claim.least = self._sizes.least(claim.nodes)
        return self._room.reserve_half(need, claim.least) if is_allowed and claim.least < need else None

    async def _look(self, claim: Claim) -> Reservation | None:
        """Reserve the space for a claim if there is room now, or room may be made."""
        reserved = self.reserve_free(claim)
        # A reader who has waited found nothing to evict: only more room below a quota can help, and nothing tells it.
        at_once = claim.priority is Priority.READER and claim.waits_since is not None
        if reserved is None and await self._room.probe(claim.least, at_once):
            reserved = self.reserve_free(claim)
        if reserved is None and (self._may_draw or not claim.is_draw) and not self._may_be_given_back(claim):
            need = self._sizes.most(claim.nodes)
            for size in dict.fromkeys((need, claim.least)):
                if reserved := await self.reserve_by_eviction(size, claim.priority):
                    break
            if reserved and claim.priority is Priority.READER:
                with reserved:
                    reserved.extend(need)  # otherwise a draw takes the rest, and the file may turn out to be larger
        return reserved

    def _may_be_given_back(self, claim: Claim) -> bool:
        """Whether a claim without a reader should wait, for half of its patience, for space reserved by others.

        Sizes may be guesses, so the others may not need all of it.
        """
        if claim.priority is Priority.READER or claim.renews or claim.patience_s == math.inf:
            return False
        waited_s = 0.0 if claim.waits_since is None else trio.current_time() - claim.waits_since
        return waited_s < claim.patience_s / 2 and self._room.short(claim.least) <= self._room.reserved_bytes

    def pause_draws(self) -> None:
        """Give no draw room for a while."""
        self._draws_from = trio.current_time() + 5.0  # the next file would fail as well

    def no_room(self, claim: Claim) -> GrowfsError:
        """The error for files if nothing may be evicted for them, or the disk refuses to evict."""
        if refusal := self._db.refusal:
            return disk.cannot_write(refusal)
        why = "everything cached is open, pinned or the last file in its directory; raise --cache-size"
        if self._room.excess_bytes:
            why = f"other data takes up the cache's space in {self._store.folder}; delete something there"
        elif claim.priority is not Priority.READER:
            why = "the rest is held by readers, pinned, or reserved for files in flight; growfs tries again"
        return NoRoom(
            f"{claim.path}: no room for {claim.least or self._sizes.most(claim.nodes)} bytes besides the"
            f" {self._room.free_bytes()} that are free; {why}"
        )

    @property
    def _may_draw(self) -> bool:
        is_allowed = not self._missed_bytes and trio.current_time() >= self._draws_from
        return is_allowed and self._budget.covers(self._room.reserved_bytes)

    async def _is_hopeless(self, claim: Claim) -> bool:
        """Whether a claim that found no room should not wait, or not any longer."""
        if claim.patience_s == math.inf:
            return False
        if claim.waits_since is not None:
            return trio.current_time() >= claim.waits_until
        return claim.patience_s <= 0 or not await self._may_ever_fit(claim.least)

    async def _may_ever_fit(self, bytes: int) -> bool:
        """Whether files may fit once nothing is open or in flight: not if pinned and last files take too much."""
        await self._generations.reconsider_last_files()
        kept = await self._db.query_in_thread(partial(kept_bytes, self._generations.listed.keeps_last))
        return kept + bytes <= self._room.limit_bytes

    async def _wait(self, claim: Claim, pause_s: float, freed: int) -> None:
        """Return when there may be new room, or the claim has waited long enough. freed: how often there was at the
        last look."""
        with trio.move_on_at(min(trio.current_time() + pause_s, claim.waits_until)):
            if self._room.freed.count == freed:
                await self._room.freed.wait()
            is_patient = claim.priority is not Priority.READER and not self._room.reserved_bytes
            if is_patient and claim.is_wanted():
                await trio.sleep(NOTICE_S)

    # Eviction.

    async def reserve_by_eviction(self, size: int, priority: Priority) -> Reservation | None:
        """Like Store.reserve, but evict files if needed, as far as the rules allow for that priority.

        Also returns None if the disk refuses to write a generation and, for a draw, if nothing rotates or the files are
        awaited. If a generation begins meanwhile, this waits until its changes are written. Giving up would mean trying
        again with the next generation, endlessly for a reader whose epochs are as short as the pauses.
        """
        is_draw = priority is Priority.DRAW
        if is_draw and not self._generations.rotates:
            return None
        missed = disk.allocation(size) if priority is Priority.READER else 0
        self._missed_bytes += missed
        try:
            async with self._by_what_is_listed() as is_known:
                reserved = await self._evict_for(size, priority) if is_known else None
        finally:
            self._missed_bytes -= missed
        if reserved and is_draw:
            self.rotated.notify()
        elif reserved and missed and not self._missed_bytes and self.waiting.largest:
            self._room.freed.notify()  # for draws: when room was freed, they were held back
        return reserved

    async def _evict_for(self, size: int, priority: Priority) -> Reservation | None:
        is_draw = priority is Priority.DRAW
        # A draw evicts more than it needs, if as much is delisted: each eviction costs a commit.
        ample = self._room.limit_bytes // 500 if is_draw else 0
        for _ in range(2):  # the disk may free less than the files took: btrfs writes metadata to delete them
            short = self._room.short(disk.allocation(size))
            if short <= 0:
                break
            chosen = list[int]()
            if priority is Priority.READER and (of_all := self._room.short(self._missed_bytes)) > short:
                chosen = await self._pick(priority, of_all)  # one commit makes room for all misses that wait here
            chosen = chosen or await self._pick(priority, short, ample)
            # Others have taken more of the disk than they should. The cache makes up for it, with each generation a
            # part, if it can then still hold files of this size.
            if not chosen and 0 < self._room.excess_bytes <= self._store.resident_bytes - size:
                chosen = await self._pick(Priority.DRAW, 1, short)
            if not chosen:
                break
            if is_draw and self._other.awaits(chosen):
                return None
            await self._evict(chosen, return_to_pass=not is_draw)
        return self._room.reserve(size)  # no other task runs in between

    async def set_cache_size(self, size: CacheSize) -> None:
        """Change the limit, and evict the excess. Raises GrowfsError if not all of it can be evicted.

        It looks twice: the kernel tells late of files that were just closed, downloads end, and a full disk has room
        for the catalog after refusing it once.
        """
        room = self._room
        room.set_cache_size(size)
        await self._evict_excess()
        if room.used_bytes > room.limit_bytes:
            await trio.sleep(LOOK_AGAIN_S_MIN)
            await self._evict_excess()
        self.resized.notify()
        if room.used_bytes > room.limit_bytes:
            if refusal := self._db.refusal:
                raise disk.cannot_write(refusal)
            raise GrowfsError(
                f"cache-size is now {format_size(room.limit_bytes)}, but {format_size(room.used_bytes)} cannot be"
                " evicted: open files (until they are closed), files being fetched, pinned files, or the last files in"
                " directories"
            )

    async def evict(self, ids: Sequence[int]) -> int:
        """Evict those of these files, with their groups, that are not in use or pinned, but keep a file of each
        extension in each directory.

        Returns the bytes that they took.
        """
        async with self._by_what_is_listed() as is_known:
            if not is_known:
                return 0
            await self._generations.reconsider_last_files()
            listed = self._generations.listed
            chosen = await self._choose(lambda _, in_use, ask: of_these(ids, in_use, listed, ask), keeps_listed=False)
            return await self._store.evict(chosen)

    async def mark(self, unneeded: Sequence[int], needed: Sequence[int], is_current: Callable[[], bool]) -> bool:
        """Allow files to be evicted for draws, and forbid it for others; False if some of these are gone already.

        is_current: whether that is still the generation that these files were found for; if not, nothing is marked.
        """
        async with self._by_what_is_listed() as is_known:
            if not (is_known and is_current()):
                return False
            return await self._store.mark(unneeded, self._generations.number, needed)

    @asynccontextmanager
    async def _by_what_is_listed(self) -> AsyncIterator[bool]:
        """Keep new generations and other evictions out of the block. Yields whether the rows say what is listed.

        Otherwise the last file that a directory lists might be evicted because another one was listed before.
        """
        async with self._generations.unchanged() as is_written, self._making_room:
            yield is_written

    async def _evict_excess(self) -> None:
        """Evict the excess over the limit, or all that may go. Each round reads at most ROWS_MAX files of each sort."""
        store, room, evicted = self._store, self._room, -1
        while store.evicted_files != evicted and room.used_bytes > room.limit_bytes:
            evicted = store.evicted_files
            async with self._by_what_is_listed() as is_known:
                if is_known and (excess := room.used_bytes - room.limit_bytes) > 0:
                    chosen = await self._pick(Priority.READER, excess)
                    # If evicting everything allowed does not free enough, evict it all the same.
                    chosen = chosen or await self._pick(Priority.READER, 1, sys.maxsize, ROWS_MAX[-1:])
                    await self._evict(chosen, return_to_pass=True)

    async def _pick(
        self, priority: Priority, need: int, ample: int = 0, rows_max: Sequence[int] = ROWS_MAX
    ) -> list[int]:
        """The ids to evict for `need` bytes, or for `ample` if the candidates have as many; none if they have too few.

        A thread reads the candidates and picks: finding that a hundred thousand files are held takes a second.
        """
        for most in rows_max:
            if chosen := await self._choose(partial(_pick, priority, self._generations.listed, most, need, ample)):
                return chosen
        if priority is not Priority.DRAW and await self._generations.reconsider_last_files():
            return await self._pick(priority, need, ample, rows_max)
        return []

    async def _choose(
        self, pick: Callable[[BitMap64, set[int], Query], list[int]], keeps_listed: bool = True
    ) -> list[int]:
        """The ids that a function picks on a thread, given what is held and what is in use, once no reader has come for
        one of them meanwhile. keeps_listed: not even to list it.
        """
        held, in_use = self._holds(), self._store.open_files.ids
        while True:
            chosen = await self._db.query_in_thread(partial(pick, held, in_use))
            if not (taken := await self._taken(chosen, held if keeps_listed else None)):
                return chosen
            held, in_use = self._holds(), in_use | taken

    async def _taken(self, ids: Sequence[int], held: BitMap64 | None) -> set[int]:
        """Those of these files that were opened since a thread picked them, or are mapped, or that were not held then,
        but are now. held: what was; None if that does not matter.

        Requests are answered meanwhile. A file that is opened between this and its eviction stays readable.
        """
        taken = set[int]()
        for start in range(0, len(ids), 1000):  # at 2 us each
            checked = ids[start : start + 1000]
            taken.update(id for id in checked if self._store.is_in_use(id))
            if held is not None and (listed := self._holds() - held):
                taken.update(id for id in checked if (file := self._store.located(id)) and file.seq in listed)
            await trio.lowlevel.checkpoint()
        return taken

    async def _evict(self, ids: list[int], return_to_pass: bool) -> None:
        try:
            await self._store.evict(ids, return_to_pass)
        except sqlite3.DatabaseError as error:  # nothing is freed, and the caller waits for room
            if trio.current_time() >= self._warns_from:
                log.warning("cannot make room: %s; check the cache's disk (dmesg)", error)
                self._warns_from = trio.current_time() + 60.0  # each draw and each miss tries it again


def _pick(
    priority: Priority, listed: Listed, most: int, need: int, ample: int, held: BitMap64, in_use: set[int], ask: Query
) -> list[int]:
    """The ids to evict. most: how many files of each sort are read."""
    is_draw, takes_held = priority is Priority.DRAW, priority is Priority.READER
    return pick_victims(may_go(ask, held, listed, in_use, most, is_draw, takes_held), need, ample)
