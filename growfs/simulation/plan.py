"""`growfs plan`: simulates how much of a dataset a cache will show over time, and what that costs.

The dataset is scaled down to some thousands of files. All ratios are kept; sizes, rates and times are the real ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from growfs.errors import GrowfsError, UsageError, pip_install
from growfs.simulation.cache import POLICIES, File, MountSettings
from growfs.simulation.nodes import NodesResult
from growfs.simulation.simulator import Simulation
from growfs.units import count, flag_size, format_size, format_timespan, fraction_of, parsed, positive, rate, size

MODEL_FILES = 2000
"""How many files a simulated dataset has; more if its cache would hold fewer than MODEL_CACHE_FILES."""
MODEL_CACHE_FILES = 200
DIRECTORIES = 10
BANDWIDTH_MOST = 4.0
"""The link is simulated as at most this many times as fast as files are read: growfs fetches no more than that."""
REPEATS_MAX = 4.0
"""With more opens of each fetched file, accuracy falls off, both in published results and in simulations."""
TOLERANCE = 1.05
SEEN = 0.99
UNITS_S = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))
DAYS_FROM_S = 3 * 86_400
"""Runs longer than this are drawn in days, others in hours."""
FOREVER_S = 1e4 * 365 * 86400
TITLES = {"growfs": "growfs", "lru": "LRU", "mru": "MRU", "fifo": "FIFO", "random": "random", "never": "never evict"}


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

    @classmethod
    def parse(cls, given: dict[str, str | None]) -> Workload:
        """Parse the values of the flags. Raises UsageError that names the flag."""
        if (given["--files"] is None) == (given["--file-size"] is None):
            raise UsageError("plan: pass either --files or --file-size")
        data = _number(given, "--data-size", size)
        files = _number(given, "--files", count) if given["--files"] else data / _number(given, "--file-size", size)
        cache = min(data, _number(given, "--cache-size", size))
        if files > data:
            raise UsageError(f"plan: {files:,.0f} files cannot share {format_size(data)}; each needs a byte")
        if cache < min(data, 2 * data / files):
            one = format_size(int(data / files))
            raise UsageError(f"plan: --cache-size: a cache of {format_size(cache)} does not hold two files of {one}")
        return cls(
            data_bytes=data,
            files=max(1.0, files),
            cache_bytes=cache,
            bandwidth=_number(given, "--bandwidth", rate),
            read_rate=_number(given, "--read-rate", rate),
            turnover=_number(given, "--turnover", fraction_of),
            epochs=_number(given, "--epochs", positive),
            nodes=_number(given, "--nodes", positive),
        )


def _number(given: dict[str, str | None], flag: str, parse: Callable[[str], Any]) -> Any:
    value = parsed(f"plan: {flag}", parse, given[flag] or "")
    if not value:
        raise UsageError(f"plan: {flag}: must be more than 0")
    return value


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
    scale = max(1.0, min(workload.files / MODEL_FILES, cache_files / MODEL_CACHE_FILES))
    total = max(1, round(workload.files / scale))
    bandwidth = min(workload.bandwidth, BANDWIDTH_MOST * workload.read_rate)
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
    return (last.s + left_s) / 86400 if left_s < FOREVER_S else None


def simulate_policies(workload: Workload) -> list[PolicyResult]:
    """The results of all policies."""
    return [simulate_policy(workload, policy) for policy in POLICIES]


def nodes_table(found: NodesResult) -> Table:
    """The printed table: bytes from the remote and from other nodes."""
    days = found.all_seen_days
    columns = Table(
        "all nodes together",
        "from the remote",
        "from other nodes",
        title=f"{found.nodes:,} nodes, each with this cache and link",
        caption=f"each has seen {SEEN:.0%} after: {'never' if days is None else timespan(days)}\n"
        f"in two passes, each shows all files equally long, ±{found.unevenness:.0%}",
    )
    for name, remote, peers in (
        ("first pass, with --peers", found.first_remote_bytes, found.first_peer_bytes),
        ("each later pass", found.later_remote_bytes, found.later_peer_bytes),
        ("first pass, without --peers", found.first_alone_bytes, 0),
        ("each later pass", found.later_alone_bytes, 0),
    ):
        columns.add_row(name, format_size(remote), format_size(peers))
    return columns


def table(workload: Workload, found: list[PolicyResult]) -> Table:
    """The printed table: a row for each policy."""
    columns = Table(
        "policy",
        *(
            f"seen\nafter {workload.epochs:,}\nepochs",
            "that\ntakes",
            "opens\nthat do\nnot wait",
            "fetched\nper epoch",
            "opens\nper\nfetch",
            f"{SEEN:.0%}\nseen\nafter",
        ),
        title=(
            f"{format_size(workload.data_bytes)} in {workload.files:,.0f} files,"
            f" {format_size(workload.cache_bytes)} of cache, {format_size(workload.bandwidth)}/s,"
            f" read at {format_size(workload.read_rate)}/s"
        ),
    )
    for row in found:
        days = row.all_seen_days
        columns.add_row(
            TITLES[row.policy],
            f"{row.seen:.1%}" if row.seen >= 0.01 else f"{100 * row.seen:.2g}%",
            duration(row.days * 86400),
            f"{row.local:.1%}",
            format_size(round(row.epoch_bytes)),
            "-" if row.repeats is None else f"{row.repeats:.1f}",
            "never" if days is None else duration(days * 86400),
        )
    return columns


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


def whole_epochs(found: list[PolicyResult]) -> list[str]:
    """A line on epochs of all files, if they do not all fit the cache."""
    of = {row.policy: row.whole_epoch_bytes for row in found}
    if not (of["mru"] and of["lru"]):
        return []
    least, lru = format_size(of["mru"]), format_size(of["lru"])
    return [f"an epoch of all files fetches at least {least} with any policy, {lru} with LRU"]


def timespan(days: float) -> str:
    """A duration in its two largest units."""
    return format_timespan(round(days * 86400), max_units=2)


def duration(s: float) -> str:
    """A duration in its largest unit: shorter than `timespan` gives it."""
    unit, unit_s = next((row for row in UNITS_S if s >= row[1]), UNITS_S[-1])
    return f"{s / unit_s:,.1f} {unit}"


def repeats_too_often(workload: Workload, found: PolicyResult) -> bool:
    """Whether the model sees each fetched file too often. This does not matter if most of the dataset is cached."""
    if workload.cache_bytes > workload.data_bytes / 2:
        return False
    return found.repeats is None or found.repeats > TOLERANCE * REPEATS_MAX


def advice(workload: Workload, found: PolicyResult) -> list[str]:
    """Warnings if files are seen too often, with the options that help, found by simulating each."""
    if not repeats_too_often(workload, found):
        return []
    more = min(1.0, 2 * workload.turnover)
    knobs = {
        f"--turnover {more:.0%}": replace(workload, turnover=more),
        f"--bandwidth {flag_size(2 * workload.bandwidth)}/s": replace(workload, bandwidth=2 * workload.bandwidth),
        f"--read-rate {flag_size(workload.read_rate / 2)}/s (a slower or heavier step)": replace(
            workload, read_rate=workload.read_rate / 2
        ),
        f"--cache-size {flag_size(2 * workload.cache_bytes)}": replace(
            workload, cache_bytes=min(workload.data_bytes, 2 * workload.cache_bytes)
        ),
        f"--turnover {more:.0%} with --bandwidth {flag_size(2 * workload.bandwidth)}/s": replace(
            workload, turnover=more, bandwidth=2 * workload.bandwidth
        ),
    }
    before = found.repeats or math.inf
    tried = {knob: simulate_policy(changed, "growfs").repeats or math.inf for knob, changed in knobs.items()}
    lines = [f"warning: {before:.1f} opens of each fetched file; beyond {REPEATS_MAX:g} accuracy falls off"]
    for knob, repeats in sorted(tried.items(), key=lambda pair: pair[1]):
        helps = repeats * 1.1 < before
        lines.append(f"  {knob}: {repeats:.1f}{'' if helps else ', which does not help'}")
    return lines


def draw(found: list[PolicyResult], path: Path) -> None:
    """Write an image of coverage, and of opens per fetch, over time. Raises GrowfsError.

    Drawn with matplotlib, from the extra `report`.
    """
    try:
        import matplotlib
    except ImportError:
        raise GrowfsError(f"plan: --draw needs matplotlib: {pip_install('growfs[report]')}") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (seen, repeats) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 7), layout="constrained")
    longest_s = max(row.points[-1].s for row in found)
    unit, unit_s = ("days", 86_400) if longest_s > DAYS_FROM_S else ("hours", 3_600)
    for row in found:
        times = [point.s / unit_s for point in row.points]
        seen.plot(times, [100 * point.seen for point in row.points], label=TITLES[row.policy])
        repeats.plot(times, [point.opens / max(1, point.fetches) for point in row.points], label=TITLES[row.policy])
    seen.set(ylabel="seen of the dataset, %", ylim=(0, None))
    repeats.set(ylabel="opens per fetch, so far", xlabel=unit, yscale="log")
    seen.legend()
    for axes in (seen, repeats):
        axes.grid(alpha=0.3)
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:  # unknown format
        raise UsageError(f"plan: --draw {path}: {str(error).partition('(')[0].strip()}; use FILE.png") from None
    except OSError as error:
        raise GrowfsError(f"plan: --draw {path}: {error.strerror}") from None
    finally:
        pyplot.close(figure)
