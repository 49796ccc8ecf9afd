"""What is sorted by a worker, so that it costs the daemon no time: the order of a pass, and what a generation lists.

The order comes in a file that is mapped: it costs no memory, either.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Sequence
from pathlib import Path

import trio

from growfs import disk
from growfs.cache.catalog import Catalog, Node
from growfs.errors import GrowfsError
from growfs.remote.names import extension
from growfs.rotation.draw_order import Order, group_of
from growfs.rotation.turnover import GenerationPlan, TurnoverInput, plan_generation
from growfs.workers.messages import MakeOrder, OrderReady, PlanTurnover
from growfs.workers.pool import WorkerLost, WorkerPool

log = logging.getLogger(__name__)

RETRY_S = 30.0


async def plan_in_worker(workers: WorkerPool, catalog: Path, number: int, asked: TurnoverInput) -> GenerationPlan:
    """What generation `number` lists. Where no worker can say it, a thread does: a reader waits for it."""
    try:
        line = workers.spawn()
        try:
            next: GenerationPlan = await line.ask(PlanTurnover(catalog, number, asked))
            return next
        finally:
            await line.aclose()
    except (WorkerLost, GrowfsError) as error:
        log.warning("no worker could say what generation %d lists: %s", number, error)
        return await trio.to_thread.run_sync(plan_generation, catalog, number, asked)


async def order_in_worker(workers: WorkerPool, request: MakeOrder) -> Order:
    """What is still to be drawn, in order."""
    while True:
        try:
            line = workers.spawn()
            try:
                made: OrderReady = await line.ask(request)
                break
            finally:
                await line.aclose()
        except (WorkerLost, GrowfsError) as error:
            log.warning("the order of the pass could not be computed (%s); trying again", error)
            await trio.sleep(RETRY_S)
    with request.target.open("rb") as file:
        empty = request.target.stat().st_size == 0
        ids: Sequence[int] = () if empty else memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)).cast("q")
    disk.unlink("ORDER_MAPPED", request.target)
    seeds = made.frozen + made.seeds
    return Order(ids[: made.frozen], ids[made.frozen : seeds], ids[seeds:], made.files, made.bytes)


class Groups:
    """Finds what belongs together. template: None where each file is alone; its fields are those of `group_of`."""

    def __init__(self, catalog: Catalog, template: str | None) -> None:
        self._catalog = catalog
        self._template = template

    def members(self, node: Node, bytes_max: int) -> list[Node]:
        """The files of the group that a file is in, itself among them; it alone where all have more bytes than that."""
        if self._template is None:
            return [node]
        group = group_of(self._template, self._catalog.path(node))
        bare = node.name.removesuffix(f".{extension(node.name)}")
        within_folder = "{stem}" in self._template or "{parent}" in self._template
        by_name = "{stem}" in self._template or "{name}" in self._template
        found = self._catalog.files_with_prefix(bare if by_name else "", node.parent if within_folder else None)
        group_members = [other for other in found if group_of(self._template, self._catalog.path(other)) == group]
        fits = sum(disk.allocation(member.size or 0) for member in group_members) <= bytes_max
        return group_members if fits else [node]
