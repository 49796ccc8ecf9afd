"""The words for what a mount is doing, and for what it was asked to wait."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from growfs.errors import GrowfsError
from growfs.rotation.draw_order import SEED_DIRECTORIES_MAX, Order


class MountState(enum.Enum):
    """What population is doing; the words of `status`."""

    LISTING = "listing"
    SEEDING = "seeding"
    FILLING = "filling"
    ROTATING = "rotating"
    HELD = "held"
    COMPLETE = "complete"
    PAUSED = "paused"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class StartCondition:
    """What a mount waits for before it returns. Nothing given: every directory, and a tenth of the cache."""

    files: int | None = None
    bytes: int | None = None
    nothing: bool = False
    list_timeout_s: float = 60.0

    @property
    def explicit(self) -> bool:
        """Whether a number was given."""
        return self.files is not None or self.bytes is not None


class SeedTracker:
    """Owns which of these files have not come yet, and why not all of them will."""

    def __init__(self, ask: StartCondition) -> None:
        self._ask = ask
        self._broken: str | None = None
        self._seeds: set[int] | None = None
        self._frozen: set[int] | None = None

    def begin(self, order: Order, seed_bytes: int, limit_bytes: int) -> None:
        """Take over what is still to come. limit_bytes: of the cache."""
        self._frozen = {abs(id) for id in order.frozen}
        self._seeds = {abs(id) for id in order.seeds}
        self._broken = None
        if len(order.seeds) > SEED_DIRECTORIES_MAX:
            self._broken = f"{len(order.seeds)} directories are too many to fetch a file of each first"
        elif seed_bytes > limit_bytes // 2:
            self._broken = "a file of each directory would take more than half of the cache"

    def nothing_is_missing(self, freezes: bool) -> None:
        """Every directory has a file: known before the order of a large catalog is. freezes: some may be frozen."""
        self._seeds = set()
        if not freezes:
            self._frozen = set()

    def settle(self, *ids: int) -> None:
        """Nothing more comes of those among these that are still to come."""
        for coming in (self._seeds, self._frozen):
            if coming is not None:
                coming.difference_update(ids)

    def fail(self, id: int, error: GrowfsError) -> None:
        """A file could not be fetched."""
        if self._seeds and id in self._seeds:
            self._broken = f"the first file of a directory failed: {error}"

    def give_up(self, reason: str) -> None:
        """Wait no longer for a file of each directory."""
        self._broken = reason

    @property
    def broken(self) -> str | None:
        """Why not every directory has a file yet, where that is not about to change; None where all have."""
        if self._broken is None and self._seeds != set() and (self._ask.explicit or self._ask.nothing):
            return "the mount did not wait for that"
        return self._broken

    @property
    def seeds_came(self) -> bool:
        """Whether every directory has its first file, or failed to get it."""
        return self._seeds == set()

    def is_frozen(self, id: int) -> bool:
        """Whether a file is still to come because --freeze names it."""
        return self._frozen is not None and id in self._frozen

    @property
    def frozen_came(self) -> bool:
        """Whether all files that --freeze names are here, or failed."""
        return self._frozen == set()
