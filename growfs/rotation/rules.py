"""When the listing changes, what it leaves out, and what may be deleted. Pure functions; who asks brings the facts.

A generation is a numbered, mount-wide, frozen set of listed files. Every listing joins the current one, unless the
rules below begin the next. So the ranks of one job list the same files, and a loop that lists anew sees growth. What a
process saw in a listing is held for it; each new generation leaves out what was shown for longest, and what is left out
and not held makes room.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

EVERYWHERE = 0
"""Stands for all directories at once, where a file of .growfs/ lists them."""

Kind = tuple[int, str]
"""(directory, extension): of each the listing keeps one file, so that no class folder is ever empty."""


@dataclass(frozen=True, slots=True)
class ListingContext:
    """What is known of a process at the moment when it lists a directory.

    listed_ever: it has listed any directory before.
    listed_here: it has listed this directory before, in the current generation.
    opened_since: it, or a descendant, has opened a file since it last listed any directory.
    looked_s: how long it has only listed, if it has not opened any since: a walk over directories is one listing.
    """

    listed_ever: bool
    listed_here: bool
    opened_since: bool
    looked_s: float = 0.0


def begins_generation(listing: ListingContext, age_s: float, settle_s: float, others_look: bool = False) -> bool:
    """Whether this listing begins a new generation.

    age_s: how old the current generation is. settle_s: how long it is kept for those that only look. others_look:
    another process is in the middle of its listings, and must find the same in all of them.
    """
    if others_look:
        return False
    if listing.listed_here and listing.opened_since:
        return True  # a next epoch: it used what it saw, and asks again
    if listing.listed_here:  # by its own time, not by the generation's age: Keras lists twice, whenever that falls
        return listing.looked_s > settle_s
    return not listing.listed_ever and age_s > settle_s


@dataclass(frozen=True, slots=True)
class Generation:
    """The set of listed files: those admitted up to last_seq that it, or one before it, does not leave out.

    began_at: seconds, of any clock. files: how many it lists. changes: what it leaves out (its number) or shows again
    (None), by id, as long as the files themselves do not tell.
    """

    number: int
    last_seq: int
    began_at: float
    files: int = 0
    changes: dict[int, int | None] = field(default_factory=dict, compare=False)

    def shows(self, id: int, left_out: int | None) -> bool:
        """Whether a file admitted in time is listed. left_out: the generation that first left it out."""
        left_out = self.changes.get(id, left_out)
        return left_out is None or self.number < left_out

    def as_of_now(self) -> Generation:
        """For who reads the files' rows for a while: the changes may be written, and forgotten, meanwhile."""
        return replace(self, changes=dict(self.changes))


@dataclass(frozen=True, slots=True)
class Hold:
    """The promise to a process that what a generation showed it stays. last_seq: the last admission that it showed."""

    generation: int
    last_seq: int

    def covers(self, seq: int, left_out: int | None) -> bool:
        """Whether that generation showed the file admitted as number seq."""
        return seq <= self.last_seq and (left_out is None or self.generation < left_out)


class Holds:
    """What a number of processes hold: for each a mapping from directory (or EVERYWHERE) to its hold there.

    foreign: there are readers that cannot be told apart; they hold everything.
    """

    def __init__(self, readers: Iterable[Mapping[int, Hold]] = (), foreign: bool = False) -> None:
        self.foreign = foreign
        self._readers = [dict(holds) for holds in readers if holds]
        self._by_directory: dict[int, list[Hold]] = {}

    def cover(self, directory: int, seq: int, left_out: int | None) -> bool:
        """Whether a file in that directory is held."""
        holds = self._by_directory.get(directory)
        if holds is None:
            found = {hold for reader in self._readers if (hold := hold_on(reader, directory))}
            holds = self._by_directory[directory] = list(found)
        return self.foreign or any(hold.covers(seq, left_out) for hold in holds)


def hold_on(holds: Mapping[int, Hold], directory: int) -> Hold | None:
    """What a process holds in a directory: its last listing of that, or of everything."""
    here, everywhere = holds.get(directory), holds.get(EVERYWHERE)
    if here and everywhere:
        return max(here, everywhere, key=lambda hold: hold.generation)
    return here or everywhere


@dataclass(frozen=True, slots=True)
class FileGroup:
    """What leaves as one, a file or a group of files: shown by some generation, neither pinned nor frozen.

    kinds: of each of its files. once: a live process that listed only once was shown it. left_out: it is already.
    opened: since it was admitted. spared: it went to the back of the queue before.
    """

    ids: tuple[int, ...]
    kinds: tuple[Kind, ...]
    bytes: int
    once: bool = False
    left_out: bool = False
    opened: bool = True
    spared: bool = False


@dataclass(slots=True)
class Delisting:
    """The ids that a generation leaves out, and the units that go to the back of the queue instead.

    room: bytes of what is left out that is not held by one that listed only once.
    """

    left_out: list[int] = field(default_factory=list)
    to_the_back: list[tuple[int, ...]] = field(default_factory=list)
    room: int = field(default=0, compare=False)


def turnover_bytes(limit: int, share: float, largest: int, lacking: int, free: int) -> int:
    """How many bytes a new generation leaves out: with what is free they make `share` of the cache.

    At least two of the largest files, so that something can change in a small cache, and never more than the catalog
    lacks locally. limit: the cache's size. free: of that, or on its way to files that were not shown yet.
    """
    wanted = min(max(share * limit, 2 * largest), limit, lacking)
    return max(0, math.ceil(wanted) - free)


def last_shown(
    newest: Iterable[tuple[int, Sequence[Kind], int]],
    listed: Mapping[Kind, int],
    left_out: Iterable[Kind],
    need: int,
    last_seq: int,
) -> int:
    """The last admission that a new generation shows, where what it leaves out does not make the room.

    So it is with the first generation of a full cache, and where readers hold much that may never list again. Showed it
    all the rest, the next of them would hold the whole cache, and nothing could ever change. So what was admitted last
    waits, up to half of it: the other half is what changes.

    newest: (first seq, kinds, bytes) of the units not shown so far, the last admitted first. listed: as in leave_out.
    left_out: the kind of each file that is. need: bytes by which what is left out falls short.
    """
    left = Counter(listed)
    left.subtract(left_out)
    units = list(newest)
    need = min(need, sum(size for _, _, size in units) // 2)
    for seq, kinds, size in units:
        left.subtract(kinds)
        if need < size or any(left[kind] < 1 for kind in kinds):
            break
        need -= size
        last_seq = seq - 1
    return last_seq


def delist(units: Iterable[FileGroup], listed: Mapping[Kind, int], need: int, files: int | None = None) -> Delisting:
    """Choose what a new generation leaves out.

    units: what is left out already, then the others, those shown for longest first; read only as far as needed.
    listed: how many files of each kind would be listed if nothing were left out; one of each always is.
    need: bytes. files: exactly so many files, in place of need.

    First go those that no live process holds which listed only once: it will never list again, so what it holds makes
    no room. Of these, one that was never opened goes to the back of the queue, once: its reader may be slow.
    """
    left = dict(listed)
    chosen = Delisting()
    taken = freed = 0
    never_opened: list[FileGroup] = []
    held: list[FileGroup] = []

    def enough() -> bool:
        return freed >= need if files is None else taken >= files

    def take(unit: FileGroup) -> bool:
        nonlocal taken, freed
        if files is not None and taken + len(unit.ids) > files:
            return False
        for kind in unit.kinds:
            left[kind] -= 1
        if any(left[kind] < 1 for kind in unit.kinds):
            for kind in unit.kinds:
                left[kind] += 1
            return False
        chosen.left_out.extend(unit.ids)
        taken += len(unit.ids)
        freed += unit.bytes
        return True

    for unit in units:
        if enough():
            break
        if unit.once:
            held.append(unit)
        elif not (unit.opened or unit.spared or unit.left_out):
            never_opened.append(unit)
        else:
            take(unit)
    for unit in never_opened:
        if enough() or not take(unit):
            chosen.to_the_back.append(unit.ids)
    chosen.room = freed
    for unit in held:
        if enough():
            break
        take(unit)
    return chosen


@dataclass(frozen=True, slots=True)
class Victim:
    """A resident file that may be evicted: neither open, nor pinned, nor its directory's last.

    turn: those with the same one, next to each other, leave as one.
    """

    id: int
    bytes: int
    turn: int | None = None


def eviction(victims: Iterable[Victim], need: int) -> list[int]:
    """The ids to evict for need bytes, the first first; empty where even all of them would not do."""
    chosen, freed = [], 0
    turn: int | None = None
    for victim in victims:
        if freed >= need and (turn is None or victim.turn != turn):
            break
        chosen.append(victim.id)
        freed += victim.bytes
        turn = victim.turn
    return chosen if freed >= need else []
