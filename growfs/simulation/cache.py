"""The simulated cache: which files are resident, and how a policy lists them and makes room. In memory, in bytes.

`Rotating` calls the functions of `rotation.rules` that a mount calls. `Replacing` is for comparison: a folder that
lists its current files, in which each new file takes the place of another.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from growfs.bitmaps import BitMap64
from growfs.remote.names import extension
from growfs.rotation.eviction import candidates, evictable, pick_victims
from growfs.rotation.pass_order import groups_of
from growfs.rotation.reader import Reader, held_by
from growfs.rotation.rules import (
    EVERYWHERE,
    CachedFile,
    Generation,
    Kind,
    TurnoverInput,
    delisted_key,
    keeps_last,
    listed_key,
    next_generation,
)

POLICIES = ("growfs", "lru", "mru", "fifo", "random", "never")


@dataclass(frozen=True, slots=True)
class MountSettings:
    """The options of a simulated mount."""

    policy: str = "growfs"
    """One of POLICIES."""
    seed: int = 0
    turnover: float = 0.2
    """The share of the cache that a generation delists."""
    parallel: int = 4
    """How many fetches run at a time."""
    settle_s: float = 60.0
    hold_idle_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class File:
    """A file of the simulated remote. directory: a number from 1; size: bytes, of the remote and of the disk alike."""

    directory: int
    path: str
    size: int


class Cache:
    """The common part of all policies: the resident files, and the bytes that are left."""

    def __init__(self, files: Sequence[File], limit: int) -> None:
        self.files = files
        self.limit = limit
        self.used = self.reserved = 0
        self.counter = 0
        self.seq = [0] * len(files)  # by file, its number in the order of admission; 0 if not resident
        self.kinds = [(file.directory, extension(file.path)) for file in files]
        self.residents: Counter[Kind] = Counter()
        self.folders: dict[int, dict[int, None]] = {EVERYWHERE: {}}  # the resident ids of each, as admitted
        for file in files:
            self.folders.setdefault(file.directory, {})
        self.busy: Counter[int] = Counter()  # how many handles each file has, if any
        self.live: list[Reader] = []
        self.generation: Generation | None = None  # the newest one, if the policy has generations
        self.catalog_bytes = sum(file.size for file in files)
        self.evicted = 0

    @property
    def free(self) -> int:
        """Bytes taken neither by a file nor by a fetch."""
        return self.limit - self.used - self.reserved

    def admit(self, id: int) -> None:
        """Make a file resident."""
        self.counter += 1
        self.seq[id] = self.counter
        self.used += self.files[id].size
        self.residents[self.kinds[id]] += 1
        self.folders[EVERYWHERE][id] = self.folders[self.files[id].directory][id] = None

    def remove(self, id: int) -> None:
        """Evict a file."""
        self.seq[id] = 0
        self.evicted += 1
        self.used -= self.files[id].size
        self.residents[self.kinds[id]] -= 1
        del self.folders[EVERYWHERE][id], self.folders[self.files[id].directory][id]

    def listed(self, directory: int) -> list[int]:
        """The ids that a directory currently shows, in the order of admission."""
        return list(self.folders[directory])

    def listing(self, reader: Reader, directory: int, now: float) -> list[int]:
        """A reader lists a directory; returns what it is shown."""
        return self.listed(directory)

    def opened(self, id: int) -> None:
        """A resident file is opened."""

    def closed(self, id: int) -> None:
        """A handle of a file that is busy is closed."""
        self.busy[id] -= 1
        if not self.busy[id]:
            del self.busy[id]

    def make_room(self, need: int, now: float, missed: bool = False) -> bool:
        """Evict until `need` bytes are free; returns whether they are. missed: for a file that a reader waits for."""
        return need <= self.free

    def readers_changed(self) -> None:
        """Note that the holds of a reader have changed."""


class Replacing(Cache):
    """A folder in which each new file replaces the least or most recently used file, the oldest, a random one, or none.

    Owns `folders[EVERYWHERE]` as its queue: the first is evicted next. With "mru" it is the last of `_used`: the file
    that was opened last. Files that were never opened stay.
    """

    def __init__(self, files: Sequence[File], limit: int, settings: MountSettings) -> None:
        super().__init__(files, limit)
        self._policy = settings.policy
        self._random = random.Random(settings.seed)
        self._places: list[int] = []
        self._place_of: dict[int, int] = {}
        self._used: dict[int, None] = {}

    def admit(self, id: int) -> None:
        """Make a file resident."""
        super().admit(id)
        self._place_of[id] = len(self._places)
        self._places.append(id)

    def remove(self, id: int) -> None:
        """Evict a file."""
        super().remove(id)
        self._used.pop(id, None)
        place, last = self._place_of.pop(id), self._places.pop()
        if last != id:
            self._places[place], self._place_of[last] = last, place

    def opened(self, id: int) -> None:
        """A resident file is opened."""
        if self._policy in ("lru", "mru"):
            queue = self.folders[EVERYWHERE] if self._policy == "lru" else self._used
            queue.pop(id, None)
            queue[id] = None

    def make_room(self, need: int, now: float, missed: bool = False) -> bool:
        """Evict until `need` bytes are free."""
        if self._policy == "never":
            return need <= self.free
        while need > self.free:
            if self._policy == "random":
                victim = self._random.choice(self._places) if len(self._places) > len(self.busy) else None
                if victim in self.busy:
                    continue
            else:
                queue = reversed(self._used) if self._policy == "mru" else self.folders[EVERYWHERE]
                victim = next((id for id in queue if id not in self.busy), None)
            if victim is None:
                return False
            self.remove(victim)
        return True


class Rotating(Cache):
    """The policy of a mount: generations, holds, and eviction by the rules.

    Invariant: `cached` has the facts of every resident file, in the order of admission. `_refused`: the number of bytes
    that no draw could evict; None if a change since then may allow it. A waiting draw asks at every close.
    """

    def __init__(self, files: Sequence[File], limit: int, settings: MountSettings) -> None:
        super().__init__(files, limit)
        self.cached: dict[int, CachedFile] = {}
        self._settings = settings
        self._largest = max((file.size for file in files if file.size <= limit), default=0)
        self._delisted: dict[int, list[CachedFile]] = {}
        self._listed_counts: Counter[Kind] = Counter()
        self._holds: BitMap64 | None = None
        self._keeps_last = True
        self._holds_until = 0.0
        self._refused: int | None = None

    @property
    def _shown_seq(self) -> int:
        return self.generation.last_seq if self.generation else 0

    def admit(self, id: int) -> None:
        """Make a file resident."""
        super().admit(id)
        self._refused = None
        directory, suffix = self.kinds[id]
        self.cached[id] = CachedFile(id, directory, suffix, self.files[id].size, self.counter, self.counter)

    def remove(self, id: int) -> None:
        """Evict a file."""
        super().remove(id)
        self._refused = None
        file = self.cached.pop(id)
        if file.delisted is not None:
            group = self._delisted[file.queue_position]
            group[:] = [other for other in group if other.id != id]
            if not group:
                del self._delisted[file.queue_position]
        elif file.seq <= self._shown_seq:
            self._listed_counts[file.kind] -= 1

    def opened(self, id: int) -> None:
        """A resident file is opened."""
        if self.generation:
            self.generation.reading.opened.add(id)
        if not self.cached[id].opened:
            self.cached[id] = self.cached[id]._replace(opened=True)

    def closed(self, id: int) -> None:
        """A handle of a file that is busy is closed."""
        super().closed(id)
        if id in self.cached and self.cached[id].delisted is not None:
            self._refused = None

    def readers_changed(self) -> None:
        """Note that the holds of a reader have changed."""
        self._holds = None

    def holds(self, now: float) -> BitMap64:
        """The admissions of the files that readers hold that are not silent."""
        if self._holds is None or now > self._holds_until:
            for reader in self.live:
                if reader.held and reader.is_silent(now, self._settings.hold_idle_s, self._settings.settle_s):
                    reader.release()
            self._holds = held_by(self.live, now)
            # Even without a listing, a reader may have fallen silent.
            self._holds_until = now + min(self._settings.settle_s, 180.0)
            self._refused = None
        return self._holds

    def listed(self, directory: int, view: Generation | None = None) -> list[int]:
        """The ids that a directory currently shows, in the order of admission. view: by default the newest."""
        view = view or self.generation
        if not view:
            return []
        files = map(self.cached.__getitem__, self.folders[directory])
        return [file.id for file in files if file.seq in view.listed]

    def listing(self, reader: Reader, directory: int, now: float) -> list[int]:
        """A reader lists a directory, which may begin a generation; returns what it is shown."""
        newest, settle_s = self.generation, self._settings.settle_s
        view: Generation | None = None
        if newest and not newest.is_past(self.counter):
            view = reader.next_view(directory, newest, now, settle_s, self.live)
        view = view or self._begin(reader, now)
        reader.lists(directory, view, now, settle_s)
        reader.is_shown((self.cached[id].seq for id in self.folders[directory]), view)
        self.readers_changed()
        shown = self.listed(directory, view)
        reader.job.is_shown(directory, view, len(shown))
        return shown

    def _begin(self, lister: Reader, now: float) -> Generation:
        number = self.generation.number + 1 if self.generation else 1
        self.holds(now)  # ends those of silent readers
        turnover = TurnoverInput(
            limit=self.limit,
            turnover=self._settings.turnover,
            largest=self._largest,
            lacking=self.catalog_bytes - self.used,
            free=self.limit - self.used,
            shown_seq=self._shown_seq,
            last_seq=self.counter,
            lasting_holds=BitMap64().union(*(reader.lasting_holds(lister) for reader in self.live)),
            opened_share=self.generation.opened_share if self.generation else 0.0,
            is_first=self.generation is None,
            keeps_last=keeps_last(self._least_bytes(), self.limit),
        )
        queue = itertools.chain(*self._delisted.values(), self._listed())
        delisted = {file.seq: file.bytes for group in self._delisted.values() for file in group}
        plan = next_generation(
            number, turnover, self.residents, queue, self._unlisted(), delisted, sum(delisted.values())
        )
        ids = {file.seq: file.id for file in self.cached.values()}
        for changed, by_generation in ((plan.delisted, number), (plan.relisted, None)):
            for id in map(ids.__getitem__, changed):
                self.cached[id] = self.cached[id]._replace(delisted=by_generation)
        for group in groups_of(plan.requeued):
            self.counter += 1
            for id in map(ids.__getitem__, group):
                self.cached[id] = self.cached[id]._replace(queue_position=self.counter)
        shown = [file for file in self.cached.values() if file.seq <= plan.generation.last_seq]
        self._refused = None
        self._delisted = {}
        for file in sorted([file for file in shown if file.delisted is not None], key=delisted_key):
            self._delisted.setdefault(file.queue_position, []).append(file)
        self._listed_counts = Counter(file.kind for file in shown if file.delisted is None)
        self._keeps_last = plan.keeps_last
        plan.generation.begins(now, self.generation)
        self.generation = plan.generation
        return self.generation

    def _least_bytes(self) -> int:
        """The total size of the smallest cached file of each kind."""
        least = dict[Kind, int]()
        for file in self.cached.values():
            least[file.kind] = min(file.bytes, least.get(file.kind, file.bytes))
        return sum(least.values())

    def _unlisted(self) -> Iterator[CachedFile]:
        """The files that no generation has listed yet, the last admitted first."""
        shown_seq = self._shown_seq
        return itertools.takewhile(lambda file: file.seq > shown_seq, reversed(self.cached.values()))

    def _listed(self) -> Iterator[CachedFile]:
        """The files that the current generation lists, listed for longest first."""
        shown_seq = self._shown_seq
        listed = [file for file in self.cached.values() if file.seq <= shown_seq and file.delisted is None]
        yield from sorted(listed, key=listed_key)

    def make_room(self, need: int, now: float, missed: bool = False) -> bool:
        """Evict until `need` bytes are free."""
        lacking = need - self.free
        if lacking > 0:
            held = self.holds(now)
            if not missed and self._refused is not None and lacking >= self._refused:
                return False
            sorts = [list(itertools.chain.from_iterable(self._delisted.values()))]
            if missed:
                sorts = [list(self._unlisted()), *sorts, list(self._listed())]
            in_order = candidates(sorts, held, takes_held=missed)
            victims = pick_victims(
                evictable(in_order, self.busy, self._counts, self._shown_seq, self._keeps_last), lacking
            )
            for id in victims:
                self.remove(id)
            if not victims and missed and self._keeps_last:
                self._keeps_last = keeps_last(self._least_bytes(), self.limit)
                if not self._keeps_last:
                    return self.make_room(need, now, missed)
            elif not victims and not missed:
                self._refused = lacking
        return need <= self.free

    def _counts(self, kind: Kind) -> tuple[int, int]:
        return self._listed_counts[kind], self.residents[kind]
