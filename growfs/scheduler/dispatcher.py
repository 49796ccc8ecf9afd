"""Gives queued downloads to workers, collects the results, and sets how many requests run at a time.

A worker always has more files than it can work on, so that none of its streams waits for the daemon. A file over which
a worker died is given to a worker alone, so that it cannot take others with it again.
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
from growfs.scheduler.in_flight import ATTEMPTS_MAX, Download, DownloadState
from growfs.workers.messages import REPORT_FILES, Failed, FetchFailed, FetchFiles, FetchProgress, FetchRequest
from growfs.workers.pool import STALL_S, Channel, WorkerLost, WorkerPool

log = logging.getLogger(__name__)

AHEAD_FILES = 4 * REPORT_FILES
"""Files that a worker has at least: more than it fetches until its last report is processed."""
AHEAD_PRODUCED = 16
"""The same for a producer, which makes one file at a time and may take minutes for it."""
AHEAD = 2
"""A worker has this many times the work that keeps all its streams busy."""
PERIOD_S = 0.5
"""How often the number of requests is adjusted."""


@dataclass(eq=False)
class WorkerSlot:
    """One worker process. bytes: the sizes of all its files; received: bytes of them that it has reported.

    prioritized: ids of its files for which a reader waits by now, to be sent to it. silence: cancelled to end the wait
    for its next message.
    """

    channel: Channel
    downloads: dict[int, Download] = field(default_factory=dict)
    bytes: int = 0
    received: int = 0
    prioritized: list[int] = field(default_factory=list)
    silence: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def load(self) -> tuple[int, int]:
        """Bytes and files still to be fetched, roughly."""
        return max(0, self.bytes - self.received), len(self.downloads)

    @property
    def has_suspect(self) -> bool:
        """Whether its only file is one over which a worker died."""
        return len(self.downloads) == 1 and any(_is_suspect(download) for download in self.downloads.values())


class Dispatcher:
    """Owns the workers that fetch (at most `size` processes), their files, and the queues of files without a worker.

    has_producer: workers make files one at a time, so the number of requests is fixed. received: notified of bytes that
    were received, of complete files or not.
    """

    _handle_result: Callable[[Download, Fetched | FetchFailed], Awaitable[None]]
    _handle_worker_death: Callable[[Download], None]

    def __init__(self, workers: WorkerPool, size: int, bytes_per_s: int, has_producer: bool = False) -> None:
        self.received = Signal[[int]]()
        self._urgent: deque[Download] = deque()
        self._queue: deque[Download] = deque()
        self._workers = workers
        self._size = size
        self._bytes_per_s = bytes_per_s
        self._has_producer = has_producer
        self._concurrency = ConcurrencyController()
        self._slots: list[WorkerSlot] = []
        self._changed = Signal[[]]()
        self._period_bytes = self._period_refusals = 0
        self._share_limits()

    @property
    def streams(self) -> int:
        """The most requests at a time. A producer makes one file, and has the next one waiting."""
        return AHEAD * self._size if self._has_producer else self._concurrency.streams

    @property
    def bytes_per_s(self) -> int:
        """The bandwidth of all workers together; 0: unlimited."""
        return self._bytes_per_s

    @bytes_per_s.setter
    def bytes_per_s(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._share_limits()

    def enqueue(self, download: Download, first: bool = False) -> None:
        """Queue a download that has its space; urgent ones go before all others. first: ahead of its own queue."""
        queue = self._urgent if download.urgent else self._queue
        (queue.appendleft if first else queue.append)(download)
        self._changed.notify()

    def prioritize(self, download: Download) -> None:
        """Have a download overtake those that no reader waits for, whether a worker has it or not."""
        if download in self._queue:
            self._queue.remove(download)
            self._urgent.append(download)
        for slot in self._slots:
            if download.node.id in slot.downloads:
                slot.prioritized.append(download.node.id)
        self._changed.notify()

    async def run(
        self,
        handle_result: Callable[[Download, Fetched | FetchFailed], Awaitable[None]],
        handle_worker_death: Callable[[Download], None],
    ) -> None:
        """Dispatch until cancelled. handle_worker_death: called with each file of a worker that died."""
        self._handle_result, self._handle_worker_death = handle_result, handle_worker_death
        async with trio.open_nursery() as nursery:
            if not self._has_producer:
                nursery.start_soon(self._adjust_concurrency)
            try:
                while True:
                    if not await self._dispatch(nursery):
                        await self._changed.wait()
            finally:
                with trio.CancelScope(shield=True):
                    for slot in self._slots:
                        await slot.channel.aclose()

    # From the queues to the workers.

    async def _dispatch(self, nursery: trio.Nursery) -> bool:
        """Send what can be sent now; whether there was anything."""
        batches: dict[WorkerSlot, list[Download]] = {}
        while download := self._next():
            try:
                slot = self._slot_for(download, nursery)
            except GrowfsError as error:
                (self._urgent or self._queue).popleft()
                await self._handle_result(download, FetchFailed(error))
                continue
            if slot is None:
                break
            (self._urgent or self._queue).popleft()
            download.move(DownloadState.FETCHING)
            slot.downloads[download.node.id] = download
            slot.bytes += download.node.size or 0
            batches.setdefault(slot, []).append(download)
        self._share_limits()
        receivers = [slot for slot in self._slots if slot in batches or slot.prioritized]
        for slot in receivers:
            if slot.silence.deadline == math.inf:
                slot.silence.deadline = trio.current_time() + STALL_S
            prioritized, slot.prioritized = slot.prioritized, []
            requests = [_request(download) for download in batches.get(slot, [])]
            try:
                await slot.channel.send(FetchFiles(requests, prioritized))
            except WorkerLost:
                slot.silence.cancel()
        return bool(receivers)

    def _next(self) -> Download | None:
        for queue in (self._urgent, self._queue):
            while queue and queue[0].state is not DownloadState.QUEUED:  # it failed with another of its group
                queue.popleft()
        queue = self._urgent or self._queue
        return queue[0] if queue else None

    def _slot_for(self, download: Download, nursery: trio.Nursery) -> WorkerSlot | None:
        """The least busy worker that can have one more file; a new worker rather than a busy one."""
        free = [slot for slot in self._slots if self._can_add(slot, download)]
        best = min(free, key=lambda slot: slot.load, default=None)
        if (best is None or best.downloads) and len(self._slots) < self._size:
            try:
                best = WorkerSlot(self._workers.spawn())
            except GrowfsError as error:
                if not self._slots:
                    raise
                log.warning("%s; continuing with %d", error, len(self._slots))
                self._size = len(self._slots)
            else:
                self._slots.append(best)
                nursery.start_soon(self._receive, best)
        return best

    def _can_add(self, slot: WorkerSlot, download: Download) -> bool:
        if slot.has_suspect or (_is_suspect(download) and slot.downloads):
            return False
        bytes, files = slot.load
        if self._has_producer:
            return download.urgent or files < AHEAD_PRODUCED
        ahead = AHEAD * self._workers.limits.streams
        return download.urgent or (files < max(AHEAD_FILES, ahead) and bytes < ahead * PART_BYTES)

    # From the workers.

    async def _receive(self, slot: WorkerSlot) -> None:
        """Process a worker's messages until it dies, hangs or fails."""
        failed: Failed | None = None
        with suppress(WorkerLost):
            while not failed:
                with trio.CancelScope() as slot.silence:
                    if slot.downloads:
                        slot.silence.deadline = trio.current_time() + STALL_S
                    message = await slot.channel.receive()
                if slot.silence.cancelled_caught:
                    raise WorkerLost
                if isinstance(message, Failed):
                    failed = message  # it can fetch nothing; closing the channel ends what it has begun all the same
                else:
                    await self._process(slot, message)
        self._slots.remove(slot)
        await slot.channel.aclose()
        for download in reversed(slot.downloads.values()):
            if failed:
                await self._handle_result(download, FetchFailed(failed.error))
            else:
                self._handle_worker_death(download)
        self._changed.notify()

    async def _process(self, slot: WorkerSlot, message: FetchProgress) -> None:
        slot.received += message.bytes
        self._period_bytes += message.bytes
        self._period_refusals += message.refusals
        self.received.notify(message.bytes)
        for id, result in message.files:
            download = slot.downloads.pop(id)
            slot.bytes -= download.node.size or 0
            slot.received = max(0, slot.received - (result.size if isinstance(result, Fetched) else 0))
            await self._handle_result(download, result)
        if not slot.downloads:
            slot.received = 0
        self._changed.notify()

    # Limits.

    def _share_limits(self) -> None:
        """Divide streams and bandwidth among the workers that have files."""
        busy = sum(bool(slot.downloads) for slot in self._slots)
        self._workers.limits.set(self._concurrency.streams, busy, self._bytes_per_s)

    async def _adjust_concurrency(self) -> None:
        while True:
            while not any(slot.downloads for slot in self._slots):
                await self._changed.wait()
            self._period_bytes = self._period_refusals = 0
            began = trio.current_time()
            await trio.sleep(PERIOD_S)
            rate = self._period_bytes / (trio.current_time() - began)
            before = self._concurrency.streams
            streams = self._concurrency.update(rate, bool(self._queue), self._period_refusals > 0)
            if streams < before and self._period_refusals:
                log.info("the store asks for fewer requests: %d at a time", streams)
            self._share_limits()


def _is_suspect(download: Download) -> bool:
    """Whether a worker died over the file."""
    return download.attempts_left < ATTEMPTS_MAX


def _request(download: Download) -> FetchRequest:
    node = download.node
    file = RemoteFile(download.path, node.size, node.mtime_ns, node.version)
    return FetchRequest(node.id, file, download.target, download.need, download.urgent)
