"""`growfs plan --exact`: simulates how large the parts of a pass are, and how long the reader waits for them.

The daemon's `divide` divides a dataset that is scaled down to some thousands of files; sizes, rates and times are the
real ones. Time passes part by part: the link fetches the next part while one is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from growfs.errors import GrowfsError
from growfs.rotation.parts import CatalogFile, Division, ExactPass, divide, small_parts
from growfs.simulation.training import DIRECTORIES, PolicyResult, Workload, duration, timespan
from growfs.units import CacheSize, flag_size, format_size

HARDLY_WAITS = 0.99
"""The utilization from which on a reader counts as one that hardly waits."""


@dataclass(frozen=True, slots=True)
class PredictedPass:
    """A pass of the reader. utilization: the share of its time in which it reads, and does not wait."""

    utilization: float
    s: float
    fetched_bytes: int


@dataclass(frozen=True, slots=True)
class ExactResult:
    """The passes with a cache of one size. Sizes in bytes."""

    cache_bytes: int
    kept_bytes: int
    parts: int
    part_files: float
    """On average."""
    part_bytes: int
    """On average."""
    first_part_s: float
    """How long the first listing waits."""
    first: PredictedPass
    later: PredictedPass
    utilization_max: float
    """What the link allows in later passes, however large the parts are."""


def simulate_exact(workload: Workload, part_size: CacheSize) -> ExactResult:
    """Simulate the first pass and a later one. part_size: the room for the streamed files of two parts.

    Raises GrowfsError if the cache is too small to stream files through it.
    """
    whole, cache = workload.data_bytes, workload.cache_bytes
    # A larger dataset is simulated as one of 100 caches: the share that is kept is negligible in both.
    data = min(whole, 100 * cache)
    real_file = whole / workload.files
    wanted = max(part_size.of(cache) / 2, real_file)
    largest = max(wanted, data / 4000)  # more parts are simulated as so many, which are larger
    part_files = min(50, int(12_000 * largest / data))  # about so many files are simulated at most
    count = math.ceil(data / max(real_file, largest / part_files) - 1e-6)
    size = data // count
    files = [CatalogFile(id, f"{id % DIRECTORIES}/{id}", size, size, False) for id in range(1, count + 1)]
    first_division, division = (divide(files, ExactPass(0, number, cache, int(2 * largest)))[0] for number in (1, 2))
    first, _, later = _passes([first_division, division, division], size, workload, whole - data)
    kept = division.kept_bytes if division.streams else whole
    scale = largest / wanted * (whole - kept) / division.streamed_bytes if division.streams else 1.0
    parts = round(len(division.parts) * scale)
    return ExactResult(
        cache_bytes=cache,
        kept_bytes=kept,
        parts=parts,
        part_files=workload.files / parts,
        part_bytes=whole // parts,
        first_part_s=whole / max(parts, len(first_division.parts)) / workload.bandwidth,
        first=first,
        later=later,
        utilization_max=min(1.0, workload.bandwidth / max(1.0, (1 - kept / whole) * workload.read_rate)),
    )


def _passes(passes: Sequence[Division], file_bytes: int, workload: Workload, beyond: int) -> Iterator[PredictedPass]:
    """The passes that are divided like this, from the first one on.

    file_bytes: the size of each file. beyond: bytes of streamed files besides these.
    """
    all_kept = file_bytes * sum(part.end - part.kept for part in passes[0].parts)
    due = cached = 0  # bytes of kept files: those of the parts so far, and those that were fetched
    fetchable = 0  # bytes that the link delivers while a part is read
    for division in passes:
        read_s = waited_s = 0.0
        fetched, cached_before = beyond, cached
        for part in division.parts:
            streamed, kept = file_bytes * (part.kept - part.start), file_bytes * (part.end - part.kept)
            due = min(all_kept, due + kept)
            lacking = streamed + max(0, due - cached)
            cached = min(all_kept, max(cached, due) + max(0, fetchable - lacking))
            fetched += streamed
            waited_s += max(0, lacking - fetchable) / workload.bandwidth
            part_s = (streamed + kept) / workload.read_rate
            fetchable = int(part_s * workload.bandwidth)
            read_s += part_s
        utilization = read_s / (read_s + waited_s)
        pass_s = workload.data_bytes / workload.read_rate / utilization
        yield PredictedPass(utilization, pass_s, fetched + cached - cached_before)


def simulate_larger(workload: Workload, part_size: CacheSize) -> list[ExactResult]:
    """The results for this cache, and for larger ones, up to all data. If the reader waits in later passes, the
    smallest cache with which it hardly does is one of them. Raises GrowfsError if this cache is too small.
    """
    given, all_data = workload.cache_bytes, workload.data_bytes
    sizes = {size for size in (given, given * 3 // 2, 2 * given, all_data) if size <= all_data}
    found = {size: simulate_exact(replace(workload, cache_bytes=size), part_size) for size in sizes}
    if found[given].later.utilization < HARDLY_WAITS:
        enough = _smallest_without_waits(workload, part_size)
        found[enough.cache_bytes] = enough
    return [result for _, result in sorted(found.items())]


def _smallest_without_waits(workload: Workload, part_size: CacheSize) -> ExactResult:
    to_keep = (1 - workload.bandwidth / (HARDLY_WAITS * workload.read_rate)) * workload.data_bytes
    too_small = size = max(workload.cache_bytes, int(to_keep))
    best: ExactResult | None = None
    while best is None or best.cache_bytes > 1.02 * too_small + 1:
        result = simulate_exact(replace(workload, cache_bytes=size), part_size)
        if result.later.utilization >= HARDLY_WAITS:
            best = result
        else:
            too_small = size
        size = (too_small + best.cache_bytes) // 2 if best else min(int(1.25 * size) + 1, workload.data_bytes)
    return best


def exact_table(workload: Workload, found: Sequence[ExactResult]) -> Table:
    """The printed table: a column for each cache size."""
    columns = Table(
        "cache",
        *(f"{format_size(row.cache_bytes)}{', all data' * (row.later.fetched_bytes == 0)}" for row in found),
        title=(
            f"--exact: {format_size(workload.data_bytes)} in {workload.files:,.0f} files,"
            f" {format_size(workload.bandwidth)}/s, read at {format_size(workload.read_rate)}/s"
        ),
    )
    lines = {
        "stays cached": [f"{format_size(row.kept_bytes)}, {row.kept_bytes / workload.data_bytes:.0%}" for row in found],
        "parts of a pass": [f"{row.parts:,}" for row in found],
        "files of a part": [f"{row.part_files:,.{int(row.part_files < 10)}f}" for row in found],
        "size of a part": [format_size(row.part_bytes) for row in found],
        "first listing waits": [duration(row.first_part_s) for row in found],
    }
    for name, passes in (("first pass", [row.first for row in found]), ("later pass", [row.later for row in found])):
        lines[f"{name}: fetched"] = [format_size(row.fetched_bytes) for row in passes]
        lines[f"{name}: takes"] = [duration(row.s) for row in passes]
        lines[f"{name}: utilization"] = [f"{row.utilization:.1%}" for row in passes]
    for name, cells in lines.items():
        columns.add_row(name, *cells, end_section=name in ("first listing waits", "first pass: utilization"))
    return columns


def exact_advice(found: Sequence[ExactResult]) -> str:
    """Whether the reader waits in later passes, and the cache with which it hardly does."""
    given = found[0].later.utilization
    if given >= HARDLY_WAITS:
        return "after the first pass, the reader hardly waits for the link"
    enough = next(row for row in found if row.later.utilization >= HARDLY_WAITS)
    return (
        f"after the first pass, the reader waits for the link {1 - given:.0%} of the time; with --cache-size"
        f" {flag_size(enough.cache_bytes)} it hardly waits"
    )


def exact_warning(workload: Workload, found: Sequence[ExactResult]) -> str | None:
    """A warning if the parts have few files; None if they do not."""
    given = found[0]
    return small_parts(int(workload.files), workload.data_bytes - given.kept_bytes, given.kept_bytes, given.cache_bytes)


def exact_hint(workload: Workload, part_size: CacheSize, rotation: PolicyResult) -> str | None:
    """A line that names --exact, if it shows all data in less time than rotation."""
    if workload.cache_bytes >= workload.data_bytes:
        return None
    try:
        later = simulate_exact(workload, part_size).later
    except GrowfsError:
        return None
    days = rotation.all_seen_days
    # A smaller difference may be rounding.
    if days is not None and later.s / 86400 > 0.9 * days:
        return None
    waits = f"waits {1 - later.utilization:.0%} of that" if later.utilization < HARDLY_WAITS else "hardly waits"
    return f"with --exact, a pass over all data takes {timespan(later.s / 86400)}, and the reader {waits}; see --exact"
