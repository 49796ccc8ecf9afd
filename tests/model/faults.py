"""Faults that growfs once had, to be put back: each is the code of before its mend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio

from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Catalog
from growfs.cache.room import Reservation, SizeEstimate
from growfs.rotation.generations import Generations
from growfs.rotation.reader import Reader
from growfs.rotation.rules import Generation
from growfs.scheduler.in_flight import Priority
from growfs.scheduler.space import Space


def holds_of_everything_never_end(patch: pytest.MonkeyPatch) -> None:
    """A process that opens a file before it lists: what it held then counts as held by one that lists only once."""

    def is_shown(self: Reader, seqs: Iterable[int], generation: Generation) -> None:
        self.held |= BitMap64(seqs) & generation.listed

    patch.setattr(Reader, "is_shown", is_shown)


def guesses_are_final(patch: pytest.MonkeyPatch) -> None:
    """A file of unknown size needs what is guessed, though less is free."""

    patch.setattr(SizeEstimate, "least", SizeEstimate.most)


def new_versions_evict_held_files(patch: pytest.MonkeyPatch) -> None:
    """A new version makes room as a miss does."""
    reserve = Space.reserve_by_eviction

    async def reserve_by_eviction(self: Space, size: int, priority: Priority) -> Reservation | None:
        return await reserve(self, size, Priority.READER if priority is Priority.DUE else priority)

    patch.setattr(Space, "reserve_by_eviction", reserve_by_eviction)


def evictions_ignore_a_generation_that_begins(patch: pytest.MonkeyPatch) -> None:
    """A miss that makes room between the decision on a generation and its commit goes by the rows of before."""

    @asynccontextmanager
    async def unchanged(self: Generations) -> AsyncIterator[bool]:
        yield True

    patch.setattr(Generations, "unchanged", unchanged)


def excluded_files_stay_until_a_listing(patch: pytest.MonkeyPatch) -> None:
    """The catalog of an earlier mount serves as it is, until the remote is listed."""
    patch.setattr(Catalog, "forget_excluded", lambda *_: iter(()))


def a_cache_that_is_too_full_stays_so(patch: pytest.MonkeyPatch) -> None:
    """What could not be evicted when the cache was made smaller is not tried again."""

    async def run(_: Space) -> None:
        await trio.sleep_forever()

    patch.setattr(Space, "run", run)


def every_epoch_has_a_generation(patch: pytest.MonkeyPatch) -> None:
    """A process that looks at a batch and lists again begins a generation."""
    patch.setattr(Reader, "_has_had_its_epoch", lambda *_: True)


@dataclass(frozen=True)
class Fault:
    """number: that it has in the list of the faults that were found by hand. found: what the model says of it."""

    number: int
    put_back: Callable[[pytest.MonkeyPatch], None]
    found: str


FAULTS = (
    Fault(2, holds_of_everything_never_end, "is listed since generation"),
    Fault(7, guesses_are_final, "there is room"),
    Fault(8, new_versions_evict_held_files, "evicted, and held"),
    Fault(9, evictions_ignore_a_generation_that_begins, "was listed, and has no file any more"),
    Fault(11, excluded_files_stay_until_a_listing, "and is excluded"),
    Fault(34, a_cache_that_is_too_full_stays_so, "bytes are used, and more could go"),
    Fault(35, every_epoch_has_a_generation, "a look at a batch has begun a generation"),
)
