"""The interface of what decides the files to draw: `rotating` or `exact`."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from growfs.cache.cache_folder import unreadable
from growfs.cache.catalog import Node
from growfs.errors import GrowfsError
from growfs.rotation.pass_order import Order
from growfs.scheduler.in_flight import Download
from growfs.workers.messages import Compute
from growfs.workers.pool import WorkerLost, WorkerPool, call_worker

log = logging.getLogger(__name__)

T = TypeVar("T")

FEW_FILES = 1_000
"""For this many files, a thread computes within the 5 to 10 ms that a worker takes to start."""
ORDER_RETRY_S = 30.0
"""Pause before asking another worker for an order."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the remote that this mount draws (--partition, or all), or another number of files."""

    files: int
    bytes: int

    def __add__(self, other: Share) -> Share:
        return Share(self.files + other.files, self.bytes + other.bytes)

    def __sub__(self, other: Share) -> Share:
        return Share(self.files - other.files, self.bytes - other.bytes)


class DrawOrder(Protocol):
    """Decides which files are drawn, in which order."""

    @property
    def share(self) -> Share:
        """The files of the remote that this mount ever fetches."""

    @property
    def missing(self) -> Share:
        """Those that are still to be fetched, as far as known."""

    async def locate(self) -> None:
        """Return once it is known where the order begins."""

    def early(self, nodes: Iterable[Node]) -> list[Node]:
        """Those of these files that may be drawn before the listing is complete, in order."""

    async def remaining(self, size_max: int) -> Order:
        """The files that are still to be drawn. size_max: bytes that any of them may have."""

    def note_finished(self, download: Download) -> None:
        """Note the outcome of a download."""


async def compute(workers: WorkerPool, function: Callable[[Callable[[], None]], T]) -> T:
    """The result of a function of growfs.rotation, which a worker calls; tried again until it succeeds."""
    while True:
        try:
            result: T = await call_worker(workers, Compute(function))
            return result
        except (WorkerLost, GrowfsError) as error:
            log.warning("the order of the pass could not be computed (%s); trying again", error)
            await trio.sleep(ORDER_RETRY_S)


async def compute_soon(
    workers: WorkerPool, function: Callable[[Callable[[], None]], T], files: int, catalog: Path
) -> T:
    """As `compute`, if a reader waits. A thread calls the function if it looks at few files, or if no worker can.

    catalog: the database file that the function reads. Raises Unreadable.
    """
    if files > FEW_FILES:
        try:
            result: T = await call_worker(workers, Compute(function))
            return result
        except (WorkerLost, GrowfsError) as error:
            log.warning("no worker could compute what is listed next: %s", error)
    try:
        return await trio.to_thread.run_sync(function, _no_beat)
    except sqlite3.DatabaseError as failure:
        raise unreadable(catalog, failure) from failure


def _no_beat() -> None:
    """A thread needs no heartbeat."""
