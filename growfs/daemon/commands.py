"""The commands that a running daemon carries out for the command line. Control calls them by name."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import fields
from typing import Any

import trio
from humanfriendly import format_size

from growfs import disk
from growfs.cache.catalog import NODE, Catalog, Node
from growfs.cache.database import Database
from growfs.cache.schema import PINNED, ROOT, directory_path, join, read_only, row_of_connection
from growfs.cache.store import Store
from growfs.daemon.control import Command
from growfs.daemon.option_parsers import CacheSize
from growfs.daemon.options import Options, flag_name, parse_value
from growfs.daemon.render import files
from growfs.errors import GrowfsError, UsageError
from growfs.remote.filter import PathFilter
from growfs.rotation.evictor import Evictor

FETCHES_MAX = 32
"""Files that one command fetches at a time."""

Setter = Callable[[Any], Awaitable[None]]
"""Changes an option of the running mount. Raises GrowfsError."""


class MountCommands:
    """The commands on the mount as a whole.

    setters: a function for each option that `growfs set` can change.
    """

    def __init__(
        self,
        snapshot: Callable[[], Awaitable[dict[str, Any]]],
        pause: Callable[[bool], None],
        release: Callable[[], None],
        setters: Mapping[str, Setter],
    ) -> None:
        self._snapshot = snapshot
        self._pause = pause
        self._release = release
        self._setters = setters
        self._live = {row.name: row for row in fields(Options) if row.metadata["live"]}
        assert self._live.keys() == setters.keys()

    def table(self) -> dict[str, Command]:
        """The commands by name."""
        return {
            "status": self.status,
            "set": self.set,
            "pause": self.pause,
            "resume": self.resume,
            "release": self.release,
        }

    async def status(self) -> AsyncIterator[Any]:
        """Return the status."""
        yield await self._snapshot()

    async def pause(self) -> AsyncIterator[Any]:
        """Stop prefetching. Misses are still fetched."""
        self._pause(True)
        yield await self._snapshot()

    async def resume(self) -> AsyncIterator[Any]:
        """Resume prefetching."""
        self._pause(False)
        yield await self._snapshot()

    async def release(self) -> AsyncIterator[Any]:
        """Drop all holds, so that delisted files can be evicted."""
        self._release()
        yield await self._snapshot()

    async def set(self, options: dict[str, str]) -> AsyncIterator[Any]:
        """Change options, given as text by field name: all of them, or none if one is wrong."""
        values = {}
        for name, text in options.items():
            if name not in self._live:
                names = ", ".join(flag_name(name)[2:] for name in self._live)
                raise UsageError(f"{name}: cannot be set while mounted; these can: {names}")
            values[name] = parse_value(self._live[name], text)
        for name, value in values.items():
            await self._setters[name](value)
        yield await self._snapshot()


class FileCommands:
    """The commands on files that match patterns.

    fetch: returns when a file is resident, fetching it ahead of prefetched ones; raises GrowfsError.
    """

    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        store: Store,
        evictor: Evictor,
        fetch: Callable[[Node, str], Awaitable[None]],
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._store = store
        self._evictor = evictor
        self._fetch_file = fetch

    def table(self) -> dict[str, Command]:
        """The commands by name."""
        return {"pin": self.pin, "unpin": self.unpin, "fetch": self.fetch, "evict": self.evict}

    async def pin(self, globs: list[str]) -> AsyncIterator[Any]:
        """Fetch the matching files, and never evict them."""
        nodes = await self._matching(globs)
        self._refuse_too_much(nodes)
        await self._set_pinned(nodes, True)
        async for progress in self._fetch(nodes):
            yield progress

    async def unpin(self, globs: list[str]) -> AsyncIterator[Any]:
        """Allow the matching files to be evicted again."""
        nodes = await self._matching(globs)
        await self._set_pinned(nodes, False)
        yield {"files": len(nodes)}

    async def fetch(self, globs: list[str]) -> AsyncIterator[Any]:
        """Fetch the matching files now."""
        nodes = await self._matching(globs)
        self._refuse_too_much(nodes)
        async for progress in self._fetch(nodes):
            yield progress

    async def evict(self, globs: list[str]) -> AsyncIterator[Any]:
        """Evict the matching files, except pinned and open ones and the last of each kind in a directory."""
        nodes = [node for node in await self._matching(globs) if node.seq is not None]
        allowed = await self._evictor.evictable([node.id for node in nodes if not node.pinned])
        before = self._store.evicted_files
        freed = await self._store.evict([node.id for node in nodes if node.id in allowed])
        evicted = self._store.evicted_files - before
        yield {"files": evicted, "bytes": freed, "kept": len(nodes) - evicted}

    async def _matching(self, globs: list[str]) -> list[Node]:
        nodes = await trio.to_thread.run_sync(lambda: list(_matches(self._database, PathFilter(globs))))
        if not nodes:
            raise GrowfsError(f"no file matches {' '.join(globs)}; patterns use .gitignore syntax")
        return nodes

    def _refuse_too_much(self, nodes: list[Node]) -> None:
        need = sum(disk.allocation(node.size or 0) for node in nodes)
        if need > self._store.limit_bytes:
            raise GrowfsError(
                f"the {files(len(nodes))} that match ({format_size(need)}) do not fit in the cache; match fewer files,"
                " or raise cache-size"
            )

    async def _set_pinned(self, nodes: list[Node], pinned: bool) -> None:
        def write(writer: sqlite3.Connection) -> None:
            change = f"pinned | {PINNED}" if pinned else f"pinned & ~{PINNED}"
            writer.executemany(f"UPDATE node SET pinned = {change} WHERE id = ?", [(node.id,) for node in nodes])

        await self._database.write(write)

    async def _fetch(self, nodes: list[Node]) -> AsyncIterator[Any]:
        """Fetch what is not resident; yields the progress after each file."""
        wanted = [node for node in nodes if node.seq is None]
        result: dict[str, Any] = {"files": len(nodes), "wanted": len(wanted), "fetched": 0, "failed": 0, "error": None}
        finished, outcomes = trio.open_memory_channel[str | None](math.inf)
        limit = trio.Semaphore(FETCHES_MAX)

        async def fetch(node: Node) -> None:
            try:
                async with limit:
                    now = self._catalog.node(node.id)
                    if (
                        now and now.seq is None
                    ):  # it may have been fetched, or removed from the remote, while this waited
                        await self._fetch_file(now, self._catalog.path(now))
                finished.send_nowait(None)
            except GrowfsError as error:
                finished.send_nowait(str(error))

        async def fetch_all() -> None:
            async with trio.open_nursery() as nursery:
                for node in wanted:
                    nursery.start_soon(fetch, node)

        yield result
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch_all)
            for _ in wanted:
                error = await outcomes.receive()
                result["failed" if error else "fetched"] += 1
                result["error"] = error or result["error"]
                yield result


async def set_cache_size(store: Store, evictor: Evictor, size: CacheSize) -> None:
    """Change the limit of the cache, and evict what is over it. Raises GrowfsError if not all of that can go."""
    limit = limit_bytes(size, store)
    if not await evictor.shrink(limit):
        raise GrowfsError(
            f"cache-size is {format_size(limit)} now, but {format_size(store.used_bytes)} cannot be"
            " evicted: open files, pinned files, or a directory's last files"
        )


def limit_bytes(size: CacheSize, store: Store) -> int:
    """A cache size in bytes; a share is of the disk space that is free or already used by the cache."""
    if size.bytes is not None:
        return size.bytes
    assert size.share is not None
    return int((disk.free_bytes(store.folder) + store.resident_bytes) * size.share)


def _matches(database: Database, paths: PathFilter) -> list[Node]:
    connection = read_only(database.path)
    row_of, known = row_of_connection(connection), {ROOT: ""}
    nodes = []
    for row in connection.execute(f"SELECT {NODE} FROM node n LEFT JOIN resident r USING (id) WHERE n.is_dir = 0"):
        node = Node(*row)
        if paths.matches(join(directory_path(row_of, node.parent, known), node.name)):
            nodes.append(node)
    connection.close()
    return nodes
