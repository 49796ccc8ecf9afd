"""How --exact divides a pass over the catalog into parts. Pure functions.

A generation lists one part. Over the parts of a pass, each file is in exactly one. Most of the cache keeps a fixed
share of the files. The others are *streamed*: fetched for their part, and evicted after it. There is room for the
streamed files of two parts, the one that is read and the next one. Each part has its share of both sorts, so that the
link is used evenly.

A part depends on nothing but the seed, the catalog, the size of the cache, and the numbers of the pass and the part.
Which files are kept does not depend on the pass either.
"""

from __future__ import annotations

import heapq
import itertools
import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from growfs.bitmaps import BitMap64
from growfs.errors import GrowfsError
from growfs.remote.groups import group_of
from growfs.remote.names import extension
from growfs.rotation.pass_order import Keyed, draw_key, share_number
from growfs.rotation.rules import Generation, keeps_last
from growfs.units import format_size

SPARE_SHARE = 100
"""One part in 100 of the cache is left free: for files that take more of the disk than their size, or are opened by
name."""
PART_FILES_MIN = 300
"""Of fewer, a batch takes a large share, and drop_last drops as much."""


class PassPosition(NamedTuple):
    """A part of a pass. Both numbers count from 1."""

    pass_: int
    part: int

    def __str__(self) -> str:
        return f"{self.pass_}/{self.part}"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Part(Generation):
    """A generation that is a part of a pass."""

    is_shown_once = True
    position: PassPosition
    to_read: BitMap64
    """The ids of its files, all of which are opened before it makes room; none if all of them stay."""
    left_out: BitMap64 = field(default_factory=BitMap64)
    """The ids of files of the part that are not cached: they could not be fetched."""

    @property
    def name(self) -> str:
        """The numbers of its pass and its part."""
        return str(self.position)


@dataclass(frozen=True, slots=True)
class ExactPass:
    """All that decides the parts of a pass, besides the catalog. Sizes in bytes."""

    seed: int
    number: int
    """Counts from 1."""
    cache_bytes: int
    part_bytes: int
    """The room for streamed files, of two parts together."""
    share: tuple[int, int] | None = None
    """(number, of how many) of this node; None if it has all files. All nodes have equally many parts if their caches
    are equally large."""
    group: str | None = None
    """The value of --group; files for which `group_of` gives the same key are in the same part."""


class CatalogFile(NamedTuple):
    """A file of the catalog."""

    id: int
    path: str
    size: int
    bytes: int
    """On disk."""
    is_always_listed: bool
    """It is frozen or pinned: each part lists it, and it is always kept."""


class CatalogDigest(NamedTuple):
    """Identifies the files of a catalog by their paths and sizes, and which of them are frozen or pinned."""

    files: int
    bytes: int
    digest: str


class PartBounds(NamedTuple):
    """The place of a part in the ids of its division: streamed files from `start` on, kept ones from `kept` on."""

    start: int
    kept: int
    end: int


@dataclass(frozen=True, slots=True)
class Division:
    """A pass, divided into parts."""

    pass_: ExactPass
    catalog: CatalogDigest
    always: int
    """How many ids come before the parts: of files that each part lists, with their groups."""
    parts: tuple[PartBounds, ...]
    files: int
    """The files of this node's parts, with those that are always listed."""
    bytes: int
    """Their size on disk."""
    kept_bytes: int
    """The size on disk of the files that stay, with those that are always listed."""
    part_bytes: int
    """The size on disk of the streamed files of the largest part."""
    lists_all_folders: bool
    """Each part lists all folders, even those of which it has no file. Otherwise folders are samples that come and go.
    """
    least_folders: int
    """How many folders of this node's files have a file in the part that has files of the fewest."""
    folders: int
    """How many folders have files in any part."""

    @property
    def needed_bytes(self) -> int:
        """How large the cache has to be for these parts."""
        return self.kept_bytes + 2 * self.part_bytes

    @property
    def streams(self) -> bool:
        """Whether some files are not kept."""
        return self.part_bytes > 0

    @property
    def streamed_bytes(self) -> int:
        """The size on disk of the files that each pass fetches."""
        return self.bytes - self.kept_bytes

    def after(self, part: int) -> PassPosition:
        """The position that follows a part."""
        number = self.pass_.number
        return PassPosition(number, part + 1) if part < len(self.parts) else PassPosition(number + 1, 1)


def divide(files: Iterable[CatalogFile], pass_: ExactPass) -> tuple[Division, array[int]]:
    """Divide a pass; returns the division and its ids. A negative id is in the group of the id before it.

    Raises GrowfsError if the cache is too small to stream files through it.
    """
    dividing = _Dividing(pass_)
    for file in files:
        dividing.add(file)
    return dividing.division()


class _Dividing:
    """Collects the files of a division. A file without a group is its own group. Keeps some 70 bytes of each."""

    def __init__(self, pass_: ExactPass) -> None:
        self._pass = pass_
        self._ids, self._bytes, self._folders = array("q"), array("q"), array("Q")  # by group
        self._others: dict[int, list[int]] = {}  # by group, all ids but the first
        self._by_key: dict[int, int] = {}  # groups by key, if files have groups
        self._always = BitMap64()  # groups
        # The groups of each node's share: in the order in which they are chosen to be kept, and in that of the pass.
        self._shares = [(Keyed(), Keyed()) for _ in range(pass_.share[1] if pass_.share else 1)]
        self._folder_keys: dict[str, int] = {}
        self._kinds: dict[tuple[str, str], int] = {}
        self._kind_of, self._group_of = array("I"), array("I")  # by file
        self._files = self._size = self._digest = 0

    def add(self, file: CatalogFile) -> None:
        """Add a file of the catalog."""
        self._files += 1
        self._size += file.size
        always = "\0always" * file.is_always_listed  # that decides which others are kept
        text = f"{file.path}\0{file.size}{always}".encode()
        self._digest += int.from_bytes(blake2b(text, digest_size=16).digest(), "big")
        folder, _, name = file.path.rpartition("/")
        self._kind_of.append(self._kinds.setdefault((folder, extension(name)), len(self._kinds)))
        pass_, text_of_group = self._pass, group_of(self._pass.group, file.path)
        choice = draw_key(pass_.seed, -1, text_of_group)  # no pass: these count from 1
        group = self._by_key.get(choice)
        if group is not None:
            self._bytes[group] += file.bytes
            self._others.setdefault(group, []).append(file.id)
        else:
            group = len(self._ids)
            self._ids.append(file.id)
            self._bytes.append(file.bytes)
            if folder not in self._folder_keys:
                self._folder_keys[folder] = draw_key(pass_.seed, pass_.number, f"{folder}/")
            self._folders.append(self._folder_keys[folder])
            by_choice, by_pass = self._shares[share_number(pass_.seed, len(self._shares), text_of_group)]
            by_choice.add(choice, group)
            by_pass.add(draw_key(pass_.seed, pass_.number, text_of_group), group)
            if pass_.group is not None:
                self._by_key[choice] = group
        self._group_of.append(group)
        if file.is_always_listed:
            self._always.add(group)

    def division(self) -> tuple[Division, array[int]]:
        """The parts of this node's share."""
        pass_ = self._pass
        always_bytes = sum(self._bytes[group] for group in self._always)
        largest = max((self._bytes[group] for group in range(len(self._ids)) if group not in self._always), default=0)
        room = max(pass_.part_bytes, 2 * largest)
        own = pass_.share[0] if pass_.share else 0
        kept, parts, streamed = BitMap64(), 1, array("Q")
        for number, (by_choice, by_pass) in enumerate(self._shares):
            kept_here = self._kept(by_choice, always_bytes, room)
            groups = (group for _, group in by_pass if group not in kept_here and group not in self._always)
            streamed_here = array("Q", groups)
            parts = max(parts, _count(self._sums(streamed_here), room // 2))
            if number == own:
                kept, streamed = kept_here, streamed_here
        if pass_.number == 1:
            # The parts are small, because the first listing waits for one.
            parts = max(parts, min(20, *(len(by_pass) for _, by_pass in self._shares)))
        ends = _ends(self._sums(streamed), room // 2, parts)
        return self._assembled(self._shares[own][1], kept, streamed, ends, always_bytes)

    def _kept(self, by_choice: Keyed, always_bytes: int, room: int) -> BitMap64:
        """The groups of a share that stay cached. room: for streamed files, in bytes."""
        cache_bytes = self._pass.cache_bytes
        groups = [group for _, group in by_choice if group not in self._always]
        if always_bytes + sum(self._bytes[group] for group in groups) <= cache_bytes:
            return BitMap64(groups)
        left = cache_bytes - cache_bytes // SPARE_SHARE - always_bytes - room
        if left < 0:
            always = f" besides {format_size(always_bytes)} for frozen and pinned files" if always_bytes else ""
            raise GrowfsError(
                f"--exact needs {format_size(room)} of the cache for streamed files{always}, but a cache of"
                f" {format_size(cache_bytes)} has room for {format_size(left + always_bytes + room)}; raise"
                " --cache-size, or lower --part-size"
            )
        kept = BitMap64()
        for group in groups:
            if self._bytes[group] <= left:
                left -= self._bytes[group]
                kept.add(group)
        return kept

    def _sums(self, groups: Sequence[int]) -> array[int]:
        return array("q", itertools.accumulate(self._bytes[group] for group in groups))

    def _assembled(
        self, by_pass: Keyed, kept: BitMap64, streamed: Sequence[int], ends: Sequence[int], always_bytes: int
    ) -> tuple[Division, array[int]]:
        ids, bounds = array("q", self._ids_of(self._always)), list[PartBounds]()
        always = len(ids)
        dealt = self._dealt(by_pass, kept, [end - start for start, end in zip((0, *ends), ends, strict=False)])
        start = least_folders = part_bytes = 0
        folders = set[int]()
        for part, end in enumerate(ends):
            place, groups = len(ids), streamed[start:end]
            ids.extend(self._ids_of(groups))
            kept_from = len(ids)
            ids.extend(self._ids_of(dealt[part]))
            bounds.append(PartBounds(place, kept_from, len(ids)))
            part_bytes = max(part_bytes, sum(self._bytes[group] for group in groups))
            here = {self._folders[group] for group in itertools.chain(groups, dealt[part])}
            least_folders = min(least_folders, len(here)) if part else len(here)
            folders |= here
            start = end
        kept_bytes = always_bytes + sum(self._bytes[group] for group in kept)
        division = Division(
            self._pass,
            CatalogDigest(self._files, self._size, f"{self._digest % (1 << 128):032x}"),
            always,
            tuple(bounds),
            len(ids),
            kept_bytes + sum(self._bytes[group] for group in streamed),
            kept_bytes,
            part_bytes,
            keeps_last(self._least_bytes(), self._pass.cache_bytes),
            least_folders,
            len(folders),
        )
        return division, ids

    def _least_bytes(self) -> int:
        """The total size of the smallest group of each kind."""
        least = dict[int, int]()
        for kind, group in zip(self._kind_of, self._group_of, strict=True):
            known = least.setdefault(kind, group)
            if self._bytes[group] < self._bytes[known]:
                least[kind] = group
        return sum(self._bytes[group] for group in set(least.values()))

    def _dealt(self, by_pass: Keyed, kept: BitMap64, streamed: Sequence[int]) -> list[array[int]]:
        """The kept groups of each part. Those of a folder are dealt out in turn, so each part has its share of them.

        streamed: how many streamed groups each part has; those with the fewest come first.
        """
        dealt = [array("Q") for _ in streamed]
        by_need = sorted(range(len(streamed)), key=streamed.__getitem__)
        by_folder = sorted(
            (self._folders[group], place, group) for place, (_, group) in enumerate(by_pass) if group in kept
        )
        for number, (_, _, group) in enumerate(by_folder):
            dealt[by_need[number % len(by_need)]].append(group)
        return dealt

    def _ids_of(self, groups: Iterable[int]) -> Iterator[int]:
        for group in groups:
            yield self._ids[group]
            for other in self._others.get(group, ()):
                yield -other


def _count(sums: Sequence[int], most: int) -> int:
    """How many parts there are if each takes groups in order, up to `most` bytes. sums: running totals, in bytes."""
    return sum(1 for _ in _cuts(sums, most))


def _cuts(sums: Sequence[int], most: int) -> Iterator[int]:
    place, before = 0, 0
    while place < len(sums):
        place = bisect_right(sums, before + most, place)
        before = sums[place - 1]
        yield place


def _ends(sums: Sequence[int], most: int, parts: int) -> list[int]:
    """Where each of the parts ends. A group has at most `most` bytes, and so has each part.

    The parts are equally large if that is possible. Otherwise the largest is as small as possible; if that takes fewer
    parts, those with the most groups are divided.
    """
    ends = [bisect_right(sums, sums[-1] * part // parts) for part in range(1, parts + 1)] if sums else [0] * parts
    if all(0 < size <= most for size in _sizes(sums, ends)):
        return ends
    least = max(_sizes(sums, range(1, len(sums) + 1)), default=0)
    while least < most:
        middle = (least + most) // 2
        if _count(sums, middle) <= parts:
            most = middle
        else:
            least = middle + 1
    ends = list(_cuts(sums, most)) or [0]
    counts = [(start - end, end) for start, end in zip((0, *ends), ends, strict=False)]  # the largest is the least
    heapq.heapify(counts)
    while len(counts) < parts:
        count, end = heapq.heappop(counts)
        second = -count // 2
        heapq.heappush(counts, (count + second, end - second))
        heapq.heappush(counts, (-second, end))
    return sorted(end for _, end in counts)


def _sizes(sums: Sequence[int], ends: Iterable[int]) -> Iterator[int]:
    """The bytes of each part."""
    before = 0
    for end in ends:
        total = sums[end - 1] if end else 0
        yield total - before
        before = total


def small_parts(files: int, streamed_bytes: int, kept_bytes: int, cache_bytes: int) -> str | None:
    """A warning that parts have few files, with the --part-size that gives them more; None if they have enough.

    files: of a pass. streamed_bytes, kept_bytes: the sizes of those that it fetches, and of those that stay cached.
    """
    usable_bytes = cache_bytes - cache_bytes // SPARE_SHARE
    room = max(1, usable_bytes - kept_bytes)  # for the streamed files of two parts, as is --part-size
    found = files / max(1, math.ceil(2 * streamed_bytes / room))
    if not streamed_bytes or found >= PART_FILES_MIN:
        return None
    parts = files // PART_FILES_MIN
    uncached_bytes = streamed_bytes + kept_bytes - usable_bytes
    # What is streamed grows with the room: the room for two parts, and what is not cached anyway.
    enough = 2 * uncached_bytes / (parts - 2) if parts > 2 else math.inf
    few = f"parts have fewer than {PART_FILES_MIN} files"
    if enough >= usable_bytes:
        return f"{few}, and the cache is too small for more: if each file is a sample, use growfs.samples"
    percent = math.ceil(100 * enough / cache_bytes)
    return f"{few}: if each file is a sample, pass --part-size {percent}%, or use growfs.samples"
