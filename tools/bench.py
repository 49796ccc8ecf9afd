"""Measures growfs on this machine, compared with plain files and copy programs, and reports which targets are met.

Run it as tools/bench.

Each figure is a median over rounds in which all engines, the plain files and the peers alternate, so ratios compare
runs that follow each other. Each round has a fresh mount: "first" means that the kernel's caches hold nothing of the
mount. Unless a figure says "cold", the cached file's own pages are in memory, because growfs does not determine the
disk's speed. "noise" is the median's standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import growfs
from growfs.errors import GrowfsError
from tools.benchmarks import cached, filling, training, while_fetching
from tools.benchmarks.first import first
from tools.benchmarks.gpu import gpu
from tools.benchmarks.measure import (
    ENGINES,
    NOISE_MAX,
    BenchError,
    Figure,
    Figures,
    Setting,
    exit_status,
    temporary_folder,
    write_file,
)
from tools.benchmarks.mounts import fully_cached
from tools.benchmarks.nodes import nodes
from tools.benchmarks.noise import noise
from tools.benchmarks.stalls import stalls
from tools.benchmarks.start import start
from tools.benchmarks.stores import stores
from tools.dlio import main as dlio
from tools.peers import main as peers

BENCHMARKS: dict[str, Callable[[Setting, Figures], str]] = {
    "reads": cached.reads,
    "small-files": cached.small_files,
    "walk": cached.walk,
    "frameworks": training.frameworks,
    "recipes": training.recipes,
    "gpu": gpu,
    "rotation": while_fetching.rotation,
    "idle": cached.idle,
    "start": start,
    "first": first,
    "download": filling.download,
    "https": filling.https,
    "producers": filling.producers,
    "small-fetch": filling.small_fetch,
    "far": filling.far,
    "stores": stores,
    "noise": noise,
    "while-filling": while_fetching.while_filling,
    "busy": while_fetching.busy,
    "stalls": stalls,
    "nodes": nodes,
}
"""Each runs its measurements, and returns the title of its figures."""

COMPARISONS: dict[str, Sequence[Callable[[Sequence[str], dict[str, object]], int]]] = {
    "peers": (peers.main,),
    "dlio": (dlio.main,),
    "comparisons": (peers.main, dlio.main),
}
"""Commands of their own, which write docs/side-by-side.md and docs/dlio.md. Each gets its arguments and the machine."""

FIELDS = ("name", "measured", "unit", "rounds", "noise", "target", "met")
"""The fields of a figure, as written by --json."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def machine() -> dict[str, Any]:
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model[0].partition(":")[2].strip() if model else os.uname().machine,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
        "user": "root" if os.geteuid() == 0 else "not root",
        "load": round(os.getloadavg()[0], 2),
    }


def table_of(title: str, figures: Iterable[Figure]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("figure", "median", "range", "noise", "target", ""):
        table.add_column(name, justify="left" if name in ("figure", "target", "") else "right")
    for figure in figures:
        verdict = "" if figure.met is None else "[green]met[/]" if figure.met else "[red]missed[/]"
        noisy = figure.noise is not None and figure.noise > NOISE_MAX
        verdict += " [yellow](noisy)[/]" if verdict and noisy else ""
        table.add_row(
            figure.name,
            f"{shown(figure.measured)} {figure.unit}",
            f"{shown(min(figure.rounds))} - {shown(max(figure.rounds))}" if len(figure.rounds) > 1 else "",
            "" if figure.noise is None else Text(f"{figure.noise:.1%}", "yellow" if noisy else ""),
            figure.target or "",
            verdict,
        )
    return table


def shown(value: float) -> str:
    """The value with three digits, or all digits of a large number."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def engines() -> tuple[str, ...]:
    """The engines that work on this machine. Prints why the others do not."""
    found = []
    with temporary_folder() as folder:
        write_file(folder / "remote" / "file", b"a file\n")
        for engine in ENGINES:
            try:
                with fully_cached(engine, folder / "remote", folder):
                    found.append(engine)
            except BenchError as error:
                console.print(f"[yellow]the {engine} engine does not work here: {escape(str(error))}[/]")
    return tuple(found)


def bench() -> int:
    """Run the named benchmarks (by default, all), or one of the comparisons. Returns the exit status."""
    if compare := COMPARISONS.get(" ".join(sys.argv[1:2])):
        return max([main_of(sys.argv[2:], machine()) for main_of in compare])
    parser = argparse.ArgumentParser(
        prog="tools/bench",
        description="Measure growfs on this machine. `tools/bench peers` and `tools/bench dlio` compare it with other"
        " tools; `tools/bench comparisons` runs both.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"benchmarks to run: {', '.join(BENCHMARKS)} (default: all)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few rounds, to check that everything runs"
    )
    parser.add_argument("--rounds", type=int, help="how often to measure each figure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the arrival curves of the benchmark `first`")
    parser.add_argument(
        "--engine",
        action="append",
        choices=ENGINES,
        help="measure only this engine; may be repeated (default: all that work)",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; choose from {', '.join(BENCHMARKS)}")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds is at least 1")

    about = machine()
    console.print(f"growfs {growfs.__version__}; " + ", ".join(f"{name} {value}" for name, value in about.items()))
    if arguments.quick:
        console.print("[yellow]--quick: the targets apply to larger sizes; these figures only show that it runs[/]")
    results: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    try:
        wanted = tuple(arguments.engine or engines())
        for name in arguments.names or BENCHMARKS:
            began, found = time.monotonic(), Figures()
            try:
                with temporary_folder() as folder:
                    rounds = arguments.rounds or (2 if arguments.quick else 5)
                    setting = Setting(folder, arguments.quick, rounds, wanted, arguments.plot)
                    with console.status(f"{name} ...") if console.is_terminal else nullcontext():
                        title = BENCHMARKS[name](setting, found)
            except (BenchError, GrowfsError, OSError) as error:
                title, failed[name] = "failed", str(error)
            console.print(table_of(f"{name}: {title} ({time.monotonic() - began:.0f} s)", found.values()))
            results += [
                {"benchmark": name} | {field: getattr(figure, field) for field in FIELDS} for figure in found.values()
            ]
    finally:
        if arguments.json:
            report = {"growfs": growfs.__version__, "machine": about, "quick": arguments.quick, "figures": results}
            arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    for name, message in failed.items():
        print(f"bench: {name} failed: {message}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_status("bench", bench))
