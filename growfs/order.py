"""The order of a pass: computed by a worker and read from a file, so it costs the daemon no memory and no time."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Sequence

import trio

from growfs import disk
from growfs.errors import GrowfsError
from growfs.sampling import Order
from growfs.wire import Made, MakeOrder
from growfs.workers import WorkerLost, Workers

log = logging.getLogger(__name__)

RETRY_S = 30.0


async def ordered(workers: Workers, request: MakeOrder) -> Order:
    """What is still to be drawn, in order."""
    while True:
        try:
            line = workers.hire()
            try:
                made: Made = await line.ask(request)
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
