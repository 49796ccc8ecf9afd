"""Every download from the request to its admission: each file at most once, and misses before everything else.

A draw, a miss and a new version are one kind of request, with a Priority: each gets room (`space`), goes to a worker
(`dispatcher`), comes back as an Outcome, and is admitted in the order of the draws (`AdmissionQueue`).

The difficulties, and their solutions:

1. A file that waits for room must not make others wait. Each such download has a task; the others need none.
2. A download may fail while its task waits, because another of its group has failed. After each await, the task checks
   its state; `Claim.is_wanted` does so for downloads that wait for room. `_fail` gives back what the download holds.
3. A reader may give up at any time, but its download continues: no task of a reader moves a download.
4. A failure may be the file's or the remote's. `Outage` decides; meanwhile the download is QUEUED, and keeps its room.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable
from functools import partial

import trio

from growfs import disk
from growfs.cache.catalog import Node
from growfs.cache.publish import StagedFile
from growfs.cache.room import Reservation, SizeEstimate
from growfs.cache.store import Store
from growfs.cache.usage import Traffic
from growfs.errors import (
    DiskFull,
    GrowfsError,
    RemoteBusy,
    RemoteMissing,
    RemoteUnavailable,
    TimedOut,
    TooLarge,
    Unreadable,
)
from growfs.remote.interface import Fetched
from growfs.rotation.generations import Generations
from growfs.scheduler.admission import LATE_S, Admitter
from growfs.scheduler.dispatcher import Dispatcher, Outcome, WorkerDied
from growfs.scheduler.in_flight import (
    ATTEMPTS_MAX,
    Claim,
    Download,
    DownloadGroup,
    DownloadState,
    InFlightTable,
    Place,
    Priority,
)
from growfs.scheduler.outage import Failures, Outage
from growfs.scheduler.refresh import CatalogSync
from growfs.scheduler.space import Space
from growfs.signal import Signal
from growfs.status_and_metrics import FetchStatus
from growfs.workers.messages import FetchFailed, SizeExceeded

log = logging.getLogger(__name__)


class Fetcher:
    """Moves each download through its states. downloads: those in flight. miss_timeout_s: how long a miss may take.

    progressed: notified when a download finishes, or when more may be drawn, or none any more. finished: notified of
    each download that was admitted or failed.
    """

    def __init__(
        self,
        downloads: InFlightTable,
        store: Store,
        space: Space,
        sizes: SizeEstimate,
        dispatcher: Dispatcher,
        generations: Generations,
        catalog_sync: CatalogSync,
        outage: Outage,
        miss_timeout_s: float,
    ) -> None:
        self.miss_timeout_s = miss_timeout_s
        self.traffic = Traffic()
        self.failures = Failures(downloads.is_known)
        self.downloads = downloads
        self.progressed = Signal[[]]()
        self.finished = Signal[[Download]]()
        self._room = store.room
        self._space = space
        self._sizes = sizes
        self._dispatcher = dispatcher
        self._catalog_sync = catalog_sync
        self._outage = outage
        self._admitter = Admitter(store, generations, self.progressed, self._handle_admission)
        self._nursery: trio.Nursery | None = None  # while it runs

    async def run(self) -> None:
        """Serve until cancelled. After an error, `run` goes on with the downloads in flight."""
        stranded = self.downloads.stranded()
        for download in stranded:
            if not download.finished.is_set():  # otherwise it has failed along with another of its group just now
                self._resume(download)
        for download in stranded:
            self._admitter.queue.give_back(download.group)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._dispatcher.run)
            nursery.start_soon(self._admitter.run)
            for download in self.downloads.without_room():
                nursery.start_soon(self._find_room, download)
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _resume(self, download: Download) -> None:
        """Move on a download that an error may have left halfway."""
        group = download.group
        if download.state in (DownloadState.ADMITTED, DownloadState.FAILED):
            self._finish(download)
        elif group.error:
            self._fail(download, group.error)
        elif download.state is DownloadState.FETCHED and group.place is not Place.TAKEN:
            self._admitter.queue.prioritize(group)
        else:
            download.start_over()

    # Requests.

    @property
    def window_full(self) -> bool:
        """Whether a draw has to wait."""
        return self._dispatcher.has_enough(len(self._admitter.queue), self._room.reserved_bytes)

    def status(self, eta_s: float | None) -> FetchStatus:
        """The fetch section of the status. eta_s: until the cache is full or everything is cached."""
        return FetchStatus(
            files_total=self.traffic.files,
            bytes_total=self.traffic.bytes,
            peer_files_total=self.traffic.other_files,
            peer_bytes_total=self.traffic.other_bytes,
            bytes_per_s=self.traffic.bytes_per_s(),
            failed=self.failures.count,
            streams=self._dispatcher.streams,
            limit_bytes_per_s=self._dispatcher.bytes_per_s or None,
            client=self._dispatcher.client.name,
            client_reason=self._dispatcher.client.reason,
            library_files_total=self._dispatcher.library_files,
            late_file=self._admitter.late_file,
            eta_s=eta_s,
        )

    def draw(self, nodes: list[Node], ids: tuple[int, ...], priority: Priority, reserved: Reservation) -> None:
        """Fetch a drawn group; it is admitted after the groups drawn before it.

        reserved: from a claim for these nodes. ids: as in DownloadGroup.
        """
        group = DownloadGroup(is_drawn=True, ids=ids)
        with reserved:
            *others, last = self.downloads.start(nodes, group, priority)
        self._admitter.queue.append(group)
        for download, bytes in zip(others, self._sizes.divide(nodes, reserved.bytes), strict=False):
            self._enqueue(download, reserved.split(min(bytes, reserved.bytes)))
        self._enqueue(last, reserved)

    async def update(self, node: Node, path: str, gives_way: Callable[[], bool] = lambda: False) -> bool:
        """Fetch a newer version of a resident file once there is room for it; returns when it has taken its place.

        Also returns if it failed, or if the file is gone: the remote deleted it, or a miss evicted it, and its next
        open then finds the version. node: the resident file's, with the new version's size, time and version. path: of
        the file. gives_way: whether to wait for room no longer; then this returns False.
        """

        def is_wanted() -> bool:
            return not gives_way() and self.downloads.is_known(node.id) and self.downloads.get(node.id) is None

        while self.downloads.is_known(node.id) and not gives_way():
            if earlier := self.downloads.get(node.id):
                await earlier.finished.wait()
                continue
            claim = Claim([node], path, Priority.DUE, is_wanted, renews=True)
            if reserved := await self._space.acquire(claim):
                with reserved:
                    [download] = self.downloads.start([node], DownloadGroup(), Priority.DUE, renews=True)
                self._enqueue(download, reserved)
                await download.finished.wait()
                return True
        return not self.downloads.is_known(node.id)

    async def ensure(self, node: Node, path: str, patience_s: float | None = None) -> None:
        """Return when the file is resident or gone. Fetches it before everything that no reader waits for.

        Raises GrowfsError with the errno that a reader should get, after patience_s (by default, miss_timeout_s) at the
        latest.
        """
        patience_s = self.miss_timeout_s if patience_s is None else patience_s
        if self._space.is_too_large([node]):
            raise too_large(path)
        if self.downloads.get(node.id) is None:
            for started in await self.downloads.start_miss(node, self._room.max_file_bytes):
                self._request_room(started)
        download = self.downloads.get(node.id)
        if download is None:
            return  # it is cached by now, or gone
        download.group.awaited_until = max(download.group.awaited_until, trio.current_time() + patience_s)
        if not download.urgent:
            download.group.prioritize()
            self._dispatcher.prioritize(download.group.downloads)
            self._admitter.queue.prioritize(download.group)
        with trio.move_on_after(patience_s):
            await download.finished.wait()
        if not download.finished.is_set():
            raise download.disk_full or self._why_late(download, patience_s)
        if download.error:
            raise download.error

    def _why_late(self, download: Download, waited_s: float) -> GrowfsError:
        if download.claim and download.claim.waits_since is not None:
            return self._space.no_room(download.claim)
        why = f", waiting for the remote: {self._outage.why}" if self._outage.is_on else "; raise --miss-timeout"
        return TimedOut(f"{download.path}: not fetched within {waited_s:g} s{why}")

    # Room.

    def _request_room(self, download: Download, waits_first: bool = False) -> None:
        """Give a download to the dispatcher, at once if the free space suffices, else when there is room.

        waits_first: as in Space.acquire.
        """
        reserved = None
        with contextlib.suppress(Unreadable):  # then the task gets the error, and the download fails with it
            reserved = None if waits_first else self._space.reserve_free(self._claim(download))
        if reserved:
            self._enqueue(download, reserved)
        elif self._nursery:
            self._nursery.start_soon(self._find_room, download, waits_first)

    async def _find_room(self, download: Download, waits_first: bool = False) -> None:
        """Fetch a download once there is room for it. waits_first: as in Space.acquire."""
        claim = download.claim = self._claim(download)
        try:
            reserved = await self._space.acquire(claim, waits_first)
        except GrowfsError as error:
            if download.lacks_room:
                self._fail(download, error)
        else:
            if reserved:
                self._enqueue(download, reserved)
        finally:
            download.claim = None

    def _claim(self, download: Download) -> Claim:
        """A claim for one file. A drawn one that is larger than expected waits only briefly, as it holds up later
        ones.
        """
        is_awaited = download.urgent or download.renews
        return Claim(
            [download.node],
            download.path,
            download.priority,
            lambda: download.lacks_room,
            renews=download.renews,
            group=download.group,
            patience_s=self.miss_timeout_s if is_awaited else LATE_S,
        )

    def _enqueue(self, download: Download, reserved: Reservation) -> None:
        needed = reserved.bytes if self._sizes.is_guess(download.node) else self._sizes.need(download.node)
        download.reserved = reserved
        download.size_max = min(needed, reserved.bytes)
        self._dispatcher.enqueue(download)

    def _handle_full_disk(self, download: Download, error: DiskFull) -> None:
        """Decide what happens to a file that the disk refused, and to all others if that reveals a quota.

        Others may have filled the disk, or the catalog grew. A file that a reader waits for is fetched again, and more
        is evicted for it now. Any other fails: its pass draws it again, or the next listing finds the new version.
        """
        if self._room.note_refusal(error, download.sent_at, self.downloads.written_bytes):
            # To evict, the catalog needs room: what has no reader and no worker, and is not being admitted, gives it.
            for other in self.downloads.waiting():
                if other.state in (DownloadState.QUEUED, DownloadState.FETCHED):  # otherwise it failed with its group
                    self._fail(other, error)
        if download.state is DownloadState.FAILED:
            return
        if download.urgent and trio.current_time() < download.group.awaited_until:
            download.disk_full = error
            download.start_over()
            self._request_room(download, waits_first=True)
        else:
            self._fail(download, error)

    # Results of the workers.

    def handle_result(self, download: Download, outcome: Outcome) -> None:
        """Move on a download that a worker had. Called while this runs, since it runs the dispatcher."""
        if isinstance(outcome, WorkerDied):
            self._handle_worker_death(download)
        elif isinstance(outcome, FetchFailed):
            self._handle_failure(download, outcome)
        else:
            self._handle_fetched(download, outcome)

    def _handle_fetched(self, download: Download, fetched: Fetched) -> None:
        if fetched.from_other:
            self.traffic.other_files += 1
        else:
            self._outage.answered(download.sent_at)
        assert download.reserved is not None
        self._sizes.arrived(download.node, fetched.size)
        download.reserved.resize(fetched.size)
        download.staged = StagedFile(
            download.node, download.path, download.target, fetched, download.reserved, download.renews,
            download.group.ids,
        )  # fmt: skip
        download.move(DownloadState.FETCHED)
        overdraft = None if download.urgent else self._room.quota.overdraft(self._room.used_bytes)
        if error := download.group.error or overdraft:
            self._fail(download, error)
        else:
            self._admitter.queue.prioritize(download.group)

    def _handle_failure(self, download: Download, failure: FetchFailed) -> None:
        error = failure.error
        if isinstance(error, SizeExceeded) and download.size_max < self._room.max_file_bytes:
            self._sizes.exceeded(download.node, download.size_max)
            download.start_over()
            self._request_room(download)
        elif isinstance(error, DiskFull):
            self._handle_full_disk(download, error)
        elif isinstance(error, RemoteUnavailable):
            download.move(DownloadState.QUEUED)
            if isinstance(error, RemoteBusy):
                self._admitter.queue.release(download.group)  # others may arrive and be shown meanwhile
            self._outage.suspect(error, partial(self._retry_or_fail, download, error))
        elif self._nursery and (failure.found or isinstance(error, RemoteMissing)):
            self._outage.answered(download.sent_at)
            self._nursery.start_soon(self._fail_changed, download, failure)
        else:
            self._fail(download, too_large(download.path) if isinstance(error, SizeExceeded) else error)

    async def _fail_changed(self, download: Download, failure: FetchFailed) -> None:
        """Fail a download whose file has a different version now, or none, once the catalog says so."""
        await self._catalog_sync.update_file(download.node, failure.found)
        self._fail(download, failure.error)

    def _retry_or_fail(self, download: Download, error: GrowfsError, is_away: bool) -> None:
        """Retry a file that failed while the remote was away or busy; any other failure is the file's own."""
        if download.state is not DownloadState.QUEUED:  # it failed along with another of its group meanwhile
            return
        download.tries_left -= not is_away
        if is_away or (isinstance(error, RemoteBusy) and download.tries_left):
            self._dispatcher.enqueue(download)
        else:
            self._fail(download, error)

    def _handle_worker_death(self, download: Download) -> None:
        with contextlib.suppress(OSError):  # the next worker overwrites it
            disk.unlink("DRAFT_LOST", download.target)
        download.attempts_left -= 1
        if download.attempts_left:
            download.move(DownloadState.QUEUED)
            self._dispatcher.enqueue(download)
        else:
            self._fail(
                download,
                RemoteBusy(
                    f"{download.path}: {ATTEMPTS_MAX} worker processes died or hung while fetching it; see the log"
                ),
            )

    # Ends.

    def _handle_admission(self, download: Download, error: GrowfsError | None) -> None:
        """Finish a download that was admitted. error: why it was not."""
        if error:
            self._handle_failure(download, FetchFailed(error))
        else:
            self._finish(download)

    def _fail(self, download: Download, error: GrowfsError) -> None:
        """Fail a download, along with all of its group that no worker has."""
        download.group.error = download.group.error or error
        others = (it for it in download.group.downloads if it.state in (DownloadState.QUEUED, DownloadState.FETCHED))
        for each in itertools.chain([download], others):  # others are looked for once it has failed
            each.discard()
            each.error = error
            each.move(DownloadState.FAILED)
            is_new = self.failures.add(each.node.id, error)
            log.log(logging.WARNING if is_new else logging.DEBUG, "not fetched: %s", error)
            self._finish(each)
        self._admitter.queue.changed.notify()

    def _finish(self, download: Download) -> None:
        if download.error is None:
            self.traffic.files += 1
            self.failures.forget(download.node.id)
        self.downloads.finish(download)
        self.finished.notify(download)
        self._space.waiting.reconsider()
        self._room.freed.notify()
        self.progressed.notify()


def too_large(path: str) -> TooLarge:
    """The error for a file that would not fit even into an empty cache."""
    return TooLarge(f"{path}: larger than the whole cache; raise --cache-size")
