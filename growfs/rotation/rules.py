"""What a generation lists and delists, and what is held. Pure functions over plain facts.

A generation is a numbered, frozen set of listed files. Which one a listing shows, and when the next one begins, is
decided by `jobs`. What a process saw in a listing is held for it. Each new generation delists the files that were
listed for longest, in proportion to what was opened since the last one began, and delisted files that nobody holds are
evicted to make room.

The daemon and the simulation both call these functions. The daemon reads the facts from its database.
"""

from __future__ import annotations

import itertools
import math
import sys
from array import array
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Protocol
from weakref import WeakSet

from pyroaring import BitMap64

EVERYWHERE = 0
"""Stands for all directories at once, where a file of .growfs/ lists them."""

Kind = tuple[int, str]
"""(directory, extension): the listing keeps a file of each kind, so that no class folder is ever empty."""


class CachedFile(NamedTuple):
    """A file that is cached."""

    id: int
    directory: int
    suffix: str
    """Its extension."""
    bytes: int
    """On the disk."""
    seq: int
    """Its number in the order of admission."""
    queue_position: int
    """Its place in the queue to be delisted; the files of a group have the same one."""
    delisted: int | None = None
    """The first generation that does not list it."""
    opened: bool = False
    """Whether it was opened since its admission."""

    @property
    def kind(self) -> Kind:
        """Its directory and extension."""
        return self.directory, self.suffix


DELISTED_ORDER = ("delisted", "queue_position")
"""The fields that delisted files are sorted by: the first one is evicted first, and delisted again first."""
LISTED_ORDER = ("queue_position",)
"""The fields that listed files are sorted by: the first one is delisted first."""
delisted_key, listed_key = attrgetter(*DELISTED_ORDER), attrgetter(*LISTED_ORDER)
_group = attrgetter("queue_position")


# What is listed, and what is held.


@dataclass(eq=False, slots=True, weakref_slot=True)
class Generation:
    """The set of listed files: those admitted up to last_seq that neither it nor an earlier generation delisted.

    The rows of the files say a little later what it delists and lists again. It can be listed as long as a job holds
    it, even if others have begun since. It knows files by their admission (seq), because a new version has another id,
    and takes the place of the old one.
    """

    number: int
    last_seq: int
    began_at: float
    """In seconds of any clock."""
    files: int = 0
    """How many it lists."""
    delisted: BitMap64 = field(default_factory=BitMap64)
    """The admissions of the files that it delists."""
    relisted: BitMap64 = field(default_factory=BitMap64)
    """The admissions of the files that it lists again."""
    hidden_below: Mapping[int, BitMap64] = field(default_factory=dict)
    """The directories without a listed file, by the nearest directory above them that is listed."""
    is_over: bool = False
    """Whether the next listing, whoever lists, is not to show it."""
    opened: BitMap64 = field(default_factory=BitMap64)
    """The ids of the files that jobs opened which have ended since."""
    is_read: bool = False
    """Whether such jobs have opened enough of what they were shown, so that this was their epoch."""
    _delisted_later: BitMap64 = field(default_factory=BitMap64)
    _hidden: BitMap64 = field(default_factory=BitMap64)
    """Files that it did not list, and a later one does: their rows no longer say so."""

    @property
    def hold(self) -> Hold:
        """A hold on what it lists."""
        return Hold(self.number, self.last_seq)

    def shows(self, seq: int, delisted: int | None) -> bool:
        """Whether a file admitted up to last_seq is listed. delisted: the generation that delisted it, by its row."""
        if seq in self.delisted or seq in self._hidden:
            return False
        return delisted is None or self.number < delisted or seq in self.relisted

    def is_followed_by(self, later: Generation) -> None:
        """Note what a later generation changes."""
        self._hidden |= later.relisted - self._delisted_later
        self._delisted_later |= later.delisted


class Succession:
    """Owns the newest generation, and what was opened since it began. Earlier ones that a job still lists follow it."""

    def __init__(self) -> None:
        self.newest: Generation | None = None
        self.keeps_last = True
        """Whether directories keep their last files: see the function of this name."""
        self._earlier = WeakSet[Generation]()
        self._opened = BitMap64()

    def note_opened(self, id: int) -> None:
        """Note that a file was opened."""
        self._opened.add(id)

    @property
    def opened_share(self) -> float:
        """How many of the files that the newest one lists were opened since; 0 before the first one."""
        return min(1.0, len(self._opened) / max(1, self.newest.files)) if self.newest else 0.0

    def begin(self, number: int, plan: GenerationPlan, now: float) -> Generation:
        """Begin the next generation as planned; returns it."""
        if self.newest:
            self._earlier.add(self.newest)
        self.newest = Generation(
            number, plan.last_seq, now, plan.files, plan.delisted, plan.relisted, plan.hidden_below
        )
        for earlier in self._earlier:
            earlier.is_followed_by(self.newest)
        self.keeps_last = plan.keeps_last
        self._opened = BitMap64()
        return self.newest


@dataclass(frozen=True, slots=True)
class Hold:
    """The promise to a process that the files which a generation listed stay. last_seq: of that generation."""

    generation: int
    last_seq: int

    def covers(self, seq: int, delisted: int | None) -> bool:
        """Whether that generation listed the file admitted as number seq."""
        return seq <= self.last_seq and (delisted is None or self.generation < delisted)


class HoldsOfOne(Protocol):
    """The holds of one process."""

    def __bool__(self) -> bool:
        """Whether there are any."""

    def get(self, directory: int, /) -> Hold | None:
        """The hold that it has on a directory, or on EVERYWHERE."""


class Holds:
    """The holds of several processes. What they hold is looked up when it is asked for, in whatever thread that is.

    readers: their holds, or a function that returns them, called when one is asked for. foreign: some readers cannot be
    told apart. They hold everything.
    """

    def __init__(
        self,
        readers: Iterable[HoldsOfOne | Mapping[int, Hold]] | Callable[[], Sequence[HoldsOfOne]] = (),
        foreign: bool = False,
    ) -> None:
        self.foreign = foreign
        self._find = readers if callable(readers) else None
        self._readers = [] if callable(readers) else [holds for holds in readers if holds]
        self._by_directory: dict[int, list[Hold]] = {}

    def cover(self, directory: int, seq: int, delisted: int | None) -> bool:
        """Whether a file in that directory is held."""
        holds = self._by_directory.get(directory)
        if holds is None:
            if self._find:
                self._readers, self._find = [*self._find()], None
            found = {hold for reader in self._readers if (hold := hold_on(reader, directory))}
            holds = self._by_directory[directory] = list(found)
        for hold in holds:  # a loop, not any(): a draw asks this of every delisted file, and it takes half of the time
            if hold.covers(seq, delisted):
                return True
        return self.foreign


def hold_on(holds: HoldsOfOne | Mapping[int, Hold], directory: int) -> Hold | None:
    """The hold of one process on a directory: from its last listing of that directory, or else of everything."""
    return holds.get(directory) or holds.get(EVERYWHERE)  # a hold of everything replaces those on directories


# The last file of a kind.


def keeps_last(least_bytes: int, limit: int) -> bool:
    """Whether a directory keeps its last file of an extension. least_bytes: of the smallest cached file of each kind.

    Not if these would take more than half of the cache: then each directory is a sample (an image, its mask and its
    text), and those that came first would stay for good.
    """
    return least_bytes <= limit // 2


class LastOfKind:
    """Keeps the last file of each kind, while others are taken away. counts: how many files there are of each kind.

    keeps: else it keeps half of all files, of whatever kind.
    """

    def __init__(self, counts: Mapping[Kind, int], keeps: bool = True) -> None:
        self._left = dict(counts)
        self._least = 1 if keeps else 0
        self._spare = sys.maxsize if keeps else sum(counts.values()) // 2

    def __contains__(self, kind: Kind) -> bool:
        return kind in self._left

    def count(self, kind: Kind, files: int) -> None:
        """Set how many files there are of a kind."""
        self._left[kind] = files

    def take(self, kinds: Sequence[Kind]) -> bool:
        """Take away a file of each of these kinds, or none where one of them would be the last of its kind."""
        left = self._left
        for kind in kinds:
            left[kind] = left.get(kind, 0) - 1
        if len(kinds) <= self._spare and all(left[kind] >= self._least for kind in kinds):
            self._spare -= len(kinds)
            return True
        for kind in kinds:
            left[kind] += 1
        return False

    @property
    def directories(self) -> set[int]:
        """Those that have a file left."""
        return {directory for (directory, _), files in self._left.items() if files > 0}


# What a generation delists.


@dataclass(frozen=True, slots=True)
class FileGroup:
    """A file, or a group of files, that is delisted as a whole. It was listed, and is neither pinned nor frozen."""

    seqs: tuple[int, ...]
    """The admissions of its files."""
    kinds: tuple[Kind, ...]
    """Of each of its files."""
    bytes: int
    """Of all of them."""
    has_lasting_hold: bool = False
    """A process holds one of them that may never list again."""
    delisted: bool = False
    """It is already."""
    opened: bool = True
    """One of them was, since it was admitted."""
    requeued: bool = False
    """It went to the end of the queue before."""


def file_groups(files: Iterable[CachedFile], lasting_holds: Holds, opened: Container[int]) -> Iterator[FileGroup]:
    """The groups of files that come in the order of the queue.

    lasting_holds: of processes that may never list again. opened: ids that count as opened, whatever is known.
    """
    for _, members in itertools.groupby(files, key=delisted_key):
        group = list(members)
        size, is_held, is_opened = 0, False, False
        for file in group:
            size += file.bytes
            is_held = is_held or lasting_holds.cover(file.directory, file.seq, file.delisted)
            is_opened = is_opened or bool(file.opened) or file.id in opened
        first = group[0]
        yield FileGroup(
            tuple([file.seq for file in group]),
            tuple([file.kind for file in group]),
            size,
            is_held,
            first.delisted is not None,
            is_opened,
            first.queue_position > first.seq,
        )


@dataclass(slots=True)
class Delisting:
    """The admissions that a generation delists, and the groups that go to the end of the queue instead."""

    delisted: list[int] = field(default_factory=list)
    requeued: list[tuple[int, ...]] = field(default_factory=list)
    bytes: int = field(default=0, compare=False)
    """Of what is delisted."""
    freed: int = field(default=0, compare=False)
    """The same without what is held by a process that may never list again."""

    def is_enough(self, need: int, files: int | None) -> bool:
        """Whether so many bytes are delisted, or so many files, if that is given."""
        return self.bytes >= need if files is None else len(self.delisted) >= files

    def take(self, group: FileGroup, keep: LastOfKind, files: int | None) -> bool:
        """Delist a group, unless that is more than so many files, or a file of it is the last of its kind."""
        if files is not None and len(self.delisted) + len(group.seqs) > files:
            return False
        if not keep.take(group.kinds):
            return False
        self.delisted.extend(group.seqs)
        self.bytes += group.bytes
        if not group.has_lasting_hold:
            self.freed += group.bytes
        return True


def turnover_bytes(limit: int, turnover: float, largest: int, lacking: int, free: int, share: float = 1.0) -> int:
    """How many bytes a new generation delists: with the free bytes they make the share `turnover` of the cache.

    At least two of the largest files, so that something can change in a small cache, and never more than the catalog
    lacks locally. limit: the cache's size. free: of that, or reserved for files that were not listed yet. share: how
    much of what is listed was opened; so much of all that is delisted.
    """
    wanted = min(share * max(turnover * limit, 2 * largest), limit, lacking)
    return max(0, math.ceil(wanted) - free)


def delist(groups: Iterable[FileGroup], keep: LastOfKind, need: int, files: int | None = None) -> Delisting:
    """Choose what a new generation delists.

    groups: first what is delisted already, then the others, those listed for longest first; read only as far as needed.
    keep: counts the files that would be listed if nothing were delisted. need: bytes. files: exactly so many files, in
    place of need.

    First go the groups without a lasting hold: its process may never list again, so what it holds makes no room. Of
    these, a group that was never opened goes to the end of the queue, once: its reader may be slow.
    """
    chosen = Delisting()
    never_opened: list[FileGroup] = []
    held: list[FileGroup] = []
    for group in groups:
        if chosen.is_enough(need, files):
            break
        if group.has_lasting_hold:
            held.append(group)
        elif not (group.opened or group.requeued or group.delisted):
            never_opened.append(group)
        else:
            chosen.take(group, keep, files)
    for group in never_opened:
        if chosen.is_enough(need, files) or not chosen.take(group, keep, files):
            chosen.requeued.append(group.seqs)
    for group in held:
        if chosen.is_enough(need, files):
            break
        chosen.take(group, keep, files)
    return chosen


def last_listed(newest: Iterable[tuple[int, Sequence[Kind], int]], keep: LastOfKind, need: int, last_seq: int) -> int:
    """The last admission that a new generation lists, where what it delists does not free enough.

    So it is with the first generation of a full cache, and where readers hold much that may never list again. If it
    listed all the rest, its next reader would hold the whole cache, and nothing could ever change. So the files that
    were admitted last are not listed yet, up to half of those that are new: that half is what changes.

    newest: (first seq, kinds, bytes) of the groups not listed so far, the last admitted first. keep: as `delist` left
    it. need: bytes by which the delisted files fall short.
    """
    groups = list(newest)
    need = min(need, sum(size for _, _, size in groups) // 2)
    for seq, kinds, size in groups:
        if need < size or not keep.take(kinds):
            break
        need -= size
        last_seq = seq - 1
    return last_seq


@dataclass(frozen=True, slots=True)
class TurnoverInput:
    """The figures that decide what the next generation delists. Sizes in bytes."""

    limit: int
    """Of the cache."""
    turnover: float
    """The share of the cache that is to change."""
    largest: int
    """Of the cached files and of the one that waits for room."""
    lacking: int
    """What the catalog has and the cache has not."""
    free: int
    """Of the limit, or reserved for files that were not listed yet."""
    shown_seq: int
    """The last admission that the current generation lists."""
    last_seq: int
    """The last admission that the next generation may list."""
    lasting_holds: Holds
    """Of processes that may never list again."""
    opened_share: float = 1.0
    """How many of the files that the current generation lists were opened since it began. Nothing is delisted for
    readers who open nothing."""
    is_first: bool = False
    """No generation began before it in this mount, so nobody has opened anything."""
    opened: frozenset[int] = frozenset()
    """Ids of files that were opened, whose rows may not say so yet."""
    show_files: int | None = None
    """List exactly so many."""
    rotates: bool = True
    """Whether files are delisted for the sake of change."""
    keeps_last: bool = True
    """Whether directories keep their last files: see the function of this name."""


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """The next generation: the last admission that it lists, how many files it lists, and what changes.

    delisted, relisted: as in Generation. requeued: the admissions that get a later place in the queue, in groups; a
    negative one is of the same group as the one before it. keeps_last: see the function of this name. hidden_below: as
    in Generation.
    """

    last_seq: int
    files: int
    delisted: BitMap64 = field(default_factory=BitMap64)
    relisted: BitMap64 = field(default_factory=BitMap64)
    requeued: Sequence[int] = ()
    keeps_last: bool = True
    directories: Collection[int] = ()
    """Those of its files."""
    hidden_below: Mapping[int, BitMap64] = field(default_factory=dict)


def turnover_order(files: Iterable[CachedFile], shown_seq: int) -> list[CachedFile]:
    """The files that a generation listed, in the order in which the next one delists them."""
    listed = [file for file in files if file.seq <= shown_seq]
    delisted = sorted([file for file in listed if file.delisted is not None], key=delisted_key)
    return delisted + sorted([file for file in listed if file.delisted is None], key=listed_key)


def next_generation(
    number: int,
    turnover: TurnoverInput,
    counts: Mapping[Kind, int],
    queue: Iterable[CachedFile],
    unlisted: Iterable[CachedFile],
    delisted: Collection[int],
    delisted_bytes: int,
) -> GenerationPlan:
    """Decide what generation `number` lists.

    counts: how many files of each kind are cached, up to turnover.last_seq. queue: those that may be delisted, in
    `turnover_order`; read only as far as needed. unlisted: those up to turnover.last_seq that no generation listed and
    that may stay unlisted, the last admitted first; read only where needed. delisted: the admissions of
    all that are; delisted_bytes: of these.
    """
    files = sum(counts.values())
    surplus = None if turnover.show_files is None else max(0, files - turnover.show_files)
    whole, need = needed_bytes(turnover, delisted_bytes)
    keep = LastOfKind(counts, turnover.keeps_last)
    chosen = delist(file_groups(queue, turnover.lasting_holds, turnover.opened), keep, need, surplus)
    last_seq = turnover.last_seq
    files -= len(chosen.delisted)
    short = (whole if turnover.is_first else need) - chosen.freed
    if surplus is None and short > 0:
        newest = list(unlisted)
        last_seq = last_listed(_newest_groups(newest), keep, short, last_seq)
        files -= sum(file.seq > last_seq for file in newest)
    newly_delisted = BitMap64(seq for seq in chosen.delisted if seq not in delisted)
    relisted = BitMap64(set(delisted).difference(chosen.delisted))
    requeued = array("q", (-seq if place else seq for seqs in chosen.requeued for place, seq in enumerate(seqs)))
    return GenerationPlan(last_seq, files, newly_delisted, relisted, requeued, turnover.keeps_last, keep.directories)


def needed_bytes(turnover: TurnoverInput, delisted_bytes: int) -> tuple[int, int]:
    """How many bytes a generation delists: (if all that is listed was opened, for what was).

    delisted_bytes: of the files that are delisted already. They stay so: what was opened before has paid for them.
    """

    def for_share(share: float) -> int:
        lacking = turnover.lacking if turnover.rotates else 0
        return turnover_bytes(turnover.limit, turnover.turnover, turnover.largest, lacking, turnover.free, share)

    whole = for_share(1.0)
    return whole, min(whole, delisted_bytes + for_share(turnover.opened_share))


def _newest_groups(files: Iterable[CachedFile]) -> Iterator[tuple[int, list[Kind], int]]:
    for _, members in itertools.groupby(files, key=_group):
        group = list(members)
        yield group[-1].seq, [file.kind for file in group], sum(file.bytes for file in group)
