"""The files of the remote. A file's content follows from its name and version, so readers can check it without a copy.

A file consists of records. Each begins with a line that says what it is a part of: name, version, number of the record,
number of records. In a .tfrecord file they are framed as in TensorFlow; a .bin file has a single one, unframed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass

from tools.benchmarks.recipe_data import tfrecord

RECORD_BYTES = 2_000, 20_000
SHARD, SINGLE = ".tfrecord", ".bin"


class WrongBytes(Exception):
    """A file does not have the bytes that it should; `str(error)` says which."""


@dataclass(frozen=True, slots=True)
class Part:
    """The contents of the first line of a record."""

    name: str
    version: int
    number: int
    count: int


def records(name: str, version: int) -> list[bytes]:
    count = random.Random(f"{name} {version}").randint(1, 24) if name.endswith(SHARD) else 1
    return [record(Part(name, version, number, count)) for number in range(count)]


def record(part: Part) -> bytes:
    head = f"{part.name} {part.version} {part.number} {part.count}\n".encode()
    return head + hashlib.shake_128(head).digest(random.Random(head).randint(*RECORD_BYTES))


def content(name: str, version: int) -> bytes:
    parts = records(name, version)
    return tfrecord(parts) if name.endswith(SHARD) else parts[0]


def checked(data: bytes) -> Part:
    """The part that a record claims to be. Raises WrongBytes unless it matches to the last byte."""
    try:
        name, *numbers = data.partition(b"\n")[0].decode().split(" ")
        part = Part(name, *map(int, numbers))
    except (ValueError, TypeError):
        raise WrongBytes(f"{len(data)} bytes that begin with {data[:40]!r}") from None
    if data != record(part):
        raise WrongBytes(f"{part}: {len(data)} bytes, not all of them as they should be")
    return part


def versions(expected: Iterable[str], parts: Iterable[Part]) -> dict[str, int]:
    """The version of each file, from all records that were read. Raises WrongBytes unless each file is complete.

    expected: the names of the files that were read.
    """
    found: dict[str, list[Part]] = {name: [] for name in expected}
    for part in parts:
        if part.name not in found:
            raise WrongBytes(f"{part}: in another file than its own")
        found[part.name].append(part)
    for name, its in found.items():
        if not its or sorted(its, key=lambda part: part.number) != [
            Part(name, its[0].version, number, its[0].count) for number in range(its[0].count)
        ]:
            raise WrongBytes(f"{name}: {len(its)} records, not each of one version once: {its[:3]}")
    return {name: its[0].version for name, its in found.items()}
