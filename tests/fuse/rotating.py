"""What the tests of rotation share: a cache that is full and smaller than the remote, and epochs of a reader."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.fuse.reader import Reader
from tests.harness import Growfs, make_tree, until

SIZE = 4096
ROOM = 10
"""Files in a full cache."""
HALF = "--turnover", "50%"


def told(growfs: Growfs) -> dict[str, Any]:
    """The status, through the mount: quicker than `growfs status`, and no listing either."""
    return dict(json.loads((growfs.mountpoint / ".growfs/status.json").read_text()))


def full_cache(growfs: Growfs, remote: Path, *flags: object, files: int = 40, room: int = ROOM) -> dict[str, bytes]:
    """Mount so many files in two directories, with room for fewer of them, and have the cache fill."""
    tree = make_tree(remote, directories=2, files=files // 2, size=SIZE)
    growfs.mount(remote, "--cache-size", room * SIZE, *(flags or HALF))
    until(lambda: told(growfs)["cache"]["files"] == room)
    return tree


def replaced(growfs: Growfs, room: int = ROOM) -> dict[str, Any]:
    """Wait until what was left out has made room for arrivals that no generation shows yet; returns the status."""

    def status() -> dict[str, Any] | None:
        now = told(growfs)
        cache = now["cache"]
        arrived = cache["files"] == room and cache["left_out_bytes"] == 0 and now["listed"]["files"] < room
        return now if arrived else None

    return dict(until(status))


def epoch(reader: Reader, path: str = "") -> set[str]:
    """List all below a directory, and open all of it; returns the names."""
    names = reader.walk(path)
    reader.read_all(shuffled(names))
    return names


def shuffled(names: Iterable[str], seed: int = 0) -> list[str]:
    """In a random order, the same each time."""
    names = sorted(names)
    random.Random(seed).shuffle(names)
    return names


def local(growfs: Growfs) -> set[str]:
    """The files that are on the local disk."""
    files = growfs.cache / "files"
    return {str(path.relative_to(files)) for path in files.rglob("*") if path.is_file()}


def admissions(growfs: Growfs) -> list[str]:
    """What is local, in the order of admission."""
    with closing(sqlite3.connect(growfs.cache / "catalog.sqlite")) as connection:
        rows = connection.execute(
            "SELECT d.name || '/' || n.name FROM resident r JOIN node n USING (id) JOIN node d ON d.id = n.parent"
            " WHERE n.is_dir = 0 ORDER BY r.seq"
        ).fetchall()
    return [name for (name,) in rows]


def waits(growfs: Growfs) -> int:
    """How many opens had to wait for a fetch."""
    return int(told(growfs)["miss"]["files_total"])
