"""What `status` tells, as data. Owns nothing: each figure comes from the room that owns it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import trio

import growfs
from growfs.advice import advice
from growfs.budget import Budget
from growfs.catalog import Catalog
from growfs.crew import Crew
from growfs.fetcher import Fetcher
from growfs.generations import Generations
from growfs.ledger import Ledger
from growfs.phase import State
from growfs.populate import Population
from growfs.reader import Reader
from growfs.readers import Readers
from growfs.refresh import Refresher
from growfs.rotation import Hold
from growfs.store import Store
from growfs.vfs import Vfs

GROWING = (State.LISTING, State.SEEDING, State.FILLING)
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


class Status:
    """Reads all rooms."""

    def __init__(
        self,
        mount: Mount,
        catalog: Catalog,
        store: Store,
        generations: Generations,
        crew: Crew,
        fetcher: Fetcher,
        refresher: Refresher,
        population: Population,
        readers: Readers,
        vfs: Vfs,
        ledger: Ledger,
        budget: Budget,
        requests: Mapping[str, int],
    ) -> None:
        self._mount = mount
        self._catalog = catalog
        self._store = store
        self._generations = generations
        self._crew = crew
        self._fetcher = fetcher
        self._refresher = refresher
        self._population = population
        self._readers = readers
        self._vfs = vfs
        self._ledger = ledger
        self._budget = budget
        self._requests = requests

    def snapshot(self) -> dict[str, Any]:
        """All figures, of one moment. Sizes in bytes, times in seconds."""
        store, counters = self._store, self._fetcher.counters
        store.sweep()
        rate = counters.bytes_per_s()
        share, asked = self._catalog.share, self._population.asked
        room = min(share.bytes - store.resident_content_bytes, store.limit_bytes - store.resident_bytes)
        summary = self._ledger.summary
        listed_files, listed_bytes = self._generations.totals()
        return {
            "version": growfs.__version__,
            **asdict(self._mount),
            "state": self._population.state.value,
            "seed": asked.seed,
            "partition": f"{asked.share[0]}/{asked.share[1]}" if asked.share else None,
            "rotation": self._rotation,
            "generation": self._generations.number,
            "remote": {
                "files": self._catalog.files,
                "bytes": self._catalog.bytes,
                "directories": self._catalog.directories,
                "listed": self._refresher.complete,
                "listing": self._refresher.listing_now,
            },
            "cache": {
                "files": store.resident_files,
                "bytes": store.resident_bytes,
                "content_bytes": store.resident_content_bytes,
                "limit_bytes": store.limit_bytes,
                "in_flight_bytes": store.reserved_bytes,
                "orphan_bytes": store.orphan_bytes,
                "left_out_bytes": self._generations.left_out_bytes(),
            },
            "listed": {"files": listed_files, "bytes": listed_bytes},
            "fetch": {
                "files_total": counters.files,
                "bytes_total": counters.bytes,
                "bytes_per_s": rate,
                "eta_s": room / rate if rate and room > 0 and self._population.state in GROWING else None,
                "failed": counters.failed,
                "streams": self._crew.streams,
                "limit_bytes_per_s": self._crew.bytes_per_s or None,
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
            "readers": self._all_readers(listed_files),
            "skipped": self._skipped(),
            "unpromised": self._population.promise.broken,
            "last_error": str(self._refresher.last_error or counters.last_error or "") or None,
        }

    @property
    def _rotation(self) -> str:
        return "never" if not self._generations.rotates else "always" if self._readers.to_the_end else "auto"

    def _skipped(self) -> list[dict[str, Any]]:
        skipped = [{"reason": r, "files": files, "example": path} for r, files, path in self._catalog.skipped()]
        if oversized := self._population.oversized:
            node = self._catalog.node(min(oversized))
            example = self._catalog.path(node) if node else ""
            skipped.append({"reason": "larger than the whole cache", "files": len(oversized), "example": example})
        return skipped

    def _all_readers(self, listed_files: int) -> list[dict[str, Any]]:
        held = cache(self._generations.held_bytes)  # readers of one job hold alike, and each sum takes a while
        return [self._reader(reader, listed_files, held) for reader in self._readers.living()]

    def _reader(self, reader: Reader, listed_files: int, held: Callable[[Hold], int]) -> dict[str, Any]:
        now = trio.current_time()
        share = listed_files / self._catalog.share.files if self._catalog.share.files else 1.0
        oldest = min(reader.holds.values(), key=lambda hold: hold.generation, default=None)
        return {
            "pid": reader.pid,
            "command": reader.command,
            "listed_at": None if reader.listed_at is None else time.time() - (now - reader.listed_at),
            "generation": reader.generation,
            "files_shown": reader.files_shown,
            "files_opened": len(reader.files),
            "opens": reader.opens,
            "held_bytes": held(oldest) if oldest else 0,
            "advice": advice(reader, now, share, self._ledger.summary.unread),
        }
