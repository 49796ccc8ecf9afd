"""The data of the report's charts: lists of values, as many as a page can show. report.html has the charts.

Times are in milliseconds since 1970, as in Vega.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

from growfs.extensions.report.figures import Directory, Figures, segments
from growfs.status_and_metrics import MountState

Values = list[dict[str, Any]]

POINTS_MAX = 400
"""Points of a line over time."""
BARS_MAX = 60
GENERATIONS_MAX = 30
"""Marks of generations over time; if there are more generations, only some are marked."""
STEPS_S = (2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 43_200, 86_400, 7 * 86_400, 30 * 86_400)
"""The possible durations of a bar over time."""


def chart_data(figures: Figures) -> dict[str, Values]:
    """The datasets, by the names used in the charts."""
    history = figures.history
    parts = list(segments(history))
    spans = [(part[0]["at"], part[-1]["at"]) for part in parts]
    start, end = min(start for start, _ in spans), max(end for _, end in spans)
    share = history[-1]["files"] / max(1, history[-1]["share_files"])
    return {
        "points": _points(parts),
        "bars": _bars(parts),
        "gaps": [{"t": 1000 * end, "t2": 1000 * start} for (_, end), (start, _) in pairwise(spans) if start > end],
        "generations": _generations(history),
        "states": _states(parts),
        "opens": _opens(figures.opens),
        "directories": [_directory(directory) for directory in figures.directories],
        "whole": [{"t": 1000 * start, "t2": 1000 * max(end, start + 1), "share": share}],
    }


def coverage(row: sqlite3.Row) -> float:
    """The share of the files that were ever cached."""
    return float(min(1.0, max(row["files_seen"], row["files"]) / max(1, row["share_files"])))


def _points(parts: Sequence[Sequence[sqlite3.Row]]) -> Values:
    """The history, in as many points as a line needs. part: the number of the segment; a line stays within one."""
    first = parts[0][0]
    before = max(0, max(first["files_seen"], first["files"]) - first["fetched_files"])
    every = max(1, sum(map(len, parts)) // POINTS_MAX)
    points = []
    for number, part in enumerate(parts):
        for row in chain(part[:-1:every], part[-1:]):
            best = min(1.0, (before + row["fetched_files"]) / max(1, row["share_files"]))
            points.append(
                {
                    "t": 1000 * row["at"], "part": number, "bytes": row["bytes"], "limit": row["limit_bytes"],
                    "files": row["files"], "listed": row["listed_files"], "remote": row["share_files"],
                    "seen": coverage(row), "best": max(best, coverage(row)), "generation": row["generation"],
                }
            )  # fmt: skip
    return points


def _bars(parts: Sequence[Sequence[sqlite3.Row]]) -> Values:
    """The activity in each of at most BARS_MAX periods. Activity in a gap is unknown, and counts as none."""
    rows = [row for part in parts for row in part]
    start, end = min(row["at"] for row in rows), max(row["at"] for row in rows)
    step = next((step for step in STEPS_S if end - start < step * BARS_MAX), (end - start) // BARS_MAX + 1)
    first = start // step * step
    names = {"arrived": "fetched_files", "evicted": "evicted_files", "misses": "missed_files", "wait_ms": "wait_ms"}
    bars: dict[int, dict[str, int]] = {}
    for before, row in pairwise(rows):
        bar = bars.setdefault(max(0, row["at"] - 1 - first) // step, dict.fromkeys(names, 0))
        for name, column in names.items():
            bar[name] += row[column] - before[column]
    return [
        {
            "t": 1000 * max(start, first + number * step), "t2": 1000 * min(end, first + (number + 1) * step),
            "arrived": bar["arrived"], "evicted": -bar["evicted"], "misses": bar["misses"],
            "wait_s": bar["wait_ms"] / 1000,
        }
        for number, bar in sorted(bars.items())
    ]  # fmt: skip


def _generations(history: Sequence[sqlite3.Row]) -> Values:
    begun = [row for before, row in pairwise(history) if row["generation"] > before["generation"]]
    every = len(begun) // GENERATIONS_MAX + 1
    return [{"t": 1000 * row["at"], "generation": row["generation"]} for row in begun[::every]]


def _states(parts: Sequence[Sequence[sqlite3.Row]]) -> Values:
    """How long each state lasted."""
    states: Values = []
    for part in parts:
        since = part[0]
        for row in (*part[1:], None):
            if row is None or row["state"] != since["state"]:
                until, label = row or part[-1], MountState(since["state"]).label
                states.append({"t": 1000 * since["at"], "t2": 1000 * until["at"], "state": label})
                since = until
    longest = sorted(states, key=lambda state: state["t"] - state["t2"])[:POINTS_MAX]
    return sorted(longest, key=lambda state: state["t"])


def _opens(opens: Sequence[tuple[int, int | None, int]]) -> Values:
    def name(least: int, most: int | None) -> str:
        if most is None:
            return f"{least}+"
        return str(least) if least == most else f"{least}-{most}"

    return [{"opens": name(least, most), "least": least, "files": files} for least, most, files in opens]


def _directory(directory: Directory) -> dict[str, Any]:
    return {
        "path": directory.path or "/", "cached": directory.cached, "files": directory.files, "seen": directory.seen,
        "share": directory.cached / directory.files, "seen_share": min(1.0, directory.seen / directory.files),
        "opens": round(directory.opens / max(1, directory.seen), 2),
    }  # fmt: skip
