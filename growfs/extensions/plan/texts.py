"""`growfs plan`: the workload in its flags, and the results as tables, advice and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from growfs.errors import GrowfsError, UsageError, pip_install
from growfs.simulation.nodes import NodesResult
from growfs.simulation.training import (
    REPEATS_MAX,
    SEEN,
    PolicyResult,
    Workload,
    duration,
    repeats_too_often,
    simulate_policy,
    timespan,
)
from growfs.units import count, flag_size, format_size, fraction_of, parsed, positive, rate, size

TITLES = {"growfs": "growfs", "lru": "LRU", "mru": "MRU", "fifo": "FIFO", "random": "random", "never": "never evict"}


def parse(given: dict[str, str | None]) -> Workload:
    """The workload that the flags describe. Raises UsageError that names the flag."""
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
    return Workload(
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


def nodes_table(found: NodesResult) -> Table:
    """The printed table: bytes from the remote and from other nodes."""
    days = found.all_seen_days
    columns = Table(
        "all nodes together",
        "from the remote",
        "from other nodes",
        title=f"{found.nodes:,} nodes, each with this cache and link",
        caption=f"each has seen {SEEN:.0%} after: {'never' if days is None else timespan(days)}\n"
        f"over two passes, each file is shown for the same time, ±{found.unevenness:.0%}",
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


def whole_epochs(found: list[PolicyResult]) -> list[str]:
    """A line on epochs of all files, if they do not all fit the cache."""
    of = {row.policy: row.whole_epoch_bytes for row in found}
    if not (of["mru"] and of["lru"]):
        return []
    least, lru = format_size(of["mru"]), format_size(of["lru"])
    return [f"an epoch over all files fetches at least {least} with any policy, {lru} with LRU"]


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
    lines = [f"warning: {before:.1f} opens of each fetched file; beyond {REPEATS_MAX:g}, accuracy falls off"]
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
    unit, unit_s = ("days", 86_400) if longest_s > 3 * 86_400 else ("hours", 3_600)
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
