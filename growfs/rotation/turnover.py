"""Reads the facts that decide the next generation from the database; the rules decide.

Runs in a worker, with its own connection, because a large cache has hundreds of thousands of files to read.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from growfs.bitmaps import BitMap64
from growfs.cache.cache_folder import read_only
from growfs.cache.schema import query_of
from growfs.rotation.queries import DELISTABLE, DELISTED, FIELDS, IS_PINNED, KINDS, delisted_sizes, group_has
from growfs.rotation.rules import (
    CachedFile,
    GenerationPlan,
    Kind,
    TurnoverInput,
    hidden_below,
    keeps_last,
    next_generation,
    with_parents,
)


def plan_generation(
    catalog: Path, number: int, turnover: TurnoverInput, beat: Callable[[], None] = lambda: None
) -> GenerationPlan:
    """Decide what generation `number` lists. catalog: the database file. beat: called along the way."""
    with closing(read_only(catalog)) as connection:
        connection.execute("BEGIN")  # all queries see the same state
        counts, least, largest = _kinds(connection, turnover.last_seq)
        beat()
        if turnover.show_files is not None:
            turnover = turnover._replace(last_seq=_last_of_exactly(connection, turnover, turnover.show_files))
            counts, least, _ = _kinds(connection, turnover.last_seq)
        delisted = dict(delisted_sizes(query_of(connection)))
        plan = next_generation(
            number,
            turnover._replace(largest=max(largest, turnover.largest), keeps_last=keeps_last(least, turnover.limit)),
            counts,
            queue=_queue(connection, turnover.shown_seq),
            unlisted=_unlisted(connection, turnover),
            delisted=delisted,
            delisted_bytes=sum(delisted.values()),
        )
        return _with_directories(connection, plan)


def _with_directories(connection: sqlite3.Connection, plan: GenerationPlan) -> GenerationPlan:
    """Extend the plan: delist directories without a listed file, and list those again that have one."""
    is_delisted = "SELECT 1 FROM resident WHERE delisted IS NOT NULL AND suffix IS NULL LIMIT 1"
    if plan.keeps_last and connection.execute(is_delisted).fetchone() is None:
        return plan
    rows = connection.execute(
        "SELECT id, seq, parent, delisted FROM resident WHERE suffix IS NULL AND seq <= ?", (plan.generation.last_seq,)
    )
    parents, seqs, delisted = dict[int, int](), dict[int, int](), set[int]()
    for id, seq, parent, by_generation in rows:
        parents[id], seqs[id] = parent, seq
        if by_generation is not None:
            delisted.add(id)
    listed = with_parents(plan.directories, parents)
    files = connection.execute("SELECT parent, seq FROM resident WHERE suffix IS NOT NULL")
    generation = replace(
        plan.generation,
        listed=plan.generation.listed - BitMap64(seqs[id] for id in parents.keys() - listed),
        hidden_below=hidden_below(listed, parents, files),
    )
    return replace(
        plan,
        generation=generation,
        delisted=plan.delisted | BitMap64(seqs[id] for id in parents.keys() - listed - delisted),
        relisted=plan.relisted | BitMap64(seqs[id] for id in delisted & listed),
    )


def _kinds(connection: sqlite3.Connection, last_seq: int) -> tuple[dict[Kind, int], int, int]:
    """(cached files of each kind, up to an admission; total bytes of the smallest group of each; bytes of the largest
    file).
    """
    counts, groups = dict[Kind, int](), dict[int, int]()
    for parent, suffix, files, least, group in connection.execute(KINDS, (last_seq,)):
        counts[parent, suffix], groups[group] = files, least
    largest = "SELECT coalesce(max(bytes), 0) FROM resident WHERE suffix IS NOT NULL AND seq <= ?"
    return counts, sum(groups.values()), connection.execute(largest, (last_seq,)).fetchone()[0]


def _queue(connection: sqlite3.Connection, shown_seq: int) -> Iterator[CachedFile]:
    """The files that may be delisted, in the order of the rules."""
    delisted, listed = connection.execute(DELISTED), connection.execute(DELISTABLE, (shown_seq, shown_seq))
    return itertools.starmap(CachedFile, itertools.chain(delisted, listed))


def _unlisted(connection: sqlite3.Connection, turnover: TurnoverInput) -> Iterator[CachedFile]:
    """The files that no generation listed, the last admitted first, down to a group that has to be listed.

    Such a group has a pinned or frozen file, or one that was listed before. All files admitted before it are listed
    with it.
    """
    was_listed = f"{group_has('o.delisted IS NULL AND o.seq <= ?')} OR {group_has('o.delisted IS NOT NULL')}"
    rows = connection.execute(
        f"SELECT {IS_PINNED} OR {was_listed}, {FIELDS} FROM resident r"
        " WHERE r.suffix IS NOT NULL AND r.seq > ? AND r.seq <= ? ORDER BY r.seq DESC",
        (turnover.shown_seq, turnover.shown_seq, turnover.last_seq),
    )
    for is_kept, *fields in rows:
        if is_kept:
            return
        yield CachedFile(*fields)


def _last_of_exactly(connection: sqlite3.Connection, turnover: TurnoverInput, show_files: int) -> int:
    """The last admission to list, so that the new files alone do not exceed the number to be listed."""
    (kept,) = connection.execute(
        "SELECT count(*) FROM (SELECT 1 FROM resident r"
        " WHERE r.suffix IS NOT NULL AND r.seq <= ? AND ("
        f"{IS_PINNED} OR r.id IN"
        " (SELECT max(id) FROM resident WHERE suffix IS NOT NULL AND seq <= ? GROUP BY parent, suffix)))",
        (turnover.shown_seq, turnover.shown_seq),
    ).fetchone()
    hidden = connection.execute(
        "SELECT queue_position FROM resident WHERE suffix IS NOT NULL AND seq > ? AND seq <= ?"
        " ORDER BY seq LIMIT 1 OFFSET ?",
        (turnover.shown_seq, turnover.last_seq, max(0, show_files - kept)),
    ).fetchone()
    if hidden is None:
        return turnover.last_seq
    # The seq of a file, not of a directory: the next file's directory was admitted before it, and would be listed
    # empty. The queue position of a group that was not listed yet is its first file's seq.
    (last,) = connection.execute(
        "SELECT max(seq) FROM resident WHERE suffix IS NOT NULL AND seq > ? AND seq < ?", (turnover.shown_seq, *hidden)
    ).fetchone()
    return turnover.shown_seq if last is None else int(last)
