"""Reads through a mount while everything around it fails, and reports failures that should not have happened.

Run it as tools/soak. tf.data and a PyTorch DataLoader train on a bucket through a cache that rotates, and check every
byte. Meanwhile the remote misbehaves and changes, and the daemon, its workers, the S3 server and the readers are killed
with SIGKILL, in an order that --seed repeats. It exits with 1 if a reader saw wrong bytes or an unexplained error, or
if something was left behind or has grown.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from statistics import fmean

from rich import box
from rich.console import Console
from rich.table import Table

from growfs.fuse.probe import why_not_passthrough
from tools.benchmarks.measure import exit_status, temporary_folder
from tools.soaking.processes import Usage
from tools.soaking.soak import QUICK, Pace, Plan, Sample, Soak

QUICK_MINUTES = 3.0
"""A shorter run has fewer files, and faults follow each other faster."""


def soak() -> int:
    """Soak for as long as asked. Returns the exit status. Ctrl-C ends it early, with the tables."""
    parser = argparse.ArgumentParser(prog="tools/soak", description="Read through a mount while everything fails.")
    parser.add_argument(
        "minutes", nargs="?", type=float, default=60.0, metavar="MINUTES", help="how long (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="of the order of the faults")
    parser.add_argument("--engine", choices=("passthrough", "libfuse"), help="mount with this one only")
    arguments = parser.parse_args()
    if arguments.minutes <= 0:
        parser.error("MINUTES is more than 0")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    with temporary_folder() as folder:
        engines = (arguments.engine,) if arguments.engine else ("passthrough", "libfuse")
        if why := why_not_passthrough(folder):
            console.print(f"libfuse only: {why}")
            engines = ("libfuse",)
        console.print(f"tools/soak {arguments.minutes:g} --seed {arguments.seed}")
        pace = QUICK if arguments.minutes < QUICK_MINUTES else Pace()
        run = Soak(Plan(folder, arguments.minutes * 60, arguments.seed, pace, engines), console)
        interrupted = run.run()
    return 1 if print_tables(console, run) else 130 if interrupted else 0


# The tables at the end.

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
    rows.append(("log, kB per minute", log_rate(first), log_rate(last), 20.0))
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


if __name__ == "__main__":
    sys.exit(exit_status("soak", soak))
