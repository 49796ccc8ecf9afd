"""The format of a cache on the disk: one that growfs has written before can be read, and counts."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import trio
import trio.testing

import growfs.cache.database
from growfs.bitmaps import BitMap64
from growfs.cache.cache_folder import DATABASE, FORMAT, read_only
from growfs.cache.database import Database
from growfs.cache.recovery import boot_id
from growfs.cache.schema import Query, set_meta
from tests.unit.local_cache import open_local_cache

GOLDEN = Path(__file__).with_name(f"format_{FORMAT}.sql")
"""A cache of the current format, as SQL: made once, and not changed afterwards."""
NAMES = ["0.jpg", "1.jpg", "2.jpg", "README"]


def restore(path: Path) -> sqlite3.Connection:
    """The golden database, at this path."""
    connection = sqlite3.connect(path)
    connection.executescript(GOLDEN.read_text())
    return connection


def schema(ask: Query) -> dict[str, list[str]]:
    """The statements of the schema by name, without comments, as words."""
    rows = ask("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
    return {name: re.sub("--.*", "", sql).split() for name, sql in rows}


async def test_a_write_that_waits_for_its_turn_is_made_although_the_daemon_stops(tmp_path: Path) -> None:
    database = Database(tmp_path / DATABASE)
    may_end = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.run_in_writer, may_end.wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(database.write, lambda writer: set_meta(writer, "pass", 7))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        may_end.set()
    assert database.meta("pass") == 7
    database.close()


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    folder = tmp_path / "files/a"
    folder.mkdir(parents=True)
    with closing(restore(tmp_path / DATABASE)) as connection, connection:
        set_meta(connection, "boot_id", boot_id())
        for name in NAMES:
            (folder / name).write_bytes(name.encode() * 20)
            inode = (folder / name).stat().st_ino
            query = "UPDATE resident SET ino = ? WHERE id = (SELECT id FROM node WHERE name = ?)"
            assert connection.execute(query, (inode, name)).rowcount == 1
    return tmp_path


def test_a_new_database_has_the_schema_of_its_format(tmp_path: Path) -> None:
    """If this fails, the schema has changed: raise FORMAT, and write the file that GOLDEN names for the new one."""
    database = Database(tmp_path / DATABASE)
    assert database.row("PRAGMA user_version") == (FORMAT,)
    with closing(restore(tmp_path / "golden.sqlite")) as expected:
        assert expected.execute("PRAGMA user_version").fetchone() == (FORMAT,)
        assert schema(database.rows) == schema(expected.execute)
    database.close()


def test_the_files_of_a_golden_cache_are_resident(golden: Path) -> None:
    """Their modification times are others than those of the rows, so the digests decide."""
    (golden / "files/a/1.jpg").write_bytes(b"other" * 20)
    cache = open_local_cache(golden)
    assert cache.resident() == {f"a/{name}" for name in NAMES if name != "1.jpg"}
    assert cache.cached().keys() == cache.resident()
    assert cache.node("a/0.jpg").pinned == 1
    assert cache.find("a/1.jpg") is not None
    cache.close()


async def test_rotation_continues_from_a_golden_cache(golden: Path) -> None:
    cache = open_local_cache(golden)
    first = await cache.begin()
    assert first
    assert first.number == 8
    assert cache.listed() == cache.resident() == {f"a/{name}" for name in NAMES}
    assert await cache.reserve_by_rotation(1, BitMap64()) is not None
    cache.close()


def test_a_database_is_created_once_and_a_reader_creates_no_file_if_nobody_writes_it(tmp_path: Path) -> None:
    for number in (0, 1):
        database = Database(tmp_path / DATABASE)
        assert database.meta("pass", 0) == number
        database.write_now(lambda writer: set_meta(writer, "pass", 1))
        database.close()
    with closing(read_only(tmp_path / DATABASE)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT,)
        assert not list(tmp_path.glob(f"{DATABASE}-*"))


def test_the_write_ahead_log_is_small_again_after_a_large_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growfs.cache.database, "LOG_BYTES_MAX", 1 << 16)
    database = Database(tmp_path / "new.sqlite")
    log = tmp_path / "new.sqlite-wal"
    names = [("x" * 500 + str(number), "too long", 1) for number in range(10_000)]
    database.write_now(lambda writer: writer.executemany("INSERT INTO skipped VALUES (?, ?, ?)", names))
    assert log.stat().st_size > 1 << 20
    for number in range(3):
        database.write_now(lambda writer, number=number: set_meta(writer, "pass", number))  # type: ignore[misc]
    assert log.stat().st_size <= 1 << 16
    database.close()
