"""When a training run can start: what `growfs mount` waits for before it returns."""

from __future__ import annotations

import trio
from humanfriendly import format_size

from growfs import disk
from growfs.cache.budget import Budget
from growfs.cache.catalog import Catalog
from growfs.cache.store import Store
from growfs.errors import GrowfsError, RemoteError
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.outage import Outage
from growfs.scheduler.readiness import MountState, PrefetchState
from growfs.scheduler.refresh import CatalogSync
from growfs.signal import Signal

START_S = 60.0
"""A mount waits no longer than this for anything but a file of each directory, and the frozen files."""
START_FAILURES_MAX = 3
OUTAGE_S_MAX = 60.0
"""A mount that waits for files returns, or fails, once the remote has been away for so long."""


class StartGate:
    """Decides from what is cached so far. Owns the time at which the wait began, and whether it is over.

    opened: notified when it is.

    Until `mount` has returned, a first listing that fails ends the mount; after that it is tried again, as later ones
    are.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        catalog_sync: CatalogSync,
        fetcher: Fetcher,
        budget: Budget,
        prefetch: PrefetchState,
        outage: Outage,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._catalog_sync = catalog_sync
        self._fetcher = fetcher
        self._budget = budget
        self._prefetch = prefetch
        self._condition = prefetch.condition
        self._outage = outage
        self._began_at = trio.current_time()
        self._passed = False
        self.opened = Signal[[]]()

    def figures(self) -> dict[str, bool]:
        """Figures for the status: whether `mount` has returned, or is about to."""
        return {"ready": self._passed}

    @property
    def passed(self) -> bool:
        """Whether `mount` has returned, or is about to."""
        return self._passed

    def open(self) -> None:
        """Note that training can start."""
        self._passed = True
        self.opened.notify()

    async def is_anything_listed(self) -> bool:
        """Whether there is anything to mount. Raises the error of a first listing that failed."""
        if not self._catalog_sync.complete and self._catalog_sync.failure:
            raise self._catalog_sync.failure.error
        return self._catalog.files > 0

    async def is_possible(self) -> bool:
        """Whether `mount` may return. Raises GrowfsError where it never will."""
        await self.is_anything_listed()
        store, condition, state = self._store, self._condition, self._prefetch.mount_state
        ended = self._is_away or state in (MountState.HELD, MountState.ERROR)  # no more files are fetched, or not soon
        self._refuse_nothing(state)
        if self._catalog_sync.complete and condition.show_files:
            await self._refuse_empty_folders()
        if store.resident_files < condition.show_files:
            if ended or state is MountState.COMPLETE:
                raise GrowfsError(
                    f"--show-files {condition.show_files}: only {store.resident_files} files can be cached at a time;"
                    " show fewer, or raise --cache-size"
                )
            return False
        if condition.no_wait:
            return self._catalog_sync.complete or self._catalog.files > 0
        everything = self._catalog_sync.complete and state is MountState.COMPLETE
        files, bytes = condition.amount(store.limit_bytes)
        enough = store.resident_files >= files and store.resident_content_bytes >= bytes
        if condition.explicit:
            return enough or everything or ended
        if not self._are_first_files_complete(state, ended):
            return False
        is_listed = self._catalog_sync.complete or self._is_listing_late
        enough = is_listed and (self._prefetch.is_whole or enough)
        return enough or everything or ended or self._waited_s > START_S

    @property
    def _waited_s(self) -> float:
        return trio.current_time() - self._began_at

    @property
    def _is_listing_late(self) -> bool:
        return not self._catalog_sync.complete and self._waited_s > self._condition.list_timeout_s

    def _are_first_files_complete(self, state: MountState, ended: bool) -> bool:
        """Whether the frozen files are here, and a file of each directory, or none is to be waited for."""
        seeds = self._prefetch.seeds
        if self._is_listing_late:
            seeds.give_up(f"the listing was not complete after {self._condition.list_timeout_s:g} s")
        waits_for_tomorrow = state is MountState.HELD and self._budget.is_spent
        if self._catalog.freezes and not (seeds.frozen_complete or waits_for_tomorrow):
            if state is MountState.ERROR or self._is_away:
                raise RemoteError(f"not all files that --freeze names could be fetched: {self._last_error}")
            if ended:
                raise GrowfsError(
                    "the files that --freeze names do not fit: the cache may take"
                    f" {format_size(self._store.limit_bytes)}; freeze fewer, or raise --cache-size"
                )
            return False
        if state is MountState.HELD and not seeds.seeds_complete:
            seeds.give_up(
                "--remote-budget is spent"
                if waits_for_tomorrow
                else "there is no room, and none will be; raise --cache-size"
            )
        return seeds.seeds_complete or seeds.missing_reason is not None or self._is_away

    @property
    def _is_away(self) -> bool:
        """Whether the remote has been away for too long to be waited for."""
        return self._outage.lasted_s > OUTAGE_S_MAX

    @property
    def _last_error(self) -> GrowfsError | None:
        failure = self._fetcher.last_failure()
        return self._outage.why or (failure.error if failure else None)

    async def _refuse_empty_folders(self) -> None:
        folders, show_files = await self._catalog.folders_with_files(), self._condition.show_files
        if folders > show_files:
            raise GrowfsError(
                f"--show-files {show_files}: {folders} directories have files, and none may be empty; show more"
            )

    def _refuse_nothing(self, state: MountState) -> None:
        if self._store.resident_files:
            return
        if self._outage.is_on:
            raise RemoteError(f"no file could be fetched: {self._last_error}")
        if self._fetcher.in_flight:
            return
        tried_all = state in (MountState.ERROR, MountState.COMPLETE, MountState.HELD)
        failed = self._fetcher.counters.failed
        if failed and (tried_all or failed >= START_FAILURES_MAX):
            raise RemoteError(f"no file could be fetched: {self._last_error}")
        if state is MountState.HELD and not self._budget.is_spent:
            raise GrowfsError(
                f"{self._store.folder}: not even one file fits:"
                f" the cache may take {format_size(self._store.limit_bytes)}, its disk has"
                f" {format_size(disk.free_bytes(self._store.folder))} free, of which --min-free keeps"
                f" {format_size(self._store.min_free)} for other programs; change one of the two, or --cache-dir"
            )
