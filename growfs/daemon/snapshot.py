"""The status at one moment: each component reports its section, and StatusSource combines them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import trio

from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.schema import Query
from growfs.cache.store import Store
from growfs.cache.usage import UsageCounters
from growfs.rotation.generations import Generations
from growfs.rotation.queries import delisted_sizes
from growfs.rotation.reader import Reader
from growfs.rotation.readers import FOREIGN, Readers
from growfs.scheduler.prefetcher import Drawer
from growfs.scheduler.rotating import Selection
from growfs.status_and_metrics import (
    CoverageStatus,
    EvictStatus,
    ListedStatus,
    MountInfo,
    MountStatus,
    ReaderStatus,
    SkippedStatus,
)
from growfs.units import format_timespan

OPENS_MIN = 10
"""With fewer opens than this, the share that waited is not meaningful yet."""


class Totals(NamedTuple):
    """Sums over all cached files. Computed on a thread, because they take long if there are many files."""

    files_seen: int
    """Files that were ever cached."""
    hidden_files: int
    """Cached files that are not listed."""
    hidden_bytes: int
    new_files: int
    """Of these, the files that no generation has listed."""
    delisted_bytes: int
    held_bytes: list[int]
    """How much of these each reader holds, if its files are of the mean size."""
    skipped: list[SkippedStatus]


@dataclass(frozen=True, slots=True)
class StatusSource:
    """Combines what the components report, and owns nothing.

    sections: return what is not computed here, by the names of the fields. warnings: return warnings, given the
    readers; None does not count.
    """

    mount: MountInfo
    database: Database
    catalog: Catalog
    store: Store
    usage: UsageCounters
    generations: Generations
    readers: Readers
    selection: Selection
    drawer: Drawer
    sections: Mapping[str, Callable[[], Any]]
    warnings: Sequence[Callable[[list[Reader]], Iterable[str | None]]]

    async def snapshot(self) -> MountStatus:
        """The current status."""
        readers = self.readers.active()
        held = list(map(self.readers.held_by, readers))
        return self._assemble(readers, await self.database.query_in_thread(partial(self._totals, held)))

    def _totals(self, held: list[BitMap64], query: Query) -> Totals:
        hidden = self.generations.hidden(query)
        ((seen,),) = query("SELECT count(*) FROM usage")
        bytes, delisted = 0, BitMap64()
        for seq, size in delisted_sizes(query):  # one by one: there may be hundreds of thousands
            bytes += size
            delisted.add(seq)
        held_bytes = [bytes * each.intersection_cardinality(delisted) // max(1, len(delisted)) for each in held]
        return Totals(seen, *hidden, bytes, held_bytes, Catalog.skipped(query))

    def _assemble(self, readers: list[Reader], totals: Totals) -> MountStatus:
        summary, cache = self.usage.summary, self.store.status(totals.delisted_bytes)
        pass_files, outside_files = self.selection.share.files, self.selection.outside.files
        listed = ListedStatus(
            files=max(0, cache.files - totals.hidden_files),
            bytes=max(0, cache.content_bytes - totals.hidden_bytes),
            new_files=totals.new_files,
        )
        listed_share = listed.files / pass_files if pass_files else 1.0
        return MountStatus(
            **self.mount,
            **{name: report() for name, report in self.sections.items()},
            rotation=self.generations.rotation,
            generation=self.generations.number,
            cache=cache,
            listed=listed,
            evict=EvictStatus(files_total=self.store.evicted_files, bytes_total=self.store.evicted_bytes),
            coverage=CoverageStatus(
                # Cached files may have become more meanwhile, and evicted ones may be outside the share.
                files_seen=max(0, min(pass_files, max(totals.files_seen, cache.files) - outside_files)),
                files_cached=max(0, cache.files - outside_files),
                files=pass_files,
                pass_=self.catalog.pass_number,
            ),
            readers=[
                self._reader(reader, bytes, listed_share, summary.unread)
                for reader, bytes in zip(readers, totals.held_bytes, strict=True)
            ],
            skipped=[*totals.skipped, *self.drawer.skipped()],
            warnings=[warning for report in self.warnings for warning in report(readers) if warning],
        )

    def _reader(self, reader: Reader, held_bytes: int, listed_share: float, unread: Sequence[str]) -> ReaderStatus:
        now, newest = trio.current_time(), reader.newest
        reads_by_path = newest is not None and reader.listed_at is None
        return ReaderStatus(
            pid=reader.pid,
            command=reader.command,
            listed_at=None if reader.listed_at is None else time.time() - (now - reader.listed_at),
            generation=newest.number if newest else 0,
            part=newest.name if newest else None,
            files_shown=reader.job.files_shown,
            files_opened=len(reader.files),
            opens=reader.opens,
            held_bytes=held_bytes,
            advice=None if reads_by_path else advice(reader, now, listed_share, unread),
        )


def advice(reader: Reader, now: float, listed_share: float, unread: Sequence[str]) -> str | None:
    """Advice for the person who runs a reader: it sees no new files, waits, or leaves files unread. One sentence.

    now: seconds, on the clock of the reader's times. listed_share: the fraction (0 to 1) of the data that is listed.
    unread: file extensions that are hardly ever opened.
    """
    if reader.pid == FOREIGN:
        return (
            "is in another pid namespace: each generation that it lists stays cached for --hold-idle, and longer only"
            " while one of its folders is open; all of its processes see the same files in .growfs/generations/N"
        )
    if reader.opens >= OPENS_MIN and 2 * reader.waited >= reader.opens:
        return (
            f"{reader.waited / reader.opens:.0%} of its opens waited for a download: take file names from a listing or"
            " .growfs/index.csv"
        )
    if reader.listed_at is None:
        if reader.waited:
            return "opens files by name and never listed them: it waits for each file that is not cached"
        if not reader.held:
            return None
        return (
            "opens files by name and never listed them, so all files listed when it first opened one stay cached"
            " until it exits: have it list every epoch"
        )
    if reader.generations == 1 and reader.opened_all and listed_share < 1:
        ago = format_timespan(round(now - reader.listed_at), max_units=1)
        files = reader.job.files_shown
        times = reader.opens / files
        often = f" {times:.1f} times" if times >= 1.1 else ""
        return (
            f"listed once {ago} ago, has opened its {files:,} files{often}, and will see nothing new until"
            f" it lists again; it sees {listed_share:.0%} of the data"
        )
    if reader.job.unread >= 0.2:
        exclude = f"; consider --exclude '*.{unread[0]}'" if unread else ""
        return f"never opened {reader.job.unread:.0%} of the files that it listed{exclude}"
    return None
