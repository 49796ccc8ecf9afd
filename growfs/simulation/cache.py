"""The simulated cache: which files are resident, and how a policy lists them and makes room. In memory, in bytes.

`Rotating` asks the very functions of `rotation` that a mount asks. `Replacing` is what it is compared with: a folder
that lists what is there, where each arrival takes the place of another file.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from growfs.remote.names import extension
from growfs.rotation.reader import Reader
from growfs.rotation.rules import (
    EVERYWHERE,
    FileGroup,
    Generation,
    Holds,
    Victim,
    begins_generation,
    delist,
    eviction,
    last_shown,
    turnover_bytes,
)

POLICIES = ("growfs", "lru", "fifo", "random", "never")
HOLDS_S = 180.0
"""Holds are computed anew after this time at the latest, because a reader may have fallen silent."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the simulated remote. directory: a number from 1; size: bytes, of the remote and of the disk alike."""

    directory: int
    path: str
    size: int


class Cache:
    """What every policy has: residency, and the bytes that are left.

    seq: of each file its number of admission; 0: it is not resident. folders: the resident ids of each directory and of
    EVERYWHERE, in the order of admission. busy: how many handles each file has.
    """

    def __init__(self, files: Sequence[File], limit: int) -> None:
        self.files = files
        self.limit = limit
        self.used = self.reserved = 0
        self.counter = 0
        self.seq = [0] * len(files)
        self.kinds = [(file.directory, extension(file.path)) for file in files]
        self.residents: Counter[tuple[int, str]] = Counter()
        self.folders: dict[int, dict[int, None]] = {EVERYWHERE: {}}
        for file in files:
            self.folders.setdefault(file.directory, {})
        self.busy: Counter[int] = Counter()
        self.live: list[Reader] = []
        self.catalog_bytes = sum(file.size for file in files)
        self.evicted = 0

    @property
    def free(self) -> int:
        """Bytes that neither a file nor a fetch takes."""
        return self.limit - self.used - self.reserved

    @property
    def generation(self) -> Generation | None:
        """The current one, where the policy has such."""
        return None

    def admit(self, id: int) -> None:
        """A file becomes resident."""
        self.counter += 1
        self.seq[id] = self.counter
        self.used += self.files[id].size
        self.residents[self.kinds[id]] += 1
        self.folders[EVERYWHERE][id] = self.folders[self.files[id].directory][id] = None

    def remove(self, id: int) -> None:
        """A file is deleted."""
        self.seq[id] = 0
        self.evicted += 1
        self.used -= self.files[id].size
        self.residents[self.kinds[id]] -= 1
        del self.folders[EVERYWHERE][id], self.folders[self.files[id].directory][id]

    def listed(self, directory: int) -> list[int]:
        """The ids that a directory shows at this moment, in the order of admission."""
        return list(self.folders[directory])

    def listing(self, reader: Reader, directory: int, now: float) -> list[int]:
        """What a reader is shown that lists a directory."""
        return self.listed(directory)

    def opened(self, id: int) -> None:
        """A resident file is opened."""

    def room(self, need: int, now: float, missed: bool = False) -> bool:
        """Make room for so many bytes. missed: for a file that a reader waits for."""
        return need <= self.free

    def changed(self) -> None:
        """A reader's holds are others now."""


class Replacing(Cache):
    """A folder where each arrival takes the place of the least recently used file, the oldest, a random one, or none.

    Owns `folders[EVERYWHERE]` as its queue: the first is the next to go.
    """

    def __init__(self, files: Sequence[File], limit: int, policy: str, seed: int) -> None:
        super().__init__(files, limit)
        self._policy = policy
        self._random = random.Random(seed)
        self._places: list[int] = []
        self._place_of: dict[int, int] = {}

    def admit(self, id: int) -> None:
        """A file becomes resident."""
        super().admit(id)
        self._place_of[id] = len(self._places)
        self._places.append(id)

    def remove(self, id: int) -> None:
        """A file is deleted."""
        super().remove(id)
        place, last = self._place_of.pop(id), self._places.pop()
        if last != id:
            self._places[place], self._place_of[last] = last, place

    def opened(self, id: int) -> None:
        """A resident file is opened."""
        if self._policy == "lru":
            queue = self.folders[EVERYWHERE]
            del queue[id]
            queue[id] = None

    def room(self, need: int, now: float, missed: bool = False) -> bool:
        """Make room for so many bytes."""
        if self._policy == "never":
            return need <= self.free
        while need > self.free:
            if self._policy == "random":
                victim = self._random.choice(self._places) if len(self._places) > len(self.busy) else None
                if victim in self.busy:
                    continue
            else:
                victim = next((id for id in self.folders[EVERYWHERE] if id not in self.busy), None)
            if victim is None:
                return False
            self.remove(victim)
        return True


class Rotating(Cache):
    """The rules of a mount.

    turn: a file's place in the queue for leaving out; other than its seq where it went to the back. left_out: the
    generation that left it out. was_opened: since it was admitted.
    """

    def __init__(self, files: Sequence[File], limit: int, turnover: float, settle_s: float, hold_idle_s: float) -> None:
        super().__init__(files, limit)
        self.turn = [0] * len(files)
        self.left_out: list[int | None] = [None] * len(files)
        self.was_opened = [False] * len(files)
        self._turnover = turnover
        self._settle_s = settle_s
        self._hold_idle_s = hold_idle_s
        self._largest = max((file.size for file in files if file.size <= limit), default=0)
        self._generation: Generation | None = None
        self._leaving: list[int] = []
        self._holds: Holds | None = None
        self._holds_until = 0.0

    @property
    def generation(self) -> Generation | None:
        """The current one."""
        return self._generation

    def admit(self, id: int) -> None:
        """A file becomes resident."""
        super().admit(id)
        self.turn[id] = self.counter
        self.left_out[id] = None
        self.was_opened[id] = False

    def opened(self, id: int) -> None:
        """A resident file is opened."""
        self.was_opened[id] = True

    def changed(self) -> None:
        """A reader's holds are others now."""
        self._holds = None

    def holds(self, now: float) -> Holds:
        """Those of all readers that live and are not silent."""
        if self._holds is None or now > self._holds_until:
            for reader in self.live:
                if reader.holds and reader.is_silent(now, self._hold_idle_s):
                    reader.release()
            self._holds = Holds(reader.holds for reader in self.live)
            self._holds_until = now + HOLDS_S
        return self._holds

    def listed(self, directory: int) -> list[int]:
        """The ids that a directory shows at this moment, in the order of admission."""
        if not self._generation:
            return []
        last, seq, left_out, shows = self._generation.last_seq, self.seq, self.left_out, self._generation.shows
        return [id for id in self.folders[directory] if seq[id] <= last and shows(id, left_out[id])]

    def listing(self, reader: Reader, directory: int, now: float) -> list[int]:
        """What a reader is shown that lists a directory; that may begin a generation."""
        known = reader.about_to_list(directory, self._generation, now)
        began_at = self._generation.began_at if self._generation else 0.0
        looking = (other.looks(self._generation, now, self._settle_s) for other in self.live if other is not reader)
        if self._generation is None or begins_generation(known, now - began_at, self._settle_s, any(looking)):
            self._generation = self._begin(reader, now)
        generation = self._generation
        reader.lists(directory, generation, now)
        self.changed()
        shown = self.listed(directory)
        reader.is_shown(directory, len(shown))
        return shown

    def _begin(self, lister: Reader, now: float) -> Generation:
        number = self._generation.number + 1 if self._generation else 1
        shown_seq = self._generation.last_seq if self._generation else 0
        self.holds(now)  # silent readers hold nothing any more
        once = Holds(reader.lasting(lists_now=reader is lister) for reader in self.live)
        shown = [id for id in self.folders[EVERYWHERE] if self.seq[id] <= shown_seq]
        queue = self._queue(id for id in shown if self.left_out[id] is not None)
        queue += sorted((id for id in shown if self.left_out[id] is None), key=self.turn.__getitem__)
        need = turnover_bytes(
            self.limit, self._turnover, self._largest, self.catalog_bytes - self.used, self.limit - self.used
        )
        choice = delist((self._unit(id, once) for id in queue), self.residents, need)
        earlier = {id: self.left_out[id] for id in choice.left_out}
        for id in self._leaving:
            self.left_out[id] = None
        for id, before in earlier.items():
            self.left_out[id] = before or number
        last_seq = last_shown(
            ((self.seq[id], [self.kinds[id]], self.files[id].size) for id in self._unshown(shown_seq)),
            self.residents,
            (self.kinds[id] for id in choice.left_out),
            need - choice.room,
            self.counter,
        )
        for (id,) in choice.to_the_back:
            self.counter += 1
            self.turn[id] = self.counter
        self._leaving = self._queue(choice.left_out)
        return Generation(number, last_seq, now)

    def _unshown(self, shown_seq: int) -> Iterator[int]:
        """What no generation has shown yet, the last admitted first."""
        return itertools.takewhile(lambda id: self.seq[id] > shown_seq, list(reversed(self.folders[EVERYWHERE])))

    def _queue(self, ids: Iterator[int] | list[int]) -> list[int]:
        """What is left out, the first first."""
        return sorted(ids, key=lambda id: (self.left_out[id] or 0, self.turn[id]))

    def _unit(self, id: int, once: Holds) -> FileGroup:
        return FileGroup(
            (id,),
            (self.kinds[id],),
            self.files[id].size,
            once.cover(self.files[id].directory, self.seq[id], self.left_out[id]),
            self.left_out[id] is not None,
            self.was_opened[id],
            self.turn[id] != self.seq[id],
        )

    def remove(self, id: int) -> None:
        """A file is deleted."""
        super().remove(id)
        self.left_out[id] = None

    def room(self, need: int, now: float, missed: bool = False) -> bool:
        """Make room for so many bytes."""
        lacking = need - self.free
        if lacking > 0:
            queue = self._for_a_miss(now) if missed else self._unheld(now)
            chosen = set(eviction(self._victims(queue), lacking))
            for id in chosen:
                self.remove(id)
            if any(id in chosen for id in self._leaving):
                self._leaving = [id for id in self._leaving if id not in chosen]
        return need <= self.free

    def _unheld(self, now: float) -> Iterator[int]:
        cover, files = self.holds(now).cover, self.files
        return (id for id in self._leaving if not cover(files[id].directory, self.seq[id], self.left_out[id]))

    def _for_a_miss(self, now: float) -> Iterator[int]:
        shown_seq = self._generation.last_seq if self._generation else 0
        resident = self.folders[EVERYWHERE]
        unheld = list(self._unheld(now))
        first = set(unheld)
        listed = [id for id in resident if self.seq[id] <= shown_seq and self.left_out[id] is None]
        return itertools.chain(
            self._unshown(shown_seq),
            unheld,
            (id for id in self._leaving if id not in first),
            sorted(listed, key=self.turn.__getitem__),
        )

    def _victims(self, queue: Iterator[int]) -> Iterator[Victim]:
        """Those that are neither open nor their directory's last of their kind."""
        left: dict[tuple[int, str], int] = {}
        for id in queue:
            kind = self.kinds[id]
            if not self.busy[id] and left.get(kind, self.residents[kind]) > 1:
                left[kind] = left.get(kind, self.residents[kind]) - 1
                yield Victim(id, self.files[id].size)
