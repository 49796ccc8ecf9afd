"""The passes that are divided into parts. Until a pass begins, its division follows the catalog and the cache size."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import trio

from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.store import Store
from growfs.extensions.exact.division import divide_catalog, read_division, save_division
from growfs.rotation.parts import Division, ExactPass, PassPosition
from growfs.rotation.pass_order import Pass
from growfs.scheduler.rotating import compute_groups
from growfs.units import CacheSize, format_size
from growfs.workers.pool import WorkerPool

log = logging.getLogger(__name__)


class Divisions:
    """Owns the divisions of the passes that are in use, and of the two before the last that was divided.

    first: what decides the order of the first pass. part_size: the room for streamed files.
    """

    def __init__(
        self,
        workers: WorkerPool,
        database: Database,
        catalog: Catalog,
        store: Store,
        first: Pass,
        part_size: CacheSize,
    ) -> None:
        self.first = first
        self.known: dict[int, Division] = {}
        """By pass."""
        self._workers = workers
        self._db = database
        self._catalog = catalog
        self._store = store
        self._part_size = part_size
        self._revisions: dict[int, int] = {}  # of the catalog, for the passes that are divided and have not begun
        self._dividing = trio.Lock()

    def resume(self, number: int, start: PassPosition | None) -> Division | None:
        """The division of the pass that an earlier mount was in, if this one goes on with it; otherwise None.

        start: the part with which it begins; None to go on after the last one.
        """
        division = self._stored(number)
        if division is None:
            return None
        if start and (start.pass_ != number or start.part == 1 or not self._has_sizes_of_now(division)):
            return None
        self.known[number] = division
        return division

    def begin(self, number: int) -> None:
        """Note that a pass begins: its division is final."""
        self._revisions.pop(number, None)

    def begun(self, number: int) -> Division | None:
        """The final division of a pass; None if it has not begun."""
        return None if number in self._revisions else self.known.get(number)

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

    async def divide(
        self, number: int, begun: Callable[[], PassPosition | None], replace: Callable[[], set[int]]
    ) -> bool:
        """Divide a pass, unless that is done, or it begins meanwhile. Returns whether it has a new division.

        begun: returns the part that began last. replace: called before the division is replaced; returns the passes
        that are in use. Raises GrowfsError, WorkerLost.
        """
        async with self._dividing:
            if self.is_current(number):
                return False
            if (last := begun()) and number <= last.pass_ and number not in self._revisions:  # it may have begun
                stored = self._stored(number)
                if stored and stored.needed_bytes <= self._store.room.limit_bytes:
                    self.known[number] = stored
                    return False
            first, revision = self.first, self._catalog.revision
            pass_ = ExactPass(first.seed, number, *self._sizes_now, first.share, first.group)
            division: Division
            function = partial(divide_catalog, self._db.path, pass_)
            division, ids = await compute_groups(self._workers, function, pass_.group)
            if self.begun(number):
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
