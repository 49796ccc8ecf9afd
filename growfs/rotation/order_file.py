"""Writes the order of a pass to a file, from the files of the catalog in the database; the rules are in `pass_order`.

Runs in a worker, with its own connection: a catalog has millions of files.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from growfs.cache.cache_folder import read_only
from growfs.cache.catalog import UNKNOWN_SIZE
from growfs.cache.schema import FROZEN, query_of, with_paths
from growfs.rotation.pass_order import Candidate, Order, Pass, draw_order

T = TypeVar("T")

BEAT_FILES = 100_000
"""A worker reports that it still works after this many files: every few seconds on a busy machine."""


def make_order(catalog: Path, pass_: Pass, target: Path, beat: Callable[[], None]) -> Order:
    """The order of a pass without its ids, which are written to target: 64-bit integers, in draw order.

    That is: frozen files, seeds, the rest. catalog: the database file. beat: called along the way.
    """
    connection = read_only(catalog)
    order = draw_order(with_beats(candidates(connection, pass_), beat), pass_)
    known = "SELECT EXISTS (SELECT 1 FROM node WHERE is_dir = 0 AND size IS NOT NULL)"
    (is_any_size_known,) = connection.execute(known).fetchone()
    connection.close()
    with target.open("wb") as file:
        for ids in (order.frozen, order.seeds, order.rest):
            file.write(memoryview(array("q", ids)))
    return replace(order, frozen=(), seeds=(), rest=(), seed_bytes=order.seed_bytes if is_any_size_known else 0)


def candidates(connection: sqlite3.Connection, pass_: Pass) -> Iterator[Candidate]:
    """Every file of the catalog, for a pass. A file of unknown size counts with the mean of the known sizes."""
    (mean,) = connection.execute("SELECT avg(size) FROM node WHERE is_dir = 0").fetchone()
    unknown = min(UNKNOWN_SIZE if mean is None else int(mean), pass_.size_max or UNKNOWN_SIZE)
    columns = "n.id, n.parent, n.size, n.drawn, n.pinned, r.id"
    rest = "node n LEFT JOIN resident r USING (id) WHERE n.is_dir = 0"
    for path, id, parent, size, drawn, pinned, resident in with_paths(query_of(connection), columns, rest):
        bytes = unknown if size is None else size
        frozen, done, late = bool(pinned & FROZEN), drawn >= pass_.number, drawn == -pass_.number
        yield Candidate(id, parent, path, bytes, resident is not None, done, frozen, late)


def with_beats(files: Iterable[T], beat: Callable[[], None]) -> Iterator[T]:
    """Report along the way: ten million files take minutes, and the daemon gives up on a silent worker."""
    for number, file in enumerate(files):
        if number % BEAT_FILES == 0:
            beat()
        yield file
