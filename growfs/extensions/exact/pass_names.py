"""The names of passes in .growfs/ (--exact): the folder `passes`. Owns the node ids below it.

`passes/3/7` is the tree of part 7 of pass 3. Every part can be looked up. Opening a folder of its tree waits until the
part is cached. Only the parts that are in use are listed, so that a program that walks all folders begins none.

`passes/3/parts.json` says how many parts the pass has, and all that decides which files these have.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from functools import partial
from typing import IO

from growfs.cache.schema import ROOT
from growfs.errors import NoSuchName, NotBegun, Stale
from growfs.extensions.exact.parts import PartPlanner, Parts
from growfs.rotation.parts import PassPosition
from growfs.rotation.readers import Readers
from growfs.rotation.rules import Generation
from growfs.vfs.attributes import (
    DIRECTORY_TIMEOUT_S,
    GENERATION_SHIFT,
    PARTS,
    PASS_BIT,
    PASSES,
    Attributes,
    Entry,
)
from growfs.vfs.generation_names import node_of
from growfs.vfs.virtual import VirtualFile

PASSES_ID, PARTS_ID = 6, 7
"""Node ids of the folder `passes`, and of the folder of a pass and its parts.json without the bits of the pass."""
NAMES_MAX = 10_000
"""How many passes and parts have an id at a time. Others are looked up again when they are used."""


class PassNames:
    """See virtual.Names."""

    own = (PASSES_ID, PARTS_ID)

    def __init__(self, parts: Parts, readers: Readers) -> None:
        self._parts = parts
        self._readers = readers
        self._numbers = itertools.count()
        self._bits: dict[PassPosition, int] = {}  # a pass is its part 0
        self._positions: dict[int, PassPosition] = {}
        self._since_ns = time.time_ns()

    def _bits_of(self, position: PassPosition) -> int:
        if position not in self._bits:
            if len(self._bits) >= NAMES_MAX:
                del self._positions[self._bits.pop(next(iter(self._bits)))]
            number = next(self._numbers) % (PASS_BIT >> GENERATION_SHIFT)  # as many as the ids have room for
            bits = PASS_BIT | number << GENERATION_SHIFT
            self._bits[position], self._positions[bits] = bits, position
        return self._bits[position]

    def _position(self, id: int) -> PassPosition:
        """The part in whose tree a node is. Raises Stale."""
        position = self._positions.get(id - node_of(id))
        if position is None:
            raise Stale(str(id))
        return position

    # Names.

    def lookup(self, parent: int, name: str) -> Attributes:
        """See Names."""
        number = int(name) if re.fullmatch(r"[1-9][0-9]{0,8}", name, re.ASCII) else 0
        if parent == PASSES_ID and number:
            return self.attributes(self._bits_of(PassPosition(number, 0)) | PASSES_ID)
        if parent != PASSES_ID:
            pass_ = self._position(parent).pass_
            if name == PARTS:
                return self.attributes(self._bits_of(PassPosition(pass_, 0)) | PARTS_ID)
            if number and self._parts.passes.may_have(PassPosition(pass_, number)):
                return self.attributes(self._bits_of(PassPosition(pass_, number)) | ROOT)
        raise NoSuchName(name)

    def attributes(self, id: int) -> Attributes:
        """See Names. The content of a parts.json is known once it is opened."""
        is_dir = node_of(id) != PARTS_ID
        return Attributes(id, is_dir, 0, self._since_ns, DIRECTORY_TIMEOUT_S if is_dir else 0.0)

    def file(self, id: int) -> tuple[VirtualFile, None]:
        """See Names."""
        return VirtualFile(PARTS, partial(self._write, self._position(id).pass_)), None

    async def _write(self, number: int, out: IO[bytes], _: Generation | None) -> None:
        out.write(f"{json.dumps(await self._parts.describe(number))}\n".encode())

    # Trees.

    def generation(self, id: int) -> Generation | None:
        """See Names."""
        return self._parts.find(self._position(id))

    async def begin(self, id: int) -> Generation:
        """See Names. Waits until the part is cached.

        Raises GrowfsError: the pass has no such part, nothing arrives, or the disk refuses to write the generation.
        """
        position = self._position(id)
        await self._readers.begin_if(lambda: self._parts.find(position) is None, PartPlanner(self._parts, position))
        if (generation := self._parts.find(position)) is None:
            raise NotBegun(f"part {position} cannot begin now; see growfs status")
        return generation

    def all_bits(self) -> list[int]:
        """See Names."""
        return [self._bits[part.position] for part in self._parts.in_use() if part.position in self._bits]

    # Listings.

    def in_folder(self, position: int) -> list[Entry]:
        """See Names."""
        return [Entry(PASSES_ID, PASSES, 1, 0, self._since_ns, PASSES_ID)] if position < PASSES_ID else []

    def entries(self, id: int, position: int) -> list[Entry]:
        """See Names."""
        parts = [part.position for part in self._parts.in_use()]
        if id == PASSES_ID:
            found = [(PassPosition(pass_, 0), PASSES_ID, pass_) for pass_ in sorted({part.pass_ for part in parts})]
        else:
            pass_ = self._position(id).pass_
            found = [(part, ROOT, part.part) for part in sorted(parts) if part.pass_ == pass_]
        entries = [
            Entry(self._bits_of(part) | node, str(number), 1, 0, self._since_ns, number + 1)
            for part, node, number in found
            if number + 1 > position
        ]
        if id != PASSES_ID and position < 1:
            entries.insert(0, Entry(id - node_of(id) | PARTS_ID, PARTS, 0, 0, self._since_ns, 1))
        return entries
