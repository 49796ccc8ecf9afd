"""The tables at the end of a soak."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from rich import box
from rich.console import Console
from rich.table import Table

from tools.soaking.processes import Usage
from tools.soaking.soak import Sample, Soak

JUDGED_S = 600.0
"""A daemon that has lived for less is shown but not judged: it is still filling its cache and tables of readers."""
GROWTH_MAX = 1.25
"""How far the mean of the last third of its life may exceed that of the second; the first third is for warm-up."""
FIGURES: dict[str, tuple[Callable[[Sample], float], float]] = {
    "memory of the daemon, MB": (lambda sample: sample.used[0].bytes / 1e6, 5),
    "its descriptors, without those of cached files": (lambda sample: sample.used[0].descriptors, 10),
    "its threads": (lambda sample: sample.used[0].threads, 3),
    "its processes": (lambda sample: len(sample.used) - 1, 2),
    "memory of the largest, MB": (lambda sample: largest(sample, lambda usage: usage.bytes / 1e6), 30),
    "descriptors of the one that has most": (lambda sample: largest(sample, lambda usage: usage.descriptors), 20),
    "threads of the one that has most": (lambda sample: largest(sample, lambda usage: usage.threads), 20),
    "disk, MB": (lambda sample: sample.disk_bytes / 1e6, 5),
}
"""The sampled figures, and the increase that never counts as growth. Workers are new after an outage, and small."""
LOG_KB_PER_MINUTE = 20.0


def largest(sample: Sample, of: Callable[[Usage], float]) -> float:
    return max(map(of, sample.used[1:]), default=0.0)


def print_tables(console: Console, soak: Soak) -> int:
    """Print the results of a soak; returns the number of problems."""
    findings, counts = soak.findings, soak.counts

    def table(title: str, *columns: str) -> Table:
        made = Table(title=title, title_justify="left", box=box.HEAVY_HEAD if console.is_terminal else box.MARKDOWN)
        for number, column in enumerate(columns):
            made.add_column(column, justify="right" if number else "left")
        return made

    read = table(f"Read and checked in {counts.seconds / 60:.1f} minutes", "reader", "epochs", "files", "MB")
    for kind in sorted(findings.epochs):
        megabytes = f"{findings.bytes[kind] / 1e6:,.0f}"
        read.add_row(kind, f"{findings.epochs[kind]:,}", f"{findings.files[kind]:,}", megabytes)
    done = table("Faults injected", "fault", "times")
    for name, times in (*counts.actions.most_common(), *counts.changes.most_common()):
        done.add_row(name if name in counts.actions else f"{name} a file of the remote", f"{times:,}")
    for name, times in counts.faults.most_common():
        done.add_row(f"request: {name}", f"{times:,}")
    errors = table("Errors that readers saw", "error", "times")
    for name, times in findings.due.most_common():
        errors.add_row(f"due: {name}", f"{times:,}")
    usage = table("What the last daemon used, mean", "", "second third", "last third", "verdict")
    grown = add_usage(usage, soak.samples)
    problems = findings.problems + [f"{name} has grown" for name in grown]
    errors.add_row("not due", f"{len(problems):,}")
    for shown in (read, done, errors, usage):
        console.print(shown)
        console.print()
    for problem in problems:
        console.print(problem, style="red", markup=False)
    kept = f"; the logs are in {soak.kept}" if soak.kept else ""
    console.print(f"{len(problems)} problems{kept}" if problems else "nothing was lost")
    return len(problems)


def add_usage(table: Table, samples: list[Sample]) -> list[str]:
    """Add a row for each figure; returns the figures that have grown."""
    if len(samples) < 8:
        return []
    third = len(samples) // 3
    first, last = samples[third:-third], samples[-third:]
    is_judged = samples[-1].at - samples[0].at >= JUDGED_S
    rows = [(name, fmean(map(of, first)), fmean(map(of, last)), slack) for name, (of, slack) in FIGURES.items()]
    rows.append(("log, kB per minute", log_rate(first), log_rate(last), LOG_KB_PER_MINUTE))
    grown: list[str] = []
    for name, before, after, slack in rows:
        has_grown = after > max(before * GROWTH_MAX, before + slack)
        verdict = ("grown" if has_grown else "flat") if is_judged else ""
        table.add_row(name, f"{before:,.1f}", f"{after:,.1f}", verdict)
        grown += [name] if verdict == "grown" else []
    return grown


def log_rate(samples: list[Sample]) -> float:
    first, last = samples[0], samples[-1]
    return (last.log_bytes - first.log_bytes) / 1e3 / (last.at - first.at) * 60
