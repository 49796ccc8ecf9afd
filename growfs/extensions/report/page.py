"""`growfs report`: one self-contained page that shows a mount's activity. It needs neither a network nor a daemon.

The plots are drawn in the browser by Vega-Lite, which is part of the page; it comes with the extra `report`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from growfs.daemon.running import find_cache
from growfs.errors import GrowfsError, pip_install
from growfs.extensions.report.charts import Values, chart_data, coverage
from growfs.extensions.report.figures import Figures, read
from growfs.status_and_metrics import MountState
from growfs.units import format_size, format_timespan


@dataclass(frozen=True, slots=True)
class Report:
    """The page. A notebook shows it in its own frame, so that its styles and the notebook's do not mix."""

    html: str = field(repr=False)

    @classmethod
    def of(cls, place: Path, last_s: float | None = None) -> Report:
        """Make the page. place: a mountpoint, or a cache. last_s: the time to cover, or None. Raises GrowfsError."""
        figures = read(find_cache(place), last_s)
        data = chart_data(figures)
        palette = {each.label: each.page_color for each in MountState}
        state = MountState(figures.history[-1]["state"]) if figures.is_mounted else None
        page = Template(files("growfs.extensions.report").joinpath("report.html").read_text(encoding="utf-8"))
        html = page.substitute(
            title=escape(f"growfs: {figures.mount['url']}"),
            url=escape(figures.mount["url"]),
            state=escape(state.text) if state else "not mounted",
            state_color=state.page_color if state else "gray",
            subtitle=_subtitle(figures),
            tiles="\n".join(_tiles(figures)),
            cards="\n".join(_cards(figures, data)),
            footer=f"growfs {escape(figures.mount['version'])}, {_clock(figures.now)}",
            # names may contain tags
            data=json.dumps(data | {"palette": palette}, separators=(",", ":")).replace("<", "\\u003c"),
            library=_library().replace("</script", "<\\/script"),
        )
        return cls(html)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file. Raises GrowfsError."""
        try:
            Path(path).write_text(self.html, encoding="utf-8", errors="replace")
        except OSError as error:
            raise GrowfsError(f"report: {path}: {error.strerror}") from None

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 900px; border: 0; border-radius: 8px"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


def _library() -> str:
    try:
        from vl_convert import javascript_bundle
    except ImportError:
        raise GrowfsError(f"report: needs vl-convert-python: {pip_install('growfs[report]')}") from None
    return str(javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _subtitle(figures: Figures) -> str:
    mount, history = figures.mount, figures.history
    start, end = history[0]["at"], history[-1]["at"]
    where = "mounted on" if figures.is_mounted else "last mounted on"
    return escape(
        f"{where} {mount['mountpoint']}, {mount['engine']} engine ({mount['engine_reason']}). "
        f"{format_timespan(max(0, end - start), max_units=2)} of history, until {_clock(end)}."
    )


def _tiles(figures: Figures) -> list[str]:
    first, last = figures.history[0], figures.history[-1]
    share, remote = coverage(last), last["share_files"]
    waited_s = (last["wait_ms"] - first["wait_ms"]) / 1000
    missed = last["missed_files"] - first["missed_files"]
    fetched = last["fetched_files"] - first["fetched_files"]
    of_remote = f"{last['files'] / max(1, remote):.0%} of {remote:,} files"
    seen = max(last["files_seen"], last["files"])
    return [
        _tile(
            "Waited",
            format_timespan(round(waited_s, 1), max_units=1).replace("seconds", "s").replace("minutes", "min"),
            f"{missed:,} opens of files that were not cached",
            "waited",
        ),
        _tile("Cached now", f"{last['files']:,}", of_remote, "files"),
        _tile("On the disk", format_size(last["bytes"]), f"of {format_size(last['limit_bytes'])}", "bytes"),
        _tile("Coverage", f"{share:.1%}", f"{seen:,} files ever cached", "coverage"),
        _tile("Opens per file", f"{last['opens'] / max(1, seen):.1f}", f"{last['opens']:,} opens in all", "opens"),
        _tile("Fetched", format_size(last["fetched_bytes"] - first["fetched_bytes"]), f"{fetched:,} files", "fetched"),
    ]


def _tile(name: str, value: str, note: str, id: str) -> str:
    return (
        f'<div class="tile" id="{id}"><div class="name">{escape(name)}</div>'
        f'<div class="value">{escape(value)}</div><div class="note">{escape(note)}</div></div>'
    )


def _cards(figures: Figures, data: dict[str, Values]) -> Iterator[str]:
    """For each chart, a sentence about it, and its colors: a legend of Vega does not wrap on a narrow screen."""
    last, points, bars = figures.history[-1], data["points"], data["bars"]
    states = {value["state"] for value in data["states"]}
    yield _card("states", "State", colors={each.label: each.page_color for each in MountState if each.label in states})
    yield _card(
        "coverage",
        "Coverage",
        f"{points[-1]['seen']:.1%} of the files were ever cached; {points[-1]['best']:.1%} is the most that the"
        " files fetched could have shown.",
        {"ever cached": "green", "if each fetch had brought a new file": "muted"},
    )
    used = f"{format_size(last['bytes'])} of {format_size(last['limit_bytes'])} on the disk."
    yield _card("bytes", "Cache", used, {"cached": "green", "size of the cache": "muted"})
    yield _card(
        "files",
        "Files",
        f"{last['listed_files']:,} of the {last['files']:,} cached files are listed, in generation"
        f" {last['generation']:,}. Dotted lines mark new generations.",
        {"cached": "green", "listed": "blue"},
    )
    arrived, evicted = (abs(sum(bar[name] for bar in bars)) for name in ("arrived", "evicted"))
    note = f"{arrived:,} files arrived, and {evicted:,} were evicted."
    yield _card("traffic", "Arrivals and evictions", note, {"arrived": "green", "evicted": "amber"})
    unopened = next((files for least, _, files in figures.opens if least == 0), 0)
    never = f"{unopened:,} files were cached and never opened."
    yield _card("opens", "Opens per file", never if unopened else "Every file that was cached was opened.")
    if any(bar["misses"] for bar in bars):
        yield _card("misses", "Opens that waited", "Each is an open of a file that was not cached.")
        note = "Total seconds that opens waited for files that were not cached."
        yield _card("waits", "Time that opens waited", note)
    half, total = len(figures.directories) // 2, figures.directories_all
    is_all = total == len(figures.directories)
    which = "All of" if is_all else f"The {half} with the fewest and the {half} with the most of"
    yield _card(
        "directories",
        "Balance of the directories",
        f"{which} {total:,} directories, by the share of their files that is cached. The dashed line is that of all"
        " files.",
        {"cached now": "green", "ever cached": "faint", "all files": "muted"},
    )
    mount = figures.mount
    rows = {"cache": mount["cache_dir"], "engine": f"{mount['engine']} ({mount['engine_reason']})", **mount["options"]}
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows.items())
    yield f'<section class="card wide"><h2>Settings</h2><dl>{items}</dl></section>'


def _card(name: str, title: str, note: str = "", colors: dict[str, str] | None = None) -> str:
    keys = "".join(
        # Limits and averages are muted, and their lines are dashed.
        f'<li><i class="{"dashed" if color == "muted" else ""}" style="color:var(--{color})"></i>{key}</li>'
        for key, color in (colors or {}).items()
    )
    return (
        f'<figure class="card{" wide" if name in ("states", "coverage", "directories") else ""}"><h2>{title}</h2>'
        + (f"<p>{escape(note)}</p>" if note else "")
        + (f'<ul class="keys">{keys}</ul>' if keys else "")
        + f'<div class="plot" id="plot-{name}"></div></figure>'
    )


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(at))
