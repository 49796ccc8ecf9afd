"""The daily budget of --remote-budget: how many bytes came from the remote today, kept over restarts."""

from __future__ import annotations

import sqlite3
import time

from growfs.cache.database import Database
from growfs.cache.schema import set_meta
from growfs.signal import Signal
from growfs.status import BudgetStatus

DAY_S = 86_400


class Budget:
    """Owns the bytes fetched today. limit: bytes a day (UTC); None: any number. `changed` notifies of a new limit.

    A miss is fetched even when the budget is spent, and counts.
    """

    def __init__(self, database: Database, limit: int | None) -> None:
        self.limit = limit
        self.changed = Signal[[]]()
        self._day = int(database.meta("budget_day", 0))
        self._spent = int(database.meta("budget_spent", 0))
        self._saved = self._day, self._spent

    @property
    def spent(self) -> int:
        """Bytes fetched today."""
        return self._spent if self._day == _today() else 0

    @property
    def is_spent(self) -> bool:
        """Whether prefetching has to stop until tomorrow."""
        return not self.covers(0)

    def set_limit(self, limit: int | None) -> None:
        """Have another limit from now on."""
        self.limit = limit
        self.changed.notify()

    def covers(self, in_flight: int) -> bool:
        """Whether more may be prefetched while so many bytes are in flight."""
        return self.limit is None or self.spent + in_flight < self.limit

    def resumes_s(self) -> float:
        """Seconds until the next day."""
        return DAY_S - time.time() % DAY_S

    def status(self) -> BudgetStatus:
        """The section of the status."""
        return BudgetStatus(self.limit, self.spent, self.resumes_s() if self.is_spent else None)

    def spend(self, bytes: int) -> None:
        """Count bytes that came from the remote."""
        if self._day != _today():
            self._day, self._spent = _today(), 0
        self._spent += bytes

    def save(self, writer: sqlite3.Connection) -> None:
        """Write the count to the database, if it has changed."""
        if (self._day, self._spent) != self._saved:
            set_meta(writer, "budget_day", self._day)
            set_meta(writer, "budget_spent", self._spent)
            self._saved = self._day, self._spent


def _today() -> int:
    """Days since 1970, UTC."""
    return int(time.time() // DAY_S)
