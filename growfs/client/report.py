"""`growfs report`: one page that shows what a mount did. It needs nothing but itself: no network, no daemon.

The plots are drawn in the browser by Vega-Lite, which the page contains; it comes with the extra `report`.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from humanfriendly import format_size, format_timespan

from growfs.cache.cache_folder import DATABASE
from growfs.client.charts import LEGENDS, Charts, charts, coverage
from growfs.client.figures import Figures, read
from growfs.daemon.running import find
from growfs.errors import GrowfsError, pip_install
from growfs.status import MountState

WIDE = ("states", "coverage", "directories")
TITLES = {
    "coverage": "Coverage",
    "bytes": "Cache",
    "files": "Files",
    "traffic": "Arrivals and evictions",
    "opens": "Opens per file",
    "misses": "Opens that waited",
    "waits": "Time that opens waited",
    "directories": "Balance of the directories",
}


FRAME_PX = 900


@dataclass(frozen=True, slots=True)
class Report:
    """The page. A notebook shows it in a frame of its own, so that its styles and the notebook's do not mix."""

    html: str = field(repr=False)

    @classmethod
    def of(cls, place: Path, last_s: float | None = None) -> Report:
        """Make the page. place: a mountpoint, or a cache. last_s: of how much time; None: all. Raises GrowfsError."""
        library = _library()
        figures = read(_cache(place), last_s)
        drawn = charts(figures)
        last = figures.history[-1]
        state = MountState(last["state"]) if figures.is_mounted else None
        page = Template(files("growfs.client").joinpath("report.html").read_text(encoding="utf-8"))
        html = page.substitute(
            title=escape(f"growfs: {figures.mount['url']}"),
            url=escape(figures.mount["url"]),
            state=state.value if state else "not mounted",
            state_color=state.page_color if state else "gray",
            subtitle=_subtitle(figures),
            tiles="\n".join(_tiles(figures)),
            cards="\n".join(_cards(figures, drawn)),
            footer=f"growfs {escape(figures.mount['version'])}, {_clock(figures.now)}",
            charts=_json({"specs": drawn.specs, "data": drawn.data}),
            library=library.replace("</script", "<\\/script"),
        )
        return cls(html)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file. Raises GrowfsError."""
        try:
            Path(path).write_text(self.html, encoding="utf-8", errors="replace")
        except OSError as error:
            raise GrowfsError(f"report: {path}: {error.strerror}") from None

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {FRAME_PX}px; border: 0; border-radius: 8px"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


def _library() -> str:
    try:
        from vl_convert import javascript_bundle
    except ImportError:
        raise GrowfsError(f"report: needs vl-convert-python: {pip_install('growfs[report]')}") from None
    return str(javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _cache(place: Path) -> Path:
    """The folder of a cache."""
    with suppress(OSError):  # a dead mount
        if (place / DATABASE).is_file():
            return place
    return find(place).cache


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
        _tile("Cached now", f"{last['files']:,}", of_remote, "files"),
        _tile("On the disk", _size(last["bytes"]), f"of {_size(last['limit_bytes'])}", "bytes"),
        _tile("Coverage", f"{share:.1%}", f"{seen:,} files cached at some time", "coverage"),
        _tile("Opens per file", f"{last['opens'] / max(1, seen):.1f}", f"{last['opens']:,} opens in all", "opens"),
        _tile(
            "Waited",
            format_timespan(round(waited_s, 1), max_units=1).replace("seconds", "s").replace("minutes", "min"),
            f"{missed:,} opens of files that were not cached",
            "waited",
        ),
        _tile("Fetched", _size(last["fetched_bytes"] - first["fetched_bytes"]), f"{fetched:,} files", "fetched"),
    ]


def _tile(name: str, value: str, note: str, id: str) -> str:
    return (
        f'<div class="tile" id="{id}"><div class="name">{escape(name)}</div>'
        f'<div class="value">{escape(value)}</div><div class="note">{escape(note)}</div></div>'
    )


def _cards(figures: Figures, drawn: Charts) -> list[str]:
    notes = _notes(figures, drawn)
    states = {value["state"] for value in drawn.data["states"]}
    legend = {state.value: state.page_color for state in MountState if state.value in states}
    cards = [_card("states", "State", "", legend)]
    for name, title in TITLES.items():
        if name in drawn.specs:
            cards.append(_card(name, title, notes[name], LEGENDS.get(name, {})))
    return [*cards, _settings(figures)]


def _card(name: str, title: str, note: str, legend: dict[str, str]) -> str:
    keys = "".join(f'<li><i style="background:var(--{color})"></i>{key}</li>' for key, color in legend.items())
    return (
        f'<figure class="card{" wide" if name in WIDE else ""}"><h2>{title}</h2>'
        + (f"<p>{escape(note)}</p>" if note else "")
        + (f'<ul class="keys">{keys}</ul>' if keys else "")
        + f'<div class="plot" id="plot-{name}"></div></figure>'
    )


def _notes(figures: Figures, drawn: Charts) -> dict[str, str]:
    """What each chart says, in a sentence."""
    last, points, bars = figures.history[-1], drawn.data["points"], drawn.data["bars"]
    arrived, evicted = (abs(sum(bar[name] for bar in bars)) for name in ("arrived", "evicted"))
    unopened = next((files for least, _, files in figures.opens if least == 0), 0)
    opens = (
        f"{unopened:,} files were cached and never opened." if unopened else "Every file that was cached was opened."
    )
    directories, shown = figures.directories_all, len(figures.directories)
    which = (
        f"The {shown // 2} with the fewest and the {shown // 2} with the most of" if directories > shown else "All of"
    )
    return {
        "coverage": f"{points[-1]['seen']:.1%} of the files were cached at some time; {points[-1]['best']:.1%} is the"
        " most that the files fetched could have shown.",
        "bytes": f"{_size(last['bytes'])} of {_size(last['limit_bytes'])} on the disk.",
        "files": f"{last['listed_files']:,} of the {last['files']:,} cached files are listed, in generation"
        f" {last['generation']:,}. Dotted lines mark new generations.",
        "traffic": f"{arrived:,} files arrived, {evicted:,} were evicted.",
        "opens": opens,
        "misses": "Each is an open of a file that was not cached.",
        "waits": "Seconds that opens waited for files that were not cached, added up.",
        "directories": f"{which} {directories:,} directories, by the share of their files that is cached. The dashed"
        " line is that of all files.",
    }


def _settings(figures: Figures) -> str:
    mount = figures.mount
    rows = {"cache": mount["cache_dir"], "engine": f"{mount['engine']} ({mount['engine_reason']})", **mount["options"]}
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows.items())
    return f'<section class="card wide"><h2>Settings</h2><dl>{items}</dl></section>'


def _json(value: Any) -> str:
    """JSON for the content of a script element: names may contain tags."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _size(count: float) -> str:
    return str(format_size(count))


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(at))
