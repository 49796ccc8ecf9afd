"""How far a mount is: what the prefetcher is doing, and which of the files that the start waits for are missing."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from humanfriendly import format_size
from pyroaring import BitMap64

from growfs.errors import GrowfsError
from growfs.rotation.pass_order import SEED_DIRECTORIES_MAX, Order
from growfs.scheduler.outage import Outage
from growfs.signal import Signal


class MountState(enum.Enum):
    """What the prefetcher is doing; the words of `status`."""

    LISTING = "listing"
    SEEDING = "seeding"
    FILLING = "filling"
    ROTATING = "rotating"
    HELD = "held"
    COMPLETE = "complete"
    PAUSED = "paused"
    WAITING = "waiting"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class StartCondition:
    """What a mount waits for before it returns. By default: a file of each directory, and a tenth of the cache.

    files, bytes: wait for this many instead. no_wait: wait only for the first page of the listing. show_files: so many
    files have to be cached in any case.
    """

    files: int | None = None
    bytes: int | None = None
    no_wait: bool = False
    list_timeout_s: float = 60.0
    show_files: int = 0

    @property
    def explicit(self) -> bool:
        """Whether a number was given."""
        return self.files is not None or self.bytes is not None

    def amount(self, limit_bytes: int) -> tuple[int, int]:
        """(files, bytes) that have to be cached, unless it is not waited for. limit_bytes: of the cache."""
        return self.files or 0, (self.bytes or 0) if self.explicit else limit_bytes // 10


class SeedTracker:
    """Owns which seeds (a first file of each directory) and frozen files are missing, and why some seeds never come.

    bytes: of all seeds that the pass has to draw.
    """

    def __init__(self, condition: StartCondition) -> None:
        self.bytes = 0
        self._condition = condition
        self._reason: str | None = None
        self._seeds: BitMap64 | None = None
        self._frozen: BitMap64 | None = None

    def begin(self, order: Order, limit_bytes: int) -> None:
        """Begin a pass: its order says what is missing. limit_bytes: of the cache."""
        self._frozen, self._seeds, self.bytes = order.frozen_ids, order.seed_ids, order.seed_bytes
        self._reason = None
        if len(order.seeds) > SEED_DIRECTORIES_MAX:
            self._reason = f"{len(order.seeds)} directories are too many to fetch a file of each first"
        elif order.seed_bytes > limit_bytes:
            self._reason = (
                f"a file of each takes {format_size(order.seed_bytes)}, more than the whole cache, so it will have the"
                " same files for good; raise --cache-size to twice as much, or --include fewer directories"
            )
        elif order.seed_bytes > limit_bytes // 2:
            self._reason = "a file of each directory would take more than half of the cache"

    def complete_seeds(self, has_frozen: bool) -> None:
        """Note that every directory has a file: known before the order of a large catalog is.

        has_frozen: some files may be frozen.
        """
        self._seeds = BitMap64()
        if not has_frozen:
            self._frozen = BitMap64()

    def finish(self, *ids: int) -> None:
        """Stop waiting for these files: they are cached, or failed."""
        for missing in (self._seeds, self._frozen):
            if missing:
                for id in ids:
                    missing.discard(id)

    def fail(self, id: int, error: GrowfsError) -> None:
        """Note that a file could not be fetched."""
        if self._seeds and id in self._seeds:
            self._reason = f"the first file of a directory failed: {error}"

    def give_up(self, reason: str) -> None:
        """Stop waiting for a file of each directory."""
        self._reason = self._reason or reason

    @property
    def missing_reason(self) -> str | None:
        """Why some directories have no file yet, where that is not about to change; None where all have one."""
        if self._reason is None and not self.seeds_complete and (self._condition.explicit or self._condition.no_wait):
            return "the mount did not wait for that"
        return self._reason

    @property
    def seeds_complete(self) -> bool:
        """Whether every directory has its first file, or failed to get it."""
        return self._seeds is not None and not self._seeds

    def is_frozen(self, id: int) -> bool:
        """Whether a file is missing that --freeze names."""
        return self._frozen is not None and id in self._frozen

    @property
    def frozen_complete(self) -> bool:
        """Whether all files that --freeze names are cached, or failed."""
        return self._frozen is not None and not self._frozen


class PrefetchState:
    """Owns what the prefetcher is doing, whether it is paused, and whether it has to look at the catalog again.

    changed: notified when it is interrupted or may continue, or has to look again. phase: as set by the prefetcher;
    `mount_state` is what users see. is_stale: the order of the pass is out of date. has_evicted: files were evicted
    that the pass may draw again. check_whole: whether all that this node is to have is cached. outage: nothing is drawn
    while there is one.
    """

    def __init__(self, condition: StartCondition, check_whole: Callable[[], bool], outage: Outage) -> None:
        self.condition = condition
        self.seeds = SeedTracker(condition)
        self.changed = Signal[[]]()
        self.paused = False
        self.phase = MountState.LISTING
        self.is_stale = False
        self.has_evicted = False
        self._check_whole = check_whole
        self._outage = outage
        outage.began.connect(self.changed.notify)
        outage.ended.connect(self.changed.notify)

    @property
    def is_interrupted(self) -> bool:
        """Whether nothing is drawn: the mount is paused, or the remote is away."""
        return self.paused or self._outage.is_on

    @property
    def mount_state(self) -> MountState:
        """What the mount is doing. What is held may have become complete since, or the other way round."""
        if self.paused:
            return MountState.PAUSED
        if self._outage.is_on:
            return MountState.WAITING
        if self.phase in (MountState.HELD, MountState.COMPLETE):
            return self.resting_state()
        return self.phase

    @property
    def unpromised(self) -> str | None:
        """Why some directories have no file yet, where that may last; None where all have one, or soon will."""
        is_away = self._outage.is_on and not self.seeds.seeds_complete
        return self.seeds.missing_reason or ("the remote is away" if is_away else None)

    @property
    def is_whole(self) -> bool:
        """Whether all that this node is to have is cached."""
        return self._check_whole()

    def pause(self, paused: bool) -> None:
        """Stop or resume drawing. Misses are served all the same."""
        self.paused = paused
        self.changed.notify()

    def invalidate_order(self) -> None:
        """Compute the order anew: there may be more to draw, or more space."""
        self.is_stale = True
        if self.phase is MountState.HELD:  # until the new order says more
            self.phase = MountState.FILLING
        self.changed.notify()

    def draw_evicted(self) -> None:
        """Draw evicted files once the pass is through: its order has gone past them."""
        self.has_evicted = True
        self.changed.notify()

    def begin_order(self) -> None:
        """Note that the order is about to be computed from the catalog as it is now."""
        self.is_stale = self.has_evicted = False

    def resting_state(self) -> MountState:
        """The state when nothing is left to draw."""
        return MountState.COMPLETE if self.is_whole else MountState.HELD

    def finish(self, *ids: int) -> None:
        """Note that these files are cached, failed or cannot be drawn."""
        self.seeds.finish(*ids)
        if self.phase is MountState.SEEDING and self.seeds.seeds_complete:
            self.phase = MountState.FILLING
