"""What `status` tells, as data. Owns nothing: each figure comes from the room that owns it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import trio
from humanfriendly import format_timespan

from growfs.cache.budget import Budget
from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.schema import Query
from growfs.cache.store import Store
from growfs.cache.usage import UsageCounters
from growfs.rotation.generations import Generations
from growfs.rotation.reader import Reader
from growfs.rotation.registry import FOREIGN, ReaderRegistry
from growfs.rotation.rules import Hold
from growfs.scheduler.dispatcher import Dispatcher
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.prefetch import Prefetcher
from growfs.scheduler.readiness import MountState
from growfs.scheduler.refresh import CatalogSync
from growfs.vfs.filesystem import Vfs

GROWING = (MountState.LISTING, MountState.SEEDING, MountState.FILLING)
"""While more comes, one can say when it will be there."""


@dataclass(frozen=True, slots=True)
class Mount:
    """What stays the same while a daemon runs. url: without secrets."""

    url: str
    mountpoint: str
    cache_dir: str
    pid: int
    engine: str
    engine_reason: str


@dataclass(frozen=True, slots=True)
class Sums:
    """What is asked aside. hidden: what is here and not listed. held_bytes: of what is left out, by hold.

    skipped: as Catalog has it.
    """

    hidden_files: int
    hidden_bytes: int
    left_out_bytes: int
    held_bytes: dict[Hold, int]
    skipped: list[tuple[str, int, str]]


def _oldest(reader: Reader) -> Hold | None:
    return min(reader.holds.values(), key=lambda hold: hold.generation, default=None)


class Status:
    """Reads all rooms."""

    def __init__(
        self,
        mount: Mount,
        database: Database,
        catalog: Catalog,
        store: Store,
        generations: Generations,
        dispatcher: Dispatcher,
        fetcher: Fetcher,
        catalog_sync: CatalogSync,
        prefetcher: Prefetcher,
        readers: ReaderRegistry,
        vfs: Vfs,
        usage: UsageCounters,
        budget: Budget,
        requests: Mapping[str, int],
    ) -> None:
        self._mount = mount
        self._database = database
        self._catalog = catalog
        self._store = store
        self._generations = generations
        self._dispatcher = dispatcher
        self._fetcher = fetcher
        self._catalog_sync = catalog_sync
        self._prefetcher = prefetcher
        self._readers = readers
        self._vfs = vfs
        self._usage = usage
        self._budget = budget
        self._requests = requests

    async def snapshot(self) -> dict[str, Any]:
        """All figures. Sizes in bytes, times in seconds."""
        living = self._readers.living()
        sums = await self._database.query_in_thread(
            partial(self._sums, {hold for reader in living if (hold := _oldest(reader))})
        )
        return self._told(living, sums)

    def _sums(self, holds: set[Hold], ask: Query) -> Sums:
        """What takes long where there are many files."""
        files, bytes = self._generations.hidden(ask)
        held = {hold: self._generations.held_bytes(ask, hold) for hold in holds}
        return Sums(files, bytes, self._generations.left_out_bytes(ask), held, self._catalog.skipped(ask))

    def _told(self, living: list[Reader], sums: Sums) -> dict[str, Any]:
        store, counters = self._store, self._fetcher.counters
        store.collect_orphans()
        rate = counters.bytes_per_s()
        share, asked = self._catalog.share, self._prefetcher.asked
        room = min(share.bytes - store.resident_content_bytes, store.limit_bytes - store.resident_bytes)
        summary = self._usage.summary
        listed_files = max(0, store.resident_files - sums.hidden_files)
        listed_bytes = max(0, store.resident_content_bytes - sums.hidden_bytes)
        return {
            "version": version("growfs"),
            **asdict(self._mount),
            "state": self._prefetcher.state.value,
            "seed": asked.seed,
            "partition": f"{asked.share[0]}/{asked.share[1]}" if asked.share else None,
            "rotation": self._rotation,
            "generation": self._generations.number,
            "remote": {
                "files": self._catalog.files,
                "bytes": self._catalog.bytes,
                "directories": self._catalog.directories,
                "listed": self._catalog_sync.complete,
                "listing": self._catalog_sync.listing_now,
            },
            "cache": {
                "files": store.resident_files,
                "bytes": store.resident_bytes,
                "content_bytes": store.resident_content_bytes,
                "limit_bytes": store.limit_bytes,
                "in_flight_bytes": store.reserved_bytes,
                "orphan_bytes": store.orphan_bytes,
                "left_out_bytes": sums.left_out_bytes,
            },
            "listed": {"files": listed_files, "bytes": listed_bytes},
            "fetch": {
                "files_total": counters.files,
                "bytes_total": counters.bytes,
                "bytes_per_s": rate,
                "eta_s": room / rate if rate and room > 0 and self._prefetcher.state in GROWING else None,
                "failed": counters.failed,
                "streams": self._dispatcher.streams,
                "limit_bytes_per_s": self._dispatcher.bytes_per_s or None,
            },
            "evict": {"files_total": store.evicted_files, "bytes_total": store.evicted_bytes},
            "miss": {"files_total": self._vfs.misses.files, "wait_s_total": self._vfs.misses.wait_s},
            "coverage": {"files_seen": summary.files_seen, "pass": self._catalog.pass_number, "files": share.files},
            "budget": {
                "limit_bytes": self._budget.limit,
                "spent_bytes": self._budget.spent,
                "resumes_s": self._budget.resumes_s() if self._budget.is_spent else None,
            },
            "opens": {
                "min": summary.opens_min,
                "max": summary.opens_max,
                "mean": summary.opens_mean,
                "dispersion": summary.dispersion,
                "per_fetch": summary.opens_per_fetch,
            },
            "requests": dict(self._requests),
            "readers": [self._reader(reader, listed_files, sums) for reader in living],
            "skipped": self._skipped(sums),
            "unpromised": self._prefetcher.promise.broken,
            "last_error": str(self._catalog_sync.last_error or counters.last_error or "") or None,
        }

    @property
    def _rotation(self) -> str:
        return "never" if not self._generations.rotates else "always" if self._readers.to_the_end else "auto"

    def _skipped(self, sums: Sums) -> list[dict[str, Any]]:
        skipped = [{"reason": r, "files": files, "example": path} for r, files, path in sums.skipped]
        prefetcher = self._prefetcher
        for reason, ids in (
            ("larger than the whole cache", prefetcher.oversized),
            ("the producer failed on it", prefetcher.not_made),
        ):
            if ids:
                node = self._catalog.node(min(ids))
                example = self._catalog.path(node) if node else ""
                skipped.append({"reason": reason, "files": len(ids), "example": example})
        return skipped

    def _reader(self, reader: Reader, listed_files: int, sums: Sums) -> dict[str, Any]:
        now = trio.current_time()
        share = listed_files / self._catalog.share.files if self._catalog.share.files else 1.0
        return {
            "pid": reader.pid,
            "command": reader.command,
            "listed_at": None if reader.listed_at is None else time.time() - (now - reader.listed_at),
            "generation": reader.generation,
            "files_shown": reader.files_shown,
            "files_opened": len(reader.files),
            "opens": reader.opens,
            "held_bytes": sums.held_bytes.get(oldest, 0) if (oldest := _oldest(reader)) else 0,
            "advice": advice(reader, now, share, self._usage.summary.unread),
        }


FEW = 10
"""Opens that say nothing yet."""
MANY_WAITED = 0.5
MANY_UNREAD = 0.2


def advice(reader: Reader, now: float, share: float, unread: Sequence[str]) -> str:
    """What to tell of a reader; empty where all is well.

    now: seconds, of the reader's clock. share: how much of the data is listed (0 to 1). unread: extensions of which
    hardly a file is ever opened.
    """
    if reader.pid == FOREIGN:
        return (
            "cannot be told apart, so nothing is left out while it reads: run it in the pid namespace of growfs"
            " (docker run --pid=host, hostPID, shareProcessNamespace)"
        )
    if reader.opens >= FEW and reader.waited >= MANY_WAITED * reader.opens:
        return (
            f"{reader.waited / reader.opens:.0%} of its opens waited; it opens by name: list, or read .growfs/index.csv"
        )
    if reader.listed_at is None:
        return "opens by name and never listed: it waits for each file that is not local"
    if reader.listed_once and reader.opened_all and share < 1:
        ago = format_timespan(round(now - reader.listed_at), max_units=1)
        times = reader.opens / reader.files_shown
        often = f" {times:.1f} times" if times >= 1.1 else ""
        return (
            f"listed once {ago} ago, has opened its {reader.files_shown:,} files{often}, and will see nothing new until"
            f" it lists again; {share:.0%} of the data"
        )
    if reader.unread >= MANY_UNREAD:
        exclude = f"; --exclude '*.{unread[0]}'?" if unread else ""
        return f"{reader.unread:.0%} of what it was shown it never opened{exclude}"
    return ""
