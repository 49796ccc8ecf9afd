"""The content of status.json. Each component reports its own figures; Status puts them together.

`status_fields` lists the fields.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import trio

from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.schema import Query
from growfs.cache.usage import UsageCounters
from growfs.daemon.reader_hints import hint
from growfs.rotation.generations import Generations
from growfs.rotation.holds import Reader
from growfs.rotation.readers import Readers
from growfs.rotation.rules import Hold


@dataclass(frozen=True, slots=True)
class MountInfo:
    """What does not change while the daemon runs. url: without secrets. metrics_url: None if they are not served."""

    url: str
    mountpoint: str
    cache_dir: str
    pid: int
    engine: str
    engine_reason: str
    metrics_url: str | None


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all cached files. They are computed in a thread, because they take long if there are many files.

    hidden: cached files that are not listed. held_bytes: what each hold keeps of the delisted files.
    skipped: (reason, number of files, one of them).
    """

    hidden_files: int
    hidden_bytes: int
    delisted_bytes: int
    held_bytes: dict[Hold, int]
    skipped: list[tuple[str, int, str]]


Figures = Mapping[str, Any]


class Status:
    """Reads all components and owns nothing.

    figures: what each component reports of itself, by the section of status.json; `prefetch` goes into several.
    """

    def __init__(
        self,
        mount: MountInfo,
        database: Database,
        generations: Generations,
        readers: Readers,
        usage: UsageCounters,
        figures: Mapping[str, Callable[[], Figures]],
    ) -> None:
        self._mount = mount
        self._database = database
        self._generations = generations
        self._readers = readers
        self._usage = usage
        self._figures = figures
        self._version = version("growfs")  # reads and parses a file: milliseconds

    async def snapshot(self) -> dict[str, Any]:
        """The status now, as a new dictionary. Sizes in bytes, times in seconds."""
        readers = self._readers.active()
        holds = {hold for reader in readers if (hold := reader.holds.oldest)}
        totals = await self._database.query_in_thread(partial(self._totals, holds))
        return self._assemble(readers, totals)

    def _totals(self, holds: set[Hold], query: Query) -> Totals:
        files, bytes = self._generations.hidden(query)
        held_bytes = {hold: self._generations.held_bytes(query, hold) for hold in holds}
        return Totals(files, bytes, self._generations.delisted_bytes(query), held_bytes, Catalog.skipped(query))

    def _assemble(self, readers: list[Reader], totals: Totals) -> dict[str, Any]:
        summary = self._usage.summary
        figures = {name: report() for name, report in self._figures.items()}
        prefetch, cache = figures["prefetch"], figures["cache"]
        listed_files = max(0, cache["files"] - totals.hidden_files)
        listed_bytes = max(0, cache["content_bytes"] - totals.hidden_bytes)
        listed_share = listed_files / prefetch["pass_files"] if prefetch["pass_files"] else 1.0
        return {
            "version": self._version,
            **asdict(self._mount),
            "ready": figures["start"]["ready"],
            "state": prefetch["state"],
            "outage": figures["outage"] or None,
            "seed": prefetch["seed"],
            "partition": prefetch["partition"],
            "peers": figures["peers"] or None,
            "rotation": self._generations.rotation,
            "generation": self._generations.number,
            "remote": figures["remote"],
            "cache": {**cache, "left_out_bytes": totals.delisted_bytes},
            "listed": {"files": listed_files, "bytes": listed_bytes},
            "fetch": {**figures["fetch"], "eta_s": prefetch["eta_s"]},
            "evict": figures["evict"],
            "miss": figures["miss"],
            "coverage": {
                "files_seen": max(summary.files_seen, cache["files"]),  # the summary is some seconds old
                "pass": prefetch["pass"],
                "files": prefetch["pass_files"],
            },
            "budget": figures["budget"],
            "opens": {**figures["opens"], **self._usage.figures()},
            "requests": figures["requests"],
            "readers": [_reader(reader, totals, listed_share, summary.unread) for reader in readers],
            "skipped": [
                {"reason": reason, "files": files, "example": example}
                for reason, files, example in (*totals.skipped, *prefetch["skipped"])
            ],
            "unpromised": prefetch["unpromised"],
            "warnings": prefetch["warnings"],
            "last_error": prefetch["last_error"],
            "last_error_at": prefetch["last_error_at"],
        }


def _reader(reader: Reader, totals: Totals, listed_share: float, unread: Sequence[str]) -> dict[str, Any]:
    now, oldest = trio.current_time(), reader.holds.oldest
    return {
        "pid": reader.pid,
        "command": reader.command,
        "listed_at": None if reader.listed_at is None else time.time() - (now - reader.listed_at),
        "generation": reader.generation,
        "files_shown": reader.files_shown,
        "files_opened": len(reader.files),
        "opens": reader.opens,
        "held_bytes": totals.held_bytes.get(oldest, 0) if oldest else 0,
        "advice": hint(reader, now, listed_share, unread),
    }
