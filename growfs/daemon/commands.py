"""The commands that a running daemon carries out for the command line. Control calls them by name."""

from __future__ import annotations

import signal
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple

import trio

from growfs import disk
from growfs.cache.catalog import Catalog, Node
from growfs.cache.database import Database
from growfs.cache.schema import Query, id_at, with_paths
from growfs.cache.store import Store
from growfs.daemon.options import all_rows, flag_name, parse_value
from growfs.daemon.status_text import files
from growfs.errors import GrowfsError, TimedOut, UsageError
from growfs.remote.filter import PathFilter
from growfs.scheduler.outage import Outage
from growfs.scheduler.space import Space
from growfs.signal import Signal
from growfs.status_and_metrics import MountStatus
from growfs.units import format_size

FETCHES_MAX = 32
"""Files that one command fetches at a time."""
COMPLETIONS_MAX = 100
"""Paths offered as completions: with more, bash asks whether to show them."""
PROGRESS_S = 10.0
"""A command that fetches reports its progress at least this often: it may be one large file."""
BATCH_FILES = 1000
"""Files that are evicted or pinned in one step; between steps, requests are answered and other writers run."""

Setter = Callable[[Any], Awaitable[None] | None]
"""Changes an option of the running mount, at once or when its result has been awaited. Raises GrowfsError."""


class MountCommands:
    """The commands on the mount as a whole.

    setters: a function for each option that `growfs set` can change here, in the order in which they are called.
    checks: of some of these options; raise GrowfsError for what this mount cannot have. waiting: returns the processes
    that wait for a file.
    """

    def __init__(
        self,
        snapshot: Callable[[], Awaitable[MountStatus]],
        pause: Callable[[bool], None],
        release: Callable[[], None],
        waiting: Callable[[], list[int]],
        setters: Mapping[str, Setter],
        checks: Mapping[str, Callable[[Any], None]],
    ) -> None:
        self._snapshot = snapshot
        self._pause = pause
        self._release = release
        self._waiting = waiting
        self._setters = setters
        self._checks = checks
        self._live = {name: row for name, row in all_rows().items() if name in setters}

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

    async def stop(self) -> AsyncIterator[Any]:
        """End the daemon, as SIGTERM does, but without the risk of signaling another process."""
        yield {}
        signal.raise_signal(signal.SIGTERM)

    async def waiting(self) -> AsyncIterator[Any]:
        """Return the processes that wait for a file: they use the mount, but have nothing open yet."""
        yield {"pids": self._waiting()}

    async def set(self, options: dict[str, str]) -> AsyncIterator[Any]:
        """Change options, given as text by field name: all of them, or none if one is wrong."""
        values = {}
        for name, text in options.items():
            if name not in self._live:
                shown, *names = (flag_name(each)[2:] for each in (name, *self._live))
                near = get_close_matches(shown, names, 1)
                guess = f"did you mean {near[0]}? " if near else ""
                raise UsageError(f"{shown}: cannot be set while mounted; {guess}these can: {', '.join(names)}")
            values[name] = parse_value(self._live[name], text)
            if check := self._checks.get(name):
                check(values[name])
        for name, change in self._setters.items():
            if name in values and (changing := change(values[name])):
                await changing
        yield await self._snapshot()


class Matching(NamedTuple):
    """The files that match patterns. Ids are kept in arrays: there may be millions."""

    ids: Sequence[int]
    missing: Sequence[int]
    """Ids of the files that are not cached."""
    unpinned: Sequence[int]
    """Ids of the files that are cached, and neither pinned nor frozen."""
    bytes: int
    """Bytes that all of them take, or would take, on disk."""


class FileCommands:
    """The commands on files that match patterns.

    fetch: returns when a file is resident, fetching it ahead of prefetched ones; raises GrowfsError. `pins_changed`
    notifies when files were pinned or unpinned.
    """

    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        store: Store,
        space: Space,
        outage: Outage,
        fetch: Callable[[Node, str, float], Awaitable[None]],
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._store = store
        self._space = space
        self._outage = outage
        self._fetch_file = fetch
        self.pins_changed = Signal[[]]()

    async def pin(self, globs: list[str]) -> AsyncIterator[Any]:
        """Fetch the matching files, and never evict them."""
        matching = await self._matching(globs)
        self._refuse_too_much(matching)
        await self._set_pinned(matching.ids, True)
        async for progress in self._fetch(matching):
            yield progress

    async def unpin(self, globs: list[str]) -> AsyncIterator[Any]:
        """Allow the matching files to be evicted again."""
        matching = await self._matching(globs)
        await self._set_pinned(matching.ids, False)
        yield {"files": len(matching.ids)}

    async def fetch(self, globs: list[str]) -> AsyncIterator[Any]:
        """Fetch the matching files now."""
        matching = await self._matching(globs)
        self._refuse_too_much(matching)
        async for progress in self._fetch(matching):
            yield progress

    async def evict(self, globs: list[str]) -> AsyncIterator[Any]:
        """Evict the matching files, except pinned and open ones and the last of each kind in a directory."""
        matching = await self._matching(globs)
        evicted = freed = 0
        for ids in _batches(matching.unpinned):
            before = self._store.evicted_files
            freed += await self._space.evict(ids)
            evicted += self._store.evicted_files - before
        left = await self._matching(globs)
        yield {"files": evicted, "bytes": freed, "kept": len(left.ids) - len(left.missing)}

    async def refetch(self, ids: list[int]) -> AsyncIterator[Any]:
        """Evict those of these cached files that differ from their digest, even pinned or open ones, and fetch them."""
        damaged = [id for id in ids if await self._store.verify(id)]
        async for progress in self._fetch(Matching(damaged, damaged, [], 0)):
            progress["ids"] = damaged
            yield progress

    async def complete(self, prefix: str) -> AsyncIterator[Any]:
        """Return the paths that begin with a prefix, in one directory; a directory ends in /. Does not list the mount.

        A directory that is the only match is replaced by its contents. Of many paths, the first and the last are
        returned: a shell completes their common part.
        """
        yield {"paths": self._completions(prefix)}

    def _completions(self, prefix: str) -> list[str]:
        folder, _, beginning = prefix.rpartition("/")
        parent = id_at(self._database.rows, folder)
        if parent is None:
            return []
        start = prefix.removesuffix(beginning)
        names = self._catalog.names_with_prefix(beginning, parent, COMPLETIONS_MAX)
        paths = [f"{start}{name}{'/' if is_dir else ''}" for name, is_dir in names]
        return self._completions(paths[0]) if len(paths) == 1 and names[0][1] else paths

    async def _matching(self, globs: list[str]) -> Matching:
        matching = await self._database.query_in_thread(partial(_match, PathFilter(globs)))
        if not matching.ids:
            raise GrowfsError(f"no file matches {' '.join(globs)}; patterns use .gitignore syntax")
        return matching

    def _refuse_too_much(self, matching: Matching) -> None:
        if matching.bytes > self._store.room.limit_bytes:
            raise GrowfsError(
                f"the {files(len(matching.ids))} that match ({format_size(matching.bytes)}) do not fit in the cache;"
                " match fewer files, or raise cache-size"
            )

    async def _set_pinned(self, matching: Sequence[int], pinned: bool) -> None:
        for ids in _batches(matching):
            await self._catalog.set_pinned(ids, pinned)
        self.pins_changed.notify()

    async def _fetch(self, matching: Matching) -> AsyncIterator[Any]:
        """Fetch the files that are not cached; yields the progress."""
        wanted = len(matching.missing)
        result: dict[str, Any] = {
            "files": len(matching.ids), "wanted": wanted, "fetched": 0, "failed": 0, "error": None
        }  # fmt: skip
        finished = Signal[[]]()
        remaining = iter(matching.missing)

        async def fetch_remaining() -> None:
            for id in remaining:
                await trio.lowlevel.checkpoint()  # a million files may pass without any wait
                try:
                    # Otherwise it was fetched meanwhile, or removed from the remote.
                    while (node := self._catalog.node(id)) and node.seq is None:
                        try:  # without a limit, unless the remote is away
                            await self._fetch_file(node, self._catalog.path(node), 300.0)
                            break
                        except TimedOut:
                            if self._outage.is_on:
                                raise
                    result["fetched"] += 1
                except GrowfsError as error:
                    result["failed"] += 1
                    result["error"] = str(error)
                finished.notify()

        yield result
        async with trio.open_nursery() as nursery:
            for _ in range(min(FETCHES_MAX, wanted)):
                nursery.start_soon(fetch_remaining)
            while result["fetched"] + result["failed"] < wanted:
                with trio.move_on_after(PROGRESS_S):
                    await finished.wait()
                yield result


def _match(paths: PathFilter, ask: Query) -> Matching:
    ids, missing, unpinned, bytes = array("q"), array("q"), array("q"), 0
    found = with_paths(
        ask, "n.id, n.size, n.pinned, r.id IS NOT NULL", "node n LEFT JOIN resident r USING (id) WHERE n.is_dir = 0"
    )
    for path, id, size, pinned, is_cached in found:
        if paths.matches(path):
            ids.append(id)
            bytes += disk.allocation(size or 0)
            if not is_cached:
                missing.append(id)
            elif not pinned:
                unpinned.append(id)
    return Matching(ids, missing, unpinned, bytes)


def _batches(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start : start + BATCH_FILES] for start in range(0, len(ids), BATCH_FILES))
