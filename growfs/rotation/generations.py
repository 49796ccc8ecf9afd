"""The frozen set of listed files: what it shows, and what the next one leaves out.

Owns the current generation, and the table `generation`.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.schema import Query
from growfs.cache.store import Store
from growfs.events import Signal
from growfs.rotation.rules import Generation, Hold, Holds
from growfs.rotation.turnover import GenerationPlan, TurnoverInput

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Pause where the disk refuses to take a generation; meanwhile listings join that, and population waits."""


class Generations:
    """Owns what is listed. `began` pulses when a generation has begun, `written` when its files tell of it.

    rotates: whether generations leave anything out. share: of the cache that they do. show_files: each shows exactly
    so many files. decide: as turnover.plan, without keeping the daemon busy.
    """

    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        store: Store,
        rotates: bool,
        share: float,
        show_files: int | None,
        decide: Callable[[int, TurnoverInput], Awaitable[GenerationPlan]],
    ) -> None:
        self.rotates = rotates
        self.share = share
        self.show_files = show_files
        self.current: Generation | None = None
        self.began = Signal[[]]()
        self.written = Signal[[]]()
        self._db = database
        self._decide = decide
        self._catalog = catalog
        self._store = store
        self._number: int = database.row("SELECT coalesce(max(number), 0) FROM generation")[0]
        self._to_the_back: list[tuple[int, ...]] | None = None
        self._refused = False
        self._rotating = trio.Lock()

    @property
    def number(self) -> int:
        """Of the current generation; 0 before the first listing of this mount."""
        return self.current.number if self.current else 0

    @property
    def is_written(self) -> bool:
        """Whether its files tell what is left out; until then what it shows again still looks as if it may go."""
        return self._to_the_back is None

    async def run(self) -> None:
        """Write down what each generation decided."""
        while True:
            while self._to_the_back is None or self.current is None:
                await self.began.wait()
            try:
                await self._write(self.current, self._to_the_back)
            except sqlite3.OperationalError as error:
                log.warning("generation %d cannot be written, trying again: %s", self.number, error)
                self._refused = True
                self.written.notify()
                await trio.sleep(RETRY_S)
                continue
            self._refused = False
            self.current.changes.clear()  # the rows tell from now on
            self._to_the_back = None
            self.written.notify()

    async def _write(self, generation: Generation, to_the_back: Sequence[tuple[int, ...]]) -> None:
        """Write down a generation, and what it changes."""

        def write(writer: sqlite3.Connection) -> None:
            writer.execute(  # those that began before all that is here was admitted say nothing any more
                "DELETE FROM generation WHERE last_seq < (SELECT min(seq) FROM resident WHERE suffix IS NOT NULL)"
            )
            values = generation.number, generation.last_seq, time.time()
            writer.execute("INSERT INTO generation VALUES (?, ?, ?)", values)
            changes = [(left_out, id) for id, left_out in generation.changes.items()]
            writer.executemany("UPDATE resident SET left_out = ? WHERE id = ?", changes)
            self._store.requeue(writer, to_the_back)

        await self._db.write(write)

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[bool]:
        """No generation begins within; yields whether the files tell what the current one decided.

        That is waited for, unless the disk refuses to write it.
        """
        async with self._rotating:
            yield await self._is_settled()

    async def _is_settled(self) -> bool:
        """Wait until the files tell what the current one decided; False where the disk refuses that."""
        while not (self.is_written or self._refused):
            await self.written.wait()
        return self.is_written

    async def begin(self, lasting: Holds, opened: frozenset[int]) -> None:
        """Freeze what is resident now, less what is left out, as the set of listed files.

        lasting: what is held by those that may never list again. opened: ids of files whose rows may not tell yet that
        they were. The current one goes on where --show-files asks for more files than there are.
        """
        if not await self._is_settled():  # this one goes by what the last one decided
            log.warning("generation %d cannot be written: no new one", self.number)
            return
        async with self._rotating:  # what is on its way out is gone, and nothing else goes
            await self._begin(lasting, opened)
        self._store.space_freed.notify()

    async def _begin(self, lasting: Holds, opened: frozenset[int]) -> None:
        store, share, number = self._store, self._catalog.share, self._number + 1
        asked = TurnoverInput(
            limit=min(
                store.limit_bytes, store.used_bytes + max(0, -store.bytes_short(0))
            ),  # the disk may have less for it
            share=self.share,
            largest=store.wanted_bytes,
            lacking=share.bytes - store.resident_content_bytes if share.files > store.resident_files else 0,
            # What is on its way was not shown yet, as what will come. What a disk lacks that others fill is not the
            # listing's to give: all of it would go.
            free=max(0, store.reserved_bytes - store.bytes_short(0)),
            shown_seq=store.shown_seq,
            last_seq=store.last_seq,
            once=lasting,
            opened=opened,
            show_files=self.show_files,
            rotates=self.rotates and not lasting.foreign,
        )
        if self._all_stays(asked):
            next = GenerationPlan(asked.last_seq, store.resident_files, {}, [])
        else:
            next = await self._decide(number, asked)
        if self.show_files is not None and next.files < self.show_files:
            log.warning(
                "--show-files asks for %d files, and %d are here: no new generation", self.show_files, next.files
            )
            return
        self._number = number
        self.current = Generation(number, next.last_seq, trio.current_time(), next.files, next.changes)
        store.shown_seq = next.last_seq
        self._to_the_back = next.to_the_back
        self.began.notify()

    def _all_stays(self, asked: TurnoverInput) -> bool:
        """Whether there is nothing to decide: no room to make, nothing to show again. Deciding takes milliseconds."""
        if asked.show_files is not None or (asked.rotates and asked.lacking):
            return False
        return self._db.row("SELECT 1 FROM resident WHERE left_out IS NOT NULL LIMIT 1") is None

    # What is summed up over many files: to be asked aside.

    def hidden(self, ask: Query) -> tuple[int, int]:
        """(files, bytes) that are here, and that the current generation does not list."""
        generation = self.current
        if generation is None:
            return self._store.resident_files, self._store.resident_content_bytes
        ((files, bytes),) = ask(
            "SELECT count(*), coalesce(sum(n.size), 0) FROM resident r JOIN node n USING (id)"
            " WHERE r.suffix IS NOT NULL AND (r.seq > ? OR r.left_out <= ?)",
            generation.last_seq, generation.number,
        )  # fmt: skip
        return files, bytes

    @staticmethod
    def left_out_bytes(ask: Query) -> int:
        """What the files take on the disk that are no longer listed, and not yet deleted."""
        return int(ask("SELECT coalesce(sum(bytes), 0) FROM resident WHERE left_out IS NOT NULL")[0][0])

    @staticmethod
    def held_bytes(ask: Query, hold: Hold) -> int:
        """What of that may not be deleted while there is such a hold on every directory."""
        query = "SELECT coalesce(sum(bytes), 0) FROM resident WHERE left_out > ? AND seq <= ?"
        return int(ask(query, hold.generation, hold.last_seq)[0][0])
