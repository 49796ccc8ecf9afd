"""Who comes next: the order in which a pass draws the files of the catalog. Pure functions.

The order is that of a keyed hash of the path. So it is the same for every process that knows the seed, it does not
depend on how the catalog was listed, and a file that is new to the catalog has its place without moving the others.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

SEED_DIRECTORIES_MAX = 10_000
"""More directories than this are not seeded before a mount returns."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file of the catalog. drawn: this pass has had it already, or it is resident."""

    id: int
    directory: int
    path: str
    resident: bool
    drawn: bool


def draw_key(seed: int, number: int, path: str) -> int:
    """The place of path in pass number, as an unsigned 64-bit integer (BLAKE2b, RFC 7693, keyed)."""
    key = f"{seed}/{number}".encode()[:64]
    return int.from_bytes(blake2b(path.encode(), digest_size=8, key=key).digest(), "big")


def extension(path: str) -> str:
    """What follows the last dot of the file's name; empty where there is none."""
    name = path.rsplit("/", 1)[-1].lstrip(".")
    return name.rpartition(".")[2] if "." in name else ""


def draw_order(files: Iterable[Candidate], seed: int, number: int) -> tuple[array[int], array[int]]:
    """The ids still to be drawn in pass number: (one for each directory without a resident file, then all others).

    A directory's file is the first in the pass's order among those with the directory's commonest extension
    (the alphabetically first of equally common ones): a README in a class folder seeds no class.
    """
    order: list[tuple[int, int]] = []
    kinds: dict[tuple[int, str], list[int]] = {}
    done: set[int] = set()
    for file in files:
        key = draw_key(seed, number, file.path)
        kind = kinds.setdefault((file.directory, extension(file.path)), [0, key, file.id])
        kind[0] += 1
        if file.resident:
            done.add(file.directory)
        else:
            if key < kind[1]:
                kind[1:] = key, file.id
            if not file.drawn:
                order.append((key, file.id))
    order.sort()
    seeds = _seeds(kinds, done)
    chosen = set(seeds)
    return seeds, array("q", (id for _, id in order if id not in chosen))


def _seeds(kinds: dict[tuple[int, str], list[int]], done: set[int]) -> array[int]:
    best: dict[int, tuple[int, str, int, int]] = {}
    for (directory, suffix), (count, key, id) in kinds.items():
        if directory in done:
            continue
        rank = (-count, suffix, key, id)
        if directory not in best or rank < best[directory]:
            best[directory] = rank
    return array("q", (id for _, _, _, id in sorted(best.values(), key=lambda rank: rank[2])))
