"""The frozen set of listed files: which generation is current, and how the next one begins.

Owns the current generation, and the table `generation`.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Protocol

import trio

from growfs.bitmaps import BitMap64
from growfs.cache.database import RETRY_S, Database
from growfs.cache.schema import Query
from growfs.cache.store import Store
from growfs.rotation.pass_order import groups_of
from growfs.rotation.queries import Listed, least_bytes
from growfs.rotation.rules import Generation, GenerationPlan, Reading, TurnoverInput, keeps_last
from growfs.signal import Signal

log = logging.getLogger(__name__)

FORGET_GENERATIONS = (
    "DELETE FROM generation WHERE NOT EXISTS (SELECT 1 FROM resident WHERE suffix IS NOT NULL"
    " AND seq <= generation.last_seq AND seq > coalesce((SELECT earlier.last_seq FROM generation earlier"
    " WHERE earlier.number < generation.number ORDER BY earlier.number DESC LIMIT 1), 0))"
)
"""Forget the generations that are not the first to list a file that is still cached."""
FROZEN_FILES = """
    SELECT r.parent, r.seq FROM node n JOIN resident r USING (id) WHERE n.pinned > 0 AND n.is_dir = 0 ORDER BY r.parent
"""
"""The directory and admission of each cached file that is frozen or pinned."""


class Demand(NamedTuple):
    """The data still to be cached, for which a generation makes room."""

    bytes: int
    """What the files that the passes of this mount will draw, and that are not cached, will take on disk."""
    largest: int
    """Bytes of the largest draw that waits for room."""
    versions: int
    """Bytes of the new versions that wait for room."""


class Planner(Protocol):
    """Decides what the next generation lists. By default, one can begin at any time."""

    keeps_last: bool
    """Whether directories keep their last files until a generation has begun."""

    def is_ready(self) -> bool:
        """Whether a generation can begin now."""
        return True

    async def wait(self) -> None:
        """Return once a generation can begin. Raises GrowfsError if that is impossible, or takes too long."""
        return

    def changes_nothing(self, turnover: TurnoverInput) -> bool:
        """Whether the next generation lists what is cached now, as is known at once. Planning takes milliseconds."""
        return False

    async def plan(self, number: int, turnover: TurnoverInput) -> GenerationPlan | None:
        """Plan generation `number`, without blocking the daemon; None if it cannot begin now after all."""

    def use(self, generation: Generation) -> None:
        """Note that a generation that is shown once was opened by its path."""
        return

    def in_use(self) -> Collection[Generation]:
        """The generations that are held until they were read, because they were opened by their path."""
        return ()


class Generations:
    """Owns the newest generation; jobs may still list earlier ones. `began` notifies when a generation has begun,
    `written` when its rows say what it changed, and `rotation_changed` when the rule for evicting listed files has
    changed.

    rotation, turnover, show_files, settle_s: as the options of these names. keep: how many generations can be listed
    even if no process holds them, also after a restart. demand: returns the current demand for room. shown_seq: the
    last admission that a generation showed, in this run or an earlier one.
    """

    def __init__(
        self,
        database: Database,
        store: Store,
        planner: Planner,
        demand: Callable[[], Demand],
        *,
        rotation: str = "auto",
        turnover: float,
        show_files: int | None = None,
        settle_s: float,
        keep: int = 1,
    ) -> None:
        self.keep = keep
        self.rotation = rotation
        self.turnover = turnover
        self.show_files = show_files
        self.settle_s = settle_s
        self.rotation_changed = Signal[[]]()
        self.began = Signal[[]]()
        self.written = Signal[[]]()
        self._db = database
        self.planner = planner
        self.demand = demand
        (self.shown_seq,) = database.row("SELECT coalesce(max(last_seq), 0) FROM generation")
        self._store = store
        self.last_number: int = database.row("SELECT coalesce(max(number), 0) FROM generation")[0]
        """The number of the newest generation, also of an earlier run; 0 if there was none."""
        self._unwritten: GenerationPlan | None = None
        self.counts_all = False
        """Whether all listed files count as opened: opens cannot be seen, or programs ask for each generation."""
        self.current: Generation | None = None
        """The newest generation; None before the first listing of this mount."""
        self._refused = False
        self._keeps_last = planner.keeps_last
        self._considered = (0, 0, 0)
        """The last admission, the number of files, and the size that the cache could have, when the last files were
        considered."""
        self._rotating = trio.Lock()
        rows = database.rows("SELECT * FROM kept_generation ORDER BY number")
        self.kept = [
            Generation(number, last_seq, files, BitMap64.deserialize(listed), reading=Reading(-math.inf))
            for number, last_seq, files, listed in rows
        ]
        """The newest generations, the last one last; at first those of an earlier run."""

    def set_rotation(self, rotation: str) -> None:
        """Change when listed files may be evicted."""
        self.rotation = rotation
        self.rotation_changed.notify()

    @property
    def rotates(self) -> bool:
        """Whether generations delist anything."""
        return self.rotation != "never"

    @property
    def number(self) -> int:
        """The number of the current generation; 0 before the first listing of this mount."""
        return self.current.number if self.current else 0

    @property
    def is_written(self) -> bool:
        """Whether the rows say what the current generation changed. Until then, the rows of files that it lists again
        still say "delisted", so these files could be evicted."""
        return self._unwritten is None

    async def run(self) -> None:
        """Record in the database what each generation changes."""
        while True:
            while self._unwritten is None or self.current is None:
                await self.began.wait()
            try:
                await self._write(self.current, self._unwritten)
            except sqlite3.DatabaseError as error:
                log.warning("generation %d cannot be written, trying again: %s", self.number, error)
                # A full disk usually has room again at the second try. Meanwhile, listings join the current one.
                pause_s = RETRY_S if self._refused else 0.1
                self._refused = True
                self.written.notify()
                await trio.sleep(pause_s)
                continue
            self._refused = False
            self._unwritten = None
            self.written.notify()

    async def _write(self, generation: Generation, plan: GenerationPlan) -> None:
        """Record a generation and its changes in the database."""

        def write(writer: sqlite3.Connection) -> None:
            writer.execute(FORGET_GENERATIONS)
            values = generation.number, generation.last_seq, time.time()
            writer.execute("INSERT INTO generation VALUES (?, ?, ?)", values)
            kept = generation.number, generation.last_seq, generation.files, generation.listed.serialize()
            writer.execute("INSERT INTO kept_generation VALUES (?, ?, ?, ?)", kept)
            writer.execute("DELETE FROM kept_generation WHERE number <= ?", (generation.number - self.keep,))
            for seqs, delisted in ((plan.delisted, generation.number), (plan.relisted, None)):
                writer.executemany("UPDATE resident SET delisted = ? WHERE seq = ?", ((delisted, seq) for seq in seqs))
            self._store.requeue(writer, groups_of(plan.requeued))

        await self._db.write(write)

    @property
    def listed(self) -> Listed:
        """The facts that decide which files are the last of their kind."""
        return Listed(self.shown_seq, self._keeps_last)

    async def reconsider_last_files(self) -> bool:
        """Let the last files of directories go if they take too much by now; returns whether that is new.

        Other files may be cached than when the generation began. Raises Unreadable.
        """
        now = self._store.last_seq, self._store.resident_files, self._store.room.reachable_bytes
        if not self.listed.keeps_last or now == self._considered:  # it takes a second with a million files
            return False
        self._considered = now
        self._keeps_last = keeps_last(await self._db.query_in_thread(least_bytes), self._store.room.reachable_bytes)
        return not self._keeps_last

    @property
    def is_over(self) -> bool:
        """Whether any listing begins the next generation: there is none yet, or the newest one is past."""
        return self.current is None or self.current.is_past(self._store.resident_files)

    def end(self) -> None:
        """End the current generation. Called when training can start: earlier listings showed fewer files."""
        if self.current:
            self.current.reading.is_over = True

    def note_opened(self, id: int) -> None:
        """Note that a file was opened: the next generation delists in proportion to the opened files."""
        if self.current:
            self.current.reading.opened.add(id)

    def moves(self, id: int, view: Generation | None) -> bool:
        """Whether an open of a cached file counts for a generation: not if every generation lists it, as frozen and
        pinned files, and only if it lists the file, if that is chosen file by file.
        """
        if view is None or not (view.frozen or view.contents):
            return view is not None
        row = self._db.row("SELECT parent, seq FROM resident WHERE id = ?", id)
        return row is not None and row[1] in view.listed and row[1] not in view.frozen.get(row[0], ())

    def has_news(self) -> bool:
        """Whether the next generation would show other files, or make room for some."""
        if self.current is None or self._store.last_seq > self.current.last_seq:
            return True
        return not self.planner.changes_nothing(self._turnover(BitMap64(), frozenset()))

    def is_due_after(self, number: int) -> bool:
        """Whether the next one has to begin for a process that has read one, or it joins the newest.

        0: it has read none. A number that is still to come: the same, but it joins only if there is nothing new.
        """
        newest = self.current
        if self.is_over or newest is None:
            return True
        if newest.is_shown_once and not number:  # a new process, and it must not go by unread
            return newest.reading.is_read
        is_young = trio.current_time() - newest.reading.began_at < self.settle_s
        if newest.number > number and (number or is_young):  # another process has begun it
            return False
        return self.has_news()

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[bool]:
        """Keep generations from beginning within the block. Yields whether the rows say what the current one changed.

        Waits until they do, unless the disk refuses to write it.
        """
        async with self._rotating:
            yield await self._wait_until_written()

    async def _wait_until_written(self) -> bool:
        """Wait until the rows say what the current generation changed; False if the disk refuses to write it."""
        while not (self.is_written or self._refused):
            await self.written.wait()
        return self.is_written

    async def begin(self, lasting_holds: BitMap64, opened: frozenset[int], planner: Planner | None = None) -> bool:
        """Freeze the set of cached files, less the delisted ones, as the set of listed files.

        lasting_holds: those that stay when a process lists it. opened: ids of files that were opened, although their
        rows may not say so yet. planner: by default, that of this mount. Returns False if the generation cannot begin
        after all, because files are gone; then wait again.
        If --show-files asks for more files than are cached, or the disk refuses to write the current generation, that
        one stays.
        """
        if not await self._wait_until_written():  # the next generation depends on the changes of the last one
            log.warning("generation %d cannot be written, so no new one begins", self.number)
            return True
        async with self._rotating:  # evictions under way are complete, and none begins
            has_begun = await self._begin(lasting_holds, opened, planner or self.planner)
        if has_begun:
            self._store.room.freed.notify()
        return has_begun

    async def _begin(self, lasting_holds: BitMap64, opened: frozenset[int], planner: Planner) -> bool:
        number = self.last_number + 1
        frozen = await self._db.query_in_thread(
            lambda ask: {
                directory: BitMap64(seq for _, seq in rows)
                for directory, rows in groupby(ask(FROZEN_FILES), itemgetter(0))
            }
        )
        turnover = self._turnover(lasting_holds, opened)
        if planner.changes_nothing(turnover):
            every = Generation(
                number,
                turnover.last_seq,
                files=self._store.resident_files,
                listed=BitMap64(range(1, turnover.last_seq + 1)),
            )
            plan: GenerationPlan | None = GenerationPlan(every, keeps_last=self.listed.keeps_last)
        else:
            plan = await planner.plan(number, turnover)
        if plan is None:
            return False
        shown = ((directory, seqs & plan.generation.listed) for directory, seqs in frozen.items())
        generation = replace(plan.generation, frozen={directory: seqs for directory, seqs in shown if seqs})
        if self.show_files is not None and generation.files < self.show_files:
            log.warning(
                "--show-files needs %d files, but only %d can be listed, so no new generation begins",
                self.show_files,
                generation.files,
            )
            return True
        generation.begins(trio.current_time(), self.current)
        self.last_number, self.current = number, generation
        self.kept = [*self.kept, generation][-self.keep :]
        self.shown_seq, self._keeps_last = generation.last_seq, plan.keeps_last
        self._unwritten = plan
        self.began.notify()
        return True

    def _turnover(self, lasting_holds: BitMap64, opened: frozenset[int]) -> TurnoverInput:
        store, demand = self._store, self.demand()
        room, short = store.room, store.room.short(0)
        return TurnoverInput(
            limit=min(room.limit_bytes, room.used_bytes + max(0, -short)),  # the disk may have less space than that
            turnover=self.turnover,
            largest=demand.largest,
            lacking=demand.bytes + demand.versions,
            # Files in flight were not listed yet, so nothing has to be delisted for them. If other data fills the disk,
            # nothing is delisted to make up for it: that would be all files.
            free=max(0, room.reserved_bytes - short),
            shown_seq=self.shown_seq,
            last_seq=store.last_seq,
            lasting_holds=lasting_holds,
            opened_share=0.0 if not self.current else 1.0 if self.counts_all else self.current.opened_share,
            is_first=self.current is None,
            opened=opened,
            show_files=self.show_files,
            rotates=self.rotates,
        )

    # Sums over many files, to be computed on a thread.

    def hidden(self, ask: Query) -> tuple[int, int, int]:
        """(files, their bytes, files among them that no generation has listed): cached, and not listed now."""
        generation, store = self.current, self._store
        if generation is None:
            return store.resident_files, store.resident_content_bytes, store.resident_files
        if contents := generation.contents:
            return store.resident_files - generation.files, store.resident_content_bytes - contents.bytes, 0
        ((files, bytes, new),) = ask(
            "SELECT count(*), coalesce(sum(n.size), 0), coalesce(sum(r.seq > ?), 0) FROM resident r"
            " JOIN node n USING (id) WHERE r.suffix IS NOT NULL AND (r.seq > ? OR r.delisted <= ?)",
            generation.last_seq, generation.last_seq, generation.number,
        )  # fmt: skip
        return files, bytes, new
