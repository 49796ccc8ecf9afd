"""Puts drawn files in flight one group after another, in the order of the pass, each as soon as there is space.

A file that is cached when it is drawn is deferred: drawn once more late in the pass, as it may be evicted by then.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

import trio
from pyroaring import BitMap64

from growfs import disk
from growfs.cache.budget import Budget
from growfs.cache.catalog import Catalog, Node
from growfs.cache.store import Store
from growfs.errors import DiskFailed, NoRoom, NotMade
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.in_flight import Download
from growfs.scheduler.outage import Failure
from growfs.scheduler.readiness import MountState, PrefetchState
from growfs.scheduler.space import Space
from growfs.signal import Signal

SPACE_POLL_S = 5.0
"""How often a draw without space tries again; other programs may have freed disk space."""
SPACE_PAUSE_S = 0.2
"""Pause before space is looked for again: holds end by the hundred while a reader lists its folders, and each look
costs."""
DRAWS_PER_STEP = 64
"""Groups that are drawn before the kernel is answered again: most draws wait for nothing, and take 0.05 ms."""
DEFERRED_MAX = 256
"""Deferred files that are written in one transaction."""


class Drawer:
    """Draws groups of files. A smaller group does not overtake one that waits for space.

    oversized, not_made: files of this pass that are too large, or that the producer failed on. failed: those of this
    pass that could not be fetched, with all of their groups, as ids of an Order. defers: cached files are deferred;
    else they were deferred once before. has_deferred: some were. drawn: notified of files that were drawn in order, and
    are cached. counters: what was downloaded, drawn or not.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        fetcher: Fetcher,
        space: Space,
        budget: Budget,
        state: PrefetchState,
    ) -> None:
        self.oversized = BitMap64()
        self.not_made = BitMap64()
        self.failed = array("q")
        self._failed = BitMap64()
        self.defers = True
        self.has_deferred = False
        self.drawn = Signal[[Download]]()
        self.counters = fetcher.counters
        self._catalog = catalog
        self._store = store
        self._fetcher = fetcher
        self._space = space
        self._budget = budget
        self._state = state
        self._deferred: list[int] = []
        self._blocked_until = -math.inf

    @property
    def rotates(self) -> bool:
        """Whether files may be evicted for drawn ones."""
        return self._space.rotates

    async def draw_all(self, groups: Iterable[Sequence[int]]) -> bool:
        """Draw groups in order; False when the order is out of date."""
        for number, ids in enumerate(groups):
            if number % DRAWS_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
            if all(id in self.not_made for id in ids):
                self._state.finish(*ids)
            elif not await self.draw(ids):
                return False
        return not self._state.is_stale

    async def draw(self, ids: Sequence[int]) -> bool:
        """Draw a group as soon as there is space; False when the order is out of date."""
        state = self._state
        while (self._fetcher.window_full or self._is_start_in_flight(ids)) and not state.is_stale:
            await self._fetcher.progressed.wait()
        before = state.phase
        while not state.is_stale:
            if state.is_interrupted:
                await state.changed.wait()
                continue
            nodes = self.nodes(ids)
            missing = self._missing(nodes)
            if not missing:
                await self._defer(ids)
            elif self.is_too_large(nodes):
                self.oversized.update(node.id for node in missing)
                state.finish(*ids)
            elif not await self._start(missing, ids):
                await self._wait_for_space(missing)
                continue
            if state.phase is MountState.HELD:
                state.phase = before
            return True
        return False

    def take_failed(self) -> Sequence[int]:
        """The files that failed, which are forgotten."""
        failed, self.failed = self.failed, array("q")
        self._failed.clear()
        return failed

    def last_failure(self) -> Failure | None:
        """The latest failure of a file that is not cached yet."""
        return self._fetcher.last_failure()

    def skipped(self) -> list[tuple[str, int, str]]:
        """(reason, number of files, one of them) for the files that this pass cannot fetch."""
        reasons = {"larger than the whole cache": self.oversized, "the producer failed on it": self.not_made}
        return [(reason, len(ids), self._path(ids.min())) for reason, ids in reasons.items() if ids]

    def _path(self, id: int) -> str:
        node = self._catalog.node(id)
        return self._catalog.path(node) if node else ""

    async def wait_until_finished(self) -> bool:
        """Wait for all downloads in flight; False when the order is out of date."""
        await self._write_deferred()
        while self._fetcher.in_flight and not self._state.is_stale:
            await self._fetcher.progressed.wait()
        return not self._state.is_stale

    def nodes(self, ids: Iterable[int]) -> list[Node]:
        """Those of these files that the catalog still has."""
        return [node for id in ids if (node := self._catalog.node(id))]

    def is_in_flight(self, id: int) -> bool:
        """Whether a file is being downloaded."""
        return self._fetcher.download(id) is not None

    def is_too_large(self, nodes: Sequence[Node]) -> bool:
        """Whether a group can never be cached completely."""
        return sum(self._needs(nodes)) > self._store.max_file_bytes

    def _needs(self, nodes: Sequence[Node]) -> list[int]:
        """Bytes on the disk, for each."""
        return [disk.allocation(self._fetcher.need(node)) for node in nodes]

    def _missing(self, nodes: Sequence[Node]) -> list[Node]:
        """Those that are neither cached nor in flight."""
        return [node for node in nodes if node.seq is None and not self.is_in_flight(node.id)]

    def _is_start_in_flight(self, ids: Sequence[int]) -> bool:
        """Whether what the start waits for is in flight: these files beside it would only slow it down."""
        store, condition = self._store, self._state.condition
        if condition.no_wait:
            return False
        files, bytes = condition.amount(store.limit_bytes)
        if not condition.explicit:
            bytes = max(bytes, self._state.seeds.bytes)
        if store.resident_files >= files and store.resident_content_bytes >= bytes:
            return False
        if not condition.explicit and any(self._fetcher.is_guess(node) for node in self.nodes(ids)):
            return False  # what is reserved for files of unknown size may be far more than they have
        enough_files = store.resident_files + self._fetcher.in_flight >= files
        return enough_files and store.resident_content_bytes + store.reserved_bytes >= bytes

    async def _start(self, nodes: list[Node], ids: Sequence[int]) -> bool:
        """Put the missing files of a group in flight, if there is space for them."""
        if trio.current_time() < self._blocked_until or not self._budget.covers(self._store.reserved_bytes):
            return False
        needs = self._needs(nodes)
        reserved = self._reserve(nodes, sum(needs))
        if reserved is None:
            reserved = await self._evict_and_reserve(nodes, sum(needs))
            if reserved is not None and self._missing(self.nodes(ids)) != nodes:  # a miss fetches some of them by now
                self._store.unreserve(reserved)
                return False
        if reserved is None:
            return False
        if reserved < sum(needs):
            needs = [reserved]
        self._store.wanted_bytes = 0
        group_ids = tuple(ids) if len(ids) > 1 else ()
        self._fetcher.draw(dict(zip(nodes, needs, strict=True)), group_ids, self._handle_finished)
        return True

    def _reserve(self, nodes: Sequence[Node], need: int) -> int | None:
        """Reserve for a group what is free; for a single file whose size is a guess, less than `need` is enough."""
        reserved = self._store.reserve(need)
        if reserved is None and (least := self._least(nodes)) < need:
            reserved = self._store.reserve_part(need, least)
        return reserved

    def _least(self, nodes: Sequence[Node]) -> int:
        return disk.allocation(self._fetcher.least(nodes[0])) if len(nodes) == 1 else sum(self._needs(nodes))

    async def _evict_and_reserve(self, nodes: Sequence[Node], need: int) -> int | None:
        is_frozen = self._state.seeds.is_frozen(nodes[0].id)
        for size in dict.fromkeys((need, self._least(nodes))):
            if is_frozen:
                reserved = await self._space.reserve_by_eviction(size, keep_held=True)
            else:
                reserved = await self._space.reserve_by_rotation(size)
            if reserved is not None:
                self._state.phase = self._state.phase if is_frozen else MountState.ROTATING
                return reserved
        return None

    async def _wait_for_space(self, nodes: list[Node]) -> None:
        await self._write_deferred()
        if self._fetcher.in_flight:
            await self._fetcher.progressed.wait()
            return
        self._store.wanted_bytes = self._least(nodes)
        self._state.phase = MountState.HELD
        with trio.move_on_after(SPACE_POLL_S):
            await self._store.space_freed.wait()
            await trio.sleep(SPACE_PAUSE_S)

    async def _defer(self, ids: Sequence[int]) -> None:
        self._state.finish(*ids)
        if self.defers:
            self.has_deferred = True
            self._deferred.extend(ids)
            if len(self._deferred) >= DEFERRED_MAX:
                await self._write_deferred()

    async def _write_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        if deferred:
            await self._catalog.defer(deferred, self._catalog.pass_number)

    def _handle_finished(self, download: Download) -> None:
        id, error = download.node.id, download.error
        if isinstance(error, NotMade):  # the producer has tried as often as it may
            self.not_made.add(id)
        elif error:
            self._note_failed(download.group.ids or (id,))
            self._state.seeds.fail(id, error)
        elif self.defers:
            self.drawn.notify(download)
        if isinstance(error, (NoRoom, DiskFailed)):
            self._blocked_until = trio.current_time() + SPACE_POLL_S
        self._state.finish(id)

    def _note_failed(self, ids: Sequence[int]) -> None:
        first, *others = ids
        if first not in self._failed:  # else another of the group failed before
            self._failed.add(first)
            self.failed.extend((first, *(-id for id in others)))
