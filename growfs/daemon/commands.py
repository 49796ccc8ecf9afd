"""What the daemon does when a verb of the command line asks it: a method for each."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any

import trio
from humanfriendly import format_size

from growfs import disk
from growfs.cache.budget import Budget
from growfs.cache.catalog import NODE, Catalog, Node
from growfs.cache.database import Database
from growfs.cache.schema import PINNED, ROOT, directory_path, join, read_only, row_of_connection
from growfs.cache.store import Store
from growfs.daemon.control import Command
from growfs.daemon.options import Options, flag_name, parse_value
from growfs.daemon.parsers import CacheSize
from growfs.errors import GrowfsError, UsageError
from growfs.remote.filter import PathFilter
from growfs.rotation.eviction import Evictor
from growfs.rotation.generations import Generations
from growfs.rotation.registry import ReaderRegistry
from growfs.scheduler.dispatcher import Dispatcher
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.readiness import PrefetchState
from growfs.scheduler.refresh import CatalogSync

FETCH_PARALLEL = 32


@dataclass(frozen=True, slots=True)
class CommandHandlers:
    """Each yields its progress, and last its result."""

    database: Database
    catalog: Catalog
    store: Store
    evictor: Evictor
    dispatcher: Dispatcher
    fetcher: Fetcher
    prefetch: PrefetchState
    catalog_sync: CatalogSync
    readers: ReaderRegistry
    generations: Generations
    budget: Budget
    snapshot: Callable[[], Awaitable[dict[str, Any]]]

    def table(self) -> dict[str, Command]:
        """The verbs by name."""
        return {
            "status": self.status,
            "pin": self.pin,
            "unpin": self.unpin,
            "fetch": self.fetch,
            "evict": self.evict,
            "set": self.set,
            "pause": self.pause,
            "resume": self.resume,
            "release": self.release,
        }

    async def status(self) -> AsyncIterator[Any]:
        """All figures."""
        yield await self.snapshot()

    async def pause(self) -> AsyncIterator[Any]:
        """Fetch nothing but misses."""
        self.prefetch.pause(True)
        yield await self.snapshot()

    async def resume(self) -> AsyncIterator[Any]:
        """Go on filling."""
        self.prefetch.pause(False)
        yield await self.snapshot()

    async def release(self) -> AsyncIterator[Any]:
        """Hold nothing for the readers any more: what is left out may go."""
        self.readers.release()
        yield await self.snapshot()

    async def pin(self, globs: list[str]) -> AsyncIterator[Any]:
        """Fetch what matches, and never evict it."""
        nodes = await self._matching(globs)
        self._refuse_too_much(nodes)
        await self._set_pinned(nodes, True)
        async for progress in self._fetch(nodes):
            yield progress

    async def unpin(self, globs: list[str]) -> AsyncIterator[Any]:
        """Let what matches be evicted again."""
        nodes = await self._matching(globs)
        await self._set_pinned(nodes, False)
        yield {"files": len(nodes)}

    async def fetch(self, globs: list[str]) -> AsyncIterator[Any]:
        """Make what matches resident, before all that nobody waits for."""
        nodes = await self._matching(globs)
        self._refuse_too_much(nodes)
        async for progress in self._fetch(nodes):
            yield progress

    async def evict(self, globs: list[str]) -> AsyncIterator[Any]:
        """Delete the local copies of what matches. Pinned and open files stay, and a directory's last of a kind."""
        nodes = [node for node in await self._matching(globs) if node.seq is not None]
        allowed = self.evictor.evictable([(node.id, node.kind) for node in nodes if not node.pinned])
        before = self.store.evicted_files
        freed = await self.store.evict([node.id for node in nodes if node.id in allowed])
        files = self.store.evicted_files - before
        yield {"files": files, "bytes": freed, "kept": len(nodes) - files}

    async def set(self, options: dict[str, str]) -> AsyncIterator[Any]:
        """Change options of the running mount."""
        rows = {row.name: row for row in fields(Options) if row.metadata["live"]}
        values = {}
        for name, text in options.items():
            if name not in rows:
                names = ", ".join(flag_name(name)[2:] for name in rows)
                raise UsageError(f"{name}: cannot be set while mounted; these can: {names}")
            values[name] = parse_value(rows[name], text)
        for name, value in values.items():
            await self._set(name, value)
        yield await self.snapshot()

    async def _set(self, name: str, value: Any) -> None:
        if name == "cache_size":
            limit = limit_bytes(value, self.store)
            if not await self.evictor.shrink(limit):
                raise GrowfsError(
                    f"cache-size is {format_size(limit)} now, but {format_size(self.store.used_bytes)} cannot be"
                    " evicted: open, pinned, or a directory's last files"
                )
            self.prefetch.invalidate_order()
        elif name == "min_free":
            self.store.min_free = value
        elif name == "refresh":
            self.catalog_sync.set_interval(value)
        elif name == "miss_timeout":
            self.fetcher.miss_timeout_s = value
        elif name == "settle":
            self.readers.settle_s = value
        elif name == "hold_idle":
            self.readers.hold_idle_s = value
        elif name == "turnover":
            self.generations.share = value
        elif name == "rotation":
            self.readers.rotation = value
            self.prefetch.invalidate_order()
        elif name == "bandwidth":
            self.dispatcher.bytes_per_s = value
        elif name == "remote_budget":
            self.budget.limit = value
            self.store.space_freed.notify()

    async def _matching(self, globs: list[str]) -> list[Node]:
        nodes = await trio.to_thread.run_sync(lambda: list(_matches(self.database, PathFilter(globs))))
        if not nodes:
            raise GrowfsError(f"nothing in the catalog matches {' '.join(globs)}; patterns are as in .gitignore")
        return nodes

    def _refuse_too_much(self, nodes: list[Node]) -> None:
        need = sum(disk.allocation(node.size or 0) for node in nodes)
        if need > self.store.limit_bytes:
            raise GrowfsError(
                f"{len(nodes)} files match, {format_size(need)}: more than the cache may hold; match fewer, or raise"
                " cache-size"
            )

    async def _set_pinned(self, nodes: list[Node], pinned: bool) -> None:
        def write(writer: sqlite3.Connection) -> None:
            change = f"pinned | {PINNED}" if pinned else f"pinned & ~{PINNED}"
            writer.executemany(f"UPDATE node SET pinned = {change} WHERE id = ?", [(node.id,) for node in nodes])

        await self.database.write(write)

    async def _fetch(self, nodes: list[Node]) -> AsyncIterator[Any]:
        wanted = [node for node in nodes if node.seq is None]
        result: dict[str, Any] = {"files": len(nodes), "wanted": len(wanted), "fetched": 0, "failed": 0, "error": None}
        landed, landings = trio.open_memory_channel[str | None](math.inf)
        turn = trio.Semaphore(FETCH_PARALLEL)

        async def one(node: Node) -> None:
            try:
                async with turn:
                    now = self.catalog.node(node.id)
                    if now and now.seq is None:  # else it came, or the remote took it back, meanwhile
                        await self.fetcher.ensure(now, self.catalog.path(now))
                landed.send_nowait(None)
            except GrowfsError as error:
                landed.send_nowait(str(error))

        async def all_of_them() -> None:
            async with trio.open_nursery() as each:
                for node in wanted:
                    each.start_soon(one, node)

        yield result
        async with trio.open_nursery() as nursery:
            nursery.start_soon(all_of_them)
            for _ in wanted:
                error = await landings.receive()
                result["failed" if error else "fetched"] += 1
                result["error"] = error or result["error"]
                yield result


def limit_bytes(size: CacheSize, store: Store) -> int:
    """The quota in bytes; a share is of the disk space that is free or the cache's own."""
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
