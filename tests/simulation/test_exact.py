"""The simulation of `growfs plan --exact` agrees with hand computation."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from growfs.errors import GrowfsError
from growfs.simulation.exact import HARDLY_WAITS, exact_advice, exact_hint, simulate_larger
from growfs.simulation.exact import simulate_exact as simulate
from growfs.simulation.training import Workload, simulate_policy
from growfs.units import CacheSize

simulate_exact = cache(simulate)
PART_SIZE = CacheSize(share=0.05)
TB, GB, MB = 10**12, 10**9, 10**6
MANY = Workload(3 * TB, 30_000, TB, bandwidth=100 * MB, read_rate=500 * MB)
FEW = Workload(TB, 500, 300 * GB, bandwidth=100 * MB, read_rate=150 * MB)
HUGE = Workload(10_000 * TB, 10**8, 2 * TB, bandwidth=100 * MB, read_rate=150 * MB)
SMALL_FILES = replace(MANY, files=10**9)


@pytest.mark.parametrize("workload", [MANY, FEW, HUGE, SMALL_FILES])
def test_later_passes_fetch_what_is_not_kept(workload: Workload) -> None:
    found = simulate_exact(workload, PART_SIZE)
    assert found.kept_bytes == pytest.approx(0.94 * workload.cache_bytes, rel=0.03)
    assert found.first.fetched_bytes == pytest.approx(workload.data_bytes)
    assert found.later.fetched_bytes == pytest.approx(workload.data_bytes - found.kept_bytes, rel=0.05)


@pytest.mark.parametrize("workload", [MANY, HUGE, SMALL_FILES])
def test_the_streamed_files_of_two_parts_fill_the_part_size(workload: Workload) -> None:
    found = simulate_exact(workload, PART_SIZE)
    streamed = found.later.fetched_bytes / found.parts
    assert 2 * streamed == pytest.approx(0.05 * workload.cache_bytes, rel=0.03)
    assert found.part_files * found.parts == pytest.approx(workload.files)
    assert found.part_bytes * found.parts == pytest.approx(workload.data_bytes, rel=0.001)


def test_a_part_has_at_least_a_file() -> None:
    found = simulate_exact(replace(FEW, cache_bytes=20 * GB), PART_SIZE)
    assert found.part_files == pytest.approx(1, rel=0.02)


def test_the_size_of_parts_does_not_decide_utilization() -> None:
    default = simulate_exact(SMALL_FILES, PART_SIZE)
    small = simulate_exact(SMALL_FILES, CacheSize(bytes=10 * MB))
    assert small.parts == pytest.approx(default.parts * 5000, rel=0.1)
    assert small.later.utilization == pytest.approx(default.later.utilization, rel=0.05)


@pytest.mark.parametrize("workload", [MANY, FEW, HUGE, SMALL_FILES])
def test_a_slow_link_limits_utilization(workload: Workload) -> None:
    found = simulate_exact(workload, PART_SIZE)
    kept = found.kept_bytes / workload.data_bytes
    limit = workload.bandwidth / ((1 - kept) * workload.read_rate)
    assert found.utilization_max == pytest.approx(limit)
    assert found.later.utilization == pytest.approx(limit, rel=0.03)
    assert found.first.utilization == pytest.approx(workload.bandwidth / workload.read_rate, rel=0.03)
    assert found.later.s == pytest.approx(found.later.fetched_bytes / workload.bandwidth, rel=0.03)


def test_a_fast_link_makes_nobody_wait_after_the_first_part() -> None:
    fast = replace(MANY, bandwidth=1000 * MB)
    found = simulate_exact(fast, PART_SIZE)
    assert found.later.utilization == pytest.approx(1)
    assert found.later.s == pytest.approx(fast.data_bytes / fast.read_rate)
    assert found.first.s == pytest.approx(found.later.s + found.first_part_s, rel=0.001)


def test_data_that_fits_is_fetched_once() -> None:
    found = simulate_exact(replace(MANY, cache_bytes=MANY.data_bytes), PART_SIZE)
    assert found.kept_bytes == MANY.data_bytes
    assert (found.later.fetched_bytes, found.later.utilization) == (0, 1)


@pytest.mark.parametrize("workload", [MANY, FEW])
def test_the_smallest_cache_without_waits_is_found(workload: Workload) -> None:
    results = simulate_larger(workload, PART_SIZE)
    assert [row.cache_bytes for row in results] == sorted({row.cache_bytes for row in results})
    assert results[-1].cache_bytes == workload.data_bytes
    (enough, *_) = (row for row in results if row.later.utilization >= HARDLY_WAITS)
    kept = 1 - workload.bandwidth / workload.read_rate
    assert enough.cache_bytes == pytest.approx(kept * workload.data_bytes / 0.94, rel=0.05)
    smaller = simulate_exact(replace(workload, cache_bytes=int(0.95 * enough.cache_bytes)), PART_SIZE)
    assert smaller.later.utilization < HARDLY_WAITS
    assert "it hardly waits" in exact_advice(results)


def test_a_cache_that_cannot_stream_is_refused() -> None:
    with pytest.raises(GrowfsError, match="of the cache for streamed files"):
        simulate_exact(MANY, CacheSize(share=1.0))


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (replace(MANY, bandwidth=1000 * MB, epochs=20), "hardly waits"),  # rotation repeats files four times
        (replace(MANY, cache_bytes=2 * TB, epochs=20), "waits 46% of that"),  # later passes fetch a third
        (replace(HUGE, bandwidth=20 * MB, epochs=4), None),  # the link limits both, and nearly nothing is kept
        (replace(MANY, cache_bytes=3 * TB, epochs=4), None),
    ],
)
def test_exact_is_named_where_it_shows_more(workload: Workload, expected: str | None) -> None:
    hint = exact_hint(workload, PART_SIZE, simulate_policy(workload, "growfs"))
    assert (hint is None) if expected is None else (hint is not None and hint.endswith(f"{expected}; see --exact"))
