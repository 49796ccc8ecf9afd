"""Reads the facts about the parts of a pass (--exact) from the database; the rules are in `parts`.

A division is stored in the table `meta` when its pass begins, because the catalog may change during the pass. These
functions run in a worker, with its own connection: a catalog has millions of files.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from growfs import disk
from growfs.bitmaps import BitMap64
from growfs.cache.cache_folder import read_only
from growfs.cache.schema import FROZEN, ROOT, Query, query_of, set_meta, with_paths
from growfs.errors import GrowfsError
from growfs.rotation.order_file import with_beats
from growfs.rotation.parts import (
    CatalogDigest,
    CatalogFile,
    Division,
    ExactPass,
    Part,
    PartBounds,
    PassPosition,
    divide,
)
from growfs.rotation.pass_order import groups_of, ids_of
from growfs.rotation.rules import Contents, with_parents

# Divisions.


def divide_catalog(catalog: Path, pass_: ExactPass, beat: Callable[[], None]) -> tuple[Division, array[int]]:
    """Divide a pass over the catalog. catalog: the database file. Raises GrowfsError if that is impossible."""
    with closing(read_only(catalog)) as connection:
        return divide(_files(connection, beat), pass_)


def _files(connection: sqlite3.Connection, beat: Callable[[], None]) -> Iterator[CatalogFile]:
    rows = with_paths(query_of(connection), "n.id, n.size, n.pinned", "node n WHERE n.is_dir = 0")
    for path, id, size, pinned in with_beats(rows, beat):
        if size is None:
            raise GrowfsError(f"--exact needs the size of each file, but the remote does not report the size of {path}")
        yield CatalogFile(id, path, size, disk.allocation(size), pinned > 0)


def save_division(writer: sqlite3.Connection, division: Division, ids: array[int], kept: Iterable[int]) -> None:
    """Store a division, and delete those of all passes but this one and the `kept` ones."""
    number = division.pass_.number
    set_meta(writer, _key(number), json.dumps(asdict(division)))
    set_meta(writer, _ids_key(number), ids.tobytes())
    old = (
        "DELETE FROM meta WHERE key GLOB 'division *'"
        " AND CAST(substr(key, 10) AS INTEGER) NOT IN (SELECT value FROM json_each(?))"
    )
    writer.execute(old, (json.dumps([number, *kept]),))


def _key(number: int) -> str:
    return f"division {number}"


def _ids_key(number: int) -> str:
    return f"{_key(number)} ids"


def read_division(ask: Query, number: int) -> Division | None:
    """The division of a pass; None if none is stored."""
    for (text,) in ask("SELECT value FROM meta WHERE key = ?", _key(number)):
        values = json.loads(text)
        pass_ = values["pass_"]
        pass_["share"] = pass_["share"] and tuple(pass_["share"])
        values["pass_"] = ExactPass(**pass_)
        values["catalog"] = CatalogDigest(*values["catalog"])
        values["parts"] = tuple(PartBounds(*bounds) for bounds in values["parts"])
        return Division(**values)
    return None


class _DividedPass:
    """The ids of the parts of a pass whose division is stored."""

    def __init__(self, connection: sqlite3.Connection, number: int) -> None:
        division = read_division(query_of(connection), number)
        assert division
        self.division = division
        self._connection = connection
        (ids,) = connection.execute("SELECT value FROM meta WHERE key = ?", (_ids_key(number),)).fetchone()
        self._ids = memoryview(ids).cast("q")

    def of(self, part: int) -> Sequence[int]:
        """The ids of a part."""
        bounds = self.division.parts[part - 1]
        return self._ids[bounds.start : bounds.end]

    def to_read(self, part: int) -> BitMap64:
        """The same, if some of them are streamed; otherwise none."""
        bounds = self.division.parts[part - 1]
        return BitMap64(map(abs, self.of(part) if bounds.start < bounds.kept else ()))

    def always(self) -> Sequence[int]:
        """The ids of the files that each part lists, also of frozen ones that the remote has changed or added since."""
        ids = array("q", self._ids[: self.division.always])
        frozen = _ids(self._connection, f"node WHERE pinned > 0 AND pinned & {FROZEN} AND is_dir = 0")
        ids.extend(frozen - BitMap64(map(abs, ids)))
        return ids

    def kept(self) -> Sequence[int]:
        """The kept ids of all parts, in their order."""
        return array("q", itertools.chain(*(self._ids[part.kept : part.end] for part in self.division.parts)))


# What is to be cached.


class Due(NamedTuple):
    """The files to be fetched, and those that may go. Ids, where a negative one is in the group of the id before it."""

    always: array[int]
    """The groups of the missing files that each part lists."""
    missing: array[int]
    """The other missing files with their groups, in the order in which they are needed."""
    lacking: BitMap64
    """The missing files of both, without the others of their groups."""
    bytes: int
    """The size of the missing files."""
    of_parts: list[dict[int, int]]
    """The missing files without which each of the coming parts is not complete, and their sizes."""
    unneeded: array[int]
    """Cached files that are not needed any more, and may be evicted."""
    needed_again: array[int]
    """Cached files that could be evicted until now."""


def find_due(
    catalog: Path,
    read: Sequence[PassPosition],
    coming: Sequence[PassPosition],
    is_own: Callable[[str], bool] | None,
    beat: Callable[[], None],
) -> Due:
    """The files to be cached while some parts are read, and others are to follow.

    read: the parts that are in use. coming: the parts to be cached besides them, the first one first. Their divisions
    are stored. is_own: whether this node fetches a file for the others, by its path: its own files come before theirs.
    """
    with closing(read_only(catalog)) as connection:
        connection.execute("BEGIN")  # all queries see the same state
        resident = _ids(connection, "resident WHERE suffix IS NOT NULL")
        let_go = _ids(connection, "resident WHERE suffix IS NOT NULL AND delisted IS NOT NULL")
        pinned = _ids(connection, "node WHERE pinned > 0 AND is_dir = 0")
        positions = [*read, *coming]
        passes = {number: _DividedPass(connection, number) for number in {position.pass_ for position in positions}}
        newest = passes[max(passes)]
        always = array("q", itertools.chain.from_iterable(each.always() for each in passes.values()))
        needed, missing = BitMap64(map(abs, always)), array("q")
        sizes = _sizes(connection, needed - resident)
        always_missing, of_always = array("q", _incomplete(always, sizes)), BitMap64(sizes)
        of_parts = list[BitMap64]()
        for position in (*positions, None):
            ids = passes[position.pass_].of(position.part) if position else newest.kept()
            beat()
            of_part = BitMap64(map(abs, ids))
            if lacking := _sizes(connection, of_part - needed - resident):
                sizes |= lacking
                missing.extend(_incomplete(ids, lacking))
            if position:
                of_parts.append((of_part & BitMap64(sizes)) | of_always)
            needed |= of_part
        unneeded = resident - needed - let_go - pinned
        of_coming = of_parts[len(read) :]
        if is_own:
            missing = _own_first(connection, missing, of_coming[0] if of_coming else BitMap64(), is_own)
        return Due(
            always_missing,
            missing,
            BitMap64(sizes),
            sum(sizes.values()),
            [{id: sizes[id] for id in ids} for ids in of_coming],
            array("q", unneeded),
            array("q", let_go & needed),
        )


def _ids(connection: sqlite3.Connection, rest: str) -> BitMap64:
    return BitMap64(id for (id,) in connection.execute(f"SELECT id FROM {rest}"))


def _own_first(
    connection: sqlite3.Connection,
    missing: array[int],
    first: BitMap64,
    is_own: Callable[[str], bool],
) -> array[int]:
    """These groups in order, but of the files of the next part, and then of the others, those of this node first."""
    groups = list(groups_of(missing))
    foreign = BitMap64()
    for text in _batches(group[0] for group in groups):
        rows = with_paths(query_of(connection), "n.id", "json_each(?) wanted JOIN node n ON n.id = wanted.value", text)
        foreign.update(id for path, id in rows if not is_own(path))
    groups.sort(key=lambda group: (first.isdisjoint(BitMap64(group)), group[0] in foreign))
    return array("q", ids_of(groups))


def _incomplete(ids: Iterable[int], lacking: Container[int]) -> Iterator[int]:
    """The groups with a file that is to be fetched, as ids of an order."""
    return ids_of(group for group in groups_of(ids) if any(id in lacking for id in group))


def _sizes(connection: sqlite3.Connection, ids: BitMap64) -> dict[int, int]:
    """The sizes of the files that are still in the catalog."""
    query = "SELECT n.id, coalesce(n.size, 0) FROM json_each(?) wanted CROSS JOIN node n ON n.id = wanted.value"
    return dict(itertools.chain.from_iterable(connection.execute(query, (text,)) for text in _batches(ids)))


def _batches(ids: Iterable[int]) -> Iterator[str]:
    """As many as one query reads."""
    ids = iter(ids)
    while batch := list(itertools.islice(ids, 10_000)):
        yield json.dumps(batch)


# The contents of a part.


def plan_part(catalog: Path, number: int, position: PassPosition, last_seq: int, beat: Callable[[], None]) -> Part:
    """The generation that lists a part, as far as it is cached. number, last_seq: of the generation."""
    with closing(read_only(catalog)) as connection:
        connection.execute("BEGIN")
        divided = _DividedPass(connection, position.pass_)
        ids = BitMap64(map(abs, itertools.chain(divided.always(), divided.of(position.part))))
        names = defaultdict[int, list[tuple[str, int]]](list)
        bytes = 0
        cached, left_out = BitMap64(), BitMap64()
        query = (
            "SELECT n.id, r.seq, n.parent, n.name, n.size FROM json_each(?) wanted"
            " CROSS JOIN node n ON n.id = wanted.value LEFT JOIN resident r ON r.id = n.id"
        )
        for text in _batches(ids):
            beat()
            for id, seq, parent, name, size in connection.execute(query, (text,)):
                if seq is None:
                    left_out.add(id)
                    continue
                names[parent].append((name, seq))
                cached.add(id)
                bytes += size
        rows = connection.execute(
            "SELECT r.id, r.seq, n.parent, n.name FROM resident r JOIN node n USING (id)"
            " WHERE r.suffix IS NULL AND r.id != ?",
            (ROOT,),
        ).fetchall()
        parents = {id: parent for id, _, parent, _ in rows}
        listed = set(parents) if divided.division.lists_all_folders else with_parents(names, parents)
        for id, seq, parent, name in rows:
            if id in listed:
                names[parent].append((name, seq))
        # By name, so that the order is the same on all machines.
        folders = {folder: array("Q", (seq for _, seq in sorted(entries))) for folder, entries in names.items()}
        return Part(
            number,
            last_seq,
            files=len(cached),
            listed=BitMap64().union(*map(BitMap64, folders.values())),
            contents=Contents(folders, bytes),
            position=position,
            to_read=cached & divided.to_read(position.part),
            left_out=left_out,
        )
