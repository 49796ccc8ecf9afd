"""Fills a cache without fetching: `python -m tools.benchmarks.fill_cache FOLDER BYTES`, while it is not mounted.

FOLDER is a cache's folder whose catalog is complete. Each file gets BYTES bytes and is admitted by growfs's own store,
so the next mount trusts it. A million files take minutes; fetching them would take an hour.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import trio

from growfs.cache.catalog import NODE, Catalog, Node
from growfs.cache.database import Database
from growfs.cache.publish import StagedFile
from growfs.cache.recovery import recover
from growfs.cache.schema import read_only
from growfs.cache.store import Store
from growfs.remote import digest
from growfs.remote.interface import Fetched, RemoteFile

BATCH = 1000
"""Files admitted in one transaction."""


async def fill(folder: Path, size: int) -> None:
    """Admit every file of the catalog that is not cached."""
    database = Database(folder / "catalog.sqlite")
    recover(database, folder)
    catalog = Catalog(database)
    store = Store(folder, database, catalog, min_free=0)
    store.limit_bytes = sys.maxsize
    staged = _staged_files(folder, catalog, store, bytes(size))
    while batch := list(itertools.islice(staged, BATCH)):
        await store.admit(batch)
    store.stop()
    database.close()


def _staged_files(folder: Path, catalog: Catalog, store: Store, content: bytes) -> Iterator[StagedFile]:
    connection = read_only(catalog.file)
    rows = connection.execute(
        f"SELECT {NODE} FROM node n LEFT JOIN resident r USING (id) WHERE n.is_dir = 0 AND r.id IS NULL"
    )
    for row in rows.fetchall():
        node = Node(*row)
        path, file = catalog.path(node), folder / "partial" / str(node.id)
        file.write_bytes(content)
        file.chmod(0o444)
        fetched = RemoteFile(path, len(content), node.mtime_ns, node.version)
        reserved = store.reserve(len(content)) or 0
        yield StagedFile(node, path, file, Fetched(fetched, len(content), digest.of(file)), reserved)
    connection.close()


if __name__ == "__main__":
    trio.run(fill, Path(sys.argv[1]), int(sys.argv[2]))
