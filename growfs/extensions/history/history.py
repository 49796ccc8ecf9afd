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
from typing import Any

import trio

from growfs.cache.database import Database

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


class History:
    """Owns the table `history`. sample: reads the current figures, by column, in next to no time. A daemon counts
    totals from its start, and `files_seen` and `opens` are 0 until it has counted them.
    """

    def __init__(self, database: Database, sample: Callable[[], dict[str, Any]]) -> None:
        self._db = database
        self._sample = sample
        columns = [name for (name,) in database.rows("SELECT name FROM pragma_table_info('history')")]
        row = database.row("SELECT * FROM history ORDER BY uptime_s DESC LIMIT 1") or [0] * len(columns)
        self._earlier: dict[str, Any] = dict(zip(columns, row, strict=True))
        self._uptime_s: int = self._earlier["uptime_s"]
        self._written: dict[str, Any] | None = None
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
            await trio.sleep(2)  # at least this long between two rows

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

    def _row(self, sample: dict[str, Any]) -> Callable[[sqlite3.Connection], object]:
        """A function that writes a row. Totals go on from those of the last daemon."""
        self._uptime_s = max(self._uptime_s + 1, int(trio.current_time() - self._started_s))
        row = {"uptime_s": self._uptime_s, "at": int(time.time()), **sample}
        for name in ("generation", "files_seen", "opens"):
            row[name] = row[name] or self._earlier[name]
        for name in ("fetched_files", "fetched_bytes", "evicted_files", "missed_files", "wait_ms"):
            row[name] += self._earlier[name]
        insert = f"INSERT INTO history ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
        return lambda writer: writer.execute(insert, [*row.values()])


def thin(writer: sqlite3.Connection, now_s: int) -> None:
    """Delete the rows in excess for their age. now_s: the uptime."""
    for age_s, period_s in THINNED:
        writer.execute(
            "DELETE FROM history WHERE uptime_s < ? AND uptime_s > (SELECT min(uptime_s) FROM history)"
            " AND EXISTS (SELECT 1 FROM history later WHERE later.uptime_s > history.uptime_s"
            " AND later.uptime_s < (history.uptime_s / ? + 1) * ?)",
            (now_s - age_s, period_s, period_s),
        )
    writer.execute(
        "DELETE FROM history WHERE uptime_s <= (SELECT uptime_s FROM history ORDER BY uptime_s DESC LIMIT 1 OFFSET ?)",
        (ROWS_MAX,),
    )
