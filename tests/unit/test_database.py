"""A cache of the first format is migrated, and loses nothing."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import growfs.cache.database
from growfs.cache.database import Database
from growfs.cache.recovery import boot_id
from growfs.cache.schema import FROM_1, INDEXES, VERSION, set_meta
from growfs.disk import BLOCK, allocated
from growfs.remote import digest
from growfs.remote.names import extension
from growfs.rotation.rules import Holds
from tests.unit.local_cache import LocalCache, open_local_cache

FIRST_FORMAT = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE node (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    parent INTEGER NOT NULL,
    name TEXT NOT NULL,
    is_dir INTEGER NOT NULL,
    size INTEGER,
    mtime_ns INTEGER,
    version TEXT NOT NULL DEFAULT '',
    drawn INTEGER NOT NULL DEFAULT 0,
    pinned INTEGER NOT NULL DEFAULT 0,
    fetches INTEGER NOT NULL DEFAULT 0,
    opens INTEGER NOT NULL DEFAULT 0,
    UNIQUE (parent, name)
);
CREATE INDEX directories ON node (id) WHERE is_dir = 1;
CREATE INDEX fetched ON node (opens, fetches) WHERE is_dir = 0 AND fetches > 0;
INSERT INTO node (id, parent, name, is_dir) VALUES (1, 0, '', 1);
UPDATE sqlite_sequence SET seq = 1024 WHERE name = 'node';
CREATE TABLE resident (
    id INTEGER PRIMARY KEY REFERENCES node,
    parent INTEGER NOT NULL,
    seq INTEGER NOT NULL UNIQUE,
    bytes INTEGER NOT NULL,
    ino INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    digest TEXT NOT NULL,
    durable INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX resident_by_parent ON resident (parent, seq);
CREATE INDEX not_durable ON resident (id) WHERE durable = 0;
CREATE TABLE skipped (path TEXT PRIMARY KEY, reason TEXT NOT NULL, listing INTEGER NOT NULL) WITHOUT ROWID;
"""
"""The schema before rotation was added."""
XXH3 = {
    "0.jpg": "cc64f372aabd92ef",
    "1.jpg": "d8265ef3a2f22018",
    "2.jpg": "ca5ac87b14344bbe",
    "3.jpg": "4dcb6b5948720bf9",
    "README": "d212f98affbe1333",
}
"""The digests of the files, as computed before CRC-64/NVME was used."""
NAMES = list(XXH3)
FOLDER_ID = 1025
DIGESTS = "SELECT n.name, r.digest FROM resident r JOIN node n USING (id)"
PINNED = "1.jpg"


@pytest.fixture
def old_cache(tmp_path: Path) -> Path:
    """A cache of the first format: a folder with five resident files, and one that is not."""
    connection = sqlite3.connect(tmp_path / "catalog.sqlite")
    connection.executescript(FIRST_FORMAT)
    connection.execute("INSERT INTO node (parent, name, is_dir) VALUES (1, 'a', 1)")
    connection.execute("INSERT INTO resident VALUES (?, 1, 1, 0, 0, 0, '', 0)", (FOLDER_ID,))
    folder = tmp_path / "files/a"
    folder.mkdir(parents=True)
    for name in [*NAMES, "missing.jpg"]:
        id = connection.execute(
            "INSERT INTO node (parent, name, is_dir, size, mtime_ns, version, drawn, pinned, fetches, opens)"
            " VALUES (?, ?, 0, 100, 5, 'v1', 1, ?, 1, 3)",
            (FOLDER_ID, name, int(name == PINNED)),
        ).lastrowid
        if name in NAMES:
            file = folder / name
            file.write_bytes(name.encode() * 20)
            stat = file.stat()
            connection.execute("UPDATE node SET size = ? WHERE id = ?", (stat.st_size, id))
            connection.execute(
                "INSERT INTO resident VALUES (?, ?, ?, ?, ?, ?, ?, 1)",
                (id, FOLDER_ID, id, allocated(stat), stat.st_ino, stat.st_ctime_ns, XXH3[name]),
            )
    meta = {"clean": 0, "boot_id": boot_id(), "generation": 7, "listing": 1, "pass": 1}
    connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    connection.commit()
    connection.close()
    return tmp_path


@pytest.fixture
def cache(old_cache: Path) -> Iterator[LocalCache]:
    cache = open_local_cache(old_cache)
    yield cache
    cache.database.close()


def columns(database: Database) -> dict[str, set[tuple[object, ...]]]:
    """The columns of each table (name, type, NOT NULL, default) as a set, and the names of the indexes."""
    names = [name for (name,) in database.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
    tables = {name: {row[1:5] for row in database.rows(f"PRAGMA table_info({name})")} for name in names}
    return tables | {"indexes": set(database.rows("SELECT name FROM sqlite_master WHERE type = 'index'"))}


def test_a_new_database_has_the_current_version(tmp_path: Path) -> None:
    database = Database(tmp_path / "new.sqlite")
    assert database.row("PRAGMA user_version") == (VERSION,)
    database.close()


def test_a_migrated_database_has_the_schema_of_a_new_one(cache: LocalCache, tmp_path: Path) -> None:
    new = Database(tmp_path / "new.sqlite")
    migrated, expected = columns(cache.database), columns(new)
    new.close()
    assert migrated["resident"] - expected["resident"] == {
        ("queue_position", "INTEGER", 1, "0")
    }  # an added column needs a default
    unused = {("fetches", "INTEGER", 1, "0"), ("opens", "INTEGER", 1, "0")}  # some versions of SQLite drop no columns
    assert migrated["node"] - expected["node"] == unused
    for table in ("resident", "node"):
        del migrated[table], expected[table]
    assert migrated == expected
    assert cache.database.row("PRAGMA user_version") == (VERSION,)


def test_the_second_format_keeps_what_was_counted(old_cache: Path) -> None:
    connection = sqlite3.connect(old_cache / "catalog.sqlite")
    connection.create_function("extension", 1, extension, deterministic=True)
    connection.executescript(f"{FROM_1}; {INDEXES}; PRAGMA user_version = 2")
    connection.execute("INSERT INTO generation VALUES (7, 5, 0)")
    connection.commit()
    connection.close()
    cache = open_local_cache(old_cache)
    assert cache.resident() == {f"a/{name}" for name in NAMES}
    counted = {cache.node(f"a/{name}").id: (1, 3) for name in [*NAMES, "missing.jpg"]}
    assert {id: tuple(counts) for id, *counts in cache.database.rows("SELECT * FROM usage")} == counted
    assert cache.database.row("SELECT number, last_seq FROM generation") == (7, 5)
    cache.close()


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


def test_a_migrated_database_keeps_the_resident_files(cache: LocalCache) -> None:
    assert cache.resident() == {f"a/{name}" for name in NAMES}
    assert cache.cached() == {f"a/{name}": name.encode() * 20 for name in NAMES}
    assert (cache.store.resident_files, cache.store.resident_bytes) == (5, 5 * BLOCK)
    assert cache.node("a/0.jpg").drawn == 1
    assert cache.node("a/1.jpg").pinned == 1
    rows = cache.database.rows("SELECT suffix, queue_position = seq, delisted, opened FROM resident ORDER BY seq")
    assert rows == [(None, 1, None, 0)] + [("jpg", 1, None, 0)] * 4 + [("", 1, None, 0)]


def test_older_digests_are_verified_where_the_change_time_differs(old_cache: Path) -> None:
    folder = old_cache / "files/a"
    for name in ("0.jpg", "1.jpg"):  # changes its change time
        (folder / name).chmod(0o600)
    (folder / "1.jpg").write_bytes(b"other" * 20)
    cache = open_local_cache(old_cache)
    assert cache.resident() == {f"a/{name}" for name in NAMES if name != "1.jpg"}
    assert cache.cached().keys() == cache.resident()
    digests = {name: text for name, text in cache.database.rows(DIGESTS) if text}
    assert digests.pop("0.jpg") == digest.of(folder / "0.jpg")
    assert digests == {name: XXH3[name] for name in ("2.jpg", "3.jpg", "README")}
    cache.close()


async def test_a_file_with_an_older_digest_is_opened(cache: LocalCache) -> None:
    ids = [cache.node(f"a/{name}").id for name in NAMES]
    (cache.folder / "files/a/0.jpg").chmod(0o600)
    assert [cache.store.open(id) is not None for id in ids] == [False, True, True, True, True]
    await cache.store.recheck(ids[0])
    opened = cache.store.open(ids[0])
    assert opened
    assert os.pread(opened.fd, 100, 0) == b"0.jpg" * 20
    assert dict(cache.database.rows(DIGESTS))["0.jpg"] == digest.of(cache.folder / "files/a/0.jpg")


async def test_turnover_works_on_a_migrated_database(cache: LocalCache) -> None:
    cache.store.limit_bytes = 5 * BLOCK
    first = await cache.begin()
    assert first
    assert cache.listed() == cache.resident() == {f"a/{name}" for name in NAMES}
    second = await cache.begin(opened=frozenset(cache.node(f"a/{name}").id for name in NAMES))
    assert second
    assert second.number == first.number + 1
    assert cache.listed() == {"a/1.jpg", "a/2.jpg", "a/3.jpg", "a/README"}
    assert await cache.reserve_by_rotation(BLOCK, Holds()) == BLOCK
    assert cache.resident() == {"a/1.jpg", "a/2.jpg", "a/3.jpg", "a/README"}


def test_a_database_is_migrated_once(old_cache: Path) -> None:
    for _ in range(2):
        database = Database(old_cache / "catalog.sqlite")
        database.write_now(
            lambda writer: writer.execute("UPDATE resident SET queue_position = queue_position + 100 WHERE seq > 1")
        )
        database.close()
    database = Database(old_cache / "catalog.sqlite")
    assert database.row("SELECT count(*) FROM resident WHERE queue_position = seq + 200") == (5,)
    database.close()
