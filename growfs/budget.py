"""How much may be fetched from the remote in a day (--remote-budget), and how much was."""

from __future__ import annotations

import sqlite3
import time

from growfs.database import Database
from growfs.schema import set_meta

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
