"""When the remote is listed, and that the catalog, the store and the kernel hear of what changed.

Owns the state of the listing. The first listing arrives in pages, which are of use at once; a later one runs behind the
saved catalog.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Callable
from dataclasses import replace

import trio

from growfs import disk
from growfs.cache.catalog import Catalog, Listed, Node, Removed
from growfs.cache.store import Store
from growfs.errors import GrowfsError, RemoteMissing
from growfs.events import Signal
from growfs.remote.protocol import RemoteFile
from growfs.scheduler.fetcher import Fetcher
from growfs.workers.messages import ListRemote
from growfs.workers.pool import WorkerLost, WorkerPool

log = logging.getLogger(__name__)

EXTENT = 256
"""Files that a remote without end is first said to have; each time they run out, as many again."""
RETRY_S = 60.0
"""Pause after a listing that failed, where the catalog of an earlier one serves."""


class CatalogSync:
    """Owns the listing of the remote.

    complete: a listing was finished, in this run or an earlier one. `progress` pulses with each page, and
    `renewed` when a listing, or a single file found changed, has altered what a pass must draw. `removed` tells which
    files and versions are gone. `renewals` has the new versions of resident files, by the id of the old, for
    Population to fetch, and `renewing` the ids of those that it does; what fails, or is not renewed when the daemon
    ends, the next listing finds again.
    """

    def __init__(
        self, workers: WorkerPool, catalog: Catalog, store: Store, every_s: float, is_endless: bool = False
    ) -> None:
        self.is_endless = is_endless
        self.complete = catalog.listing > 0
        self.listing_now = False
        self.last_error: GrowfsError | None = None
        self.progress = Signal[[]]()
        self.renewed = Signal[[]]()
        self.removed = Signal[[list[Removed]]]()
        self.renewals: dict[int, RemoteFile] = {}
        self.renewing: set[int] = set()
        self._workers = workers
        self._catalog = catalog
        self._store = store
        self._every_s = every_s
        self._interval_set = Signal[[]]()
        self._more_wanted = False

    async def run(self) -> None:
        """List now, and again at every interval (0: never again). A first listing that fails raises."""
        while True:
            try:
                await self._list()
            except (GrowfsError, sqlite3.OperationalError) as failure:
                error = failure if isinstance(failure, GrowfsError) else GrowfsError(f"the catalog: {failure}")
                self.last_error = error
                if not self.complete:
                    raise error from failure
                log.warning("the remote could not be listed, going on with what is known: %s", error)
            ended_at = trio.current_time()
            while not self._more_wanted and (due := ended_at + self._pause_s()) > trio.current_time():
                with trio.move_on_at(due):
                    await self._interval_set.wait()

    def figures(self) -> dict[str, int]:
        """What is known of the remote, as `remote` in status.json has it."""
        return {
            "files": self._catalog.files,
            "bytes": self._catalog.bytes,
            "directories": self._catalog.directories,
            "listed": self.complete,
            "listing": self.listing_now,
        }

    def set_interval(self, every_s: float) -> None:
        """Change the time between listings, from now on."""
        self._every_s = every_s
        self._interval_set.notify()

    def extend(self) -> None:
        """Have a remote without end tell of as many files again as it has told of, now."""
        self._more_wanted = True
        self._interval_set.notify()

    def _pause_s(self) -> float:
        every_s = self._every_s or math.inf
        return min(RETRY_S, every_s) if self.last_error else every_s

    async def replace(self, node: Node, found: RemoteFile | None) -> None:
        """Take over what a fetch found out: that a file has another version now, or none."""
        if self._catalog.node(node.id) is None or (found and found.version == node.version):
            return
        changed = [(node.id, found)] if found else []
        try:
            await self._hear(Listed(self._catalog.listing, changed=changed, gone=[] if found else [node.id]))
        except sqlite3.OperationalError as error:  # the next listing finds it again
            log.warning("%s changed, which the catalog cannot take: %s", node.name, error)
            return
        self.renewed.notify()

    async def _list(self) -> None:
        listing = self._catalog.listing + 1
        altered = 0
        why = ""

        async def hear(part: Listed) -> None:
            nonlocal altered, why
            altered += len(part.new) + len(part.changed) + len(part.gone)
            for skip in part.skipped:
                why = f"; {skip.path} was skipped: {skip.reason}"
            await self._hear(part)

        line = self._workers.spawn()
        self.listing_now = True
        try:
            files = await line.ask(ListRemote(self._catalog.file, listing, self._extent()), hear)
        except WorkerLost:
            raise GrowfsError("the process that lists the remote died; see the log") from None
        finally:
            self.listing_now = False
            await line.aclose()
        if files == 0 and self._catalog.files == 0:
            raise RemoteMissing(f"{self._workers.url}: there are no files; check the URL, --include and --exclude{why}")
        if files == 0:
            raise RemoteMissing(f"{self._workers.url}: lists no files at all any more; keeping those that are known")
        await self._catalog.finish(listing)
        self.last_error = None
        first, self.complete = not self.complete, True
        log.info("listed %d files, %d of them new, changed or gone", files, altered)
        self.progress.notify()
        if altered or first:
            self.renewed.notify()

    def _extent(self) -> int | None:
        if not self.is_endless:
            return None
        times, self._more_wanted = 2 if self._more_wanted else 1, False
        return max(EXTENT, times * self._catalog.files)

    async def _hear(self, part: Listed) -> None:
        """Apply what differs, but leave a resident file as it is until its new version can take its place."""
        at_once = []
        for id, file in part.changed:
            node = self._catalog.node(id)
            fits = disk.allocation(file.size or 0) <= self._store.max_file_bytes
            if id in self.renewing:
                continue  # what is on its way is compared again by the next listing
            if node and node.seq is not None and fits:
                self.renewals[id] = file
            else:
                at_once.append((id, file))
        changes = await self._catalog.apply(replace(part, changed=at_once), self._store.drop_files)
        self._store.count_dropped(changes)
        if changes.removed:
            self.removed.notify(changes.removed)
        self.progress.notify()


PARALLEL = 2


class VersionUpdater:
    """Owns which new versions are on their way. What fails, the next listing finds again.

    is_paused: whether nothing is to be fetched now. resumed: pulses when that, or the catalog, has changed.
    """

    def __init__(
        self,
        catalog: Catalog,
        fetcher: Fetcher,
        catalog_sync: CatalogSync,
        is_paused: Callable[[], bool],
        resumed: Signal[[]],
    ) -> None:
        self._catalog = catalog
        self._fetcher = fetcher
        self._catalog_sync = catalog_sync
        self._is_paused = is_paused
        self._resumed = resumed

    async def run(self) -> None:
        """Fetch what the refresher found, unless population is paused."""
        async with trio.open_nursery() as nursery:
            for _ in range(PARALLEL):
                nursery.start_soon(self._renew)

    async def _renew(self) -> None:
        renewals = self._catalog_sync.renewals
        while True:
            while renewals and not self._is_paused():
                id, file = renewals.popitem()
                node = self._catalog.node(id)
                if node:
                    successor = replace(node, size=file.size, mtime_ns=file.mtime_ns, version=file.version)
                    self._catalog_sync.renewing.add(id)
                    await self._fetcher.renew(successor)
                    self._catalog_sync.renewing.discard(id)
            await self._resumed.wait()
