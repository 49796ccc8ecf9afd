"""The results: all repetitions of each way to read, means with confidence intervals, tables and the plot."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tools.training.mnist import TRAIN
from tools.training.orders import OPENS_PER_S, Reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONFIDENCE = 0.95
GOAL_POINTS, GOAL_OPENS_MAX = 0.3, 4
"""The goal: a rotating cache is within this many points of everything local, with at most this many opens per fetch."""
LOCAL, STATIC, GROWFS, EXACT, LRU, KEEPING = (
    *("everything local", "static subset"),
    *("growfs", "growfs --exact", "LRU mount", "never evict"),
)
COLORS = {GROWFS: "tab:blue", EXACT: "tab:cyan", KEEPING: "tab:orange", LRU: "tab:green"}
SEEN_AFTER = (1, 2, 5, 10)
"""After how many epochs' time the coverage is shown."""


@dataclass(slots=True)
class Row:
    """All repetitions of one way to read. The lists have a value for each.

    opens_per_fetch: in the time of how many opens the link delivers a file; None if that does not matter. in_time:
    whether training ends after a time, and not after a number of samples.
    """

    way: str
    opens_per_fetch: int | None = None
    in_time: bool = False
    mounted: bool = False
    samples: list[int] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)
    seen: list[list[float]] = field(default_factory=list)
    """For each of SEEN_AFTER, the fraction of the data."""
    accuracies: list[float] = field(default_factory=list)
    """In percent."""

    def add(self, reading: Reading, accuracy: float) -> None:
        self.samples.append(len(reading.samples))
        self.fetched.append(reading.fetched)
        self.seen.append([round(reading.seen_after(epochs * TRAIN / OPENS_PER_S), 4) for epochs in SEEN_AFTER])
        self.accuracies.append(round(accuracy, 2))

    @property
    def opens_of_each(self) -> float:
        return float(np.sum(self.samples) / np.sum(self.fetched))


@dataclass(slots=True)
class Findings:
    """The content of the results' file."""

    quick: bool
    epochs: int
    rows: list[Row]

    @classmethod
    def load(cls, file: Path) -> Findings:
        values = json.loads(file.read_text())
        return cls(**values | {"rows": [Row(**row) for row in values["rows"]]})

    def save(self, file: Path) -> None:
        """Write the file, a line for each row."""
        values = asdict(self)
        rows = ",\n".join(map(json.dumps, values.pop("rows")))
        file.write_text(f'{json.dumps(values)[:-1]}, "rows": [\n{rows}\n]}}\n')

    @property
    def repetitions(self) -> int:
        return min(len(row.accuracies) for row in self.rows)

    def row(self, way: str, opens_per_fetch: int | None = None, in_time: bool = False) -> Row | None:
        """The row of a way to read that is simulated, if it was tested."""
        wanted = (way, opens_per_fetch, in_time, False)
        found = (row for row in self.rows if (row.way, row.opens_per_fetch, row.in_time, row.mounted) == wanted)
        return next(found, None)

    def links(self) -> list[int]:
        """The links on which ways that wait were tested."""
        return [row.opens_per_fetch for row in self.rows if row.way == LRU and not row.mounted and row.opens_per_fetch]

    def differences(self, row: Row, other: Row | None = None) -> list[float]:
        """The differences in accuracy, in points, to the other row in the same repetition; by default to all local."""
        others = (other or self.rows[0]).accuracies
        return [mine - theirs for mine, theirs in zip(row.accuracies, others, strict=False)]

    def difference(self, row: Row, digits: int = 2) -> str:
        """The mean difference from everything local, as text."""
        return "" if row.way == LOCAL else shown(self.differences(row), "+", digits)

    def steps(self, row: Row) -> float:
        """The steps, as a share of those of everything local."""
        return float(np.mean(row.samples) / np.mean(self.rows[0].samples))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """A mean and the half-width of its confidence interval by Student's t (nan for a single repetition)."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan
    from scipy.special import stdtrit  # takes long to import, for those who only need the names of this module

    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * error


def shown(values: Sequence[float], sign: str = "", digits: int = 2) -> str:
    """The interval as text. sign: "+" to also show the sign of gains."""
    mean, half = interval(values)
    mean = round(mean, digits) + 0.0  # no negative zero
    return f"{mean:{sign if mean else ''}.{digits}f}" + ("" if math.isnan(half) else f" ± {half:.{digits}f}")


def verdicts(found: Findings) -> str:
    """For each row of growfs that the goal covers, a line on whether it is met."""
    lines = []
    for row in found.rows:
        if row.way == GROWFS and row.opens_per_fetch and row.opens_per_fetch <= GOAL_OPENS_MAX:
            mean, half = interval(found.differences(row))
            met = "met" if mean >= -GOAL_POINTS else "missed"
            if math.isnan(half):
                met = "unknown from one repetition"
            elif abs(mean + GOAL_POINTS) < half:
                met += ", but the goal is inside the interval"
            through = " through a mount" * row.mounted
            lines.append(f"- growfs, {row.opens_per_fetch}{through}: {found.difference(row)} points: {met}.\n")
    return "".join(lines)


def draw(found: Findings, path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Equal results give equal files: no date, no random names. Text stays text, which is smaller.
    with mpl.rc_context({"svg.hashsalt": "growfs", "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9}):
        figure = Figure(figsize=(8.5, 3.4), layout="constrained")
        samples, in_time = figure.subplots(1, 2)
        about = "accuracy, difference from all local, points"
        samples.set(title="the same number of samples", xlabel="opens of each fetched file", ylabel=about)
        samples.axhline(-GOAL_POINTS, color="grey", linewidth=0.8, linestyle="--", label=f"goal: -{GOAL_POINTS}")
        _line(samples, found, [row for row in found.rows if row.way == GROWFS and not row.mounted], 0)
        notes = [row for row in found.rows if row.way in (EXACT, STATIC) and not row.in_time]
        note = "\n".join(f"{row.way}: {found.difference(row, 1)}" for row in notes)
        samples.text(0.97, 0.97, note, transform=samples.transAxes, ha="right", va="top", fontsize=8)
        in_time.set(title="the same time", xlabel="the link delivers a file in the time of so many opens")
        for number, way in enumerate(COLORS):
            rows = [row for row in found.rows if row.way == way and row.in_time and not row.mounted]
            _line(in_time, found, [row for row in rows if row.opens_per_fetch in found.links()], number)
        ratios = sorted({row.opens_per_fetch for row in found.rows if row.opens_per_fetch})
        for axis, ticks in ((samples, ratios), (in_time, found.links())):
            axis.axhline(0, color="black", linewidth=0.8)
            axis.set(xscale="log", xticks=ticks, xticklabels=ticks)
            axis.minorticks_off()
            axis.legend(fontsize=8, loc="lower left")
        figure.savefig(path, metadata={"Date": None})


def _line(axis: Axes, found: Findings, rows: list[Row], number: int) -> None:
    points = [(row.opens_per_fetch, *interval(found.differences(row))) for row in rows if row.opens_per_fetch]
    x = [ratio * 1.02**number for ratio, _, _ in points]  # side by side, so the bars do not overlap
    bars = [0 if math.isnan(half) else half for _, _, half in points]
    style: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 3, "linewidth": 1}
    axis.errorbar(x, [mean for _, mean, _ in points], bars, color=COLORS[rows[0].way], label=rows[0].way, **style)
