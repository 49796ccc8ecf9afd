"""The history of a cache: bounded, and in order over restarts, crashes and clocks that jump."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from growfs.cache.database import Database
from growfs.cache.schema import create
from growfs.extensions.history.history import (
    DAY_S,
    HOUR_S,
    IDLE_EVERY_S,
    MINUTE_S,
    ROWS_MAX,
    THIN_EVERY_S,
    THINNED,
    History,
    thin,
)

NOW = 1_700_000_000
FIRST: dict[str, Any] = {
    "state": "filling", "generation": 0, "files": 1, "bytes": 100, "limit_bytes": 1000, "listed_files": 0,
    "share_files": 10, "files_seen": 1, "opens": 0, "fetched_files": 1, "fetched_bytes": 100, "evicted_files": 0,
    "missed_files": 0, "wait_ms": 0,
}  # fmt: skip
LARGE = FIRST | {
    "state": "rotating", "generation": 10**6, "files": 10**8, "bytes": 10**13, "limit_bytes": 10**13,
    "listed_files": 10**8, "share_files": 10**9, "files_seen": 10**9, "opens": 10**12, "fetched_files": 10**12,
    "fetched_bytes": 10**15, "evicted_files": 10**10, "missed_files": 10**9, "wait_ms": 10**10,
}  # fmt: skip
"""Nobody has more, so that no row takes more space than this."""
YEAR_S = 365 * DAY_S
MEGABYTE = 10**6


def insert(writer: sqlite3.Connection, uptime_s: int, at: int, figures: dict[str, Any] = FIRST) -> None:
    """Write a row as a daemon does."""
    names = ", ".join(["uptime_s", "at", *figures])
    values = (uptime_s, at, *figures.values())
    writer.execute(f"INSERT INTO history ({names}) VALUES ({', '.join('?' * len(values))})", values)


class Mount:
    """A history with figures that a test sets."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path / "catalog.sqlite")
        self.now = FIRST
        self.history = History(self.database, lambda: self.now)

    def rows(self, columns: str = "uptime_s, at") -> list[Any]:
        return self.database.rows(f"SELECT {columns} FROM history ORDER BY uptime_s")

    def stop(self) -> None:
        """End as a daemon does that is not killed."""
        self.history.save_now()
        self.database.close()


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the machine; a test changes its one item."""
    now = [float(NOW)]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


async def test_a_row_is_written_when_something_changed(
    tmp_path: Path, mock_clock: MockClock, wall: list[float]
) -> None:
    mount = Mount(tmp_path)
    for files in (1, 2, 2, 2, 3):
        mock_clock.jump(2)
        wall[0] += 2
        mount.now = FIRST | {"files": files}
        await mount.history.save()
    assert mount.rows("at - 1700000000, files") == [(2, 1), (4, 2), (10, 3)]
    mount.database.close()


async def test_nothing_changes_and_the_uptime_is_noted_all_the_same(tmp_path: Path, mock_clock: MockClock) -> None:
    mount = Mount(tmp_path)
    for _ in range(4):
        mock_clock.jump(IDLE_EVERY_S / 2)
        await mount.history.save()
    assert mount.rows("uptime_s") == [(IDLE_EVERY_S // 2,), (IDLE_EVERY_S * 3 // 2,)]
    mount.database.close()


async def test_a_history_goes_on_after_a_restart(tmp_path: Path, mock_clock: MockClock) -> None:
    mount = Mount(tmp_path)
    mock_clock.jump(60)
    mount.now = FIRST | {"generation": 3, "files_seen": 9, "opens": 50, "fetched_files": 8, "wait_ms": 700}
    mount.stop()
    mount = Mount(tmp_path)
    mock_clock.jump(40)
    mount.now = FIRST | {"files_seen": 0, "fetched_files": 2, "wait_ms": 30}
    mount.stop()
    mount = Mount(tmp_path)
    assert mount.rows("uptime_s, generation, files_seen, opens, fetched_files, wait_ms") == [
        (60, 3, 9, 50, 8, 700),
        (100, 3, 9, 50, 10, 730),
    ]
    mount.database.close()


async def test_many_restarts_within_a_second_lose_no_row(tmp_path: Path) -> None:
    for _ in range(3):
        Mount(tmp_path).stop()
    mount = Mount(tmp_path)
    assert [uptime_s for (uptime_s,) in mount.rows("uptime_s")] == [1, 2, 3]
    mount.database.close()


@pytest.mark.parametrize("jump_s", [-50 * YEAR_S, 50 * YEAR_S])
async def test_a_clock_that_jumps_costs_no_row(
    tmp_path: Path, mock_clock: MockClock, wall: list[float], jump_s: int
) -> None:
    mount = Mount(tmp_path)
    for files, step_s in enumerate((0, jump_s, -jump_s)):
        mock_clock.jump(60)
        wall[0] += 60 + step_s
        mount.now = FIRST | {"files": files}
        await mount.history.save()
        await mount.database.write(lambda writer: thin(writer, 180))
    assert [uptime_s for (uptime_s,) in mount.rows("uptime_s")] == [60, 120, 180]
    mount.database.close()


async def test_a_disk_that_refuses_does_not_end_the_daemon(tmp_path: Path, autojump_clock: MockClock) -> None:
    mount = Mount(tmp_path)
    refuse = "CREATE TRIGGER refuse BEFORE INSERT ON history BEGIN INSERT INTO nowhere VALUES (1); END"
    mount.database.write_now(lambda writer: writer.execute(refuse))
    with trio.move_on_after(10):
        await mount.history.run()
    mount.history.save_now()
    assert mount.rows() == []
    mount.database.write_now(lambda writer: writer.execute("DROP TRIGGER refuse"))
    with trio.move_on_after(10):
        await mount.history.run()
    assert len(mount.rows()) == 1
    mount.database.close()


def played(path: Path, *parts: tuple[int, int, int]) -> sqlite3.Connection:
    """A history. Each part: how long it is, how often a row is written in it, and how often it is thinned, in seconds.

    What a period keeps does not depend on how many rows it had, so most parts have few.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    create(connection)
    now_s = 0
    for length_s, every_s, thin_every_s in parts:
        for end_s in range(now_s + thin_every_s, now_s + length_s + 1, thin_every_s):
            connection.execute("BEGIN")
            for at in range(end_s - thin_every_s + every_s, end_s + 1, every_s):
                insert(connection, at, NOW + at, LARGE)
            thin(connection, end_s)
            connection.execute("COMMIT")
        now_s += length_s
    return connection


def test_a_year_takes_a_megabyte_and_a_half_and_then_hardly_more(tmp_path: Path) -> None:
    days = (YEAR_S - 3 * DAY_S, HOUR_S // 2, 5 * DAY_S)
    connection = played(
        tmp_path / "catalog.sqlite", days, (3 * DAY_S - 3 * HOUR_S, MINUTE_S, 3 * HOUR_S), (3 * HOUR_S, 2, THIN_EVERY_S)
    )
    (rows,) = connection.execute("SELECT count(*) FROM history").fetchone()
    pages, page = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    (unused,) = connection.execute("PRAGMA freelist_count").fetchone()
    ages = [(YEAR_S - at) for (at,) in connection.execute("SELECT uptime_s FROM history ORDER BY uptime_s")]
    connection.close()
    assert ages[0] > YEAR_S - HOUR_S  # totals count from the first row
    assert 5_000 < rows < 13_000
    assert (pages - unused) * page < 1.5 * MEGABYTE
    for (age_s, period_s), (until_s, _) in zip(THINNED, (*THINNED[1:], (YEAR_S, 0)), strict=True):
        kept = sum(age_s + THIN_EVERY_S < age < until_s for age in ages)
        assert kept <= (until_s - age_s) / period_s + 1
        assert kept > 0 or age_s + THIN_EVERY_S >= until_s


def test_whatever_happens_the_rows_are_limited(tmp_path: Path) -> None:
    connection = played(tmp_path / "catalog.sqlite", (60 * YEAR_S, DAY_S, 60 * YEAR_S))
    (rows, last) = connection.execute("SELECT count(*), max(uptime_s) FROM history").fetchone()
    connection.close()
    assert (rows, last) == (ROWS_MAX, 60 * YEAR_S)
