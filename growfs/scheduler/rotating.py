"""What is drawn and listed when files replace others: the order of each pass, and the plan of each generation."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from growfs import disk
from growfs.cache.catalog import Catalog, Node
from growfs.cache.database import Database
from growfs.cache.store import Store
from growfs.rotation.generations import Planner
from growfs.rotation.order_file import make_order
from growfs.rotation.pass_order import Order, Pass
from growfs.rotation.rules import GenerationPlan, TurnoverInput
from growfs.rotation.turnover import plan_generation
from growfs.scheduler.draw_order import Share, compute, compute_soon
from growfs.scheduler.in_flight import Download, DownloadState
from growfs.signal import Signal
from growfs.workers.pool import WorkerPool

log = logging.getLogger(__name__)


class PassOrder:
    """Computes the order of each pass. first: the first pass; later ones differ only in their number.

    staging: the folder to which a worker writes the order. computed: notified of each order. locate: returns the place
    at which the passes begin, once that is decided; None if this node works alone.
    """

    def __init__(
        self,
        workers: WorkerPool,
        catalog: Catalog,
        store: Store,
        staging: Path,
        first: Pass,
        locate: Callable[[], Awaitable[float | None]] | None = None,
    ) -> None:
        self.first = first
        self.computed = Signal[[Order]]()
        self._locate = locate
        self._workers = workers
        self._catalog = catalog
        self._store = store
        self._target = staging / "order"
        self._share: Share | None = None
        self._revision = 0  # of the catalog when the share was computed
        self._outside = Share(0, 0)  # cached files of other shares; evicted ones count until the next order

    @property
    def share(self) -> Share:
        """The part that this mount draws; everything, if the catalog has changed since an order was computed."""
        if self._share and self._revision == self._catalog.revision:
            return self._share
        return Share(self._catalog.files, self._catalog.bytes)

    @property
    def missing(self) -> Share:
        """The part of the share that is not cached; may be too high until the next order."""
        store = self._store
        return self.share + self._outside - Share(store.resident_files, store.resident_content_bytes)

    def note_finished(self, download: Download) -> None:
        """Note that a file outside the share may have been cached."""
        is_new = download.state is DownloadState.ADMITTED and not (download.group.is_drawn or download.renews)
        if is_new and not self.first.has(download.path) and (node := self._catalog.node(download.node.id)):
            self._outside += Share(1, node.size or 0)

    async def locate(self) -> None:
        """Return once it is decided where the passes begin."""
        if self._locate:
            self.first = replace(self.first, start=await self._locate())

    async def remaining(self, size_max: int) -> Order:
        """The files that the current pass still has to draw, in order. size_max: bytes that any of them may have."""
        await self.locate()
        before = self._outside
        current = replace(self.first, number=self._catalog.pass_number, size_max=size_max)
        ready: Order = await compute(self._workers, partial(make_order, self._catalog.file, current, self._target))
        with self._target.open("rb") as file:
            empty = self._target.stat().st_size == 0
            ids: Sequence[int] = () if empty else memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)).cast("q")
        disk.unlink("ORDER_MAPPED", self._target)
        frozen, seeds = len(ready.frozen_ids), len(ready.frozen_ids) + len(ready.seed_ids)
        order = replace(ready, frozen=ids[:frozen], seeds=ids[frozen:seeds], rest=ids[seeds:])
        self._share, self._revision = Share(order.files, order.bytes), self._catalog.revision
        self._outside += Share(order.outside_files, order.outside_bytes) - before
        self.computed.notify(order)
        return order

    def early(self, nodes: Iterable[Node]) -> list[Node]:
        """The files that are in this node's share, in the order of the first pass; none if files have groups."""
        if self.first.group is not None:
            return []  # the others of a group may not be listed yet
        shared = [node for node in nodes if self.first.has(self._catalog.path(node))]
        return sorted(shared, key=lambda node: self.first.key(self._catalog.path(node)))


class RotationPlanner(Planner):
    """Plans generations that replace files: those that were listed for longest make room for others."""

    keeps_last = True

    def __init__(self, workers: WorkerPool, store: Store, database: Database) -> None:
        self._workers = workers
        self._store = store
        self._db = database

    def changes_nothing(self, turnover: TurnoverInput) -> bool:
        """Whether there is nothing to decide: no room to make, nothing to list again."""
        makes_room = turnover.rotates and turnover.lacking and (turnover.opened_share or turnover.is_first)
        if turnover.show_files is not None or makes_room:
            return False
        return self._db.row("SELECT 1 FROM resident WHERE delisted IS NOT NULL LIMIT 1") is None

    async def plan(self, number: int, turnover: TurnoverInput) -> GenerationPlan:
        """Plan a generation."""
        function = partial(plan_generation, self._db.path, number, turnover)
        return await compute_soon(self._workers, function, self._store.resident_files, self._db.path)
