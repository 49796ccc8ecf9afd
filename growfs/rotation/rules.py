"""What a generation lists and delists, and what is held. Pure functions over plain facts.

A generation is a numbered, frozen set of listed files. `jobs` decides which one a listing shows, and when the next one
begins. The files that a process saw in a listing are held for it. Each new generation delists the files that were
listed for longest, in proportion to the files opened since the last one began. Delisted files without a hold are
evicted to make room.

The daemon and the simulation both call these functions. The daemon reads the facts from its database.
"""

from __future__ import annotations

import itertools
import math
import sys
from array import array
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from growfs.bitmaps import BitMap64

EVERYWHERE = 0
"""Stands for all directories at once, when a file of .growfs/ lists them."""

Kind = tuple[int, str]
"""(directory, extension): the listing keeps a file of each kind, so that no class folder is ever empty."""


class CachedFile(NamedTuple):
    """A file that is cached."""

    id: int
    directory: int
    suffix: str
    """Its extension."""
    bytes: int
    """Its size on disk."""
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
"""The sort key of delisted files: the first file is evicted first, and delisted again first."""
LISTED_ORDER = ("queue_position",)
"""The sort key of listed files: the first file is delisted first."""
delisted_key, listed_key = attrgetter(*DELISTED_ORDER), attrgetter(*LISTED_ORDER)


# Listed and held files.


class Contents(NamedTuple):
    """What a generation lists, if that is chosen file by file."""

    folders: Mapping[int, Sequence[int]]
    """The admissions of the files and folders in each folder, in the order of their names."""
    bytes: int
    """The total size of the files."""


@dataclass(eq=False, slots=True)
class Reading:
    """What has become of a generation since it began: all that changes of it."""

    began_at: float = 0.0
    """In seconds, on any clock."""
    opened: BitMap64 = field(default_factory=BitMap64)
    """The ids opened since it began, by any process."""
    is_over: bool = False
    """Whether no further listing may show it, whichever process lists: training could not start with it, or it was read
    and has made room."""
    is_read: bool = False
    """Whether processes that have ended opened enough of the files that they were shown to have had their epoch."""
    _of_ended: BitMap64 = field(default_factory=BitMap64)
    """The ids that they opened of those."""

    def note_read(self, opened: BitMap64, enough: float) -> None:
        """Note that a process has ended that opened these of its files. enough: how many are an epoch."""
        self._of_ended |= opened
        self.is_read = self.is_read or len(self._of_ended) >= max(1, enough)


@dataclass(frozen=True, eq=False, slots=True)
class Generation:
    """The frozen set of listed files.

    The rows of the files say a little later what it delists and lists again. It can be listed as long as it is held,
    even if others have begun since. It identifies files by their admission (seq), because a new version has another id
    and takes the place of the old one.
    """

    number: int
    last_seq: int
    files: int = 0
    """The number of files that it lists."""
    listed: BitMap64 = field(default_factory=BitMap64)
    """The admissions of the files and directories that it lists, and of some that are no longer cached."""
    hidden_below: Mapping[int, BitMap64] = field(default_factory=dict)
    """The admissions of the files in directories that it does not list, by the nearest one above that it lists."""
    contents: Contents | None = None
    """What it lists, if that is not everything that is cached and not delisted."""
    frozen: Mapping[int, BitMap64] = field(default_factory=dict)
    """The admissions of the files that were frozen or pinned when it began, by directory."""
    reading: Reading = field(default_factory=Reading)
    is_shown_once = False
    """Whether the next generations list other files: it must not go by unread, and ends once it was read."""

    @property
    def name(self) -> str | None:
        """Its name besides its number, if it has one: 3/7 is part 7 of pass 3."""
        return None

    @property
    def opened_share(self) -> float:
        """The share of its files that were opened since it began."""
        return min(1.0, len(self.reading.opened) / max(1, self.files))

    def is_past(self, cached_files: int) -> bool:
        """Whether any listing begins the next one: it is over, or empty although files are cached."""
        return self.reading.is_over or (cached_files > 0 and not self.files)

    def frozen_files(self, directory: int) -> int:
        """How many frozen and pinned files it lists in a directory, or EVERYWHERE."""
        directories = self.frozen if directory == EVERYWHERE else (directory,)
        return sum(len(self.frozen.get(each, ())) for each in directories)

    def begins(self, now: float, before: Generation | None) -> None:
        """Note that it begins, after the one before it."""
        self.reading.began_at = now
        if before and not before.files:
            before.reading.is_over = True


# The last file of a kind.


def keeps_last(least_bytes: int, limit: int) -> bool:
    """Whether directories keep the last file of each extension.

    least_bytes: total of the smallest cached group of each kind. If these would take more than half of the cache, they
    are not kept: then each directory is a sample (an image, its mask and its text), and the first ones cached would
    stay forever.
    """
    return least_bytes <= limit // 2


class LastOfKind:
    """Keeps the last file of each kind while others are taken away. counts: how many files there are of each kind.

    keeps: if false, keeps half of all files instead, of whatever kind.
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
        """Take away a file of each of these kinds, or none if one of them would be the last of its kind."""
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
        """The directories that have a file left."""
        return {directory for (directory, _), files in self._left.items() if files > 0}


# The files that a generation delists.


class FileGroup(NamedTuple):
    """A file, or a group of files, that is delisted as a whole. It was listed, and is neither pinned nor frozen."""

    seqs: tuple[int, ...]
    """The admissions of its files."""
    kinds: tuple[Kind, ...]
    """The kind of each of its files."""
    bytes: int
    """The total size of its files."""
    has_lasting_hold: bool = False
    """One of them is held, and stays so when a process lists the generation that begins."""
    delisted: bool = False
    """It is already delisted."""
    opened: bool = True
    """One of its files has been opened since it was admitted."""
    requeued: bool = False
    """It was moved to the end of the queue before."""


def file_groups(files: Iterable[CachedFile], lasting_holds: BitMap64, opened: Container[int]) -> Iterator[FileGroup]:
    """The groups of files that come in queue order.

    lasting_holds: see TurnoverInput. opened: ids that count as opened, even if their rows do not say so.
    """
    for _, members in itertools.groupby(files, key=delisted_key):
        group = list(members)
        size, is_held, is_opened = 0, False, False
        for file in group:
            size += file.bytes
            is_held = is_held or file.seq in lasting_holds
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
    """The admissions that a generation delists, and the groups that move to the end of the queue instead."""

    delisted: list[int] = field(default_factory=list)
    requeued: list[tuple[int, ...]] = field(default_factory=list)
    bytes: int = field(default=0, compare=False)
    """The size of the delisted files."""
    freed: int = field(default=0, compare=False)
    """The same without files that stay held."""

    def is_enough(self, need: int, files: int | None) -> bool:
        """Whether `need` bytes are delisted, or if `files` is given, this many files."""
        return self.bytes >= need if files is None else len(self.delisted) >= files

    def take(self, group: FileGroup, keep: LastOfKind, need: int, files: int | None) -> bool:
        """Delist a group, unless there is enough, that exceeds `files`, or one of its files is the last of its kind."""
        if self.is_enough(need, files) or (files is not None and len(self.delisted) + len(group.seqs) > files):
            return False
        if not keep.take(group.kinds):
            return False
        self.delisted.extend(group.seqs)
        self.bytes += group.bytes
        if not group.has_lasting_hold:
            self.freed += group.bytes
        return True


def delist(groups: Iterable[FileGroup], keep: LastOfKind, need: int, files: int | None = None) -> Delisting:
    """Choose what a new generation delists.

    groups: first the groups that are already delisted, then the others, listed for longest first; read only as far as
    needed. keep: counts the files that would be listed if nothing were delisted. need: bytes. files: exactly this many
    files, instead of need.

    Groups without a lasting hold go first: delisting the others makes no room until those that hold them list again,
    if they ever do. Of these, a group that was never opened is moved to the end of the queue, once: its reader may be
    slow.
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
            chosen.take(group, keep, need, files)
    chosen.requeued = [group.seqs for group in never_opened if not chosen.take(group, keep, need, files)]
    for group in held:
        chosen.take(group, keep, need, files)
    return chosen


def last_listed(newest: Iterable[tuple[int, Sequence[Kind], int]], keep: LastOfKind, need: int, last_seq: int) -> int:
    """The last admission that a new generation lists, if what it delists does not free enough.

    This happens with the first generation of a full cache, and when other readers hold much of it.
    If the generation listed all remaining files, its next reader would hold the whole cache, and nothing could ever
    change. So the files that were admitted last are not listed yet, up to half of the new ones: that half is what
    changes.

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


class TurnoverInput(NamedTuple):
    """The figures that decide what the next generation delists. Sizes in bytes."""

    limit: int
    """The cache's limit."""
    turnover: float
    """The share of the cache that is to change."""
    largest: int
    """The size of the largest file: cached, or waiting for room."""
    lacking: int
    """How much of the catalog the cache lacks."""
    free: int
    """Bytes of the limit that are free, or reserved for files that were not listed yet."""
    shown_seq: int
    """The last admission that the current generation lists."""
    last_seq: int
    """The last admission that the next generation may list."""
    lasting_holds: BitMap64
    """The admissions of files that stay held when a process lists the generation that begins: by other jobs."""
    opened_share: float = 1.0
    """The share of the current generation's files that were opened since it began. Nothing is delisted for readers that
    open nothing."""
    is_first: bool = False
    """No generation began before it in this mount, so no files were opened."""
    opened: frozenset[int] = frozenset()
    """Ids of files that were opened, although their rows may not say so yet."""
    show_files: int | None = None
    """List exactly this many files."""
    rotates: bool = True
    """Whether files are delisted to change the listed set."""
    keeps_last: bool = True
    """Whether directories keep their last files: see the function of this name."""


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """The next generation, and what changes with it.

    delisted, relisted: the admissions that it delists and lists again. requeued: those that get a later place in the
    queue, in groups; a negative one is in the same group as the one before it. keeps_last: see the function of this
    name. directories: those that contain its files.
    """

    generation: Generation
    delisted: BitMap64 = field(default_factory=BitMap64)
    relisted: BitMap64 = field(default_factory=BitMap64)
    requeued: Sequence[int] = ()
    keeps_last: bool = True
    directories: Collection[int] = ()


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

    counts: how many files of each kind are cached, up to turnover.last_seq. queue: the files that may be delisted,
    first those that already are; read only as far as needed. unlisted: the files up to turnover.last_seq that no
    generation listed and that may stay unlisted, the last admitted first; read only if needed. delisted: the admissions
    of all delisted files. delisted_bytes: their size.
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
    listed = BitMap64(range(1, last_seq + 1)) - BitMap64(chosen.delisted)
    generation = Generation(number, last_seq, files=files, listed=listed)
    return GenerationPlan(generation, newly_delisted, relisted, requeued, turnover.keeps_last, keep.directories)


def needed_bytes(turnover: TurnoverInput, delisted_bytes: int) -> tuple[int, int]:
    """How many bytes a generation delists: (if all listed files were opened, for those that were opened).

    With the free bytes they make up the share `turnover` of the cache. At least two of the largest files, so that
    something can change in a small cache, and never more than the catalog has and the cache lacks. delisted_bytes: size
    of the files that are already delisted. They stay so: earlier opens have paid for them.
    """
    change = max(turnover.turnover * turnover.limit, 2 * turnover.largest)
    most = min(turnover.limit, turnover.lacking if turnover.rotates else 0)

    def if_opened(fraction: float) -> int:
        return max(0, math.ceil(min(fraction * change, most)) - turnover.free)

    whole = if_opened(1.0)
    return whole, min(whole, delisted_bytes + if_opened(turnover.opened_share))


def _newest_groups(files: Iterable[CachedFile]) -> Iterator[tuple[int, list[Kind], int]]:
    for _, members in itertools.groupby(files, key=listed_key):
        group = list(members)
        yield group[-1].seq, [file.kind for file in group], sum(file.bytes for file in group)


# Directories with listed files, and those that are hidden because they have none.


def with_parents(directories: Iterable[int], parents: Mapping[int, int]) -> set[int]:
    """Those of these directories that have a parent, and all directories above them that have one."""
    found = set[int]()
    for directory in directories:
        while directory in parents and directory not in found:
            found.add(directory)
            directory = parents[directory]
    return found


def hidden_below(listed: set[int], parents: Mapping[int, int], files: Iterable[tuple[int, int]]) -> dict[int, BitMap64]:
    """The files in directories that are not listed, by the nearest directory above that is.

    files: (directory, admission) of each. Directories without a parent are listed.
    """
    hidden = parents.keys() - listed
    below = defaultdict[int, BitMap64](BitMap64)
    for directory, seq in files:
        above = directory
        while above in hidden:
            above = parents[above]
        if above != directory:
            below[above].add(seq)
    return dict(below)
