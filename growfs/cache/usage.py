"""How often each file was fetched and opened (the table `usage`), and how many bytes came from the remote, today and
since the daemon started.

Opens are counted in memory and written every few seconds. A crash may lose the last few; no decision depends on them.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from growfs.cache.database import Database
from growfs.cache.schema import Query, set_meta
from growfs.signal import Signal
from growfs.status_and_metrics import BudgetStatus, OpensStatus

DAY_S = 86_400
SAVE_EVERY_S = 5.0
"""Each file opened in between costs the writing thread some 3 us, however often it was opened."""
RATE_WINDOW_S = 5.0
RATE_STEP_S = 0.1
"""Bytes that arrive within this time are counted together, so that few counts are kept at any rate."""


class Summary(NamedTuple):
    """Figures over all files that were ever resident."""

    files_seen: int = 0
    opens: int = 0
    opens_min: int = 0
    opens_max: int = 0
    opens_mean: float = 0.0
    dispersion: float = 0.0
    """The variance of their opens over the mean (0: all equal)."""
    opens_per_fetch: float = 0.0
    unread: tuple[str, ...] = ()
    """Extensions that are cached but hardly ever opened, so fetching them is a waste."""


class Budget:
    """The daily budget of --remote-budget. Owns the count of bytes fetched today, and keeps it across restarts.

    limit: bytes a day (UTC); 0 for no limit. `changed` notifies of a new limit. A miss is fetched even when the
    budget is spent, and counts. is_unsaved: whether bytes were counted since the count was last taken to be saved.
    """

    def __init__(self, database: Database, limit: int) -> None:
        self.limit = limit
        self.is_unsaved = False
        self.changed = Signal[[]]()
        self._day = int(database.meta("budget_day", 0))
        self._spent = int(database.meta("budget_spent", 0))

    @property
    def spent(self) -> int:
        """Bytes fetched today."""
        return self._spent if self._day == _today() else 0

    @property
    def is_spent(self) -> bool:
        """Whether prefetching has to stop until tomorrow."""
        return not self.covers(0)

    def set_limit(self, limit: int) -> None:
        """Change the limit."""
        self.limit = limit
        self.changed.notify()

    def covers(self, in_flight: int) -> bool:
        """Whether more may be prefetched while this many bytes are in flight."""
        return not self.limit or self.spent + in_flight < self.limit

    def resumes_s(self) -> float:
        """Seconds until the next day."""
        return DAY_S - time.time() % DAY_S

    def status(self) -> BudgetStatus:
        """The budget section of the status."""
        return BudgetStatus(self.limit or None, self.spent, self.resumes_s() if self.is_spent else None)

    def spend(self, bytes: int) -> None:
        """Count bytes that came from the remote."""
        if self._day != _today():
            self._day, self._spent = _today(), 0
        self._spent += bytes
        self.is_unsaved = True

    def saving(self) -> Callable[[sqlite3.Connection], None]:
        """A function that writes the count as it is now to the database."""
        day, spent = self._day, self._spent
        self.is_unsaved = False

        def write(writer: sqlite3.Connection) -> None:
            set_meta(writer, "budget_day", day)
            set_meta(writer, "budget_spent", spent)

        return write


def _today() -> int:
    """Days since 1970, UTC."""
    return int(time.time() // DAY_S)


@dataclass(slots=True)
class Traffic:
    """What was fetched since the daemon started, and how fast."""

    files: int = 0
    """Files that were fetched and cached."""
    bytes: int = 0
    """Bytes received from the remote."""
    other_files: int = 0
    """Files that came from the other source instead."""
    other_bytes: int = 0
    """Bytes received from there."""
    recent: deque[tuple[float, int]] = field(default_factory=deque)
    """(start time, bytes received) for each step of the last seconds."""

    def add_bytes(self, count: int) -> None:
        """Count bytes that the remote has just sent."""
        self.bytes += count
        self._note_recent(count)

    def add_other_bytes(self, count: int) -> None:
        """Count bytes that the other source has just sent."""
        self.other_bytes += count
        self._note_recent(count)

    def _note_recent(self, count: int) -> None:
        now = trio.current_time()
        if self.recent and now - self.recent[-1][0] < RATE_STEP_S:
            since, before = self.recent.pop()
            self.recent.append((since, before + count))
        else:
            self._forget_before(now - RATE_WINDOW_S)
            self.recent.append((now, count))

    def bytes_per_s(self) -> float:
        """The rate over the last few seconds, or since the first bytes came."""
        now = trio.current_time()
        self._forget_before(now - RATE_WINDOW_S)
        recent = sum(count for _, count in self.recent)
        has_just_begun = self.recent and recent == self.bytes + self.other_bytes
        return recent / (max(1.0, now - self.recent[0][0]) if has_just_begun else RATE_WINDOW_S)

    def _forget_before(self, time: float) -> None:
        while self.recent and self.recent[0][0] < time:
            self.recent.popleft()


class UsageCounters:
    """Owns the counts of opens. `summary` is at most a few seconds old. The budget is saved in the same transaction.

    opens, opened_bytes: opens since the daemon started, and the total size of the opened files, counted at each open.
    `opened` notifies of each (node id).
    """

    def __init__(self, database: Database, budget: Budget) -> None:
        self.opened = Signal[[int]]()
        self.opens = self.opened_bytes = 0
        self.summary = Summary()
        self._db = database
        self._budget = budget
        self._opens: Counter[int] = Counter()
        self._saving: Counter[int] = Counter()
        self._changed = True

    def count_open(self, id: int, size: int) -> None:
        """Count an open of a cached file."""
        self.opens += 1
        self.opened_bytes += size
        self.assume_open(id)
        self.opened.notify(id)

    def assume_open(self, id: int) -> None:
        """Count an open that could not be seen."""
        self._opens[id] += 1
        self._changed = True

    def status(self) -> OpensStatus:
        """The opens section of the status."""
        summary = self.summary
        return OpensStatus(
            total=self.opens,
            bytes_total=self.opened_bytes,
            min=summary.opens_min,
            max=summary.opens_max,
            mean=summary.opens_mean,
            dispersion=summary.dispersion,
            per_fetch=summary.opens_per_fetch,
        )

    def mark_changed(self) -> None:
        """Note that files became resident, so that the summary is computed again."""
        self._changed = True

    def recently_opened(self) -> frozenset[int]:
        """The ids of files whose latest opens may not be in the database yet."""
        return frozenset(self._opens) | frozenset(self._saving)

    async def run(self) -> None:
        """Save and compute the summary every few seconds, if anything has changed.

        A large file may take hours, in which only the budget changes.
        """
        while True:
            has_changed, self._changed = self._changed, False
            if has_changed or self._budget.is_unsaved:
                await self.save()
            if has_changed:
                self.summary = await self._db.query_in_thread(summarize)
            await trio.sleep(SAVE_EVERY_S)

    async def save(self) -> None:
        """Write the counts since the last time."""
        await self._db.write_with_retry(self._take_counts())
        self._saving.clear()

    def save_now(self) -> None:
        """As `save`, on this thread, when the daemon stops. If the disk refuses, the last counts are lost."""
        with suppress(sqlite3.DatabaseError):
            self._db.write_now(self._take_counts())

    def _take_counts(self) -> Callable[[sqlite3.Connection], None]:
        opens = self._saving = self._opens
        self._opens = Counter()
        save_budget = self._budget.saving()

        def write(writer: sqlite3.Connection) -> None:
            save_budget(writer)
            ids = sorted(opens)  # in row order, so each page is written once
            writer.executemany("UPDATE usage SET opens = opens + ? WHERE id = ?", [(opens[id], id) for id in ids])
            writer.executemany("UPDATE resident SET opened = 1 WHERE id = ? AND opened = 0", [(id,) for id in ids])

        return write


def summarize(ask: Query) -> Summary:
    """The figures now."""
    ((files, least, most, opens, squares, fetches),) = ask(
        "SELECT count(*), coalesce(min(opens), 0), coalesce(max(opens), 0), coalesce(sum(opens), 0),"
        " coalesce(sum(opens * opens), 0), coalesce(sum(fetches), 0) FROM usage"
    )
    unread = ask(
        "SELECT suffix FROM resident WHERE suffix != '' GROUP BY suffix"
        " HAVING count(*) >= 10 AND sum(opened = 0) >= 0.9 * count(*) ORDER BY count(*) DESC"
    )  # fmt: skip
    mean = opens / files if files else 0.0
    dispersion = (squares / files - mean * mean) / mean if mean else 0.0
    per_fetch = opens / fetches if fetches else 0.0
    return Summary(files, opens, least, most, mean, dispersion, per_fetch, tuple(suffix for (suffix,) in unread))
