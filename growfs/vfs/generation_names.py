"""The names of generations in .growfs/: `current`, and the folder `generations`. Owns the node ids of both.

`generations/7` is the tree of generation 7. Every generation that has begun can be looked up, so that its files can be
opened by their paths even after it has ended. Only those that are kept or held are listed. The number after the newest
one can be looked up, too: opening that folder begins it.

Opening the file `generations/after-7`, which no listing shows, begins the generation after 7 if there is something new.
Its content is the number of the newest generation.
"""

from __future__ import annotations

import re
import time
from typing import IO

from growfs.cache.schema import ROOT
from growfs.errors import NoSuchName
from growfs.rotation.generations import Generations
from growfs.rotation.readers import Readers
from growfs.rotation.rules import Generation
from growfs.vfs.attributes import DIRECTORY_TIMEOUT_S, GENERATION_SHIFT, LINK_BIT, Attributes, Entry
from growfs.vfs.virtual import VirtualFile

GENERATIONS_ID, CURRENT_ID, AFTER_ID = 3, 4, 5
"""Node ids of the folder `generations`, and of `current` and `after-N` without the number that theirs have."""
GENERATIONS, CURRENT = "generations", "current"
AFTER = re.compile(r"after-(\d+)", re.ASCII)
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


NUMBER_FILE = VirtualFile(AFTER.pattern, _write_number, needs_generation=True)


class GenerationNames:
    """Looks up and lists the names."""

    def __init__(self, generations: Generations, readers: Readers) -> None:
        self._generations = generations
        self._readers = readers
        self._since_ns = time.time_ns()

    # Names.

    def find(self, name: str) -> Attributes | None:
        """The attributes of a name in .growfs/."""
        if name == GENERATIONS:
            return self.folder
        if name == CURRENT and self._generations.last_number:
            return self.attributes(self._id(self._generations.last_number, CURRENT_ID | LINK_BIT))
        return None

    def lookup(self, name: str) -> Attributes:
        """The attributes of a name in the folder `generations`."""
        last = self._generations.last_number
        if after := AFTER.fullmatch(name):  # one of another cache counts as none
            number = int(after[1])
            return self.attributes(self._id(number, AFTER_ID) if 0 < number <= last else AFTER_ID)
        if name.isdecimal() and name.isascii() and 0 < int(name) <= last + 1:
            return self.attributes(self._id(int(name), ROOT))
        raise NoSuchName(name)

    @property
    def folder(self) -> Attributes:
        """The attributes of the folder `generations`."""
        return Attributes(GENERATIONS_ID, True, 0, self._since_ns, DIRECTORY_TIMEOUT_S)

    def attributes(self, id: int) -> Attributes:
        """The attributes of the tree of a generation, of `current` or of `after-N`. The last two are looked up again
        each time: their meaning changes.
        """
        if node_of(id) == ROOT:
            return Attributes(id, True, 0, self._since_ns, DIRECTORY_TIMEOUT_S)
        size = len(self.target(id)) if id & LINK_BIT else 0
        return Attributes(id, False, size, self._since_ns, 0.0)

    def is_own(self, id: int) -> bool:
        """Whether that is the id of `current` or of `after-N`."""
        return node_of(id) in (CURRENT_ID | LINK_BIT, AFTER_ID)

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

    def all_bits(self) -> list[int]:
        """The bits that ids have at the root and below each generation that can be listed."""
        return [0, *(self._id(number, 0) for number in self._readers.named_generations())]

    # Listings.

    def entries(self, position: int) -> list[Entry]:
        """The entries of the folder `generations` after a position."""
        numbers = [number for number in self._readers.named_generations() if number > position]
        return [Entry(self._id(number, ROOT), str(number), 1, 0, self._since_ns, number) for number in numbers]

    def in_folder(self, position: int) -> list[Entry]:
        """The entries of .growfs/ that are of generations, after a position."""
        entries = [Entry(GENERATIONS_ID, GENERATIONS, 1, 0, self._since_ns, GENERATIONS_ID)]
        if current := self.find(CURRENT):
            entries.append(Entry(current.id, CURRENT, 0, current.size, self._since_ns, CURRENT_ID))
        return [entry for entry in entries if entry.position > position]
