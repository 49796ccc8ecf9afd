"""Keeps the catalog in step with the remote: lists it, applies the changes, and records new versions.

The first listing arrives in pages, each usable at once; during later listings, the saved catalog serves.
"""

from __future__ import annotations

import logging
import math
import re
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush

import trio

from growfs import disk
from growfs.cache.catalog import Catalog, Node, Removed
from growfs.cache.listing_diff import ListingDiff
from growfs.cache.store import Store
from growfs.errors import GrowfsError, RemoteBusy, RemoteDenied, RemoteMissing, RemoteUnavailable, Unreadable
from growfs.remote.interface import RemoteFile
from growfs.scheduler.outage import Failure, Outage
from growfs.signal import Signal
from growfs.status_and_metrics import RemoteStatus
from growfs.units import format_timespan
from growfs.workers.messages import ListRemote, ServerSilent
from growfs.workers.pool import STALL_S, WorkerLost, WorkerPool, WorkerSilent, call_worker

log = logging.getLogger(__name__)

EXTENT = 256
"""Files of an endless remote that are listed at first; doubled each time they run out."""
FIRST_PAGE_S_MAX = 600.0
"""A listing fails after this long without data, if no file is known yet: a batch job may be waiting for it."""


class CatalogSync:
    """Owns the state of the listing, and the new versions still to be fetched."""

    def __init__(
        self,
        workers: WorkerPool,
        catalog: Catalog,
        store: Store,
        outage: Outage,
        every_s: float,
        is_endless: bool = False,
    ) -> None:
        self.is_endless = is_endless
        self.complete = catalog.listing > 0
        """Whether a listing was finished, in this run or an earlier one."""
        self.listing_now = True
        """Whether one is under way, or about to begin."""
        self.failure: Failure | None = None
        """The failure of the last listing, or of the last attempt of one that waits for the remote."""
        self.progressed = Signal[[]]()
        """Notified after each page."""
        self.changed = Signal[[]]()
        """Notified when a listing has changed the files that a pass must draw."""
        self.file_changed = Signal[[]]()
        """Notified when a fetch found that a file has changed."""
        self.removed = Signal[[list[Removed]]]()
        """Notified of files and versions that are gone."""
        self._updates: dict[int, RemoteFile] = {}
        """New versions of resident files, by the id of the old one, for VersionUpdater to fetch. If one fails, or is
        not fetched before the daemon ends, the next listing finds it again."""
        self._smallest: list[tuple[int, int]] = []
        """A heap of (size, id) of these, and of some that were taken meanwhile."""
        self._updating: set[int] = set()
        self._altered = 0  # by listings, since `changed` was notified: one that failed may have found the only news
        self._silent_s: float | None = None
        self._was_silent = False
        self._is_refused = False
        self._workers = workers
        self._catalog = catalog
        self._store = store
        self._outage = outage
        self._every_s = every_s
        self._rescheduled = Signal[[]]()
        self._retry_due = False
        self._more_wanted = False

    async def run(self) -> None:
        """List now, and again at every interval (0: never again), or soon after a failed listing."""
        while True:
            self.listing_now = True
            try:
                await self._list()
            except (GrowfsError, sqlite3.DatabaseError) as failure:
                error = failure if isinstance(failure, GrowfsError) else GrowfsError(f"the database: {failure}")
                self.failure = Failure(error)
                log.warning("the remote could not be listed, continuing with the files known so far: %s", error)
                if self._catalog.files and isinstance(error, RemoteUnavailable):
                    self._outage.suspect(error)
            self.listing_now = False
            await self._pause()

    def status(self) -> RemoteStatus:
        """The remote section of the status."""
        return RemoteStatus(
            files=self._catalog.files,
            bytes=self._catalog.bytes,
            directories=self._catalog.directories,
            listed=self.complete,
            listing=self.listing_now,
            listing_silent_s=self._silent_s,
        )

    def set_interval(self, every_s: float) -> None:
        """Change the time between listings."""
        self._every_s = every_s
        self._rescheduled.notify()

    def extend(self) -> None:
        """List twice as many files of an endless remote, now."""
        self._more_wanted = True
        self._rescheduled.notify()

    def retry(self) -> None:
        """Retry a failed listing at once: the remote is back."""
        self._retry_due = self.failure is not None and not self.listing_now
        self._rescheduled.notify()

    async def _pause(self) -> None:
        """Wait until the next listing is due."""
        ended_at = trio.current_time()
        while not (self._more_wanted or self._retry_due):
            every_s = self._every_s or math.inf
            due = ended_at + (min(60.0, every_s) if self.failure else every_s)
            if self._outage.is_on:
                due = math.inf  # only probes are sent
            if due <= trio.current_time():
                return
            with trio.move_on_at(due):
                await self._rescheduled.wait()

    async def update_file(self, node: Node, found: RemoteFile | None) -> None:
        """Apply the result of a fetch: a file has a different version now, or none."""
        try:
            if self._catalog.node(node.id) is None or (found and found.version == node.version):
                return
            await self._apply(
                ListingDiff(
                    self._catalog.listing,
                    changed=[(node.id, found)] if found else [],
                    gone=[] if found else [node.id],
                )
            )
        except (Unreadable, sqlite3.DatabaseError) as error:  # the next listing finds it again
            log.warning("%s changed, but the database cannot be written: %s", node.name, error)
            return
        self.file_changed.notify()

    def add_update(self, id: int, file: RemoteFile) -> None:
        """Let a new version be fetched. id: of the old one."""
        if self._updates.get(id) != file:  # otherwise an earlier listing found the same
            self._updates[id] = file
            heappush(self._smallest, (file.size or 0, id))

    def next_update(self) -> AbstractContextManager[tuple[int, RemoteFile]] | None:
        """Take the smallest new version: (id of the old one, new one). Listings skip it within the block."""
        while self._smallest:
            _, id = heappop(self._smallest)
            if file := self._updates.pop(id, None):
                return self._update(id, file)
        return None

    def has_smaller_update(self, file: RemoteFile) -> bool:
        """Whether there is a smaller new version to fetch than this one."""
        return bool(self._smallest) and self._smallest[0][0] < (file.size or 0)

    @contextmanager
    def _update(self, id: int, file: RemoteFile) -> Iterator[tuple[int, RemoteFile]]:
        self._updating.add(id)
        try:
            yield id, file
        finally:
            self._updating.discard(id)

    def _note_silence(self, silent: ServerSilent) -> None:
        """Note that a listing is waiting. Raises the reason if the remote denies it access, but still serves files.

        Raises RemoteBusy if nothing is known yet and it has waited for too long.
        """
        if silent.silent_s >= FIRST_PAGE_S_MAX and not self._catalog.files:
            raise self._unanswered(silent.silent_s, silent.why)
        if not self._was_silent:
            log.warning(
                "the listing of %s is slow: its server has sent no page for %s; growfs keeps waiting and retrying;"
                " with a manifest, nothing has to be listed",
                self._workers.url,
                format_timespan(round(silent.silent_s)),
            )
        self._silent_s, self._was_silent = silent.silent_s, True
        if silent.why and self._catalog.files:
            if self._is_refused:
                raise silent.why
            self.failure = Failure(silent.why)
            self._outage.suspect(silent.why, partial(self._note_decided, silent.why))

    def _note_decided(self, why: GrowfsError, is_away: bool) -> None:
        self._is_refused = isinstance(why, RemoteDenied) and not is_away and self._silent_s is not None

    async def _list(self) -> None:
        listing = self._catalog.listing + 1
        why = ""

        async def apply(diff: ListingDiff | ServerSilent) -> None:
            nonlocal why
            if isinstance(diff, ServerSilent):
                self._note_silence(diff)
                return
            self._silent_s = self.failure = None
            self._is_refused = False
            self._altered += len(diff.new) + len(diff.changed) + len(diff.gone)
            for skip in diff.skipped:
                why = f"; {skip.path} was skipped: {skip.reason}"
            await self._apply(diff)

        self._retry_due = self._was_silent = self._is_refused = False
        try:
            files = await call_worker(self._workers, ListRemote(self._catalog.file, listing, self._extent()), apply)
        except WorkerSilent:
            raise self._unanswered(max(STALL_S, self._silent_s or 0)) from None
        except WorkerLost:
            raise GrowfsError("the process that lists the remote died; see the log") from None
        finally:
            self._silent_s = None
        if files == 0 and self._catalog.files == 0:
            if re.search(r"[*?[]", self._workers.url):
                why += "; a pattern belongs in --include"
            raise RemoteMissing(f"{self._workers.url}: there are no files; check the URL, --include and --exclude{why}")
        if files == 0:
            raise RemoteMissing(f"{self._workers.url}: the listing is empty now; keeping the files known so far")
        await self._catalog.finish(listing)
        self.failure = None
        first, self.complete = not self.complete, True
        altered, self._altered = self._altered, 0
        log.info("listed %d files, %d of them new, changed or gone", files, altered)
        self.progressed.notify()
        if altered or first:
            self.changed.notify()

    def _unanswered(self, silent_s: float, why: GrowfsError | None = None) -> RemoteBusy:
        remedy = f": {why}" if why else "; check the network and --endpoint-url"
        return RemoteBusy(
            f"{self._workers.url}: its server has not answered the listing request for {silent_s:.0f} s{remedy}"
        )

    def _extent(self) -> int:
        """How many files to list of an endless remote."""
        times, self._more_wanted = 2 if self._more_wanted else 1, False
        return max(EXTENT, times * self._catalog.files)

    async def _apply(self, diff: ListingDiff) -> None:
        """Apply the differences, but leave a resident file as it is until its new version can take its place."""
        immediate = []
        removed = [*diff.gone]
        for id, file in diff.changed:
            node = self._catalog.node(id)
            fits = disk.allocation(file.size or 0) <= self._store.room.max_file_bytes
            is_same = node is not None and node.version == file.version != ""
            if not (node and node.seq is not None and fits) or is_same:
                immediate.append((id, file))
                removed += [id] if node and node.seq is not None else []
            elif id not in self._updating:  # otherwise the next listing compares it again
                self.add_update(id, file)
        for id in diff.gone:
            self._store.track(id)
        async with self._store.unreachable(removed):
            changes = await self._catalog.apply(replace(diff, changed=immediate), self._store.drop_files)
        self._store.count_gone(changes.removed)
        if changes.removed:
            self.removed.notify(changes.removed)
        self.progressed.notify()
