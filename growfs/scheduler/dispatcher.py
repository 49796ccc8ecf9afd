"""The workers that fetch: who gets which file, what became of it, and how many requests and bytes at a time.

A worker is always a little ahead: it has more files than it can work on, so that none of its streams waits for the
daemon. One over which a worker died comes alone the next time, so that it cannot take others with it again.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from growfs.errors import GrowfsError
from growfs.events import Signal
from growfs.remote.digest import PART_BYTES
from growfs.remote.protocol import Fetched, RemoteFile
from growfs.scheduler.concurrency import ConcurrencyController
from growfs.scheduler.in_flight import LIVES, Download, DownloadState
from growfs.workers.messages import REPORT_FILES, Failed, FetchFailed, FetchFiles, FetchProgress, FetchRequest
from growfs.workers.pool import STALL_S, Channel, WorkerLost, WorkerPool

log = logging.getLogger(__name__)

AHEAD_FILES = 4 * REPORT_FILES
"""More than a worker fetches until what it has told of is noted."""
AHEAD_MADE = 16
"""Of files that a worker makes one at a time, which may take minutes."""
AHEAD = 2
"""Of the work for all its streams, a worker has so many times as much."""
PERIOD_S = 0.5
"""After which it is judged whether more requests at a time are of use."""


@dataclass(eq=False)
class WorkerSlot:
    """One worker process. bytes: of all its files; came: of those that it has not finished. hurry: which of them it is
    to be told that a reader waits for. silence: ends the wait for its next word.
    """

    line: Channel
    downloads: dict[int, Download] = field(default_factory=dict)
    bytes: int = 0
    came: int = 0
    hurry: list[int] = field(default_factory=list)
    silence: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def load(self) -> tuple[int, int]:
        """Bytes and files still to come, about."""
        return max(0, self.bytes - self.came), len(self.downloads)

    @property
    def has_suspect(self) -> bool:
        """Whether it has a file over which a worker died, which is then all that it has."""
        return len(self.downloads) == 1 and any(download.lives < LIVES for download in self.downloads.values())


class Dispatcher:
    """Owns the workers that fetch, at most `size` processes, and what each has to do. makes: they have a producer, so
    how many requests there are at a time changes nothing.

    `received` tells of bytes that came, of whole files or not.
    """

    _became: Callable[[Download, Fetched | FetchFailed], Awaitable[None]]
    _lost: Callable[[Download], None]

    def __init__(self, workers: WorkerPool, size: int, bytes_per_s: int, makes: bool = False) -> None:
        self.received = Signal[[int]]()
        self.urgent: deque[Download] = deque()
        self.queue: deque[Download] = deque()
        self._workers = workers
        self._size = size
        self._bytes_per_s = bytes_per_s
        self._makes = makes
        self._level = ConcurrencyController()
        self._hands: list[WorkerSlot] = []
        self._changed = Signal[[]]()
        self._period_bytes = self._period_refusals = 0
        self._share()

    @property
    def streams(self) -> int:
        """Requests under way at a time, at most; what is made has one in each worker, and the next one waiting."""
        return AHEAD * self._size if self._makes else self._level.streams

    @property
    def bytes_per_s(self) -> int:
        """What all of them may fetch; 0: as much as they can."""
        return self._bytes_per_s

    @bytes_per_s.setter
    def bytes_per_s(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._share()

    def take(self, download: Download, first: bool = False) -> None:
        """Have a file fetched, in its turn. first: before the others of its kind."""
        line = self.urgent if download.urgent else self.queue
        (line.appendleft if first else line.append)(download)
        self._changed.notify()

    def hurry(self, download: Download) -> None:
        """A reader waits for it by now."""
        if download in self.queue:
            self.queue.remove(download)
            self.urgent.append(download)
        for hand in self._hands:
            if download.node.id in hand.downloads:
                hand.hurry.append(download.node.id)
        self._changed.notify()

    async def run(
        self, became: Callable[[Download, Fetched | FetchFailed], Awaitable[None]], lost: Callable[[Download], None]
    ) -> None:
        """Hand out files until cancelled. became: told of each what became of it; lost: of those whose worker died."""
        self._became, self._lost = became, lost
        async with trio.open_nursery() as nursery:
            if not self._makes:
                nursery.start_soon(self._steer)
            try:
                while True:
                    if not await self._hand_out(nursery):
                        await self._changed.wait()
            finally:
                with trio.CancelScope(shield=True):
                    for hand in self._hands:
                        await hand.line.aclose()

    # Who gets what.

    async def _hand_out(self, nursery: trio.Nursery) -> bool:
        """Give out what can be given now; whether that was anything."""
        parts: dict[WorkerSlot, list[Download]] = {}
        while download := self._next():
            try:
                hand = self._hand_for(download, nursery)
            except GrowfsError as error:
                (self.urgent or self.queue).popleft()
                await self._became(download, FetchFailed(error))
                continue
            if hand is None:
                break
            (self.urgent or self.queue).popleft()
            download.move(DownloadState.FETCHING)
            hand.downloads[download.node.id] = download
            hand.bytes += download.node.size or 0
            parts.setdefault(hand, []).append(download)
        self._share()
        told = [hand for hand in self._hands if hand in parts or hand.hurry]
        for hand in told:
            if hand.silence.deadline == math.inf:
                hand.silence.deadline = trio.current_time() + STALL_S
            hurry, hand.hurry = hand.hurry, []
            try:
                await hand.line.send(FetchFiles([_wanted(download) for download in parts.get(hand, [])], hurry))
            except WorkerLost:
                hand.silence.cancel()
        return bool(told)

    def _next(self) -> Download | None:
        for line in (self.urgent, self.queue):
            while line and line[0].state is not DownloadState.QUEUED:  # it failed with another of its group
                line.popleft()
        waiting = self.urgent or self.queue
        return waiting[0] if waiting else None

    def _hand_for(self, download: Download, nursery: trio.Nursery) -> WorkerSlot | None:
        free = [hand for hand in self._hands if self._has_room(hand, download)]
        best = min(free, key=lambda hand: hand.load, default=None)
        if (best is None or best.downloads) and len(self._hands) < self._size:
            try:
                best = WorkerSlot(self._workers.spawn())
            except GrowfsError as error:
                if not self._hands:
                    raise
                log.warning("%s; going on with %d", error, len(self._hands))
                self._size = len(self._hands)
            else:
                self._hands.append(best)
                nursery.start_soon(self._hear, best)
        return best

    def _has_room(self, hand: WorkerSlot, download: Download) -> bool:
        if hand.has_suspect or (download.lives < LIVES and hand.downloads):
            return False
        bytes, files = hand.load
        if self._makes:
            return download.urgent or files < AHEAD_MADE
        ahead = AHEAD * self._workers.limits.streams
        return download.urgent or (files < max(AHEAD_FILES, ahead) and bytes < ahead * PART_BYTES)

    # What became of it.

    async def _hear(self, hand: WorkerSlot) -> None:
        failed: Failed | None = None
        with suppress(WorkerLost):
            while not failed:
                with trio.CancelScope() as hand.silence:
                    if hand.downloads:
                        hand.silence.deadline = trio.current_time() + STALL_S
                    message = await hand.line.receive()
                if hand.silence.cancelled_caught:
                    raise WorkerLost
                if isinstance(message, Failed):
                    failed = message  # it cannot fetch anything; what it has begun all the same ends with it
                else:
                    await self._note(hand, message)
        self._hands.remove(hand)
        await hand.line.aclose()
        for download in reversed(hand.downloads.values()):
            if failed:
                await self._became(download, FetchFailed(failed.error))
            else:
                self._lost(download)
        self._changed.notify()

    async def _note(self, hand: WorkerSlot, message: FetchProgress) -> None:
        hand.came += message.bytes
        self._period_bytes += message.bytes
        self._period_refusals += message.refusals
        self.received.notify(message.bytes)
        for id, became in message.files:
            download = hand.downloads.pop(id)
            hand.bytes -= download.node.size or 0
            hand.came = max(0, hand.came - (became.size if isinstance(became, Fetched) else 0))
            await self._became(download, became)
        if not hand.downloads:
            hand.came = 0
        self._changed.notify()

    # How many at a time.

    def _share(self) -> None:
        busy = sum(bool(hand.downloads) for hand in self._hands)
        self._workers.limits.set(self._level.streams, busy, self._bytes_per_s)

    async def _steer(self) -> None:
        while True:
            while not any(hand.downloads for hand in self._hands):
                await self._changed.wait()
            self._period_bytes = self._period_refusals = 0
            began = trio.current_time()
            await trio.sleep(PERIOD_S)
            rate = self._period_bytes / (trio.current_time() - began)
            before = self._level.streams
            if self._level.update(rate, bool(self.queue), self._period_refusals > 0) < before and self._period_refusals:
                log.info("the store asks for fewer requests: %d at a time", self._level.streams)
            self._share()


def _wanted(download: Download) -> FetchRequest:
    node = download.node
    file = RemoteFile(download.path, node.size, node.mtime_ns, node.version)
    return FetchRequest(node.id, file, download.target, download.need, download.urgent)
