"""Reports the results: means with confidence intervals, as a table and as a plot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from tools.training.digits import BATCH
from tools.training.orders import Reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONFIDENCE = 0.95
GOAL_POINTS, GOAL_OPENS_MAX = 0.3, 4
"""The goal: a rotating cache is within this many points of everything local, with at most this many opens per fetch."""
COLOURS = {"growfs": "tab:blue", "stream, repeated": "tab:orange", "LRU": "tab:green"}


@dataclass(slots=True)
class Row:
    """All repetitions of one way to read. opens_per_fetch: the nominal ratio; None if it does not apply.

    accuracies: percent. differences: points, compared with everything local in the same repetition.
    """

    way: str
    opens_per_fetch: int | None
    readings: list[Reading] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The text of the first column."""
        return f"{self.way}, {self.opens_per_fetch}" if self.opens_per_fetch else self.way


def interval(values: Sequence[float]) -> tuple[float, float]:
    """A mean and the half-width of its confidence interval by Student's t (nan for a single repetition)."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * error


def table(rows: Iterable[Row]) -> str:
    """The table in Markdown."""
    lines = [
        "| way to read, opens per fetch | steps | fetches per open | fetched, times the data | data seen"
        " | opens that waited | accuracy, % | difference to everything local, points |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        shares = [
            (len(one.samples) / BATCH, one.fetches_per_open, one.fetched, one.seen, one.waited / len(one.samples))
            for one in row.readings
        ]
        forms = ("{:,.0f}", "{:.3f}", "{:.1f}", "{:.1%}", "{:.1%}")
        cells = [form.format(mean) for form, mean in zip(forms, np.mean(shares, axis=0), strict=True)]
        is_other = any(row.differences) or row.opens_per_fetch
        cells += [shown(row.accuracies), shown(row.differences, "+") if is_other else ""]
        lines.append(f"| {' | '.join([row.name, *cells])} |")
    return "\n".join(lines) + "\n"


def shown(values: Sequence[float], sign: str = "") -> str:
    """The interval as text. sign: "+" to also show the sign of gains."""
    mean, half = interval(values)
    return f"{mean:{sign}.2f}" + ("" if math.isnan(half) else f" ± {half:.2f}")


def verdict(rows: Iterable[Row]) -> list[str]:
    """For each row of growfs that the goal covers, a line on whether it is met."""
    lines = []
    for row in rows:
        if row.way.startswith("growfs") and row.opens_per_fetch and row.opens_per_fetch <= GOAL_OPENS_MAX:
            mean, half = interval(row.differences)
            met = "met" if mean >= -GOAL_POINTS else "missed"
            if math.isnan(half):
                met = "unknown from one repetition"
            elif abs(mean + GOAL_POINTS) < half:
                met += ", with the goal inside the interval"
            lines.append(f"- {row.name}: {shown(row.differences, '+')} points: {met}.")
    return lines


def draw(rows_by_epochs: dict[int, list[Row]], path: Path) -> None:
    """Plot the differences to everything local over the opens per fetch, for each length of training."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Equal results give equal files: no date, no random names. Text stays text, which is smaller.
    with mpl.rc_context({"svg.hashsalt": "growfs", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(4 * len(rows_by_epochs) + 0.5, 3.4), layout="constrained")
        axes = figure.subplots(1, len(rows_by_epochs), sharey=True, squeeze=False)[0]
        for axis, (epochs, rows) in zip(axes, rows_by_epochs.items(), strict=True):
            draw_length(axis, epochs, rows)
        axes[0].set_ylabel("accuracy, difference from everything local")
        axes[-1].legend(fontsize=8, loc="lower left")
        figure.savefig(path, metadata={"Date": None})


def draw_length(axis: Axes, epochs: int, rows: list[Row]) -> None:
    """Plot one length of training."""
    axis.set_title(f"{epochs} epochs' worth of steps", fontsize=9)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.axhline(-GOAL_POINTS, color="grey", linewidth=0.8, linestyle="--", label=f"goal: -{GOAL_POINTS}")
    for number, (way, colour) in enumerate(COLOURS.items()):
        # At the measured ratio: an LRU cache fetches more than the nominal one.
        points = [
            (1 / float(np.mean([one.fetches_per_open for one in row.readings])), interval(row.differences))
            for row in rows
            if row.way == way
        ]
        x = [mean * 1.03**number for mean, _ in points]  # side by side, so the bars do not overlap
        means, halves = zip(*(of for _, of in points), strict=True)
        bars = [0 if math.isnan(half) else half for half in halves]
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 3, "linewidth": 1}
        axis.errorbar(x, means, bars, color=colour, label=way, **style)
    axis.set_xscale("log")
    axis.set_xticks([1, 2, 4, 10], ["1", "2", "4", "10"])
    axis.minorticks_off()
    axis.set_xlabel("opens per fetch")
    for row in rows:
        if row.way == "never evict":
            note = f"never evict: {interval(row.differences)[0]:+.1f}"
            axis.text(0.62, 0.03, note, transform=axis.transAxes, ha="center", fontsize=8)
