"""The passes that are divided into parts, and the position of programs that list the root: they get part after part.

Until a pass begins, its division follows the catalog and the cache size.

    begun     the part that began last, which the root shows
    read      begun, once a file of it was opened. It is stored: programs go on after it, even if the mount was killed
    coming    the part after begun, or the one of --start
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable
from functools import partial

import trio

from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.schema import set_meta
from growfs.cache.store import Store
from growfs.errors import UsageError
from growfs.extensions.exact.division import divide_catalog, read_division, save_division
from growfs.rotation.parts import Division, ExactPass, PassPosition
from growfs.rotation.pass_order import Pass
from growfs.scheduler.rotating import compute_groups
from growfs.units import CacheSize, flag_size, format_size
from growfs.workers.pool import WorkerPool

log = logging.getLogger(__name__)


class Passes:
    """Owns the position, the divisions of the passes that are in use, and those of the two before the last that was
    divided.

    first: what decides the order of the first pass. part_size: the room for streamed files. start: the first part; None
    to go on after the stored one. Raises UsageError if its pass needs a larger cache.
    """

    def __init__(
        self,
        workers: WorkerPool,
        database: Database,
        catalog: Catalog,
        store: Store,
        first: Pass,
        part_size: CacheSize,
        start: PassPosition | None,
    ) -> None:
        self.first = first
        self.begun: PassPosition | None = None
        """None if no part has begun, and none is stored."""
        self.known: dict[int, Division] = {}
        """By pass."""
        self._workers = workers
        self._db = database
        self._catalog = catalog
        self._store = store
        self._part_size = part_size
        self._start = start or PassPosition(1, 1)
        self._read: PassPosition | None = None
        self._written: PassPosition | None = None  # the part that is stored
        self._revisions: dict[int, int] = {}  # of the catalog, for the passes that are divided and have not begun
        self._dividing = trio.Lock()
        if stored := database.meta("position"):
            self._resume(PassPosition(*json.loads(stored)), start)

    def _resume(self, read: PassPosition, start: PassPosition | None) -> None:
        """Go on after the part that an earlier mount has read, or from a later part of its pass on."""
        division = self._stored(read.pass_)
        if division is None:
            return
        if start is None:
            self.begun = self._read = self._written = read
        elif start.pass_ != read.pass_ or start.part == 1 or not self._has_sizes_of_now(division):
            return
        self.known[read.pass_] = division
        if self.coming.pass_ == read.pass_:
            self.check_size(self._store.room.limit_bytes)

    # The position.

    @property
    def coming(self) -> PassPosition:
        """The part that comes next."""
        return self.known[self.begun.pass_].after(self.begun.part) if self.begun else self._start

    @property
    def current(self) -> PassPosition:
        """The part that began last; the first one if none has."""
        return self.begun or self._start

    @property
    def is_read(self) -> bool:
        """Whether a file of the part that began last was opened."""
        return self._read == self.begun

    def begin(self, part: PassPosition) -> None:
        """Note that a part begins. The division of its pass is final."""
        self.begun = part
        self._revisions.pop(part.pass_, None)

    def read(self) -> None:
        """Note that a file of the part that began last was opened; `write` stores that."""
        self._read = self.begun

    async def write(self) -> None:
        """Store the part that was read last, unless it is stored."""
        while self._read and self._read != self._written:
            read = self._read
            await self._db.write_with_retry(partial(_store_position, read))
            self._written = read

    def check_size(self, bytes: int) -> None:
        """Raise UsageError if the pass has begun, and needs a larger cache than this."""
        number = self.current.pass_
        division = None if number in self._revisions else self.known.get(number)
        if division and division.needed_bytes > bytes:
            raise UsageError(
                f"pass {number} began with a cache of {format_size(division.pass_.cache_bytes)}, and its parts need"
                f" {format_size(division.needed_bytes)}: leave --cache-size at"
                f" {flag_size(division.pass_.cache_bytes)} until the pass ends, or mount again with --start"
                f" {number + 1}/1"
            )

    # Divisions.

    def is_current(self, number: int) -> bool:
        """Whether the division of a pass is known, and still counts."""
        division, revision = self.known.get(number), self._revisions.get(number)
        if division is None or revision is None:
            return division is not None
        return revision == self._catalog.revision and self._has_sizes_of_now(division)

    def may_have(self, part: PassPosition) -> bool:
        """Whether a pass has this part, as far as known."""
        division = self.known.get(part.pass_)
        return division is None or part.part <= len(division.parts) or not self.is_current(part.pass_)

    def after(self, part: PassPosition) -> PassPosition | None:
        """The part that follows; None if the pass is not divided yet."""
        division = self.known.get(part.pass_)
        return division.after(part.part) if division else None

    async def divide(self, number: int, replace: Callable[[], set[int]]) -> bool:
        """Divide a pass, unless that is done, or it begins meanwhile. Returns whether it has a new division.

        replace: called before the division is replaced; returns the passes that are in use. Raises GrowfsError,
        WorkerLost.
        """
        async with self._dividing:
            if self.is_current(number):
                return False
            if self.begun and number <= self.begun.pass_ and number not in self._revisions:  # it may have begun
                stored = self._stored(number)
                if stored and stored.needed_bytes <= self._store.room.limit_bytes:
                    self.known[number] = stored
                    return False
            first, revision = self.first, self._catalog.revision
            pass_ = ExactPass(first.seed, number, *self._sizes_now, first.share, first.group)
            division: Division
            function = partial(divide_catalog, self._db.path, pass_)
            division, ids = await compute_groups(self._workers, function, pass_.group)
            if number in self.known and number not in self._revisions:  # it has begun meanwhile
                return False
            kept = replace() | {number - 2, number - 1}
            self.known = {each: self.known[each] for each in self.known if each in kept}
            await self._db.write_with_retry(partial(save_division, division=division, ids=ids, kept=kept))
            if division.lists_all_folders:
                await self._store.admit_folders()
            self.known[number], self._revisions[number] = division, revision
        log.info(
            "pass %d has %d parts: %s stay cached, and %s are streamed",
            number, len(division.parts), format_size(division.kept_bytes), format_size(division.streamed_bytes),
        )  # fmt: skip
        return True

    def _stored(self, number: int) -> Division | None:
        """The stored division of a pass, if its files come in the same order as now."""
        division, first = read_division(self._db.rows, number), self.first
        if division is None:
            return None
        pass_ = division.pass_
        is_same = (pass_.seed, pass_.share, pass_.group) == (first.seed, first.share, first.group)
        return division if is_same else None

    @property
    def _sizes_now(self) -> tuple[int, int]:
        """The size of the cache and the room for streamed files, of the passes to come."""
        cache_bytes = self._store.room.limit_bytes
        return cache_bytes, self._part_size.of(cache_bytes)

    def _has_sizes_of_now(self, division: Division) -> bool:
        return (division.pass_.cache_bytes, division.pass_.part_bytes) == self._sizes_now


def _store_position(read: PassPosition, writer: sqlite3.Connection) -> None:
    set_meta(writer, "position", json.dumps(read))
    set_meta(writer, "pass", read.pass_)
