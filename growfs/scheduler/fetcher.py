"""Every download from the request to its admission: each file at most once, and misses before everything else.

Reserves space, gives files to the dispatcher, and admits what workers fetched in the order of the draws (`admission`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from growfs import disk
from growfs.cache.catalog import Node
from growfs.cache.publish import StagedFile
from growfs.cache.store import Store
from growfs.errors import (
    DiskFull,
    GrowfsError,
    NoRoom,
    RemoteBusy,
    RemoteError,
    RemoteMissing,
    TooLarge,
    Unreadable,
)
from growfs.remote.http.threads import PART_BYTES_MAX
from growfs.remote.interface import Fetched, RemoteFile
from growfs.scheduler.dispatcher import Dispatcher
from growfs.scheduler.in_flight import (
    ATTEMPTS_MAX,
    AdmissionQueue,
    Counters,
    Download,
    DownloadGroup,
    DownloadState,
    InFlightTable,
)
from growfs.scheduler.outage import Failure, Outage, may_be_outage
from growfs.scheduler.space import Space
from growfs.signal import Signal
from growfs.workers.messages import FetchFailed, SizeExceeded

log = logging.getLogger(__name__)

WINDOW_FILES = 1024
"""Drawn groups that may be in flight or wait for an earlier one."""
WINDOW_PARTS = 4
"""Their bytes, in parts of files for each stream; but as many groups as there are streams may be larger."""
GONE_S = 3600.0
"""How long it is told that a file was gone when it was to be fetched."""
SPACE_POLL_S = 0.5
"""How often a miss without space tries again: other programs may have freed the disk meanwhile."""


class Fetcher:
    """Owns the downloads in flight, and moves each through its states.

    progressed: notified when a download finishes, or when more may be drawn. on_remote_changed: called when a fetch
    finds that the remote has another version of a file, or none.
    """

    def __init__(
        self,
        downloads: InFlightTable,
        store: Store,
        space: Space,
        dispatcher: Dispatcher,
        on_remote_changed: Callable[[Node, RemoteFile | None], Awaitable[None]],
        outage: Outage,
        miss_timeout_s: float,
    ) -> None:
        self._miss_timeout_s = miss_timeout_s
        self.counters = Counters()
        self.progressed = Signal[[]]()
        self._downloads = downloads
        self._store = store
        self._space = space
        self._dispatcher = dispatcher
        self._on_remote_changed = on_remote_changed
        self._outage = outage
        self._admission_queue = AdmissionQueue()
        self._admission_due = trio.Event()
        self._unreserved: deque[Download] = deque()
        self._unreserved_added = Signal[[]]()
        self._no_space: list[Download] = []
        self._no_space_added = Signal[[]]()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._dispatcher.run, self._handle_result, self._handle_worker_death)
            for task in (self._admit, self._reserve_in_order, self._retry_no_space):
                nursery.start_soon(task)

    def set_miss_timeout(self, timeout_s: float) -> None:
        """Change how long a miss may take."""
        self._miss_timeout_s = timeout_s

    # Requests.

    @property
    def window_full(self) -> bool:
        """Whether a draw has to wait."""
        bytes = self._store.reserved_bytes
        streams = self._dispatcher.streams
        return len(self._admission_queue) >= WINDOW_FILES or (
            len(self._admission_queue) >= streams and bytes >= WINDOW_PARTS * streams * PART_BYTES_MAX
        )

    @property
    def in_flight(self) -> int:
        """Number of files in flight."""
        return len(self._downloads)

    def figures(self) -> dict[str, float | None]:
        """What was fetched since the daemon started, and how fast, as `fetch` in status.json has it."""
        return {
            "files_total": self.counters.files,
            "bytes_total": self.counters.bytes,
            "peer_files_total": self.counters.peer_files,
            "peer_bytes_total": self.counters.peer_bytes,
            "bytes_per_s": self.counters.bytes_per_s(),
            "failed": self.counters.failed,
            "streams": self._dispatcher.streams,
            "limit_bytes_per_s": self._dispatcher.bytes_per_s or None,
        }

    def last_failure(self) -> Failure | None:
        """The latest failure of a file that is not cached yet; for an hour, also if the remote has it no longer."""
        failures, since = self.counters.failures, time.time() - GONE_S
        latest = (failures[id] for id in reversed(failures) if failures[id].at > since or self._downloads.is_known(id))
        return next(latest, None)

    def need(self, node: Node) -> int:
        """Bytes to reserve for a file."""
        return self._downloads.sizes.need(node, self._store.max_file_bytes)

    def is_guess(self, node: Node) -> bool:
        """Whether the size of a file is not known."""
        return self._downloads.sizes.is_guess(node)

    def least(self, node: Node) -> int:
        """The fewest bytes that are worth a try where the size is a guess; else as `need`."""
        return self._downloads.sizes.least(node, self._store.max_file_bytes)

    def download(self, id: int) -> Download | None:
        """The file's download, if it is in flight."""
        return self._downloads.get(id)

    def draw(self, nodes: dict[Node, int], ids: tuple[int, ...], on_finished: Callable[[Download], None]) -> None:
        """Fetch a drawn group; it is admitted after those drawn before. nodes: each with the bytes reserved for it.

        ids, on_finished: as in DownloadGroup.
        """
        group = DownloadGroup(drawn=True, ids=ids, on_finished=on_finished)
        self._admission_queue.append(group)
        for node, reserved in nodes.items():
            download = self._downloads.start(node, group, min(self.need(node), reserved))  # the estimate may have grown
            download.reserved = reserved
            self._dispatcher.enqueue(download)

    async def update(self, node: Node) -> bool:
        """Fetch a newer version of a resident file, which then takes its place; returns when it has, or failed.

        False where there is no room beside what readers hold. node: the resident file's, with the new version's size,
        time and version.
        """
        reserved = await self._find_space(node, self.need(node), keep_held=True)
        if reserved is None:
            return False
        while earlier := self._downloads.get(node.id):
            await earlier.finished.wait()
        download = self._downloads.start(node, DownloadGroup(), min(self.need(node), reserved))
        download.renews, download.reserved = True, reserved
        self._dispatcher.enqueue(download)
        await download.finished.wait()
        return True

    async def ensure(self, node: Node, path: str) -> None:
        """Return when the file is resident, or gone, fetching it before everything that no reader waits for.

        Raises GrowfsError with the errno that a reader should get, after miss_timeout_s at the latest.
        """
        if self.need(node) > self._store.max_file_bytes:
            raise too_large(path)
        if self._downloads.get(node.id) is None:
            for started in await self._downloads.start_miss(node, self._store.max_file_bytes):
                self._request_space(started)
        download = self._downloads.get(node.id)
        if download is None:
            return  # it is cached by now, or gone
        if not download.urgent:
            self._prioritize(download.group)
        with trio.move_on_after(self._miss_timeout_s):
            await download.finished.wait()
        if not download.finished.is_set():
            if download.disk_full:
                raise download.disk_full
            if download.no_space_since is not None:
                raise self._no_room(download)
            why = f", waiting for the remote: {self._outage.why}" if self._outage.is_on else "; raise --miss-timeout"
            raise TimedOut(f"{path}: not fetched within {self._miss_timeout_s:g} s{why}")
        if download.error:
            raise download.error

    def _prioritize(self, group: DownloadGroup) -> None:
        for download in group.downloads:
            download.urgent = True
            self._dispatcher.prioritize(download)
        self._queue_for_admission(group)

    # Space.

    def _request_space(self, download: Download) -> None:
        self._unreserved.append(download)
        self._unreserved_added.notify()

    async def _reserve_in_order(self) -> None:
        while True:
            while not self._unreserved:
                await self._unreserved_added.wait()
            while self._outage.is_on:  # nothing is evicted for what cannot be fetched
                await self._outage.ended.wait()
            download = self._unreserved.popleft()
            if download.state is DownloadState.QUEUED and await self._reserve(download):
                self._dispatcher.enqueue(download)

    async def _reserve(self, download: Download) -> bool:
        """Reserve space for a download; one that gets none now waits for it, without making others wait."""
        try:
            download.reserved = await self._find_space(download.node, download.need, keep_held=not download.urgent)
            may_wait = download.reserved is not None or await self._may_wait_for_space(download)
        except Unreadable as error:
            self._fail(download, error)
            return False
        if download.state is not DownloadState.QUEUED:  # it failed with another of its group meanwhile
            self._unreserve(download)
            return False
        if download.reserved is not None:
            download.no_space_since = None
            download.need = min(download.need, download.reserved)
            return True
        download.no_space_since = download.no_space_since or trio.current_time()
        if may_wait:
            self._no_space.append(download)
            self._no_space_added.notify()
        else:
            self._fail(download, self._no_room(download))
        return False

    async def _may_wait_for_space(self, download: Download) -> bool:
        """Whether a download that finds no space waits for it."""
        if download.no_space_since is not None:
            return trio.current_time() - download.no_space_since < self._miss_timeout_s
        if not (download.urgent or download.renews):
            return False  # it was drawn, and is larger than expected: those that were drawn after it wait for it
        return await self._space.may_ever_fit(self.least(download.node))

    async def _find_space(self, node: Node, need: int, keep_held: bool) -> int | None:
        """Reserve what a file needs, evicting for it. Where that is a guess, what is free is tried first."""
        least = self.least(node)
        if least >= need:
            return await self._space.reserve_by_eviction(need, keep_held)
        reserved = self._store.reserve(need) or self._store.reserve_part(need, least)
        for size in (need, least):
            if reserved is None:
                reserved = await self._space.reserve_by_eviction(size, keep_held)
        return reserved

    async def _retry_no_space(self) -> None:
        while True:
            while not self._no_space:
                await self._no_space_added.wait()
            with trio.move_on_after(SPACE_POLL_S):
                await self._store.space_freed.wait()
            waiting, self._no_space = self._no_space, []
            for download in waiting:
                if download.state is DownloadState.QUEUED:
                    self._request_space(download)

    def _retries_on_full_disk(self, download: Download, error: DiskFull) -> bool:
        """Fetch a miss again that found the disk full: others filled it, or the catalog grew. More is evicted now.

        Returns False where no reader waits, or none would wait any longer.
        """
        if download.disk_full is None:
            download.disk_full_since = trio.current_time()
        if not download.urgent or trio.current_time() - download.disk_full_since >= self._miss_timeout_s:
            return False
        download.disk_full = error
        self._discard(download)
        download.move(DownloadState.QUEUED)
        self._no_space.append(download)
        self._no_space_added.notify()
        return True

    def _no_room(self, download: Download) -> GrowfsError:
        """The error for a file for which nothing may be evicted, or for which the disk refuses to."""
        if refusal := self._store.refusal:
            return disk.cannot_write(refusal)
        return NoRoom(
            f"{download.path}: no room for {download.need} bytes; all that is cached is open, pinned or its"
            " directory's last file; raise --cache-size"
        )

    def _unreserve(self, download: Download) -> None:
        if download.reserved is not None:
            self._store.unreserve(download.reserved)
            download.reserved = None

    def _discard(self, download: Download) -> None:
        """Give back the space of a download, and delete what was fetched of it."""
        self._unreserve(download)
        if download.staged:
            with contextlib.suppress(OSError):
                disk.unlink("DRAFT_FAILED", download.staged.file)
            download.staged = None

    # Results of the workers.

    async def _handle_result(self, download: Download, result: Fetched | FetchFailed) -> None:
        if isinstance(result, FetchFailed):
            await self._handle_failure(download, result)
            return
        if result.from_peer:
            self.counters.peer_files += 1
        else:
            self._outage.answered(download.sent_at)
        assert download.reserved is not None
        self._downloads.sizes.learn(result.size)
        download.reserved = self._store.adjust_reservation(download.reserved, result.size)
        download.staged = StagedFile(
            download.node, download.path, download.target, result, download.reserved, download.renews,
            download.group.ids,
        )  # fmt: skip
        download.move(DownloadState.FETCHED)
        if error := download.group.error:
            self._fail(download, error)
        else:
            self._queue_for_admission(download.group)

    async def _handle_failure(self, download: Download, failure: FetchFailed) -> None:
        error = failure.error
        if isinstance(error, SizeExceeded) and download.need < self._store.max_file_bytes:
            self._unreserve(download)
            size_max = self._store.max_file_bytes
            download.need = self._downloads.sizes.exceeded(download.node, download.need, size_max)
            download.move(DownloadState.QUEUED)
            self._request_space(download)
            return
        if isinstance(error, DiskFull) and self._retries_on_full_disk(download, error):
            return
        if may_be_outage(error):
            download.move(DownloadState.QUEUED)
            if isinstance(error, RemoteBusy):
                self._admission_queue.release(download.group)  # others may arrive meanwhile, and are shown
                self._admission_due.set()
            self._outage.suspect(error, partial(self._retry_or_fail, download, error))
            return
        if failure.found or isinstance(error, RemoteMissing):
            self._outage.answered(download.sent_at)
            await self._on_remote_changed(download.node, failure.found)
        self._fail(download, too_large(download.path) if isinstance(error, SizeExceeded) else error)

    def _retry_or_fail(self, download: Download, error: GrowfsError, is_away: bool) -> None:
        """Try a file again that failed while the remote was away, or was busy; any other has failed by itself."""
        if download.state is not DownloadState.QUEUED:  # it failed with another of its group meanwhile
            return
        download.tries_left -= not is_away
        if is_away or (isinstance(error, RemoteBusy) and download.tries_left):
            self._dispatcher.requeue(download)
        else:
            self._fail(download, error)

    def _handle_worker_death(self, download: Download) -> None:
        with contextlib.suppress(OSError):  # the next worker writes over it
            disk.unlink("DRAFT_LOST", download.target)
        download.attempts_left -= 1
        if download.attempts_left == 0:
            self._fail(
                download,
                RemoteBusy(f"{download.path}: {ATTEMPTS_MAX} worker processes died or hung over it; see the log"),
            )
            return
        download.move(DownloadState.QUEUED)
        self._dispatcher.enqueue(download, first=True)

    # Admission.

    def _queue_for_admission(self, group: DownloadGroup) -> None:
        self._admission_queue.prioritize(group)
        self._admission_due.set()

    async def _admit(self) -> None:
        while True:
            await self._admission_due.wait()
            batch = self._admission_queue.next_batch()
            self.progressed.notify()
            if not batch:
                self._admission_due = trio.Event()
                continue
            errors: dict[int, OSError] = {}
            failure: Exception | None = None
            # A new version has another id than the old one, which is what a generation that begins knows.
            has_renewed = any(download.renews for download in batch)
            unchanged = self._space.unchanged_generation() if has_renewed else contextlib.nullcontext()
            try:
                async with unchanged:
                    staged = [download.staged for download in batch if download.staged]
                    admitted = await self._store.admit(staged, errors)
            except (OSError, sqlite3.Error) as error:
                failure = error
                admitted = set()
            for download in batch:
                download.reserved = None  # `admit` gave it back
                if download.node.id in admitted:
                    download.move(DownloadState.ADMITTED)
                    self.counters.files += 1
                    self.counters.failures.pop(download.node.id, None)
                    self._finish(download)
            for download in batch:
                if download.state is DownloadState.FETCHED:  # else it failed with another of its group
                    self._handle_refusal(download, failure or errors.get(download.node.id))

    def _handle_refusal(self, download: Download, refused: Exception | None) -> None:
        """Handle a fetched file that was not admitted. refused: why the disk refused it, if it did."""
        if refused is None:
            self._fail(download, RemoteError(f"{download.path}: the remote has another version by now"))
            return
        error = disk.cannot_write(refused)
        if not (isinstance(error, DiskFull) and self._retries_on_full_disk(download, error)):
            self._fail(download, error)

    def _fail(self, download: Download, error: GrowfsError) -> None:
        """Fail a download, and with it all of its group that no worker has."""
        self._discard(download)
        download.error = error
        download.move(DownloadState.FAILED)
        is_new = self.counters.add_failure(download.node.id, error)
        log.log(logging.WARNING if is_new else logging.DEBUG, "not fetched: %s", error)
        self._finish(download)
        for other in download.group.downloads:
            if other.state in (DownloadState.QUEUED, DownloadState.FETCHED):
                self._fail(other, error)
        self._admission_due.set()

    def _finish(self, download: Download) -> None:
        self._downloads.finish(download)
        self.progressed.notify()


def too_large(path: str) -> TooLarge:
    """The error for a file that would not fit even into an empty cache."""
    return TooLarge(f"{path}: larger than the whole cache; raise --cache-size")


class TimedOut(GrowfsError):
    """A miss waited as long as --miss-timeout allows."""

    errno = errno.ETIMEDOUT
