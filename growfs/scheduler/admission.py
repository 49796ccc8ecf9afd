"""The order in which fetched files are admitted, and their admission, batch after batch.

The difficulties, and their solutions:

1. Workers finish in any order, and the set of cached files must not depend on it. Drawn groups wait in a window, in the
   order drawn. A file that a reader waits for leaves the window, and so does one that arrives slowly.
2. A group may be moved for several reasons at the same time: its store is busy, it arrives, a reader opens it while it
   is being admitted. One field says where it is (`DownloadGroup.place`), and a move that does not apply does nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable

import trio

from growfs import disk
from growfs.cache.database import DISK_ERRORS
from growfs.cache.publish import Published
from growfs.cache.store import Store
from growfs.errors import GrowfsError, RemoteError
from growfs.rotation.generations import Generations
from growfs.scheduler.in_flight import Download, DownloadGroup, DownloadState, Place
from growfs.signal import Signal

log = logging.getLogger(__name__)

LATE_S = 5.0
"""How long a drawn group that is not fetched holds back later ones, from when one of them is fetched."""


class AdmissionQueue:
    """Owns the order in which fetched files are admitted, whatever the order in which workers finish them.

    A reorder window: drawn groups are admitted in the order drawn, so the result does not depend on the number of
    workers. A group that a reader waits for, or that was not drawn, does not wait in the window.

    Invariant: a group is in `_window` if its place is WINDOW, in `_next` if it is NEXT, and otherwise in neither.

    changed: notified when there may be more to admit.
    """

    def __init__(self) -> None:
        self.changed = Signal[[]]()
        self._window: deque[DownloadGroup] = deque()
        self._next: deque[DownloadGroup] = deque()

    def __len__(self) -> int:
        return len(self._window)

    def append(self, group: DownloadGroup) -> None:
        """Admit a drawn group after all groups already in the window."""
        group.place = Place.WINDOW
        self._window.append(group)

    def release(self, group: DownloadGroup) -> None:
        """Let groups drawn after this one stop waiting for it; it is admitted once it is fetched."""
        if group.place is Place.WINDOW:
            self._window.remove(group)
            group.place = Place.OUTSIDE
            self.changed.notify()

    def release_late(self, now: float) -> list[DownloadGroup]:
        """Release the groups that others passed LATE_S ago or earlier; returns them."""
        window = list(self._window)
        while window and not window[-1].is_fetched:
            window.pop()
        late = []
        for group in window:
            if not group.is_fetched:
                group.passed_at = group.passed_at or now
                if now > group.passed_at + LATE_S:
                    late.append(group)
                    self.release(group)
        return late

    def give_back(self, group: DownloadGroup) -> None:
        """Note that a group that was taken is not admitted now; it will be once it is fetched again."""
        if group.place is Place.TAKEN:
            group.place = Place.OUTSIDE

    def prioritize(self, group: DownloadGroup) -> None:
        """Admit a group next if it is fetched completely, and a reader waits for it or it is outside the window."""
        if group.is_fetched:
            if any(download.urgent for download in group.downloads):
                self.release(group)
            if group.place is Place.OUTSIDE:
                group.place = Place.NEXT
                self._next.append(group)
        self.changed.notify()

    def next_batch(self) -> list[Download]:
        """The next downloads to admit in one transaction, in order: prioritized groups, then the head of the window."""
        batch: list[Download] = []
        while len(batch) < 256 and (group := self._take_next()):
            group.place = Place.TAKEN if group.is_fetched else Place.OUTSIDE  # otherwise it failed meanwhile
            if group.is_fetched:
                batch.extend(group.downloads)
        return batch

    def _take_next(self) -> DownloadGroup | None:
        if self._next:
            return self._next.popleft()
        head = self._window[0] if self._window else None
        if head and (head.is_fetched or all(download.state >= DownloadState.ADMITTED for download in head.downloads)):
            return self._window.popleft()
        return None


class Admitter:
    """Admits what is in `queue`, and notices drawn files that arrive slowly.

    progressed: notified after each look at the queue. settled: called with each file of a batch: with None once it is
    ADMITTED, or with the reason why the cache does not take it; it is still FETCHED then.
    """

    def __init__(
        self,
        store: Store,
        generations: Generations,
        progressed: Signal[[]],
        settled: Callable[[Download, GrowfsError | None], None],
    ) -> None:
        self.queue = AdmissionQueue()
        self._store = store
        self._generations = generations
        self._progressed = progressed
        self._settled = settled
        self._late: list[Download] = []
        """Downloads not fetched yet although ones drawn after them were already admitted."""

    @property
    def late_file(self) -> str | None:
        """The path of a file that arrives after ones drawn later; None if there is none."""
        return next((download.path for download in self._late if not download.finished.is_set()), None)

    async def run(self) -> None:
        """Admit until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._release_late)
            while True:
                batch = self.queue.next_batch()
                self._progressed.notify()
                if batch:
                    await self._admit(batch)
                else:
                    await self.queue.changed.wait()

    async def _release_late(self) -> None:
        while True:
            await trio.sleep(1.0)
            self._late = [download for download in self._late if not download.finished.is_set()]
            late = [download for group in self.queue.release_late(trio.current_time()) for download in group.downloads]
            if late := [download for download in late if download.state is not DownloadState.FETCHED]:
                self._late += late
                what = f" and {len(late) - 1} more are arriving" if late[1:] else " is arriving"
                log.warning("%s%s slowly; later files are listed first", late[0].path, what)

    async def _admit(self, batch: list[Download]) -> None:
        published = Published()
        failure: GrowfsError | None = None
        # A new version has another id than the old one, which is the id that a beginning generation knows.
        renews = any(download.renews for download in batch)
        try:
            async with self._generations.unchanged() if renews else contextlib.nullcontext():
                published = await self._store.admit([download.staged for download in batch if download.staged])
        except Exception as error:
            if not isinstance(error, DISK_ERRORS):
                log.exception("files could not be added to the cache: a bug in growfs")
            failure = disk.cannot_write(error)
        admitted = [download for download in batch if download.node.id in published.admitted]
        for download in admitted:  # first: after an error in the rest, `Fetcher.run` knows which are cached
            download.reserved = download.staged = None
            download.move(DownloadState.ADMITTED)
        for download in admitted:
            self._settled(download, None)
        for download in batch:
            self.queue.give_back(download.group)
            if download.state is DownloadState.FETCHED:  # otherwise it failed along with another of its group
                self._settled(download, failure or _why_left_out(download, published))


def _why_left_out(download: Download, published: Published) -> RemoteError:
    if refused := published.refused.get(download.node.id):
        return RemoteError(f"{download.path}: the cache's disk refuses it ({refused.strerror}); exclude it")
    return RemoteError(f"{download.path}: the remote now has another version")
