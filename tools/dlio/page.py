"""What `tools/bench dlio` writes from its results: docs/dlio.md. page.template has the text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

from tools.benchmarks.measure import ROOT
from tools.dlio.cases import CACHED, GROWFS_EXACT, GROWFS_ROTATING, PART_SIZE, RUNS, SETTLE, THIRD
from tools.pages import QUICK, rendered, table
from tools.peers import page
from tools.peers.peer import EXACT
from tools.peers.results import Results, spread

FILE = ROOT / "docs" / "dlio.json"
PAGE = "dlio.md"
TEMPLATE = Path(__file__).with_name("page.template")

Run = dict[str, Any]
"""The figures of a run."""
Sizes = dict[str, Any]
"""Those of a profile, as in the results."""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of each way to read the files. better: 1 if more is better, -1 if less is, 0 if neither."""

    name: str
    value: Callable[[Run, Sizes], float]
    form: str
    better: int = 1


def first(figure: str) -> Callable[[Run, Sizes], float]:
    """A figure of the first epoch."""
    return lambda run, _: float(run["epochs"][0][figure])


def mean(figure: str) -> Callable[[Run, Sizes], float]:
    """The mean of a figure over all epochs, as DLIO takes it."""
    return lambda run, _: fmean(epoch[figure] for epoch in run["epochs"])


def later(passes: list[dict[str, float]], figure: str) -> float:
    """The sum of a figure over the passes after the first, or over the first if there is no other."""
    return sum(each[figure] for each in passes[1:] or passes)


def busy(run: Run, sizes: Sizes) -> float:
    """The fraction of all the time in which the accelerator computes, after the first pass."""
    steps = later(run["passes"], "files") * sizes["samples_per_file"] / sizes["batch"]
    return float(steps * sizes["slowed_s"] / later(run["passes"], "wall_s"))


def different(run: Run, sizes: Sizes) -> float:
    """The fraction of the files that DLIO opened, in a pass after the first."""
    return later(run["passes"], "different") / len(run["passes"][1:] or run["passes"]) / int(sizes["files"])


def different_per_s(run: Run, sizes: Sizes) -> float:
    """Different samples in a pass for each second of it."""
    return later(run["passes"], "different") * int(sizes["samples_per_file"]) / later(run["passes"], "wall_s")


def link_used(run: Run, sizes: Sizes) -> float:
    """The fraction of the bytes that the link could bring in the passes after the first."""
    return later(run["passes"], "remote_bytes") / later(run["passes"], "wall_s") / float(sizes["link_rate"])


UTILIZATION = Row("utilization, mean", mean("utilization"), "{:.1%}")
RATE = Row("samples/s, mean", mean("samples_per_s"), "{:,.1f}")
COMMON = (
    Row("utilization, epoch 1", first("utilization"), "{:.1%}"),
    UTILIZATION,
    Row("samples/s, epoch 1", first("samples_per_s"), "{:,.1f}"),
    RATE,
)
READY = Row("mounted after, s", lambda run, _: float(run["ready_s"]), "{:.1f}", -1)
DIFFERENT_PER_S = Row("distinct samples/s", different_per_s, "{:,.1f}")
ROWS = {
    CACHED: COMMON,
    THIRD: (
        READY,
        *COMMON,
        Row("computes, of all the time", busy, "{:.0%}"),
        Row("different, in a pass", different, "{:.0%}"),
        DIFFERENT_PER_S,
        Row("the link is used", link_used, "{:.0%}", 0),
    ),
}


def write(results: Results, folder: Path) -> None:
    (folder / PAGE).write_text(markdown(results))


def markdown(results: Results) -> str:
    machine, dlio = results.machine, results.cases["dlio"]
    missing = page.left_out(results)
    starts = [epoch["started_s"] for run in results.runs if run["case"] == THIRD for epoch in run["figures"]["epochs"]]
    values = {
        **machine,
        **dlio,
        "date": results.date,
        "memory_gb": machine["memory_bytes"] / 1e9,
        "remarks": QUICK if results.quick else "",
        "profiles": profile_table(results),
        "flags": f"--show-files N --settle {SETTLE}",
        "exact_flags": f"{' '.join(EXACT)} --part-size {PART_SIZE}",
        "runs": RUNS,
        "start_s": min(starts, default=0),
        "left_out": f"\nNot measured:\n\n{missing}" if missing else "",
    }

    def of_case(case: str) -> dict[str, Any] | None:
        if not results.has(case):
            return None
        return {**values, "table": case_table(results, case), "reasons": reasons(results, case)}

    return rendered(TEMPLATE, values, of_case).strip() + "\n"


def profiles(results: Results) -> Iterator[tuple[str, Sizes]]:
    """The profiles that ran."""
    for name, sizes in results.cases.items():
        if name != "dlio":
            taken = sizes["batch"] * sizes["sample_bytes"]
            rates = {"rate": taken / sizes["step_s"], "slowed_rate": taken / sizes["slowed_s"]}
            yield name, sizes | rates | {"link_rate": rates["slowed_rate"] / results.cases["dlio"]["ingest"]}


def profile_table(results: Results) -> str:
    """The sizes of the profiles."""
    rows = (
        [
            name,
            sizes["reader"],
            f"{sizes['files']} of {sizes['samples_per_file']} samples",
            f"{sizes['sample_bytes'] / 1e6:.2f} MB",
            f"{sizes['batch']}",
            f"{sizes['rate'] / 1e6:.0f} MB/s",
            f"{sizes['slowed_rate'] / 1e6:.0f} MB/s",
            f"{sizes['target']:.0%}",
        ]
        for name, sizes in profiles(results)
    )
    return table(
        ["", "reader", "files", "a sample", "batch", "accelerator takes", "with a link", "target for utilization"], rows
    )


def case_table(results: Results, case: str) -> str:
    """For each profile and figure, a row with all ways."""
    ways = results.named(case)
    rows = []
    for name, sizes in profiles(results):
        for row in ROWS[case]:
            cells = []
            for way in ways:
                found = [row.value(run, sizes) for run in results.of(case, way, name)]
                cells.append(spread(found, row.form) if found else "")
            rows.append([f"{name}: {row.name}", *cells])
    return table(["", *ways], rows)


# Why growfs is not first.


def reasons(results: Results, case: str) -> str:
    """A list of the rows in which growfs is not first, each with the reason, from what was measured."""
    lines = []
    for name, sizes in profiles(results):
        for row in ROWS[case]:
            found = {
                way: median(row.value(run, sizes) for run in runs) * row.better
                for way in results.named(case)
                if (runs := results.of(case, way, name))
            }
            ours = [way for way in found if is_growfs(way)]
            if not row.better or not ours:
                continue
            own, best = (max(ways, key=lambda way: found[way]) for ways in (ours, list(found)))
            if row.form.format(found[best]) != row.form.format(found[own]):
                why = reason(results, case, row, (name, sizes), own, best)
                line = f"- {name}, {row.name}: {best} is first. {why}"
                lines.append(textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) + "\n")
    return "".join(lines) or "growfs is first in all rows.\n"


def reason(results: Results, case: str, row: Row, profile: tuple[str, Sizes], own: str, best: str) -> str:
    """A sentence, from the medians of all rounds."""
    name, sizes = profile
    ours, theirs = (results.of(case, way, name) for way in (own, best))

    def of_both(figure: Callable[[Run], float]) -> tuple[float, float]:
        return median(map(figure, ours)), median(map(figure, theirs))

    if row is READY:
        files = sizes["files"] // RUNS
        mb = files * sizes["samples_per_file"] * sizes["sample_bytes"] / 1e6
        return (
            f"It fetches when it is read. {GROWFS_EXACT} has fetched its first part by then, and {GROWFS_ROTATING}"
            f" {files} files, so that DLIO finds them: {mb:.0f} MB."
        )
    if case == THIRD:
        (own_used, used), (own_waits, waits) = of_both(lambda run: link_used(run, sizes)), of_both(waiting)
        own_starts, starts = of_both(lambda run: len(run["epochs"]))
        return (
            f"It uses {used:.0%} of the link, and {own} {own_used:.0%}. Of its time, {own} takes {own_waits:.0%} to"
            f" start DLIO and list {own_starts:.0f} times, and {best} {waits:.0%} for {starts:.0f}."
        )
    figure = "utilization" if "utilization" in row.name else "samples_per_s"
    own_value, value = of_both(lambda run: row.value(run, sizes))
    noise = max(of_both(lambda run: pstdev(epoch[figure] for epoch in run["epochs"])))
    if abs(value - own_value) <= noise:
        return (
            f"{own} is as close as the epochs of a run are to each other ({row.form.format(noise)} standard deviation)."
        )
    samples = sizes["files"] * sizes["samples_per_file"] * sizes["epochs"]
    own_ms, ms = of_both(lambda run: 1e3 * run["cpu_s"] / samples)
    own_cores, cores = of_both(lambda run: run["cores"])
    return (
        f"DLIO takes {own_ms:.1f} ms of CPU for a sample over {own}, and {ms:.1f} over {best};"
        f" {own_cores:.1f} cores were busy, with {best} {cores:.1f}."
    )


def is_growfs(way: str) -> bool:
    return way.split(",")[0].split()[0] == GROWFS_ROTATING


def waiting(run: Run) -> float:
    """The fraction of the time of all passes in which DLIO starts and lists."""
    return float(sum(each["started_s"] for each in run["passes"]) / sum(each["wall_s"] for each in run["passes"]))
