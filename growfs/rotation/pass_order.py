"""The order in which a pass draws the files of the catalog. Pure functions.

Files are ordered by a keyed hash of the path. The order is therefore the same in every process that knows the seed, and
does not depend on how the catalog was listed. A file that is added to the catalog takes its place without moving
others.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from growfs import disk
from growfs.bitmaps import BitMap64
from growfs.remote.filter import PathFilter
from growfs.remote.groups import group_of
from growfs.remote.names import extension

SEED_DIRECTORIES_MAX = 10_000
"""With more directories than this, a mount returns before each directory has a file."""
SHARES = 0
"""Used instead of a pass number in the hash that decides which node's share a file is in; passes count from 1."""
DEFERRED = 1 << 64
"""Added to the keys of files that come after all others."""


class Candidate(NamedTuple):
    """A file of the catalog."""

    id: int
    directory: int
    path: str
    size: int
    """Bytes to count for this file."""
    resident: bool
    drawn: bool
    """This pass has drawn it already."""
    frozen: bool = False
    """Frozen by --freeze."""
    deferred: bool = False
    """It was cached when the pass reached it, and is drawn again at the end."""


class Pass(NamedTuple):
    """The parameters that decide the order of a pass."""

    seed: int
    number: int
    """Counts from 1."""
    share: tuple[int, int] | None = None
    """(number, of how many) of this node; None if it has all files."""
    group: str | None = None
    """The value of --group; files for which `group_of` gives the same key are drawn as a group."""
    size_max: int | None = None
    """In bytes; larger files cannot be drawn."""
    freeze: tuple[str, ...] = ()
    """The globs of the frozen files."""
    start: float | None = None
    """If nodes feed each other (growfs.rotation.circle): the place at which all passes of this node begin. All of them
    have the order of the first pass."""

    @property
    def partition(self) -> str | None:
        """This node's share as I/N; None if it has all files."""
        return "/".join(map(str, self.share)) if self.share else None

    def has(self, path: str) -> bool:
        """Whether a file is in this node's share. Frozen files and seeds are drawn even if they are not."""
        return is_in_share(self.seed, self.share, group_of(self.group, path))

    def key(self, group: str) -> int:
        """The place of a group in this pass, as an unsigned 64-bit integer."""
        if self.start is None:
            return draw_key(self.seed, self.number, group)
        return (draw_key(self.seed, 1, group) - int(self.start * DEFERRED)) % DEFERRED

    def place(self, path: str) -> float:
        """The place of a file on the circle of all files, as a fraction of it; the same on all nodes."""
        return draw_key(self.seed, 1, group_of(self.group, path)) / DEFERRED


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of files, and their size."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.files + other.files, self.bytes + other.bytes)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.files - other.files, self.bytes - other.bytes)

    @property
    def disk_bytes(self) -> int:
        """About how much these files take on disk: as if all were as large as their mean."""
        return self.files * disk.allocation(-(-self.bytes // self.files)) if self.files > 0 else 0


@dataclass(frozen=True, slots=True)
class Order:
    """The files that a pass still has to draw: ids, in order. A negative id is in the group of the id before it."""

    frozen: Sequence[int] = ()
    """They come first."""
    seeds: Sequence[int] = ()
    """They come next: one file for each directory that has none."""
    rest: Sequence[int] = ()
    share: Amount = Amount()
    """This node's whole share, drawn or not; its bytes are those of the files that can be drawn."""
    outside: Amount = Amount()
    """The cached files that are not in this share: they were opened by name, or are pinned."""
    frozen_ids: BitMap64 = field(default_factory=BitMap64)
    """The ids of `frozen`, as a set."""
    seed_ids: BitMap64 = field(default_factory=BitMap64)
    """The ids of `seeds`, as a set."""
    seed_bytes: int = 0
    """0 if no size is known."""
    unmatched: tuple[str, ...] = ()
    """The globs of --freeze that match no file."""
    has_no_groups: bool = False
    """Whether --group puts no two files together."""


def groups_of(ids: Iterable[int]) -> Iterator[list[int]]:
    """The ids of an order, in groups."""
    group: list[int] = []
    for id in ids:
        if id > 0 and group:
            yield group
            group = []
        group.append(abs(id))
    if group:
        yield group


def ids_of(groups: Iterable[Sequence[int]]) -> Iterator[int]:
    """The ids of an order, from groups: the inverse of `groups_of`."""
    for first, *others in groups:
        yield first
        yield from (-id for id in others)


def draw_key(seed: int, number: int, path: str) -> int:
    """The place of path in pass number, as an unsigned 64-bit integer (BLAKE2b, RFC 7693, keyed)."""
    keyed = _keyed_hash(seed, number).copy()
    keyed.update(path.encode())
    return int.from_bytes(keyed.digest(), "big")


@lru_cache(16)
def _keyed_hash(seed: int, number: int) -> blake2b:
    """The hash of a pass before any path. Copying it costs half as much as creating a new keyed hash."""
    return blake2b(digest_size=8, key=f"{seed}/{number}".encode()[:64])


def is_in_share(seed: int, share: tuple[int, int] | None, group: str) -> bool:
    """Whether a file is in this node's share. Its path alone decides, so a growing catalog moves no files."""
    return share is None or share_number(seed, share[1], group) == share[0]


def share_number(seed: int, shares: int, group: str) -> int:
    """The number of the share that a file is in, from 0."""
    return draw_key(seed, SHARES, group) % shares


def draw_order(files: Iterable[Candidate], pass_: Pass) -> Order:
    """The order of a pass.

    The seed of a directory is one of the files with its most common extension (if several are equally common, the
    alphabetically first of them): the one that the first pass draws first. So a README in a class folder is not a seed.
    Seeds are drawn from the whole catalog, even if a node draws a share of it, and are the same on all nodes.
    """
    drawing = _Drawing(pass_)
    for file in files:
        drawing.add(file)
    return drawing.order()


class Keyed:
    """Ids in the order of their keys, which may be DEFERRED. 16 bytes each: tuples of ten million files take 2 GB."""

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}

    def add(self, key: int, id: int) -> None:
        """Add an id."""
        number = key >> (64 - 8)  # 256 buckets: sorting makes a Python object of each key of one
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = array("Q")
        bucket.extend((key % DEFERRED, id))

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values())) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(key without DEFERRED, id), in order."""
        for _, bucket in sorted(self._buckets.items()):
            yield from sorted(zip(bucket[::2], bucket[1::2], strict=True))


@dataclass(slots=True)
class _First:
    """The file of a kind that the first pass draws first."""

    first_key: int
    """Its key in the first pass."""
    id: int
    key: int
    """Its key in this pass."""
    size: int
    mine: bool
    """Whether it is in this node's share."""
    drawn: bool


class _Drawing:
    """Collects the files of an order. Keeps only the key and id of each file."""

    def __init__(self, pass_: Pass) -> None:
        self._pass = pass_
        self._frozen = Keyed()
        self._rest = Keyed()
        self._firsts: dict[tuple[int, str], _First] = {}
        self._counts: Counter[tuple[int, str]] = Counter()
        self._seeded: set[int] = set()
        self._unmatched = {glob: PathFilter([glob]) for glob in pass_.freeze if not glob.startswith("!")}
        self._groups: dict[int, list[int]] = {}  # all ids with a key
        self._group_bytes: Counter[int] = Counter()
        self._others: dict[int, list[int]] = {}  # by key, the sizes of files outside this node's share
        self._whole: set[int] = set()  # keys of groups with a frozen file or a seed: their `_others` are also drawn
        self._files = self._bytes = 0
        self._outside: list[tuple[int, int]] = []  # (key, size) of cached files outside this node's share

    def add(self, file: Candidate) -> None:
        pass_ = self._pass
        group = group_of(pass_.group, file.path)
        key = pass_.key(group)
        first_key = key if pass_.number == 1 or pass_.start is not None else draw_key(pass_.seed, 1, group)
        mine = file.frozen or is_in_share(pass_.seed, pass_.share, group)
        if mine:
            self._count(file.size)
        if mine and (not file.drawn or (file.frozen and not file.resident)):  # it may be drawn, evicted, then frozen
            (self._frozen if file.frozen else self._rest).add(key + DEFERRED * file.deferred, file.id)
        if file.frozen and self._unmatched:
            self._unmatched = {glob: of for glob, of in self._unmatched.items() if not of.matches(file.path)}
        if file.resident:
            self._seeded.add(file.directory)
            if not mine:
                self._outside.append((key, file.size))
        if pass_.group is not None:
            self._groups.setdefault(key, []).append(file.id)
            self._group_bytes[key] += file.size
            if file.frozen:
                self._whole.add(key)
            if not mine:
                self._others.setdefault(key, []).append(file.size)
        kind = (file.directory, extension(file.path))
        self._counts[kind] += 1
        first = self._firsts.get(kind)
        if first is None or (first_key, file.id) < (first.first_key, first.id):
            self._firsts[kind] = _First(first_key, file.id, key, file.size, mine, file.drawn)

    def order(self) -> Order:
        seeds = Keyed()
        seed_sizes: dict[int, int] = {}
        done = {id for _, id in self._frozen}
        for directory, seed in self._seeds().items():
            if not seed.mine:  # every node draws the seeds
                self._whole.add(seed.key)
                if self._pass.group is None:
                    self._count(seed.size)
            if directory not in self._seeded and seed.id not in done:
                seeds.add(seed.key, seed.id)
                seed_sizes[seed.key] = self._group_bytes.get(seed.key, seed.size)
            elif not (seed.mine or seed.drawn):
                self._rest.add(seed.key, seed.id)
        for key in self._whole:
            for size in self._others.get(key, ()):
                self._count(size)
        frozen_ids = self._ids(self._frozen, set())
        done.update(map(abs, frozen_ids))
        seed_ids = self._ids(seeds, done)
        done.update(map(abs, seed_ids))
        has_groups = any(len(ids) > 1 for ids in self._groups.values())
        has_no_groups = self._pass.group is not None and not has_groups
        outside = [size for key, size in self._outside if key not in self._whole]
        return Order(
            frozen_ids,
            seed_ids,
            self._ids(self._rest, done),
            Amount(self._files, self._bytes),
            Amount(len(outside), sum(outside)),
            BitMap64(map(abs, frozen_ids)),
            BitMap64(map(abs, seed_ids)),
            sum(seed_sizes.values()),
            tuple(self._unmatched),
            has_no_groups,
        )

    def _count(self, size: int) -> None:
        self._files += 1
        if self._pass.size_max is None or size <= self._pass.size_max:
            self._bytes += size

    def _seeds(self) -> dict[int, _First]:
        best: dict[int, tuple[int, str]] = {}
        for (directory, suffix), count in self._counts.items():
            rank = (-count, suffix)
            best[directory] = min(best.get(directory, rank), rank)
        return {directory: self._firsts[directory, suffix] for directory, (_, suffix) in best.items()}

    def _ids(self, keys: Keyed, done: set[int]) -> array[int]:
        """Ids in the order of their keys, without those in `done`; with groups, all ids of each group."""
        ids = array("q")
        if not self._groups:
            ids.extend(id for _, id in keys if id not in done)
            return ids
        for key in dict.fromkeys(key for key, _ in keys):
            first, *others = self._groups[key]
            if first not in done:
                ids.append(first)
                ids.extend(-other for other in others)
        return ids
