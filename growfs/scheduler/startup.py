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
from growfs.scheduler.prefetch import Prefetcher
from growfs.scheduler.readiness import MountState, StartCondition
from growfs.scheduler.refresh import CatalogSync

START_S = 60.0
"""A mount does not wait longer than this for more than its directories, and its frozen files."""
START_FAILURES_MAX = 3


class StartGate:
    """Owns nothing: looks at what has come so far. show_files: so many have to be there."""

    def __init__(
        self,
        ask: StartCondition,
        catalog: Catalog,
        store: Store,
        fetcher: Fetcher,
        catalog_sync: CatalogSync,
        prefetcher: Prefetcher,
        budget: Budget,
        show_files: int | None,
    ) -> None:
        self._ask = ask
        self._catalog = catalog
        self._store = store
        self._fetcher = fetcher
        self._catalog_sync = catalog_sync
        self._prefetcher = prefetcher
        self._budget = budget
        self._show_files = show_files or 0
        self._began_at = trio.current_time()

    def is_possible(self) -> bool:
        """Whether `mount` may return. Raises GrowfsError where it never will."""
        store, state = self._store, self._prefetcher.state
        ended = state in (MountState.HELD, MountState.ERROR)  # nothing more comes, or not soon
        self._refuse_nothing(state)
        if self._catalog_sync.complete and self._show_files:
            self._refuse_empty_folders()
        if store.resident_files < self._show_files:
            if ended or state is MountState.COMPLETE:
                raise GrowfsError(
                    f"--show-files {self._show_files}: only {store.resident_files} files can be here at a time;"
                    " show fewer, or raise --cache-size"
                )
            return False
        if self._ask.nothing:
            return self._catalog_sync.complete or self._catalog.files > 0
        everything = self._catalog_sync.complete and state is MountState.COMPLETE
        files, bytes = store.resident_files, store.resident_content_bytes
        if self._ask.explicit:
            enough = files >= (self._ask.files or 0) and bytes >= (self._ask.bytes or 0)
            return enough or everything or ended
        promise = self._prefetcher.promise
        waited_s = trio.current_time() - self._began_at
        if not self._catalog_sync.complete and waited_s > self._ask.list_timeout_s:
            promise.give_up(f"the listing was not complete after {self._ask.list_timeout_s:g} s")
        waits_for_tomorrow = state is MountState.HELD and self._budget.is_spent
        if not (promise.frozen_came or waits_for_tomorrow):
            if state is MountState.ERROR:
                raise RemoteError(f"not all files that --freeze names came: {self._fetcher.counters.last_error}")
            if ended:
                raise GrowfsError(
                    f"the files that --freeze names do not fit: the cache may take {format_size(store.limit_bytes)};"
                    " freeze fewer, or raise --cache-size"
                )
            return False
        if state is MountState.HELD and not promise.seeds_came:
            promise.give_up("--remote-budget is spent" if waits_for_tomorrow else "there is no room")
        if not (promise.seeds_came or promise.broken):
            return False
        enough = self._catalog_sync.complete and (self._prefetcher.is_whole or bytes >= store.limit_bytes // 10)
        return enough or everything or ended or waited_s > START_S

    def _refuse_empty_folders(self) -> None:
        folders = self._catalog.folders_with_files
        if folders > self._show_files:
            raise GrowfsError(
                f"--show-files {self._show_files}: {folders} directories have files, and none may be empty; show more"
            )

    def _refuse_nothing(self, state: MountState) -> None:
        counters = self._fetcher.counters
        if self._store.resident_files or self._fetcher.in_flight:
            return
        tried_all = state in (MountState.ERROR, MountState.COMPLETE, MountState.HELD)
        if counters.failed and (tried_all or counters.failed >= START_FAILURES_MAX):
            raise RemoteError(f"no file could be fetched: {counters.last_error}")
        if state is MountState.HELD and not self._budget.is_spent:
            raise GrowfsError(
                f"{self._store.folder}: not even one file fits:"
                f" the cache may take {format_size(self._store.limit_bytes)}, its disk has"
                f" {format_size(disk.free_bytes(self._store.folder))} free, of which --min-free leaves"
                f" {format_size(self._store.min_free)} to others; change one of the two, or --cache-dir"
            )
