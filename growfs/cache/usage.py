"""How often each file was fetched and opened: the columns `fetches` and `opens`, and what they add up to.

Opens are counted in memory and written every few seconds. A crash may lose those few; they decide nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio

from growfs.cache.database import Database
from growfs.cache.schema import read_only, set_meta

SAVE_EVERY_S = 5.0
"""Each file opened meanwhile costs the writing thread some 10 us, however often it was opened."""
UNREAD_MIN = 10
UNREAD_SHARE = 0.9
"""Of at least so many files with an extension, so many are not opened: it is fetched in vain."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Over all files that were ever resident. dispersion: the opens' variance over their mean (0: all alike).

    unread: extensions of which hardly a file is opened, of those that are here.
    """

    files_seen: int = 0
    opens_min: int = 0
    opens_max: int = 0
    opens_mean: float = 0.0
    dispersion: float = 0.0
    opens_per_fetch: float = 0.0
    unread: tuple[str, ...] = ()


class UsageCounters:
    """Owns the counts. `summary` is at most a few seconds old."""

    def __init__(self, database: Database, budget: Budget) -> None:
        self.summary = Summary()
        self._db = database
        self._budget = budget
        self._opens: Counter[int] = Counter()
        self._saving: Counter[int] = Counter()
        self._changed = True

    def opened(self, id: int) -> None:
        """Count an open."""
        self._opens[id] += 1
        self._changed = True

    def admitted(self) -> None:
        """Note that files came, so that the summary is made anew."""
        self._changed = True

    def opened_lately(self) -> frozenset[int]:
        """The ids of files whose rows may not tell yet that they were opened."""
        return frozenset(self._opens) | frozenset(self._saving)

    async def run(self) -> None:
        """Write and sum up, as long as there is something new."""
        while True:
            if self._changed:
                self._changed = False
                await self.save()
                self.summary = await trio.to_thread.run_sync(self._sum)
            await trio.sleep(SAVE_EVERY_S)

    async def save(self) -> None:
        """Write what was counted since the last time."""
        await self._db.write_at_last(self._taken())
        self._saving.clear()

    def save_now(self) -> None:
        """As `save`, on this thread: at the end."""
        self._db.write_now(self._taken())

    def _taken(self) -> Callable[[sqlite3.Connection], None]:
        opens = self._saving = self._opens
        self._opens = Counter()

        def write(writer: sqlite3.Connection) -> None:
            self._budget.save(writer)
            counts = [(count, id) for id, count in opens.items()]
            writer.executemany("UPDATE node SET opens = opens + ? WHERE id = ?", counts)
            writer.executemany("UPDATE resident SET opened = opened + ? WHERE id = ?", counts)

        return write

    def _sum(self) -> Summary:
        connection = read_only(self._db.path)
        files, least, most, opens, squares, fetches = connection.execute(
            "SELECT count(*), coalesce(min(opens), 0), coalesce(max(opens), 0), coalesce(sum(opens), 0),"
            " coalesce(sum(opens * opens), 0), coalesce(sum(fetches), 0) FROM node WHERE is_dir = 0 AND fetches > 0"
        ).fetchone()
        unread = connection.execute(
            "SELECT suffix FROM resident WHERE suffix != '' GROUP BY suffix"
            " HAVING count(*) >= ? AND sum(opened = 0) >= ? * count(*) ORDER BY count(*) DESC",
            (UNREAD_MIN, UNREAD_SHARE),
        ).fetchall()
        connection.close()
        mean = opens / files if files else 0.0
        dispersion = (squares / files - mean * mean) / mean if mean else 0.0
        per_fetch = opens / fetches if fetches else 0.0
        return Summary(files, least, most, mean, dispersion, per_fetch, tuple(suffix for (suffix,) in unread))


DAY_S = 86_400


class Budget:
    """Owns the day's count, which it keeps over restarts. limit: bytes for each day (UTC); None: any number.

    What somebody waits for is fetched all the same, and counts.
    """

    def __init__(self, database: Database, limit: int | None) -> None:
        self.limit = limit
        self._db = database
        self._day = int(database.meta("budget_day", 0))
        self._spent = int(database.meta("budget_spent", 0))
        self._saved = self._day, self._spent

    @property
    def spent(self) -> int:
        """Bytes fetched today."""
        return self._spent if self._day == _today() else 0

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is to be drawn today."""
        return not self.covers(0)

    def covers(self, under_way: int) -> bool:
        """Whether more may be drawn while so many bytes are on their way."""
        return self.limit is None or self.spent + under_way < self.limit

    def resumes_s(self) -> float:
        """Seconds until the next day."""
        return DAY_S - time.time() % DAY_S

    def spend(self, bytes: int) -> None:
        """Count bytes that came from the remote."""
        if self._day != _today():
            self._day, self._spent = _today(), 0
        self._spent += bytes

    def save(self, writer: sqlite3.Connection) -> None:
        """Write the count down."""
        if (self._day, self._spent) != self._saved:
            set_meta(writer, "budget_day", self._day)
            set_meta(writer, "budget_spent", self._spent)
            self._saved = self._day, self._spent


def _today() -> int:
    """Days since 1970, UTC."""
    return int(time.time() // DAY_S)
