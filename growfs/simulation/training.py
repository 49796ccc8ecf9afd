"""A training run in the simulator: how much of a dataset a cache shows over time, and what that costs.

The dataset is scaled down to some thousands of files. All ratios are kept; sizes, rates and times are the real ones.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from growfs.simulation.cache import POLICIES, File, MountSettings
from growfs.simulation.simulator import Simulation
from growfs.units import format_timespan

DIRECTORIES = 10
REPEATS_MAX = 4.0
"""With more opens of each fetched file, accuracy falls off, both in published results and in simulations."""
SEEN = 0.99


@dataclass(frozen=True, slots=True)
class Workload:
    """The dataset, cache, link and training run to simulate."""

    data_bytes: int
    files: float
    cache_bytes: int
    bandwidth: float
    """Bytes per second."""
    read_rate: float
    """Bytes per second."""
    turnover: float = 0.2
    """A share of the cache."""
    epochs: int = 50
    nodes: int = 1
    """How many nodes train like this and feed each other."""


@dataclass(frozen=True, slots=True)
class Point:
    """The state of a training run at the end of an epoch. seen: share of the dataset; the others: since the start."""

    s: float
    seen: float
    opens: int
    fetches: int
    waited: int
    remote_bytes: float


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """The result of a simulated training run with one policy."""

    policy: str
    seen: float
    """The share of the data seen after all epochs."""
    days: float
    """The duration of all epochs."""
    local: float
    """The share of opens that do not wait."""
    epoch_bytes: float
    """Bytes fetched per epoch, in the second half of the epochs."""
    repeats: float | None
    """Opens of each file fetched in that half; None if none was."""
    all_seen_days: float | None
    """Until 99% of the data was seen; None if never."""
    whole_epoch_bytes: int | None
    """Bytes fetched per epoch if each epoch reads all files; see `whole_epoch_bytes`."""
    points: list[Point]


def simulate_policy(workload: Workload, policy: str) -> PolicyResult:
    """Simulate a training run that lists the files for each epoch, and reads all files that it sees."""
    cache_files = workload.cache_bytes / workload.data_bytes * workload.files
    # 2000 files are simulated; more if the cache would hold fewer than 200.
    scale = max(1.0, min(workload.files / 2000, cache_files / 200))
    total = max(1, round(workload.files / scale))
    # growfs fetches no more than four times as much as is read.
    bandwidth = min(workload.bandwidth, 4.0 * workload.read_rate)
    # If the dataset is too large for these epochs, simulate only the part that can be fetched in them.
    reach = cache_files / scale * (1 + workload.epochs * (1 + bandwidth / workload.read_rate))
    file_bytes = max(1, round(workload.data_bytes / total))
    files = [File(1 + i % DIRECTORIES, f"{i % DIRECTORIES}/{i}", file_bytes) for i in range(min(total, int(reach) + 2))]
    limit = max(workload.cache_bytes, file_bytes)
    simulation = Simulation(files, limit, bandwidth, MountSettings(policy, turnover=workload.turnover))
    points = _train(simulation, workload, total)
    half, last = points[len(points) // 2 - 1] if len(points) > 1 else Point(0, 0, 0, 0, 0, 0), points[-1]
    opens, fetches = last.opens - half.opens, last.fetches - half.fetches
    return PolicyResult(
        policy,
        seen=last.seen,
        days=last.s / 86400,
        local=1 - last.waited / last.opens,
        epoch_bytes=(last.remote_bytes - half.remote_bytes) / (len(points) - len(points) // 2),
        repeats=opens / fetches if fetches else None,
        all_seen_days=None
        if policy == "never" and limit < SEEN * workload.data_bytes
        else _all_seen_days(points, half),
        whole_epoch_bytes=whole_epoch_bytes(workload, policy),
        points=points,
    )


def _train(simulation: Simulation, workload: Workload, total: int) -> list[Point]:
    points: list[Point] = []
    step_s = simulation.files[0].size / workload.read_rate
    fits = min(simulation.cache.limit, simulation.cache.catalog_bytes)
    simulation.sleep(max(0.1 * fits, simulation.files[0].size) / simulation.bandwidth * 1.001)
    reader = simulation.reader()
    shuffle = random.Random(0)
    waited = 0
    for _ in range(workload.epochs):
        while not (ids := reader.list()):  # if files are few and large, none may have arrived yet
            simulation.sleep(step_s)
        shuffle.shuffle(ids)
        for id in ids:
            wait_s = reader.open(id)
            waited += wait_s > 0
            simulation.sleep(step_s + wait_s)
        opens, fetches = sum(simulation.opens), sum(simulation.fetches)
        seen = simulation.opened_files / total
        points.append(Point(simulation.now, seen, opens, fetches, waited, float(simulation.remote_bytes)))
    return points


def _all_seen_days(points: list[Point], half: Point) -> float | None:
    """Days until 99% was seen; extrapolated from the second half of the epochs if they do not reach that."""
    last = points[-1]
    for point in points:
        if point.seen >= SEEN:
            return point.s / 86400
    if last.seen <= half.seen:
        return None
    left_s = (SEEN - last.seen) / (last.seen - half.seen) * (last.s - half.s)
    return (last.s + left_s) / 86400 if left_s < 1e4 * 365 * 86400 else None


def simulate_policies(workload: Workload) -> list[PolicyResult]:
    """The results of all policies."""
    return [simulate_policy(workload, policy) for policy in POLICIES]


def whole_epoch_bytes(workload: Workload, policy: str) -> int | None:
    """Bytes fetched in each epoch after the first, if every epoch reads all files, in a new random order. None if there
    is no formula for the policy.

    Each file is read once. So those that are not fetched were cached when the epoch began, and no cache, even one that
    knows all reads in advance (Belady, https://doi.org/10.1147/sj.52.0078), saves more than its size. MRU saves that
    much, and so does never evicting (https://arxiv.org/abs/2007.06775).

    LRU has a file if all files read since its last read fit. Let x and y be the shares of the epochs, the last and the
    current one, without the reads in between: independent and uniform. The reads in between are of a share 1 - x y of
    the files. P(1 - x y < c) = c + (1 - c) ln(1 - c).
    """
    cached = workload.cache_bytes / workload.data_bytes
    if policy in ("mru", "never"):
        return workload.data_bytes - workload.cache_bytes
    if policy == "lru":
        saved = cached + (1 - cached) * math.log(1 - cached) if cached < 1 else 1.0
        return round((1 - saved) * workload.data_bytes)
    return None


def timespan(days: float) -> str:
    """A duration in its two largest units."""
    return format_timespan(round(days * 86400), max_units=2)


def duration(s: float) -> str:
    """A duration in its largest unit: shorter than `timespan` gives it."""
    units = (("days", 86_400), ("hours", 3_600), ("minutes", 60))
    unit, unit_s = next((row for row in units if s >= row[1]), ("seconds", 1))
    return f"{s / unit_s:,.1f} {unit}"


def repeats_too_often(workload: Workload, found: PolicyResult) -> bool:
    """Whether the model sees each fetched file too often. This does not matter if most of the dataset is cached."""
    if workload.cache_bytes > workload.data_bytes / 2:
        return False
    return found.repeats is None or found.repeats > 1.05 * REPEATS_MAX
