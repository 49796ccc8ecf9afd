"""The cache's contents and activity over time: the table `history`.

A row is written every few seconds while something changes, and rows are thinned as they age: the last row of each
period is kept, where periods grow from a few seconds to minutes, hours and a day. The very first row stays, because
totals count from it. The table takes less than 1.5 MB in the first year, some 40 kB in each year after it, and never
more than ROWS_MAX rows, some 2 MB.

Age and order follow `uptime_s`, the time for which daemons have served this cache, not the clock of the machine, which
may jump. If the clock advanced more than the uptime between two rows, no daemon ran meanwhile. Totals continue from one
daemon to the next.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass, fields, replace

import trio

from growfs.cache.database import Database

EVERY_S = 2
"""Seconds between two rows while something changes."""
IDLE_EVERY_S = 300
"""Seconds between two rows while nothing changes. A killed daemon loses up to this much of its uptime."""
THIN_EVERY_S = 600
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
THINNED = (
    (10 * MINUTE_S, 10),
    (2 * HOUR_S, MINUTE_S),
    (2 * DAY_S, 10 * MINUTE_S),
    (30 * DAY_S, 2 * HOUR_S),
    (365 * DAY_S, DAY_S),
)
"""(minimum age, period of which one row is kept), in seconds of uptime."""
ROWS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Sample:
    """The columns of a row, except its time. Sizes in bytes.

    files, bytes: cached now, allocated on the disk. listed_files: by the current generation. share_files: the files
    that this mount is to show in time: the remote's, or its share of them. files_seen, opens: of all files that were
    ever cached; 0 until the daemon has counted them. The fields from fetched_files on are totals: a daemon counts them
    from its start, the database from the first row.
    """

    state: str
    generation: int
    files: int
    bytes: int
    limit_bytes: int
    listed_files: int
    share_files: int
    files_seen: int
    opens: int
    fetched_files: int
    fetched_bytes: int
    evicted_files: int
    missed_files: int
    wait_ms: int

    def after(self, last: Sample) -> Sample:
        """Add the totals of an earlier daemon, and use its figures where this daemon has none yet."""
        figures = {name: getattr(self, name) or getattr(last, name) for name in ("generation", "files_seen", "opens")}
        totals = {name: getattr(self, name) + getattr(last, name) for name in TOTALS}
        return replace(self, **figures, **totals)


COLUMNS = tuple(field.name for field in fields(Sample))
TOTALS = COLUMNS[COLUMNS.index("fetched_files") :]
INSERT = f"INSERT INTO history (uptime_s, at, {', '.join(COLUMNS)}) VALUES (?, ?{', ?' * len(COLUMNS)})"
LAST = f"SELECT uptime_s, {', '.join(COLUMNS)} FROM history ORDER BY uptime_s DESC LIMIT 1"
THIN = (
    "DELETE FROM history WHERE uptime_s < ? AND uptime_s > (SELECT min(uptime_s) FROM history)"
    " AND EXISTS (SELECT 1 FROM history later WHERE later.uptime_s > history.uptime_s"
    " AND later.uptime_s < (history.uptime_s / ? + 1) * ?)"
)


class History:
    """Owns the table `history`. sample: reads the current figures, in next to no time."""

    def __init__(self, database: Database, sample: Callable[[], Sample]) -> None:
        self._db = database
        self._sample = sample
        row = database.row(LAST)
        self._uptime_s: int = row[0] if row else 0
        self._earlier = Sample(*row[1:]) if row else None
        self._written: Sample | None = None
        self._started_s = trio.current_time() - self._uptime_s

    async def run(self) -> None:
        """Write rows, and thin them."""
        thinned_s = -THIN_EVERY_S
        while True:
            with suppress(sqlite3.DatabaseError):  # the disk refuses, which is reported where it matters
                await self.save()
                if self._uptime_s >= thinned_s + THIN_EVERY_S:
                    thinned_s = self._uptime_s
                    await self._db.write(lambda writer: thin(writer, self._uptime_s))
            await trio.sleep(EVERY_S)

    async def save(self) -> None:
        """Write a row, unless nothing has changed since the last row and that one is recent."""
        is_old = trio.current_time() - self._started_s >= self._uptime_s + IDLE_EVERY_S
        sample = self._sample()
        if is_old or sample != self._written:
            await self._db.write(self._row(sample))
            self._written = sample

    def save_now(self) -> None:
        """Write the last row on this thread when the daemon stops."""
        with suppress(sqlite3.DatabaseError):
            self._db.write_now(self._row(self._sample()))

    def _row(self, sample: Sample) -> Callable[[sqlite3.Connection], object]:
        """A function that writes a row."""
        self._uptime_s = max(self._uptime_s + 1, int(trio.current_time() - self._started_s))
        row = sample.after(self._earlier) if self._earlier else sample
        values = self._uptime_s, int(time.time()), *astuple(row)
        return lambda writer: writer.execute(INSERT, values)


def thin(writer: sqlite3.Connection, now_s: int) -> None:
    """Delete the rows in excess for their age. now_s: the uptime."""
    for age_s, period_s in THINNED:
        writer.execute(THIN, (now_s - age_s, period_s, period_s))
    writer.execute(
        "DELETE FROM history WHERE uptime_s <= (SELECT uptime_s FROM history ORDER BY uptime_s DESC LIMIT 1 OFFSET ?)",
        (ROWS_MAX,),
    )
