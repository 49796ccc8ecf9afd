"""`growfs plan`: what a cache will show of a data set, and what that costs, before either is there. By simulation.

The data set is scaled down to some thousands of files with all ratios kept; sizes, rates and times stay the real ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from humanfriendly import format_size, format_timespan
from rich.table import Table

from growfs.errors import UsageError
from growfs.simulation.cache import POLICIES, File, MountSettings
from growfs.simulation.simulator import Simulation
from growfs.units import count, fraction_of, positive, rate, size

MODEL_FILES = 2000
"""So many files a simulated data set has, or more where its cache would hold fewer than the next number."""
MODEL_CACHE_FILES = 200
DIRECTORIES = 10
BANDWIDTH_MOST = 4.0
"""The link is simulated at most so many times as fast as files are read: growfs fetches no more than that."""
REPEATS_MAX = 4.0
"""Beyond so many opens of each fetched file accuracy falls off, in what is published and in simulations."""
TOLERANCE = 1.05
SEEN = 0.99
FOREVER_S = 1e4 * 365 * 86400
TITLES = {"growfs": "growfs", "lru": "LRU", "fifo": "FIFO", "random": "random", "never": "never evict"}


@dataclass(frozen=True, slots=True)
class Question:
    """What is planned. bandwidth, read_rate: bytes in a second. turnover: a share of the cache."""

    data_bytes: int
    files: float
    cache_bytes: int
    bandwidth: float
    read_rate: float
    turnover: float = 0.2
    epochs: int = 50

    @classmethod
    def parse(cls, given: dict[str, str | None]) -> Question:
        """From texts by flag. Raises UsageError that names the flag."""
        if (given["--files"] is None) == (given["--file-size"] is None):
            raise UsageError("plan: give one of --files and --file-size")
        data = _parsed(given, "--data-size", size)
        files = _parsed(given, "--files", count) if given["--files"] else data / _parsed(given, "--file-size", size)
        cache = min(data, _parsed(given, "--cache-size", size))
        if files > data:
            raise UsageError(f"plan: {files:,.0f} files cannot share {format_size(data)}; each needs a byte")
        if cache < min(data, 2 * data / files):
            one = format_size(int(data / files))
            raise UsageError(f"plan: --cache-size: a cache of {format_size(cache)} does not hold two files of {one}")
        return cls(
            data_bytes=data,
            files=max(1.0, files),
            cache_bytes=cache,
            bandwidth=_parsed(given, "--bandwidth", rate),
            read_rate=_parsed(given, "--read-rate", rate),
            turnover=_parsed(given, "--turnover", fraction_of),
            epochs=_parsed(given, "--epochs", positive),
        )


def _parsed(given: dict[str, str | None], flag: str, parse: Callable[[str], Any]) -> Any:
    try:
        value = parse(given[flag] or "")
    except UsageError as error:
        raise UsageError(f"plan: {flag}: {error}") from None
    if not value:
        raise UsageError(f"plan: {flag}: {given[flag]!r} is nothing; write more than 0")
    return value


@dataclass(frozen=True, slots=True)
class Point:
    """Where a training run stands at the end of an epoch. seen: share of the data set; the others: since the start."""

    s: float
    seen: float
    opens: int
    fetches: int
    waited: int
    remote_bytes: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy makes of it.

    seen: share of the data after all epochs. days: how long they take. local: share of opens that wait for nothing.
    epoch_bytes, repeats: fetched per epoch, and opens of each fetched file, in the second half of the epochs; no
    repeats (None): nothing is fetched then. all_seen_days: until 99% of the data was seen; None: never.
    """

    policy: str
    seen: float
    days: float
    local: float
    epoch_bytes: float
    repeats: float | None
    all_seen_days: float | None
    points: list[Point]


def answer(question: Question, policy: str) -> Answer:
    """Simulate a training run that lists anew for each epoch, and reads all that it sees."""
    cache_files = question.cache_bytes / question.data_bytes * question.files
    scale = max(1.0, min(question.files / MODEL_FILES, cache_files / MODEL_CACHE_FILES))
    total = max(1, round(question.files / scale))
    bandwidth = min(question.bandwidth, BANDWIDTH_MOST * question.read_rate)
    # Of a data set that all these epochs cannot get through, only so much is simulated as can come.
    reach = cache_files / scale * (1 + question.epochs * (1 + bandwidth / question.read_rate))
    file_bytes = max(1, round(question.data_bytes / total))
    files = [File(1 + i % DIRECTORIES, f"{i % DIRECTORIES}/{i}", file_bytes) for i in range(min(total, int(reach) + 2))]
    limit = max(question.cache_bytes, file_bytes)
    simulation = Simulation(files, limit, bandwidth, MountSettings(policy, turnover=question.turnover))
    points = _train(simulation, question, total)
    half, last = points[len(points) // 2 - 1] if len(points) > 1 else Point(0, 0, 0, 0, 0, 0), points[-1]
    opens, fetches = last.opens - half.opens, last.fetches - half.fetches
    return Answer(
        policy,
        seen=last.seen,
        days=last.s / 86400,
        local=1 - last.waited / last.opens,
        epoch_bytes=(last.remote_bytes - half.remote_bytes) / (len(points) - len(points) // 2),
        repeats=opens / fetches if fetches else None,
        all_seen_days=None
        if policy == "never" and limit < SEEN * question.data_bytes
        else _all_seen_days(points, half),
        points=points,
    )


def _train(simulation: Simulation, question: Question, total: int) -> list[Point]:
    points: list[Point] = []
    step_s = simulation.files[0].size / question.read_rate
    fits = min(simulation.cache.limit, simulation.cache.catalog_bytes)
    simulation.sleep(max(0.1 * fits, simulation.files[0].size) / simulation.bandwidth * 1.001)
    reader = simulation.reader()
    shuffle = random.Random(0)
    waited = 0
    for _ in range(question.epochs):
        ids = reader.list()
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
    """Until 99% was seen; where the epochs do not reach that, it goes on as in their second half."""
    last = points[-1]
    for point in points:
        if point.seen >= SEEN:
            return point.s / 86400
    if last.seen <= half.seen:
        return None
    left_s = (SEEN - last.seen) / (last.seen - half.seen) * (last.s - half.s)
    return (last.s + left_s) / 86400 if left_s < FOREVER_S else None


def answers(question: Question) -> list[Answer]:
    """Of each policy."""
    return [answer(question, policy) for policy in POLICIES]


def table(question: Question, found: list[Answer]) -> Table:
    """For people: a row for each policy."""
    columns = Table(
        "policy",
        *(
            f"seen after\n{question.epochs:,} epochs",
            "that takes",
            "opens that\ndo not wait",
            "fetched\nper epoch",
            "opens per\nfetch",
            f"{SEEN:.0%} seen\nafter",
        ),
        title=(
            f"{format_size(question.data_bytes)} in {question.files:,.0f} files,"
            f" {format_size(question.cache_bytes)} of cache, {format_size(question.bandwidth)}/s,"
            f" read at {format_size(question.read_rate)}/s"
        ),
    )
    for row in found:
        days = row.all_seen_days
        columns.add_row(
            TITLES[row.policy],
            f"{row.seen:.1%}" if row.seen >= 0.01 else f"{100 * row.seen:.2g}%",
            timespan(row.days),
            f"{row.local:.1%}",
            str(format_size(round(row.epoch_bytes))),
            "-" if row.repeats is None else f"{row.repeats:.1f}",
            "never" if days is None else timespan(days),
        )
    return columns


def timespan(days: float) -> str:
    """In the two largest units."""
    return str(format_timespan(round(days * 86400), max_units=2))


def repeats_too_often(question: Question, found: Answer) -> bool:
    """Whether the model sees each fetched file too often; where most of the data set is local, that is no matter."""
    if question.cache_bytes > question.data_bytes / 2:
        return False
    return found.repeats is None or found.repeats > TOLERANCE * REPEATS_MAX


def advice(question: Question, found: Answer) -> list[str]:
    """A warning where files are seen too often, and which knob helps, by simulating each; else nothing."""
    if not repeats_too_often(question, found):
        return []
    more = min(1.0, 2 * question.turnover)
    knobs = {
        f"--turnover {more:.0%}": replace(question, turnover=more),
        f"--bandwidth {format_size(2 * question.bandwidth)}/s": replace(question, bandwidth=2 * question.bandwidth),
        f"--read-rate {format_size(question.read_rate / 2)}/s (a slower or heavier step)": replace(
            question, read_rate=question.read_rate / 2
        ),
        f"--cache-size {format_size(2 * question.cache_bytes)}": replace(
            question, cache_bytes=min(question.data_bytes, 2 * question.cache_bytes)
        ),
        f"--turnover {more:.0%} with --bandwidth {format_size(2 * question.bandwidth)}/s": replace(
            question, turnover=more, bandwidth=2 * question.bandwidth
        ),
    }
    before = found.repeats or math.inf
    tried = {knob: answer(changed, "growfs").repeats or math.inf for knob, changed in knobs.items()}
    lines = [f"warning: {before:.1f} opens of each fetched file; beyond {REPEATS_MAX:g} accuracy falls off"]
    for knob, repeats in sorted(tried.items(), key=lambda pair: pair[1]):
        helps = repeats * 1.1 < before
        lines.append(f"  {knob}: {repeats:.1f}{'' if helps else ', which does not help'}")
    return lines
