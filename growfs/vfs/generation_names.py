"""The names of generations in .growfs/: `current`, and the folder `generations`. Owns the node ids of both.

`generations/7` is the tree of generation 7. Every generation that has begun can be looked up, so that its files can be
opened by their paths even after it has ended. Only those that are kept or held are listed. The number after the newest
one can be looked up, too: opening that folder begins it.

Opening the file `generations/after-7`, which no listing shows, begins the generation after 7 if there is something new.
Its content is the number of the newest generation. A program that has read none opens `after-0`, which may join the
newest, or `after-current`.
"""

from __future__ import annotations

import re
import time
from functools import partial
from typing import IO

from growfs.cache.schema import ROOT
from growfs.errors import NoSuchName, NotBegun, Stale
from growfs.rotation.generations import Generations
from growfs.rotation.readers import Readers
from growfs.rotation.rules import Generation
from growfs.vfs.attributes import (
    CURRENT,
    DIRECTORY_TIMEOUT_S,
    GENERATION_SHIFT,
    GENERATIONS,
    LINK_BIT,
    Attributes,
    Entry,
)
from growfs.vfs.virtual import BeginListing, VirtualFile

GENERATIONS_ID, CURRENT_ID, AFTER_ID = 3, 4, 5
"""Node ids of the folder `generations`, and of `current` and `after-N` without the number that theirs have."""
AFTER = re.compile(rf"after-(\d+|{CURRENT})", re.ASCII)
NUMBERS = (1 << 20) - 1
"""How many numbers ids can have: the kernel's inode numbers have 64 bits, some programs take them as signed, and one
bit stands for passes. All bits 0 stand for no number.
"""


def node_of(id: int) -> int:
    """The id of a node of the catalog, without the generation below which it was found."""
    return id % (1 << GENERATION_SHIFT)


def number_bits(id: int) -> int:
    """The bits of an id that are the number of a generation; 0: none."""
    return id - node_of(id)


async def _write_number(out: IO[bytes], generation: Generation | None) -> None:
    assert generation
    out.write(b"%d\n" % generation.number)


class GenerationNames:
    """See virtual.Names."""

    own = (GENERATIONS_ID, CURRENT_ID | LINK_BIT, AFTER_ID)
    _after = VirtualFile(AFTER.pattern, _write_number, needs_generation=True)

    def __init__(self, generations: Generations, readers: Readers) -> None:
        self._generations = generations
        self._readers = readers
        self._since_ns = time.time_ns()

    # Names.

    def lookup(self, _: int, name: str) -> Attributes:
        """See Names."""
        last = self._generations.last_number
        if after := AFTER.fullmatch(name):
            is_current = after[1] == CURRENT
            number = last + 1 if is_current else int(after[1])  # one of another cache counts as none
            return self.attributes(self._id(number, AFTER_ID) if is_current or 0 < number <= last else AFTER_ID)
        if name.isdecimal() and name.isascii() and 0 < int(name) <= last + 1:
            return self.attributes(self._id(int(name), ROOT))
        raise NoSuchName(name)

    def attributes(self, id: int) -> Attributes:
        """See Names. `current` and `after-N` are looked up again each time: their meaning changes."""
        if node_of(id) in (ROOT, GENERATIONS_ID):
            return Attributes(id, True, 0, self._since_ns, DIRECTORY_TIMEOUT_S)
        size = len(self.target(id)) if id & LINK_BIT else 0
        return Attributes(id, False, size, self._since_ns, 0.0)

    def file(self, id: int) -> tuple[VirtualFile, BeginListing]:
        """See Names. Opening it begins a generation."""
        return self._after, partial(self._readers.begin_after, self.number(id))

    def target(self, id: int) -> str:
        """What `current` pointed to when it had this id."""
        return f"{GENERATIONS}/{self.number(id)}"

    def number(self, id: int) -> int:
        """The number in an id: that of the last generation that has such an id, or of the next one; 0: none."""
        if not number_bits(id):
            return 0
        ahead = self._generations.last_number + 1
        return ahead - (ahead + 1 - (id >> GENERATION_SHIFT)) % NUMBERS

    @staticmethod
    def _id(number: int, node: int) -> int:
        return number % NUMBERS + 1 << GENERATION_SHIFT | node

    # Trees.

    def generation(self, id: int) -> Generation | None:
        """See Names."""
        number = self.number(id)
        generation = self._readers.named_generations().get(number)
        if generation is None and number <= self._generations.last_number:
            raise Stale(f"generation {number} has ended: no process holds it")
        return generation

    async def begin(self, id: int) -> Generation:
        """See Names."""
        await self._readers.begin_number(self.number(id))
        if (generation := self.generation(id)) is None:
            raise NotBegun(f"generation {self.number(id)} cannot begin now; see growfs status")
        return generation

    def all_bits(self) -> list[int]:
        """See Names."""
        return [self._id(number, 0) for number in self._readers.named_generations()]

    # Listings.

    def entries(self, _: int, position: int) -> list[Entry]:
        """See Names."""
        numbers = [number for number in self._readers.named_generations() if number > position]
        return [Entry(self._id(number, ROOT), str(number), 1, 0, self._since_ns, number) for number in numbers]

    def in_folder(self, position: int) -> list[Entry]:
        """See Names."""
        entries = [Entry(GENERATIONS_ID, GENERATIONS, 1, 0, self._since_ns, GENERATIONS_ID)]
        if last := self._generations.last_number:
            id = self._id(last, CURRENT_ID | LINK_BIT)
            entries.append(Entry(id, CURRENT, 0, len(self.target(id)), self._since_ns, CURRENT_ID))
        return [entry for entry in entries if entry.position > position]
