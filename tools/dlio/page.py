"""What `tools/bench dlio` writes from its results: docs/dlio.md. page.template has the text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

from tools.benchmarks.measure import ROOT
from tools.dlio.cases import GROWFS_EXACT, GROWFS_ROTATING, PART_SIZE, RUNS, SETTLE, THIRD
from tools.pages import rendered, table
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


UTILIZATION, RATE = ("{:.1%}", 1), ("{:,.1f}", 1)
READY = "mounted after, s"
LINK_USED = "the link is used"
ROWS = {
    READY: ("{:.1f}", -1),
    "utilization, epoch 1": UTILIZATION,
    "utilization, mean": UTILIZATION,
    "samples/s, epoch 1": RATE,
    "samples/s, mean": RATE,
    "computes, of all the time": ("{:.0%}", 1),
    "different, in a pass": ("{:.0%}", 1),
    "distinct samples/s": RATE,
    LINK_USED: ("{:.0%}", 0),
}
"""The format of each figure; and 1 if more is better, -1 if less is, 0 if neither."""


def figures(run: Run, sizes: Sizes) -> dict[str, float]:
    """The figures of a run by their rows. Those of passes are of the ones after the first, if there are any."""
    epochs = run["epochs"]
    found = {
        "utilization, epoch 1": epochs[0]["utilization"],
        "utilization, mean": fmean(epoch["utilization"] for epoch in epochs),  # as DLIO takes it
        "samples/s, epoch 1": epochs[0]["samples_per_s"],
        "samples/s, mean": fmean(epoch["samples_per_s"] for epoch in epochs),
    }
    if passes := run.get("passes", [])[1:] or run.get("passes"):
        names = ("files", "different", "remote_bytes", "wall_s")
        files, different, remote_bytes, wall_s = (sum(each[name] for each in passes) for name in names)
        found |= {
            READY: run["ready_s"],
            "computes, of all the time": files
            * sizes["samples_per_file"]
            / sizes["batch"]
            * sizes["slowed_s"]
            / wall_s,
            "different, in a pass": different / len(passes) / sizes["files"],
            "distinct samples/s": different * sizes["samples_per_file"] / wall_s,
            LINK_USED: remote_bytes / wall_s / sizes["link_rate"],
        }
    return found


def write(results: Results, folder: Path) -> None:
    (folder / PAGE).write_text(markdown(results))


def markdown(results: Results) -> str:
    starts = [epoch["started_s"] for run in results.runs if run["case"] == THIRD for epoch in run["figures"]["epochs"]]
    values = page.common_values(results) | results.cases["dlio"]
    values |= {
        "profiles": profile_table(results),
        "flags": f"--show-files N --settle {SETTLE}",
        "exact_flags": f"{' '.join(EXACT)} --part-size {PART_SIZE}",
        "runs": RUNS,
        "start_s": min(starts, default=0),
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


def rows(results: Results, case: str) -> Iterator[tuple[str, Sizes, str, dict[str, list[float]]]]:
    """For each profile and figure of a case: the profile, its sizes, the row, and the rounds of each way that ran."""
    for name, sizes in profiles(results):
        ways = {way: [figures(run, sizes) for run in results.of(case, way, name)] for way in results.named(case)}
        for row in ROWS:
            found = {way: [run[row] for run in runs if row in run] for way, runs in ways.items()}
            if any(found.values()):
                yield name, sizes, row, {way: values for way, values in found.items() if values}


def case_table(results: Results, case: str) -> str:
    """For each profile and figure, a row with all ways."""
    ways = results.named(case)
    lines = (
        [f"{name}: {row}", *(spread(found[way], ROWS[row][0]) if way in found else "" for way in ways)]
        for name, _, row, found in rows(results, case)
    )
    return table(["", *ways], lines)


# Why growfs is not first.


def reasons(results: Results, case: str) -> str:
    """A list of the rows in which growfs is not first, each with the reason, from what was measured."""
    lines = []
    for name, sizes, row, found in rows(results, case):
        form, better = ROWS[row]
        medians = {way: median(values) * better for way, values in found.items()}
        ours = [way for way in medians if is_growfs(way)]
        if not better or not ours:
            continue
        own, best = (max(ways, key=lambda way: medians[way]) for ways in (ours, list(medians)))
        if form.format(medians[best]) != form.format(medians[own]):
            why = reason(results, case, row, (name, sizes), own, best)
            line = f"- {name}, {row}: {best} is first. {why}"
            lines.append(textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) + "\n")
    return "".join(lines) or "growfs is first in all rows.\n"


def reason(results: Results, case: str, row: str, profile: tuple[str, Sizes], own: str, best: str) -> str:
    """A sentence, from the medians of all rounds."""
    name, sizes = profile
    ours, theirs = (results.of(case, way, name) for way in (own, best))

    def of_both(figure: Callable[[Run], float]) -> tuple[float, float]:
        return median(map(figure, ours)), median(map(figure, theirs))

    if row == READY:
        files = sizes["files"] // RUNS
        mb = files * sizes["samples_per_file"] * sizes["sample_bytes"] / 1e6
        return (
            f"It fetches when it is read. {GROWFS_EXACT} has fetched its first part by then, and {GROWFS_ROTATING}"
            f" {files} files, so that DLIO finds them: {mb:.0f} MB."
        )
    if case == THIRD:
        (own_used, used), (own_waits, waits) = of_both(lambda run: figures(run, sizes)[LINK_USED]), of_both(waiting)
        own_starts, starts = of_both(lambda run: len(run["epochs"]))
        return (
            f"It uses {used:.0%} of the link, and {own} {own_used:.0%}. Of its time, {own} takes {own_waits:.0%} to"
            f" start DLIO and list {own_starts:.0f} times, and {best} {waits:.0%} for {starts:.0f}."
        )
    figure = "utilization" if "utilization" in row else "samples_per_s"
    own_value, value = of_both(lambda run: figures(run, sizes)[row])
    noise = max(of_both(lambda run: pstdev(epoch[figure] for epoch in run["epochs"])))
    if abs(value - own_value) <= noise:
        deviation = ROWS[row][0].format(noise)
        return f"{own} is as close as the epochs of a run are to each other ({deviation} standard deviation)."
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
