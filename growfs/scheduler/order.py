"""What a worker computes, so that it costs the daemon no time: the order of a pass, and what a generation lists.

The order is returned in a file that is mapped, so it costs no memory either.
"""

from __future__ import annotations

import logging
import mmap
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import trio

from growfs import disk
from growfs.cache.catalog import Catalog, Node
from growfs.cache.database import unreadable
from growfs.cache.store import Store
from growfs.errors import GrowfsError
from growfs.rotation.pass_order import Order, Pass
from growfs.rotation.rules import GenerationPlan, TurnoverInput
from growfs.rotation.turnover import plan_generation
from growfs.signal import Signal
from growfs.workers.messages import MakeOrder, OrderReady, PlanTurnover
from growfs.workers.pool import WorkerLost, WorkerPool

log = logging.getLogger(__name__)

RETRY_S = 30.0
"""Pause before another worker is asked for an order."""
FEW_FILES = 1_000
"""A thread plans what so many files list in the 5 to 10 ms that a worker takes to start."""


class PassOrder:
    """Computes the order of each pass. first: the first pass; later ones differ in the number.

    staging: the folder in which a worker writes the order. computed: notified of each order. locate: returns when it is
    decided where the passes begin.
    """

    def __init__(self, workers: WorkerPool, catalog: Catalog, staging: Path, first: Pass) -> None:
        self.first = first
        self.computed = Signal[[Order]]()
        self.locate: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self._workers = workers
        self._catalog = catalog
        self._target = staging / "order"

    async def remaining(self, size_max: int) -> Order:
        """What the current pass has still to draw, in order. size_max: bytes; larger files cannot be drawn."""
        await self.locate()
        current = replace(self.first, number=self._catalog.pass_number, size_max=size_max)
        ready = await self._compute(MakeOrder(self._catalog.file, current, self._target))
        with self._target.open("rb") as file:
            empty = self._target.stat().st_size == 0
            ids: Sequence[int] = () if empty else memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)).cast("q")
        disk.unlink("ORDER_MAPPED", self._target)
        frozen, seeds = len(ready.frozen), len(ready.frozen) + len(ready.seeds)
        order = Order(
            ids[:frozen],
            ids[frozen:seeds],
            ids[seeds:],
            ready.files,
            ready.bytes,
            ready.frozen,
            ready.seeds,
            ready.seed_bytes,
            ready.unmatched,
            ready.has_groups,
        )
        self.computed.notify(order)
        return order

    def sort(self, nodes: Iterable[Node]) -> list[Node]:
        """Those files that are of this node's share, in the order of the first pass; for a catalog without groups."""
        shared = [node for node in nodes if self.first.has(self._catalog.path(node))]
        return sorted(shared, key=lambda node: self.first.key(self._catalog.path(node)))

    async def _compute(self, request: MakeOrder) -> OrderReady:
        while True:
            try:
                channel = self._workers.spawn()
                try:
                    ready: OrderReady = await channel.call(request)
                    return ready
                finally:
                    await channel.aclose()
            except (WorkerLost, GrowfsError) as error:
                log.warning("the order of the pass could not be computed (%s); trying again", error)
                await trio.sleep(RETRY_S)


async def plan_next(
    workers: WorkerPool, store: Store, catalog: Path, number: int, input: TurnoverInput
) -> GenerationPlan:
    """What generation `number` lists. A reader waits for it, so a thread plans where a worker cannot, or is slower."""
    if store.resident_files > FEW_FILES:
        try:
            channel = workers.spawn()
            try:
                plan: GenerationPlan = await channel.call(PlanTurnover(catalog, number, input))
                return plan
            finally:
                await channel.aclose()
        except (WorkerLost, GrowfsError) as error:
            log.warning("no worker could compute what generation %d lists: %s", number, error)
    try:
        return await trio.to_thread.run_sync(plan_generation, catalog, number, input)
    except sqlite3.DatabaseError as failure:
        raise unreadable(catalog, failure) from failure
