"""The charts of the report: Vega-Lite specifications, and the data that they draw.

A specification holds no name of a file or directory; those are in the data. "@green" in it is a color of the page,
which is light or dark. Times are in milliseconds since 1970, as Vega has them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

from growfs.client.figures import Directory, Figures, segments
from growfs.status import MountState

Spec = dict[str, Any]
Values = list[dict[str, Any]]

HEIGHT = 230
POINTS_MAX = 400
"""Points of a line over time."""
BARS_MAX = 60
GENERATIONS_MAX = 30
"""Marks of generations over time; of more of them, some are marked."""
STEPS_S = (2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 43_200, 86_400, 7 * 86_400, 30 * 86_400)
"""How long a bar over time may last."""
BYTES = "format(datum.value, '.3~s') + 'B'"
COUNT = (
    "datum.value % 1 ? '' : abs(datum.value) < 1000 ? format(abs(datum.value), '~r') : format(abs(datum.value), '.3~s')"
)
SECONDS = "format(datum.value, datum.value < 1000 ? '~r' : '~s') + ' s'"
TIME = {"field": "t", "type": "temporal", "title": "time", "format": "%Y-%m-%d %H:%M:%S"}
TIME_FORMATS = ((600, "%H:%M:%S"), (86_400, "%H:%M"), (4 * 86_400, "%b %d %H:%M"))
"""(up to which time in seconds, how the times of an axis are written)."""
LEGENDS = {
    "bytes": {"cached": "green", "size of the cache": "muted"},
    "files": {"cached": "green", "listed": "blue"},
    "coverage": {"cached at some time": "green", "if each fetch had brought a new file": "muted"},
    "traffic": {"arrived": "green", "evicted": "amber"},
    "directories": {"cached now": "green", "cached at some time": "faint", "all files": "muted"},
}
"""The colors of each chart. The page shows them, because a legend of Vega does not wrap on a narrow screen."""


@dataclass(frozen=True, slots=True)
class Charts:
    """Specifications by name, and the data sets that they refer to."""

    specs: dict[str, Spec]
    data: dict[str, Values]


def charts(figures: Figures) -> Charts:
    """The charts of a report. Without a miss there is none of misses."""
    history = figures.history
    parts = list(segments(history))
    spans = [(part[0]["at"], part[-1]["at"]) for part in parts]
    data = {
        "points": _points(parts),
        "bars": _bars(parts),
        "gaps": [{"t": 1000 * end, "t2": 1000 * start} for (_, end), (start, _) in pairwise(spans) if start > end],
        "generations": _generations(history),
        "states": _states(parts),
        "opens": _opens(figures.opens),
        "directories": [_directory(directory) for directory in figures.directories],
    }
    start, end = min(start for start, _ in spans), max(end for _, end in spans)
    span = [1000 * start, 1000 * max(end, start + 1)]
    share = history[-1]["files"] / max(1, history[-1]["share_files"])
    specs = {
        "states": _state_strip(span),
        "bytes": _over_time(span, _bytes_layers(), BYTES, "the cache on the disk"),
        "files": _over_time(span, _file_layers(), COUNT, "files"),
        "coverage": _over_time(span, _coverage_layers(), "format(datum.value, '.0%')", "coverage", [0, 1]),
        "traffic": _over_time(span, _traffic_layers(), COUNT, "files"),
        "opens": _opens_chart(),
        "directories": _directories_chart(share),
    }
    if any(bar["misses"] for bar in data["bars"]):
        specs["misses"] = _over_time(
            span, [_bars_layer("misses", "@amber", _value("misses", "opens"))], COUNT, "opens that waited"
        )
        specs["waits"] = _over_time(
            span, [_bars_layer("wait_s", "@red", _value("wait_s", "seconds", ",.1f"))], SECONDS, "seconds waited"
        )
    return Charts(specs, data)


# Data.


def coverage(row: sqlite3.Row) -> float:
    """The share of the files that was cached at some time."""
    return float(min(1.0, max(row["files_seen"], row["files"]) / max(1, row["share_files"])))


def _points(parts: Sequence[Sequence[sqlite3.Row]]) -> Values:
    """The history, as so many points as a line needs. part: the number of the segment, which a line does not leave."""
    first = parts[0][0]
    before = max(0, max(first["files_seen"], first["files"]) - first["fetched_files"])
    every = max(1, sum(map(len, parts)) // POINTS_MAX)
    points = []
    for number, part in enumerate(parts):
        for row in _thinned(part, every):
            best = min(1.0, (before + row["fetched_files"]) / max(1, row["share_files"]))
            points.append(
                {
                    "t": 1000 * row["at"], "part": number, "bytes": row["bytes"], "limit": row["limit_bytes"],
                    "files": row["files"], "listed": row["listed_files"], "remote": row["share_files"],
                    "seen": coverage(row), "best": max(best, coverage(row)), "generation": row["generation"],
                }
            )  # fmt: skip
    return points


def _thinned(rows: Sequence[sqlite3.Row], every: int) -> Iterable[sqlite3.Row]:
    """Every so many-th row, with the first and the last."""
    return chain(rows[:-1:every], rows[-1:])


def _bars(parts: Sequence[Sequence[sqlite3.Row]]) -> Values:
    """What happened in each of at most BARS_MAX periods. What happened in a gap is not known, and is nothing."""
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
                until = row or part[-1]
                states.append({"t": 1000 * since["at"], "t2": 1000 * until["at"], "state": since["state"]})
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


# Specifications.


def _over_time(
    span: list[int], layers: Sequence[Spec], labels: str, title: str, domain: list[float] | None = None
) -> Spec:
    """A chart over the time of the report, with gaps and generations marked. labels: an expression for the y axis."""
    scale = {"domain": domain} if domain else {"nice": True}
    axis = {"title": None, "labelExpr": labels} | ({"tickMinStep": 1} if labels == COUNT else {})
    time = _time(span)
    x = {name: time[name] for name in time if name != "scale"}  # one layer says what the scale of all is
    y = {"type": "quantitative", "scale": scale, "axis": axis}
    drawn = [{**layer, "encoding": {"x": x, **layer["encoding"]}} for layer in layers]
    for layer in drawn:
        if "field" in layer["encoding"]["y"]:
            layer["encoding"]["y"] |= y | {"stack": None}
    return _chart(title, {"height": HEIGHT, "layer": [_gaps(x), _generation_marks(time), *drawn]})


def _chart(description: str, spec: Spec) -> Spec:
    return {"description": description, "width": "container", **spec}


def _time(span: list[int]) -> Spec:
    """The x axis. span: the first and the last time that it shows."""
    seconds = (span[1] - span[0]) / 1000
    format = next((text for most_s, text in TIME_FORMATS if seconds < most_s), "%b %d")
    axis = {"title": None, "format": format}
    return {"field": "t", "type": "temporal", "scale": {"domain": span, "nice": False}, "axis": axis}


def _gaps(x: Spec) -> Spec:
    return {
        "data": {"name": "gaps"},
        "mark": {"type": "rect", "color": "@line", "opacity": 0.6},
        "encoding": {
            "x": x,
            "x2": {"field": "t2"},
            "tooltip": {"value": "not mounted, asleep, or the clock was set"},
        },
    }


def _generation_marks(x: Spec) -> Spec:
    return {
        "data": {"name": "generations"},
        "mark": {"type": "rule", "color": "@line", "strokeDash": [2, 3]},
        "encoding": {"x": x, "tooltip": [{"field": "generation", "type": "quantitative"}, TIME]},
    }


def _line(field: str, color: str, **mark: Any) -> Spec:
    return {
        "data": {"name": "points"},
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2, "color": color, **mark},
        "encoding": {"y": {"field": field}, "detail": {"field": "part"}},
    }


def _area(field: str, **mark: Any) -> Spec:
    return _line(field, "@green", type="area", line={"color": "@green"}, fillOpacity=0.22, **mark)


def _ruler(*tooltip: Spec) -> Spec:
    """A line at the pointer, with the values there."""
    hover = {"type": "point", "on": "pointermove", "clear": "pointerout", "encodings": ["x"], "nearest": True}
    return {
        "data": {"name": "points"},
        "params": [{"name": "hover", "select": hover}],
        "mark": {"type": "rule", "color": "@muted"},
        "encoding": {
            "y": {"value": 0},
            "y2": {"value": HEIGHT},
            "opacity": {"condition": {"param": "hover", "empty": False, "value": 0.8}, "value": 0},
            "tooltip": [TIME, *tooltip],
        },
    }


def _value(field: str, title: str, format: str = ",") -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "format": format}


LIMIT = {"strokeDash": [5, 4], "strokeWidth": 1.5}


def _bytes_layers() -> list[Spec]:
    ruler = _ruler(_value("bytes", "cached"), _value("limit", "size of the cache"))
    return [_area("bytes"), _line("limit", "@muted", **LIMIT), ruler]


def _file_layers() -> list[Spec]:
    ruler = _ruler(_value("files", "cached"), _value("listed", "listed"), _value("generation", "generation"))
    return [_area("files"), _line("listed", "@blue"), ruler]


def _coverage_layers() -> list[Spec]:
    linear = {"interpolate": "linear"}
    ruler = _ruler(_value("seen", "coverage", ".1%"), _value("best", "best possible", ".1%"))
    return [_area("seen", **linear), _line("best", "@muted", **LIMIT, **linear), ruler]


def _bars_layer(field: str, color: str, *tooltip: Spec) -> Spec:
    return {
        "data": {"name": "bars"},
        "transform": [{"filter": f"datum.{field}"}],
        "mark": {"type": "rect", "color": color, "stroke": "@card", "strokeWidth": 0.7},
        "encoding": {
            "x2": {"field": "t2"},
            "y": {"field": field},
            "y2": {"datum": 0},
            "tooltip": [TIME, *tooltip],
        },
    }


def _traffic_layers() -> list[Spec]:
    tooltip = _value("arrived", "arrived"), _value("evicted", "evicted", "(,")
    return [_bars_layer("arrived", "@green", *tooltip), _bars_layer("evicted", "@amber", *tooltip)]


def _state_strip(span: list[int]) -> Spec:
    scale = {"domain": [state.value for state in MountState], "range": [f"@{state.page_color}" for state in MountState]}
    return _chart(
        "the state of the mount over time",
        {
            "height": 18,
            "data": {"name": "states"},
            "mark": {"type": "rect"},
            "encoding": {
                "x": {**_time(span), "scale": {"nice": False}},
                "x2": {"field": "t2"},
                "color": {"field": "state", "type": "nominal", "scale": scale, "legend": None},
                "tooltip": [{"field": "state", "type": "nominal"}, TIME, {**TIME, "field": "t2", "title": "until"}],
            },
        },
    )


def _opens_chart() -> Spec:
    return _chart(
        "files by how often they were opened",
        {
            "height": HEIGHT,
            "data": {"name": "opens"},
            "mark": {"type": "bar", "cornerRadiusEnd": 2},
            "encoding": {
                "x": {
                    "field": "opens",
                    "type": "ordinal",
                    "sort": None,
                    "axis": {"title": "times opened", "labelAngle": 0, "labelOverlap": "greedy", "grid": False},
                },
                "y": {"field": "files", "type": "quantitative", "axis": {"title": None, "labelExpr": COUNT}},
                "color": {"condition": {"test": "datum.least == 0", "value": "@amber"}, "value": "@green"},
                "tooltip": [{"field": "opens", "type": "ordinal", "title": "opened"}, _value("files", "files")],
            },
        },
    )


def _directories_chart(share: float) -> Spec:
    """share: of all files that are cached, which is marked."""
    y = {"field": "path", "type": "nominal", "sort": None, "axis": {"title": None, "grid": False}}
    x = {"type": "quantitative", "scale": {"domain": [0, 1]}, "axis": {"title": None, "format": ".0%"}}
    fields = [
        {"field": "path", "type": "nominal", "title": "directory"}, _value("files", "files"),
        _value("cached", "cached now"), _value("seen", "cached at some time"), _value("opens", "opens of each", ",.2f"),
    ]  # fmt: skip

    def bar(field: str, color: str) -> Spec:
        return {
            "data": {"name": "directories"},
            "mark": {"type": "bar", "color": color, "cornerRadiusEnd": 2, "height": {"band": 0.7}},
            "encoding": {"y": y, "x": {**x, "field": field}, "tooltip": fields},
        }

    mean = {
        "data": {"values": [{"share": share}]},
        "mark": {"type": "rule", "color": "@muted", "strokeDash": [5, 4]},
        "encoding": {"x": {**x, "field": "share"}, "tooltip": [_value("share", "of all files", ".1%")]},
    }
    layers = [bar("seen_share", "@faint"), bar("share", "@green"), mean]
    return _chart("cached files of each directory", {"height": {"step": 20}, "layer": layers})
