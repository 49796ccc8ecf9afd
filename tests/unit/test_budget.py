"""The daily budget: how many bytes may be fetched, and how the count is kept."""

from __future__ import annotations

import sqlite3
import time

import pytest
import trio.lowlevel

from growfs.cache import usage
from growfs.cache.schema import set_meta
from growfs.cache.usage import DAY_S, Budget, UsageCounters
from tests.unit.local_cache import LocalCache, running


class Clock:
    """Wall-clock time, in seconds since 1970."""

    def __init__(self) -> None:
        self.now = 20_000.0 * DAY_S

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time", clock.time)
    return clock


def save(cache: LocalCache, budget: Budget) -> None:
    cache.database.write_now(budget.saving())


@pytest.mark.promise(27)
def test_a_budget_is_spent_until_the_day_ends(cache: LocalCache, clock: Clock) -> None:
    clock.now += DAY_S - 60
    budget = Budget(cache.database, 100)
    budget.spend(99)
    assert (budget.spent, budget.is_spent) == (99, False)
    budget.spend(5)
    assert (budget.spent, budget.is_spent, budget.resumes_s()) == (104, True, 60)
    for limit, is_spent in ((105, False), (103, True), (0, False), (100, True)):
        budget.limit = limit
        assert budget.is_spent is is_spent
    clock.now += 59.9
    assert budget.is_spent
    clock.now += 0.1
    assert (budget.spent, budget.is_spent, budget.resumes_s()) == (0, False, DAY_S)
    budget.spend(7)
    assert budget.spent == 7


@pytest.mark.promise(27)
def test_the_count_survives_a_restart(cache: LocalCache, clock: Clock) -> None:
    budget = Budget(cache.database, 100)
    budget.spend(60)
    save(cache, budget)
    clock.now += 3600
    assert Budget(cache.database, 100).spent == 60
    clock.now += DAY_S
    assert Budget(cache.database, 100).spent == 0
    budget.spend(60)  # as much as the day before
    save(cache, budget)
    assert Budget(cache.database, 100).spent == 60


def test_bytes_that_are_spent_while_the_count_is_written_are_written_the_next_time(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written on another thread."""
    budget = Budget(cache.database, 100)

    def write(writer: sqlite3.Connection, key: str, value: object) -> None:
        set_meta(writer, key, value)
        if key == "budget_spent":
            budget.spend(7)

    budget.spend(60)
    with monkeypatch.context() as patched:
        patched.setattr(usage, "set_meta", write)
        save(cache, budget)
    save(cache, budget)
    assert Budget(cache.database, 100).spent == 67


def test_a_count_whose_transaction_was_rolled_back_is_written_the_next_time(cache: LocalCache) -> None:
    budget = Budget(cache.database, 100)
    budget.spend(60)

    def refuse(writer: sqlite3.Connection) -> None:
        budget.saving()(writer)
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(sqlite3.OperationalError):
        cache.database.write_now(refuse)
    save(cache, budget)
    assert Budget(cache.database, 100).spent == 60


@pytest.mark.promise(27)
async def test_the_bytes_of_a_file_that_takes_hours_are_saved_meanwhile(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file becomes resident or is opened, and the daemon may be killed."""
    monkeypatch.setattr(usage, "SAVE_EVERY_S", 0.0)
    budget = Budget(cache.database, 0)
    async with running(UsageCounters(cache.database, budget).run):
        for spent in (60, 67):
            budget.spend(spent - budget.spent)
            while Budget(cache.database, 0).spent != spent:
                await trio.lowlevel.checkpoint()


def test_a_daemon_stops_although_its_last_counts_cannot_be_written(cache: LocalCache) -> None:
    counters = UsageCounters(cache.database, Budget(cache.database, 0))
    cache.database.write_now(lambda writer: writer.execute("PRAGMA query_only = 1"))
    counters.save_now()
