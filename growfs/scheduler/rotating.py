"""What is drawn and listed: the interface of what decides it, and the rules by which files replace others."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from growfs import disk
from growfs.cache.catalog import Catalog, Node
from growfs.cache.database import Database, read_in_thread
from growfs.cache.store import Store
from growfs.errors import GrowfsError
from growfs.remote.interface import NO_OTHER, OtherSource
from growfs.rotation.generations import Planner
from growfs.rotation.order_file import make_order
from growfs.rotation.pass_order import Amount, Order, Pass
from growfs.rotation.rules import GenerationPlan, TurnoverInput
from growfs.rotation.turnover import plan_generation
from growfs.scheduler.in_flight import Download, DownloadState
from growfs.status_and_metrics import StartStatus
from growfs.workers.messages import Compute
from growfs.workers.pool import WorkerLost, WorkerPool, WorkerSilent, call_worker

log = logging.getLogger(__name__)

T = TypeVar("T")

FEW_FILES = 1_000
"""For this many files, a thread computes within the 5 to 10 ms that a worker takes to start."""


class Selection(Planner, Protocol):
    """Decides which files are drawn, in which order, and which of them each generation lists."""

    shows_once: bool = False
    """Whether its generations are shown once: see `Generation.is_shown_once`."""
    failure: GrowfsError | None = None
    """Why no generation can begin, if that is not about to change."""
    outside: Amount = Amount()
    """The cached files that are not of the share: they were opened by name, or are pinned. Evicted ones may count for a
    while."""

    @property
    def share(self) -> Amount:
        """The files of the remote that this mount ever fetches."""

    @property
    def missing(self) -> Amount:
        """Those that are still to be fetched, as far as known."""

    @property
    def streams(self) -> bool:
        """Whether there is more to fetch, once a reader goes on, although nothing is missing now."""
        return False

    async def early(self, nodes: Iterable[Node]) -> list[Node]:
        """Those of these files that may be drawn before the listing is complete, in order."""
        return []

    async def remaining(self, size_max: int) -> Order:
        """The files that are still to be drawn. size_max: bytes that any of them may have."""

    def note_finished(self, download: Download) -> None:
        """Note the outcome of a download."""

    def start_status(self) -> StartStatus | None:
        """If generations are shown once: how far the first one is; None if that is not known yet."""
        return None

    def check_size(self, bytes: int) -> None:
        """Raise UsageError if the size of the cache cannot be changed to this one now."""
        return


class Rotation(Selection):
    """Draws the files of each pass in random order. Those that were listed for longest make room for others.

    first: the first pass; later ones differ only in their number. staging: the folder to which a worker writes the
    order. other: decides at which place the passes begin.
    """

    keeps_last = True

    def __init__(
        self,
        workers: WorkerPool,
        database: Database,
        catalog: Catalog,
        store: Store,
        staging: Path,
        first: Pass,
        other: OtherSource = NO_OTHER,
    ) -> None:
        self.first = first
        self._other = other
        self._workers = workers
        self._db = database
        self._catalog = catalog
        self._store = store
        self._target = staging / "order"
        self._share: Amount | None = None
        self._revision, self._all = 0, Amount()  # of the catalog when the share was computed

    @property
    def share(self) -> Amount:
        """The part that this mount draws; everything, until an order is computed.

        What the remote has added or removed since then counts as if it were in the share.
        """
        if self._share and self._revision == self._catalog.revision:
            return self._share
        now = Amount(self._catalog.files, self._catalog.bytes)
        return self._share + now - self._all if self._share else now

    @property
    def missing(self) -> Amount:
        """The part of the share that is not cached; may be too high until the next order."""
        store = self._store
        return self.share + self.outside - Amount(store.resident_files, store.resident_content_bytes)

    def note_finished(self, download: Download) -> None:
        """Note that a file outside the share may have been cached."""
        is_new = download.state is DownloadState.ADMITTED and not (download.group.is_drawn or download.renews)
        if is_new and not self.first.has(download.path) and (node := self._catalog.node(download.node.id)):
            self.outside += Amount(1, node.size or 0)

    async def remaining(self, size_max: int) -> Order:
        """The files that the current pass still has to draw, in order. size_max: bytes that any of them may have."""
        await self._find_start()
        before = self.outside
        current = self.first._replace(number=self._catalog.pass_number, size_max=size_max)
        ready = await self._make_order(current)
        with self._target.open("rb") as file:
            empty = self._target.stat().st_size == 0
            ids: Sequence[int] = () if empty else memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)).cast("q")
        disk.unlink("ORDER_MAPPED", self._target)
        frozen, seeds = len(ready.frozen_ids), len(ready.frozen_ids) + len(ready.seed_ids)
        order = replace(ready, frozen=ids[:frozen], seeds=ids[frozen:seeds], rest=ids[seeds:])
        self._share, self._revision = order.share, self._catalog.revision
        self._all = Amount(self._catalog.files, self._catalog.bytes)
        self.outside += order.outside - before
        return order

    async def _make_order(self, pass_: Pass) -> Order:
        """Let a worker write the order of a pass; tried again until that succeeds.

        Raises SlowGroups for the first one.
        """
        function = partial(make_order, self._catalog.file, pass_, self._target)
        while True:
            try:
                order: Order = await compute_groups(self._workers, function, pass_.group)
                return order
            except (WorkerLost, GrowfsError) as error:
                if isinstance(error, SlowGroups) and self._share is None:
                    raise
                log.warning("the order of the pass could not be computed (%s); trying again", error)
                await trio.sleep(30.0)

    async def early(self, nodes: Iterable[Node]) -> list[Node]:
        """The files that are in this node's share, in the order of the first pass; none if files have groups."""
        await self._find_start()
        if self.first.group is not None:
            return []  # the others of a group may not be listed yet
        shared = [node for node in nodes if self.first.has(self._catalog.path(node))]
        return sorted(shared, key=lambda node: self.first.key(self._catalog.path(node)))

    async def _find_start(self) -> None:
        """Return once it is decided where the passes begin."""
        self.first = self.first._replace(start=await self._other.locate())

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


class SlowGroups(GrowfsError):
    """It takes too long to put the files into groups."""


async def compute_groups(workers: WorkerPool, function: Callable[[Callable[[], None]], T], group: str | None) -> T:
    """Let a worker call a function that looks for the group of each file.

    Raises SlowGroups, WorkerLost, GrowfsError.
    """
    try:
        result: T = await call_worker(workers, Compute(function))
        return result
    except WorkerSilent:
        if group is None:
            raise
        raise SlowGroups(
            f"--group {group!r} took too long to match the remote's file names; if it is a regular expression, simplify"
            " it, for example with [^/]* instead of .*"
        ) from None


async def compute_soon(
    workers: WorkerPool, function: Callable[[Callable[[], None]], T], files: int, catalog: Path
) -> T:
    """The result of a function for which a reader may wait: a worker calls it.

    A thread does so if the function looks at few files, or if no worker can. catalog: the database file that it reads.
    Raises Unreadable.
    """
    if files > FEW_FILES:
        try:
            result: T = await call_worker(workers, Compute(function))
            return result
        except (WorkerLost, GrowfsError) as error:
            log.warning("no worker could compute the next listing: %s", error)
    return await read_in_thread(catalog, lambda: function(lambda: None))  # a thread needs no heartbeat
