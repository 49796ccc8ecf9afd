"""When a training run can start: the prefetcher's state, the missing first files, and the condition that `growfs mount`
waits for before it returns.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

import trio

from growfs import disk
from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Catalog, Node
from growfs.cache.store import Store
from growfs.cache.usage import Budget
from growfs.errors import GrowfsError, RemoteError
from growfs.rotation.pass_order import SEED_DIRECTORIES_MAX, Order
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.outage import Outage
from growfs.scheduler.refresh import CatalogSync
from growfs.scheduler.rotating import Selection
from growfs.signal import Signal
from growfs.status_and_metrics import RESTING, MountState, StartStatus
from growfs.units import format_size


class StartCondition(NamedTuple):
    """The condition that a mount waits for before it returns.

    By default: a file of each directory, and then a tenth of the cache, or as much as arrives in START_S.
    """

    files: int | None = None
    """Wait for this many files instead."""
    bytes: int | None = None
    """Wait for this many bytes instead."""
    no_wait: bool = False
    """Wait only for the first page of the listing."""
    list_timeout_s: float = 60.0
    """How long to wait for the first listing."""
    show_files: int = 0
    """This many files have to be cached in any case."""

    @property
    def explicit(self) -> bool:
        """Whether a number was given."""
        return self.files is not None or self.bytes is not None

    def amount(self, limit_bytes: int) -> tuple[int, int]:
        """(files, bytes) that have to be cached, if waited for. limit_bytes: of the cache."""
        return self.files or 0, (self.bytes or 0) if self.explicit else limit_bytes // 10


class SeedTracker:
    """Owns which seeds (a first file of each directory) and frozen files are missing, and why some seeds never arrive.

    bytes: of all seeds that the pass has to draw.
    """

    def __init__(self, condition: StartCondition) -> None:
        self.bytes = 0
        self._condition = condition
        self._reason: str | None = None
        self._failed: dict[int, GrowfsError] = {}
        """The reason why a directory has no file, by directory id."""
        self._seeds: BitMap64 | None = None
        self._frozen: BitMap64 | None = None
        self._lost: dict[int, GrowfsError] = {}
        """Why frozen files could not be fetched, by id, until they are: also those that the remote no longer has."""
        self._all = BitMap64()
        """All seeds and frozen files of any order so far."""

    def begin(self, order: Order, limit_bytes: int) -> None:
        """Begin a pass: its order determines the missing files. limit_bytes: of the cache."""
        self._frozen, self._seeds, self.bytes = order.frozen_ids, order.seed_ids, order.seed_bytes
        self._all |= order.frozen_ids | order.seed_ids
        self._reason = None
        self._failed.clear()
        if len(order.seeds) > SEED_DIRECTORIES_MAX:
            self._reason = f"there are {len(order.seeds):,} directories, too many to fetch a file from each first"
        elif order.seed_bytes > limit_bytes // 2:
            self._reason = (
                f"a file from each takes {format_size(order.seed_bytes)}, more than half of the cache, so directories"
                " come and go as samples; if they are classes, raise --cache-size to more than twice as much, or"
                " --include fewer"
            )

    def complete_seeds(self, has_frozen: bool) -> None:
        """Note that every directory has a file: this is known before the order of a large catalog.

        has_frozen: some files may be frozen.
        """
        self._seeds = BitMap64()
        if not has_frozen:
            self._frozen = BitMap64()

    def finish(self, *ids: int) -> None:
        """Stop waiting for these files: they are cached, or failed. A frozen one that failed is still missing."""
        for missing, kept in ((self._seeds, ()), (self._frozen, self._lost)):
            if missing:
                for id in ids:
                    if id not in kept:
                        missing.discard(id)

    def fetched(self, node: Node) -> None:
        """Note that a file is cached."""
        self._failed.pop(node.parent, None)
        self._lost.pop(node.id, None)

    def failed(self, node: Node, error: GrowfsError) -> None:
        """Note that a file could not be fetched. Call this before `finish`."""
        if self._seeds and node.id in self._seeds:
            self._failed[node.parent] = error
        if self.is_frozen(node.id):
            self._lost[node.id] = error

    def give_up(self, reason: str) -> None:
        """Stop waiting for a file of each directory."""
        self._reason = self._reason or reason

    @property
    def missing_reason(self) -> str | None:
        """Why some directories have no file yet, if that is not about to change; None if all have one."""
        if self.seeds_complete:
            return next((f"the first file of a directory failed: {error}" for error in self._failed.values()), None)
        if self._reason is None and (self._condition.explicit or self._condition.no_wait):
            return "the mount did not wait for that"
        return self._reason

    @property
    def progress(self) -> tuple[int, int]:
        """(files that are cached or failed, files) of those without which training does not start."""
        missing = (self._frozen or BitMap64()) | ((self._seeds or BitMap64()) if self._reason is None else BitMap64())
        return len(self._all) - len(missing), len(self._all) if missing else 0

    @property
    def seeds_complete(self) -> bool:
        """Whether every directory has its first file, or failed to get it."""
        return self._seeds is not None and not self._seeds

    def is_frozen(self, id: int) -> bool:
        """Whether this is a missing file that --freeze names."""
        return self._frozen is not None and id in self._frozen

    @property
    def frozen_complete(self) -> bool:
        """Whether all files that --freeze names are cached."""
        return self._frozen is not None and not self._frozen

    @property
    def frozen_failure(self) -> str | None:
        """Why files that --freeze names are missing, once all others are cached; None if none failed."""
        if not self._lost or not all(id in self._lost for id in self._frozen or ()):
            return None
        return not_all_frozen(next(iter(self._lost.values())), len(self._lost))


def not_all_frozen(why: object, count: int) -> str:
    """The message about frozen files that cannot be had. why: of the first one. count: of all."""
    more = f" (and {count - 1:,} more)" if count > 1 else ""
    return f"not all files that --freeze names could be fetched: {why}{more}"


class PrefetchState:
    """Owns the prefetcher's state, whether it is paused, and whether it has to look at the catalog again.

    `mount_state` is the state that users see. check_whole: whether all files that are to be drawn are cached. is_held:
    whether a draw waits for room while nothing is fetched. outage: nothing is drawn from the remote during one.
    streams: whether there will be more to fetch all the same.
    """

    def __init__(
        self,
        condition: StartCondition,
        check_whole: Callable[[], bool],
        is_held: Callable[[], bool],
        outage: Outage,
        streams: Callable[[], bool] = lambda: False,
    ) -> None:
        self.condition = condition
        self.seeds = SeedTracker(condition)
        self.changed = Signal[[]]()
        """Notified when drawing is interrupted or may continue, or has to look at the catalog again."""
        self.paused = False
        self.is_started = False
        """`mount` has returned, or is about to, so nothing is held back any more for the files that it waits for."""
        self.is_stale = False
        """The order of the pass is out of date."""
        self.has_evicted = False
        """The pass may draw files again that were evicted, or that found the disk full."""
        self._phase = MountState.LISTING
        self._check_whole = check_whole
        self._is_held = is_held
        self._outage = outage
        self._streams = streams

    @property
    def is_interrupted(self) -> bool:
        """Whether nothing is drawn from the remote: the mount is paused, or the remote is away."""
        return self.paused or self._outage.is_on

    @property
    def mount_state(self) -> MountState:
        """The state of the mount. A held mount may have become complete since, or the other way round."""
        if self.paused:
            return MountState.PAUSED
        if self._outage.is_on:
            return MountState.WAITING
        is_held = self._is_held() and not self.is_stale  # otherwise that draw is about to end
        if is_held or self._phase in RESTING:
            return self._resting_state
        return self._phase

    @property
    def unpromised(self) -> str | None:
        """Why some directories have no file yet, if that may last; None if all have one, or soon will."""
        is_away = self._outage.is_on and not self.seeds.seeds_complete
        return self.seeds.missing_reason or ("the remote is away" if is_away else None)

    @property
    def is_whole(self) -> bool:
        """Whether all files for this node are cached."""
        return self._check_whole()

    def pause(self, paused: bool) -> None:
        """Stop or resume drawing. Misses are served either way."""
        self.paused = paused
        self.changed.notify()

    def invalidate_order(self) -> None:
        """Request a new order: there may be more to draw, or more space."""
        self.is_stale = True
        if self._phase is MountState.HELD or (self._phase in RESTING and not self.is_whole):
            self._phase = MountState.FILLING  # until the new order is known
        self.changed.notify()

    def draw_evicted(self) -> None:
        """Draw evicted files at the end of the pass: its order has already gone past them."""
        self.has_evicted = True
        self.changed.notify()

    def begin_order(self) -> None:
        """Note that the order is about to be computed from the catalog as it is now."""
        self.is_stale = self.has_evicted = False

    def draw_order(self, order: Order, limit_bytes: int) -> None:
        """Note that this order is drawn from now on. limit_bytes: of the cache."""
        self.seeds.begin(order, limit_bytes)
        self._phase = MountState.SEEDING if order.seeds else MountState.FILLING

    def enter(self, phase: MountState) -> None:
        """Note what the prefetcher does now."""
        self._phase = phase

    def rest(self) -> None:
        """Note that nothing is left to draw."""
        self._phase = self._resting_state

    @property
    def _resting_state(self) -> MountState:
        if not self.is_whole:
            return MountState.HELD
        return MountState.AHEAD if self._streams() else MountState.COMPLETE

    def finish(self, *ids: int) -> None:
        """Note that these files are cached, failed or cannot be drawn."""
        self.seeds.finish(*ids)
        if self._phase is MountState.SEEDING and self.seeds.seeds_complete:
            self._phase = MountState.FILLING


START_S = 20.0
"""Once each directory has a file and the frozen files are cached, a mount waits no longer than this for more."""


class StartReason(enum.Enum):
    """What a mount may wait for before it returns, as it is displayed."""

    FIRST_PAGE = "the first page of the listing"
    REQUESTED = "the requested files"
    ALL = "every file"
    READY = "the first part"
    TENTH = "a tenth of the cache"
    FETCHABLE = "what could be fetched"
    ARRIVED = "what arrived in {:g} s more"
    """Within START_S."""


class StartGate:
    """Decides from the files cached so far. Owns the condition waited for, and since when.

    waited_for: the condition that `mount` has waited for, for display; None while it waits. opened: notified when it
    returns.

    Until `mount` has returned, a failed first listing ends the mount; after that it is retried, like later listings.
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
        selection: Selection,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._catalog_sync = catalog_sync
        self._fetcher = fetcher
        self._budget = budget
        self._prefetch = prefetch
        self._condition = prefetch.condition
        self._outage = outage
        self._selection = selection
        self._began_at = trio.current_time()
        self._has_looked_for_skipped = False
        self._more_since: float | None = None
        """The time since which only files beyond the first ones are waited for."""
        self.waited_for: str | None = None
        self.opened = Signal[[]]()

    def open(self) -> None:
        """Note that training can start."""
        self._prefetch.is_started = True
        self.opened.notify()

    def status(self) -> StartStatus | None:
        """How many files or bytes are still needed; None if that is not known, or none are."""
        condition, store = self._condition, self._store
        if self._prefetch.is_started or condition.no_wait:
            return None
        if self._selection.shows_once and not condition.explicit:
            return self._selection.start_status()
        done, needed = (0, 0) if condition.explicit else self._prefetch.seeds.progress
        files, bytes = condition.amount(store.room.limit_bytes)
        files = max(files, condition.show_files)
        bytes = min(bytes, self._catalog.bytes) if self._catalog_sync.complete else bytes
        conditions = (
            StartStatus(done=done, needed=needed, unit="files"),
            StartStatus(done=store.resident_files, needed=files, unit="files"),
            StartStatus(done=store.resident_content_bytes, needed=bytes, unit="bytes"),
        )
        return next((condition for condition in conditions if condition.needed > condition.done), None)

    async def is_anything_listed(self) -> bool:
        """Whether there is anything to mount. Raises the error of a failed first listing."""
        sync = self._catalog_sync
        if self._selection.failure:
            raise self._selection.failure
        if sync.failure and not (sync.complete or sync.listing_now):
            raise sync.failure.error
        return self._catalog.files > 0

    async def is_possible(self) -> bool:
        """Whether `mount` may return. Raises GrowfsError if it never will."""
        await self.is_anything_listed()
        store, condition, state = self._store, self._condition, self._prefetch.mount_state
        ended = self._is_away or state in (MountState.HELD, MountState.ERROR)  # no more files are fetched, or not soon
        await self._refuse_nothing(state)
        if self._catalog_sync.complete and condition.show_files:
            await self._refuse_empty_folders()
        if self._catalog_sync.complete and not (
            condition.no_wait or condition.explicit or self._has_looked_for_skipped
        ):
            await self._refuse_skipped_frozen()
        if store.resident_files < condition.show_files:
            if ended or state is MountState.COMPLETE:
                raise GrowfsError(
                    f"--show-files {condition.show_files}: only {store.resident_files} files can be cached at a time;"
                    " show fewer, or raise --cache-size"
                )
            return False
        if condition.show_files and not self._are_groups_equal(await self._store.group_sizes(), ended):
            return False
        if reason := self._reached(state, ended):
            self.waited_for = self._text(reason)
        return reason is not None

    def _reached(self, state: MountState, ended: bool) -> StartReason | None:
        """The first that is reached of what this mount waits for; None if nothing is. ended: no more files will come
        soon.
        """
        store, condition, is_listed = self._store, self._condition, self._catalog_sync.complete
        files, bytes = condition.amount(store.room.limit_bytes)
        has_amount = store.resident_files >= files and store.resident_content_bytes >= bytes
        has_all = is_listed and state is MountState.COMPLETE
        reached = dict[StartReason, bool]()
        if condition.no_wait:
            reached = {StartReason.FIRST_PAGE: is_listed or self._catalog.files > 0}
        elif condition.explicit:
            reached = {StartReason.REQUESTED: has_amount, StartReason.ALL: has_all, StartReason.FETCHABLE: ended}
        elif self._catalog.freezes and (failure := self._prefetch.seeds.frozen_failure):
            raise RemoteError(failure)
        elif self._selection.shows_once:
            reached = {StartReason.READY: self._selection.is_ready(), StartReason.FETCHABLE: ended}
        elif self._are_first_files_complete(state, ended):
            self._more_since = trio.current_time() if self._more_since is None else self._more_since
            knows_most = is_listed or self._unlisted_reason is not None
            reached = {
                StartReason.ALL: has_all or (knows_most and self._prefetch.is_whole),
                StartReason.TENTH: knows_most and has_amount,
                StartReason.FETCHABLE: ended,
                StartReason.ARRIVED: trio.current_time() - self._more_since > START_S,
            }
        return next((reason for reason, is_reached in reached.items() if is_reached), None)

    def _text(self, reason: StartReason) -> str:
        """What `mount` has waited for, for display."""
        first, seeds = "", self._prefetch.seeds
        if self._more_since is not None and reason is not StartReason.ALL:
            first += "the frozen files, " if self._catalog.freezes and seeds.frozen_complete else ""
            first += "a file from each directory and " if seeds.seeds_complete else ""
        return first + reason.value.format(START_S)

    @property
    def _unlisted_reason(self) -> str | None:
        """Why the mount no longer waits for the first listing, nor for a file of each directory; None if it does, or if
        the listing is complete.
        """
        if self._catalog_sync.complete:
            return None
        if self._catalog.directories > SEED_DIRECTORIES_MAX:
            return f"there are more than {SEED_DIRECTORIES_MAX:,} directories, too many to fetch a file from each first"
        if trio.current_time() - self._began_at > self._condition.list_timeout_s:
            return f"the listing was not complete after {self._condition.list_timeout_s:g} s"
        return None

    def _are_first_files_complete(self, state: MountState, ended: bool) -> bool:
        """Whether the frozen files and a file of each directory are cached, or are not to be waited for."""
        seeds = self._prefetch.seeds
        if reason := self._unlisted_reason:
            seeds.give_up(reason)
        waits_for_tomorrow = state is MountState.HELD and self._budget.is_spent
        if self._catalog.freezes and not (seeds.frozen_complete or waits_for_tomorrow):
            if state is MountState.ERROR or self._is_away:
                raise RemoteError(not_all_frozen(self._last_error, 1))
            if ended:
                holds = format_size(self._store.room.limit_bytes)
                raise GrowfsError(
                    f"the files that --freeze names do not fit: the cache holds {holds}; freeze fewer, or raise"
                    " --cache-size"
                )
            return False
        if state is MountState.HELD and not seeds.seeds_complete:
            seeds.give_up(
                "--remote-budget is spent"
                if waits_for_tomorrow
                else "the cache has no room for them; raise --cache-size"
            )
        return seeds.seeds_complete or seeds.missing_reason is not None or self._is_away

    @property
    def _is_away(self) -> bool:
        """Whether the remote has been away for too long to wait for."""
        return self._outage.lasted_s > 60.0

    @property
    def _last_error(self) -> GrowfsError | None:
        failure = self._fetcher.failures.last
        return self._outage.why or (failure.error if failure else None)

    async def _refuse_empty_folders(self) -> None:
        folders, show_files = await self._catalog.folders_with_files(), self._condition.show_files
        if folders > show_files:
            raise GrowfsError(
                f"--show-files {show_files}: {folders} directories contain files, and none may be empty; show more"
            )

    def _are_groups_equal(self, sizes: list[int], ended: bool) -> bool:
        """Whether whole groups can make up the files to be listed. Some may still lack a file. ended: none arrives."""
        show_files, least, most = self._condition.show_files, min(sizes), max(sizes)
        if least < most:
            if not (ended or self._prefetch.mount_state is MountState.COMPLETE):
                return False
            raise GrowfsError(
                f"--show-files {show_files}: groups (--group) contain {least} to {most} files, so no generation is sure"
                " to list exactly that many; drop one of the two options"
            )
        if show_files % least:
            fewer = show_files - show_files % least
            raise GrowfsError(
                f"--show-files {show_files}: each group (--group) contains {least} files; show {fewer or least} files,"
                f" or another multiple of {least}"
            )
        return True

    async def _refuse_skipped_frozen(self) -> None:
        if skipped := await self._catalog.skipped_frozen():
            path, reason = skipped[0]
            raise RemoteError(not_all_frozen(f"{path} ({reason})", len(skipped)))
        self._has_looked_for_skipped = True

    async def _refuse_nothing(self, state: MountState) -> None:
        if self._store.resident_files:
            return
        if self._outage.is_on:
            raise RemoteError(f"no file could be fetched: {self._last_error}")
        if self._fetcher.downloads:
            return
        tried_all = state in (MountState.ERROR, MountState.COMPLETE, MountState.HELD)
        failed = self._fetcher.failures.count
        if failed and (tried_all or failed >= 3):
            raise RemoteError(f"no file could be fetched: {self._last_error}")
        if state is MountState.HELD and not self._budget.is_spent:
            file = ""
            if (smallest := await self._catalog.smallest()) and smallest.size is not None:
                file = f" {self._catalog.path(smallest)}, the smallest, is {format_size(smallest.size)}, and"
            raise GrowfsError(
                f"{self._store.folder}: not even one file fits:{file} the cache may take"
                f" {format_size(self._store.room.limit_bytes)}, its disk has"
                f" {format_size(disk.free_bytes(self._store.folder))} free, of which --min-free keeps"
                f" {format_size(self._store.room.min_free)} for other programs; change one of the two, or --cache-dir"
            )
