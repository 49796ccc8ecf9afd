"""Gives queued downloads to workers, collects the results, and sets how many requests run at a time.

A worker always has more files than it can work on, so that none of its streams waits for the daemon. Downloads all go
to one worker as long as its CPU suffices: its streams share each large file, so files arrive in the order in which they
were queued, and not all at the end. A file that killed a worker is given to a worker alone, so that it cannot take
others with it again.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

import trio

from growfs.errors import GrowfsError, RemoteBusy, RemoteDenied
from growfs.remote.client_choice import ClientChoice
from growfs.remote.interface import NO_OTHER, Fetched, OtherSource, RemoteFile
from growfs.scheduler.in_flight import ATTEMPTS_MAX, Download, DownloadState
from growfs.scheduler.outage import OTHERS_AGAIN_S
from growfs.scheduler.stream_count import AHEAD_COMPUTED, ConcurrencyController, FilesAhead, WorkerCount
from growfs.signal import Signal
from growfs.workers.messages import Failed, FetchFailed, FetchFiles, FetchProgress, FetchRequest
from growfs.workers.pool import STALL_S, Channel, WorkerLost, WorkerPool

log = logging.getLogger(__name__)

WORKERS_FIRST = 1
"""Workers that download, until their CPU limits the rate."""
SILENCE_S = 5.0
"""If nothing of any file arrives for this long, the remote may be away. Timeouts take half a minute to say so. If it is
not, the next time is after twice as long: the only file under way may be one that comes a byte at a time."""


class WorkerDied:
    """The outcome for a file whose worker died or hung."""


Outcome = Fetched | FetchFailed | WorkerDied
"""The outcome of fetching a file."""


@dataclass(eq=False)
class WorkerSlot:
    """One worker process."""

    channel: Channel
    downloads: dict[int, Download] = field(default_factory=dict)
    unsent: list[Download] = field(default_factory=list)
    """Those of its files that are yet to be sent to it."""
    bytes: int = 0
    """The total size of its files."""
    received: int = 0
    """How many of these bytes it has reported."""
    prioritized: list[int] = field(default_factory=list)
    """Ids of its files for which a reader now waits, to be sent to it."""
    silence: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Cancelled to end the wait for its next message."""
    cpu_s: float = 0.0
    """Its CPU time until its last message."""
    is_for_readers: bool = False
    """Whether it gets only small files that readers wait for."""
    in_background: bool = False
    """Whether it has been given a low priority."""
    is_suspended: bool = False
    """Whether it has been told that the remote is away."""
    is_recalled: bool = False
    """Whether it has to end."""

    @property
    def load(self) -> tuple[int, int]:
        """Bytes and files still to be fetched, roughly."""
        return max(0, self.bytes - self.received), len(self.downloads)

    def add(self, download: Download) -> None:
        """Give it a file."""
        self.downloads[download.node.id] = download
        self.unsent.append(download)
        self.bytes += download.node.size or 0

    def remove(self, id: int, result: Fetched | FetchFailed) -> Download | None:
        """Note the result of a file; returns the file, or None if it was recalled meanwhile."""
        if download := self.downloads.pop(id, None):
            self.bytes -= download.node.size or 0
            self.received = max(0, self.received - (result.size if isinstance(result, Fetched) else 0))
        if not self.downloads:
            self.received = 0
        return download

    def recall(self) -> list[Download]:
        """Let it end; returns its files."""
        downloads = [*self.downloads.values()]
        self.downloads, self.unsent, self.bytes, self.is_recalled = {}, [], 0, True
        self.silence.cancel()
        return downloads


class Dispatcher:
    """Owns the workers that fetch, their files, and the queues of files without a worker.

    Uses at most `workers` processes, plus one for files that readers wait for. returned: notified of the outcome of
    each file, in order; the file is then FETCHING, and no worker has it any more. is_computed: workers compute files
    one at a time, so the number of requests is fixed. received: notified of bytes received from the remote, whether the
    file is complete or not; received_from_other: the same for the other source. failed: notified when nothing is
    received while requests are repeated, or for SILENCE_S.
    """

    def __init__(
        self,
        pool: WorkerPool,
        workers: int,
        bytes_per_s: int,
        is_computed: bool = False,
        other: OtherSource = NO_OTHER,
    ) -> None:
        self.returned = Signal[[Download, Outcome]]()
        self.received = Signal[[int]]()
        self.received_from_other = Signal[[int]]()
        self.failed = Signal[[GrowfsError]]()
        self._urgent = OrderedDict[int, Download]()  # by number
        self._queue = OrderedDict[int, Download]()
        self._is_in_order = True
        self._pool = pool
        self._starts_at = -math.inf  # no further worker is started before, in trio's time
        self.bytes_per_s = bytes_per_s
        """The bandwidth of all workers together; 0: unlimited."""
        self.client = ClientChoice("", True, "")
        """The client that requests the files; without a name until a worker reports. If one worker falls back to the
        store's library, all do."""
        self.library_files = 0
        """Number of files fetched by the store's library."""
        self._gave_up = ""
        self._is_computed = is_computed
        self._other = other
        self._concurrency = ConcurrencyController()
        self._worker_count = WorkerCount(workers if is_computed else WORKERS_FIRST, workers)
        self._slots: list[WorkerSlot] = []
        self._is_suspended = False
        self._in_background = False
        self._changed = Signal[[]]()
        self._reports: list[FetchProgress] = []  # of this period
        self._received_bytes = 0
        self._reported_at: float | None = None  # when the last report was sent; None after a pause without work
        self._ahead = FilesAhead(is_computed)
        self._latency_s = math.inf  # the least time that a file took
        self._share_limits()

    def has_enough(self, groups: int, bytes: int) -> bool:
        """Whether no more files have to be in flight, or wait for an earlier one, than these."""
        return self._ahead.is_enough(groups, bytes, self._worker_count.count, self.streams)

    @property
    def streams(self) -> int:
        """The maximum number of parallel requests. A worker that computes a file already has the next one."""
        return AHEAD_COMPUTED * self._worker_count.count if self._is_computed else self._concurrency.streams

    def set_bandwidth(self, bytes_per_s: int) -> None:
        """Change the bandwidth of all workers together."""
        self.bytes_per_s = bytes_per_s
        self._share_limits()

    def move_to_background(self) -> None:
        """Give the workers a low priority from now on. Until training can start, training waits for them."""
        self._in_background = True
        self._changed.notify()

    def enqueue(self, *downloads: Download) -> None:
        """Queue downloads that have their space, each in the place of its number; urgent ones go first."""
        for download in downloads:
            queue = self._urgent if download.urgent else self._queue
            self._is_in_order = self._is_in_order and next(reversed(queue), -1) < download.number
            queue[download.number] = download
        self._changed.notify()

    def prioritize(self, downloads: Sequence[Download]) -> None:
        """Make downloads that readers now wait for overtake the others, whether workers have them or not."""
        self._urgent |= {it.number: it for it in downloads if self._queue.pop(it.number, None)}
        for slot in self._slots:
            slot.prioritized += (it.node.id for it in downloads if it.node.id in slot.downloads)
        self._changed.notify()

    def suspend(self, why: GrowfsError) -> None:
        """Until `resume`, send only files that other hosts may have, as the remote is away. Workers keep their data.

        If the remote denies access, they end, and their files are queued again: new workers reread the credentials.
        """
        self._is_suspended = True
        if isinstance(why, RemoteDenied):
            self._recall()
        self._changed.notify()

    def _recall(self) -> None:
        for slot in self._slots:
            downloads = slot.recall()
            for download in downloads:
                download.move(DownloadState.QUEUED)
            self.enqueue(*downloads)

    def resume(self) -> None:
        """Make the workers continue. The best number of requests is measured again."""
        self._is_suspended = False
        self._concurrency = ConcurrencyController()
        self._changed.notify()

    async def run(self) -> None:
        """Dispatch until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._adjust)
            try:
                while True:
                    if not await self._dispatch(nursery):
                        with trio.move_on_after(OTHERS_AGAIN_S if self._is_suspended else math.inf):
                            await self._changed.wait()
            finally:
                nursery.cancel_scope.cancel()  # the tasks of the workers, which have no slots any more
                self._recall()
                slots, self._slots = self._slots, []
                with trio.CancelScope(shield=True):
                    for slot in slots:
                        await slot.channel.aclose()

    # From the queues to the workers.

    async def _dispatch(self, nursery: trio.Nursery) -> bool:
        """Send the files that can be sent now; returns whether there were any."""
        while download := self._next():
            queue = self._urgent if download.urgent else self._queue
            try:
                slot = self._slot_for(download, nursery)
            except GrowfsError as error:
                del queue[download.number]
                download.move(DownloadState.FETCHING)
                self.returned.notify(download, FetchFailed(error))
                continue
            if slot is None:
                break
            del queue[download.number]
            download.move(DownloadState.FETCHING)
            download.sent_at = trio.current_time()
            slot.add(download)
            if not self._is_computed:
                self._concurrency.begin_file(download.node.size)
        self._share_limits()
        receivers = [
            slot
            for slot in self._slots
            if slot.unsent
            or slot.prioritized
            or slot.in_background < self._belongs_in_background(slot)
            or slot.is_suspended != self._is_suspended
        ]
        for slot in receivers:
            if slot.is_suspended != self._is_suspended or slot.silence.deadline == math.inf:
                slot.is_suspended = self._is_suspended
                self._limit_silence(slot)
            slot.in_background = self._belongs_in_background(slot)
            requests = [_request(download, self._other.hosts(download.path)) for download in slot.unsent]
            prioritized, slot.prioritized, slot.unsent = slot.prioritized, [], []
            try:
                await slot.channel.send(
                    FetchFiles(
                        requests, prioritized, slot.in_background, slot.is_suspended, self._gave_up, self._other.open
                    )
                )
            except WorkerLost:
                slot.silence.cancel()
        return bool(receivers)

    def _next(self) -> Download | None:
        """The first queued download; in an outage, the first that the other source may have."""
        if not self._is_in_order:  # thousands of downloads may be queued again one by one, after an outage
            self._urgent, self._queue = (OrderedDict(sorted(queue.items())) for queue in (self._urgent, self._queue))
            self._is_in_order = True
        for queue in (self._urgent, self._queue):
            # Those that are no longer QUEUED have failed along with another of their group.
            while queue and next(iter(queue.values())).state is not DownloadState.QUEUED:
                queue.popitem(last=False)
        if not self._is_suspended:
            return next(iter((self._urgent or self._queue).values()), None)
        before = trio.current_time() - OTHERS_AGAIN_S
        queued = (it for it in chain(self._urgent.values(), self._queue.values()) if it.state is DownloadState.QUEUED)
        return next((it for it in queued if it.sent_at <= before and self._other.hosts(it.path)), None)

    def _slot_for(self, download: Download, nursery: trio.Nursery) -> WorkerSlot | None:
        """The least busy worker that can take one more file; a new worker rather than a busy one."""
        if self._is_for_readers_worker(download) and (readers := self._worker_for_readers(nursery)):
            return readers
        slots = [slot for slot in self._slots if not slot.is_for_readers]
        most = min(self._worker_count.count + _is_suspect(download), self._worker_count.most, self.streams)
        free = [slot for slot in slots[:most] if self._can_add(slot, download)]
        best = min(free, key=lambda slot: slot.load, default=None)
        may_start = len(slots) < most and (not slots or trio.current_time() >= self._starts_at)
        if may_start and (best is None or best.downloads):
            try:
                best = self._start_worker(nursery)
            except GrowfsError as error:
                if not slots:
                    raise
                log.warning("%s; continuing with %d", error, len(slots))
                # The machine may have too little memory or too many processes.
                self._starts_at = trio.current_time() + 60.0
        return best

    def _worker_for_readers(self, nursery: trio.Nursery) -> WorkerSlot | None:
        slot = next((slot for slot in self._slots if slot.is_for_readers), None)
        if slot is None:
            with suppress(GrowfsError):
                return self._start_worker(nursery, is_for_readers=True)
        return None if slot is None or slot.is_recalled else slot

    def _start_worker(self, nursery: trio.Nursery, is_for_readers: bool = False) -> WorkerSlot:
        slot = WorkerSlot(self._pool.spawn(), is_for_readers=is_for_readers)
        self._slots.append(slot)
        nursery.start_soon(self._receive, slot)
        return slot

    def _belongs_in_background(self, slot: WorkerSlot) -> bool:
        return self._in_background and not slot.is_for_readers

    def _is_for_readers_worker(self, download: Download) -> bool:
        """Whether the file is small and a reader waits for it, while the other workers have a low priority.

        On a machine whose cores are all busy, those workers get no CPU for seconds. A large file does not go to a
        different worker from the large files before it: their worker would not make way.
        """
        is_small = download.node.size is not None and download.node.size < 1 << 20
        return self._in_background and download.urgent and is_small and not (self._is_computed or _is_suspect(download))

    def _can_add(self, slot: WorkerSlot, download: Download) -> bool:
        # A file that killed a worker is alone in the next one.
        has_suspect = len(slot.downloads) == 1 and any(map(_is_suspect, slot.downloads.values()))
        if slot.is_recalled or has_suspect or (_is_suspect(download) and slot.downloads):
            return False
        return download.urgent or self._ahead.may_grow(*slot.load, self._pool.limits.streams, self._busy)

    @property
    def _busy(self) -> int:
        """The number of workers with files, but at least 1."""
        return max(1, sum(bool(slot.downloads) for slot in self._slots))

    # From the workers.

    async def _receive(self, slot: WorkerSlot) -> None:
        """Process a worker's messages until it dies, hangs or fails."""
        failed: Failed | None = None
        with suppress(WorkerLost):
            while not (failed or slot.is_recalled):
                with trio.CancelScope() as slot.silence:
                    self._limit_silence(slot)
                    message = await slot.channel.receive()
                if slot.silence.cancelled_caught:
                    raise WorkerLost
                if isinstance(message, Failed):
                    failed = message  # it can fetch nothing; closing the channel also ends files that it has begun
                else:
                    await self._process(slot, message)
        self._slots = [other for other in self._slots if other is not slot]  # `run`, if it ends, has dropped them all
        await slot.channel.aclose()
        if slot.downloads and not failed:
            oldest, *others = slot.downloads.values()
            which = f"{oldest.path} and {len(others)} more" if others else oldest.path
            log.warning("a worker died or hung while fetching %s; others take over", which)
        for download in slot.downloads.values():
            self.returned.notify(download, FetchFailed(failed.error) if failed else WorkerDied())
        self._changed.notify()

    def _limit_silence(self, slot: WorkerSlot) -> None:
        """Require a busy worker to send something within STALL_S from now."""
        is_busy = slot.downloads and not slot.is_suspended
        slot.silence.deadline = trio.current_time() + STALL_S if is_busy else math.inf

    async def _process(self, slot: WorkerSlot, message: FetchProgress) -> None:
        bytes = message.bytes + message.other_bytes
        slot.received += bytes
        self._received_bytes += bytes
        slot.cpu_s = message.cpu_s
        self._reported_at = max(self._reported_at or 0.0, message.sent_at)
        self._reports.append(message)
        self._latency_s = min(self._latency_s, message.latency_s)
        self.received.notify(message.bytes)
        self.received_from_other.notify(message.other_bytes)
        self.library_files += message.library_files
        if not self._gave_up:
            self._gave_up, self.client = message.gave_up, message.client or self.client
        if message.failure and not bytes:
            self.failed.notify(message.failure)
        for id, result in message.files:
            if download := slot.remove(id, result):
                self.returned.notify(download, result)
        self._changed.notify()

    # Limits.

    def _share_limits(self) -> None:
        """Divide streams and bandwidth among the workers with files, and tell them how fast the remote answers."""
        latency_s = 0.0 if math.isinf(self._latency_s) else self._latency_s
        self._pool.limits.set(self._concurrency.streams, self._busy, self.bytes_per_s, latency_s)

    async def _adjust(self) -> None:
        silent_s, silent_s_max = 0.0, SILENCE_S
        while True:
            while not any(slot.downloads for slot in self._slots):
                self._reported_at = None
                await self._changed.wait()
            self._reports = []
            began, reported_at, received_bytes = trio.current_time(), self._reported_at, self._received_bytes
            cpu_s = {slot: slot.cpu_s for slot in self._slots if slot.downloads and not slot.is_for_readers}
            await trio.sleep(self._concurrency.period_s)
            took_s = trio.current_time() - began
            # Results may have kept the daemon from reading reports in between.
            reports_s = self._reported_at - reported_at if reported_at and self._reported_at else took_s
            reports, bytes = self._reports, self._received_bytes - received_bytes
            rates = [count / reports_s if reports_s else 0.0 for count in (bytes, sum(len(it.files) for it in reports))]
            self._ahead = FilesAhead(self._is_computed, *rates)
            self._changed.notify()
            if self._is_computed:
                continue
            silent_s += took_s
            if bytes or self._is_suspended:
                silent_s, silent_s_max = 0.0, SILENCE_S
            if silent_s >= silent_s_max:
                self.failed.notify(
                    RemoteBusy(f"{self._pool.url}: nothing has arrived for {silent_s_max:g} s; check the network")
                )
                silent_s_max *= 2
            if reports_s:
                self._worker_count.update([(slot.cpu_s - before) / reports_s for slot, before in cpu_s.items()])
            before = self._concurrency.streams
            self._concurrency.note_files(self._ahead.files_per_s, self._latency_s)
            self._concurrency.note_requests(sum(it.answered for it in reports), sum(it.throttled for it in reports))
            in_use = self._busy * fmean([it.streams for it in reports] or [0])
            streams = self._concurrency.update(self._ahead.bytes_per_s, self._wants_streams(in_use), in_use)
            if streams < before and self._concurrency.is_throttled:
                log.info("the store asks for fewer requests: %d at a time", streams)
            self._share_limits()

    def _wants_streams(self, in_use: float) -> bool:
        """Whether more streams would have had something to fetch. in_use: how many were in use, on average.

        A large file may be the last one: it is not queued any more, but has segments that no stream has begun.
        """
        # If nearly all streams are in use, more would have had something to fetch.
        if self._queue or in_use < 0.9 * self._concurrency.streams:
            return bool(self._queue)
        return any(not download.urgent for slot in self._slots for download in slot.downloads.values())


def _is_suspect(download: Download) -> bool:
    """Whether the file killed a worker before."""
    return download.attempts_left < ATTEMPTS_MAX


def _request(download: Download, hosts: tuple[str, ...]) -> FetchRequest:
    node = download.node
    file = RemoteFile(download.path, node.size, node.mtime_ns, node.version)
    return FetchRequest(node.id, file, download.target, download.size_max, download.urgent, download.number, hosts)
