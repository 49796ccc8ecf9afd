"""Draws what is known of mounts as frames: functions of it and of the size of the screen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from rich.box import ROUNDED
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from growfs.client.top.draw import bar, columns, graph
from growfs.client.top.watch import Counts, DirectoryShare, Event, Watch
from growfs.daemon.status_text import files, state_text
from growfs.daemon.status_text import notes as notes_of
from growfs.status import MountStatus, ReaderStatus

SUMMARY_ROWS = 7
"""With its border, and without notes."""
TITLE_WIDTH = 20
"""Columns of the name and the clock beside the mounts."""
LABEL = 11
"""Columns of the labels of the summary."""
HISTOGRAM = 5
"""Columns of opens per file, at most."""
NOW_S = 3.0
"""A rate is that of the last seconds."""
STATE_ROWS = 3
"""The most that the state takes."""
LEVELS = {"NEWS": "green", "INFO": "default", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


class TopPage(Enum):
    """What is shown below the state; the value is the key."""

    OVERVIEW = "o"
    READERS = "r"
    DIRECTORIES = "d"
    EVENTS = "e"


@dataclass(frozen=True, slots=True)
class Shown:
    """What the screen shows: a page of the mount with this number, from this row on."""

    page: TopPage = TopPage.OVERVIEW
    number: int = 0
    row: int = 0


def frame(watches: Sequence[Watch], shown: Shown, width: int, height: int) -> RenderableType:
    """The whole screen. width, height: in characters; below 80 by 24 it is cut."""
    number = shown.number % len(watches)
    watch = watches[number]
    layout = Layout()
    state, state_rows = _state(watch, width)
    body = _body(watch, shown, width, max(1, height - 2 - state_rows))
    keys = Layout(_keys(shown.page, len(watches)), size=1)
    layout.split_column(Layout(_tabs(watches, number, width), size=1), Layout(state, size=state_rows), *body, keys)
    return layout


def _tabs(watches: Sequence[Watch], current: int, width: int) -> RenderableType:
    """The mounts, from the first one with which the current one still has room."""
    names = [f"  {printable(watch.mountpoint)}" for watch in watches]
    first = 0
    while first < current and sum(map(cell_len, names[first : current + 1])) > width - TITLE_WIDTH:
        first += 1
    text = Text(no_wrap=True, overflow="ellipsis").append(" growfs ", "bold white on blue")
    for number, name in enumerate(names[first:], first):
        text.append(name, "bold" if number == current else "bright_black")
    return _both(text, Text(f"{_clock(time.time())} ", "bright_black"))


def _state(watch: Watch, width: int) -> tuple[RenderableType, int]:
    """(what the mount does or waits for, how many rows that takes)."""
    if watch.trouble:
        text, style = watch.trouble, "red"
        right = f"as of {_clock(watch.taken_at)} " if watch.status else ""
    elif watch.status:
        text, style, right = state_text(watch.status), watch.status.state.color, f"{watch.status.engine} "
    else:
        text, style, right = "asking the daemon", "bright_black", ""
    state = Text(printable(text), "bold" if watch.status and not watch.trouble else style, overflow="ellipsis")
    room = max(1, width - len(right) - 4)
    rows = 1 if state.cell_len <= room else min(STATE_ROWS, state.cell_len // room + 2)  # a word may not fit at an end
    line = Table.grid(padding=(0, 1, 0, 0), expand=True)
    line.add_column(width=2)
    line.add_column(ratio=1, no_wrap=rows == 1)
    line.add_column(justify="right", no_wrap=True)
    line.add_row(Text(" ●", style), state, Text(right, "bright_black"))
    return line, rows


def _keys(page: TopPage, mounts: int) -> RenderableType:
    text = Text(" ", no_wrap=True, overflow="ellipsis")
    for other in TopPage:
        text.append(f"{other.value}", "bold cyan").append(
            f" {other.name.lower()}   ", "bold" if other is page else "bright_black"
        )
    if mounts > 1:
        text.append("tab", "bold cyan").append(" next mount   ", "bright_black")
    if page is not TopPage.OVERVIEW:
        text.append("↑↓", "bold cyan").append(" scroll   ", "bright_black")
    return text.append("q", "bold cyan").append(" quit", "bright_black")


def _body(watch: Watch, shown: Shown, width: int, height: int) -> list[Layout]:
    if not watch.status:
        return [Layout(Text(" "))]
    if shown.page is TopPage.READERS:
        rows = height - 3
        return [Layout(_panel("readers", _readers(watch.status, width - 4, rows, shown.row, wraps=True)))]
    if shown.page is TopPage.DIRECTORIES:
        return [Layout(_directories(watch, width, height, shown.row))]
    if shown.page is TopPage.EVENTS:
        return [Layout(_events(watch, height - 2, shown.row))]
    return _overview(watch, watch.status, width, height)


def _overview(watch: Watch, status: MountStatus, width: int, height: int) -> list[Layout]:
    notes = list(notes_of(status))[: max(0, (height - 15) // 2)]
    rows = SUMMARY_ROWS + len(notes)
    sections = [Layout(_summary(watch, status, notes, width - 4), size=rows)]
    left = height - rows
    if left < 5:
        return sections
    graphs = min(12, max(4, left * 3 // 10))
    sections.append(Layout(_rates(watch, status, width, graphs), size=graphs))
    left -= graphs
    if left < 4:
        return [*sections, Layout(Text(" "))]
    advice = sum(bool(reader.advice) for reader in status.readers)
    readers = (3 if status.readers else 2) + max(1, len(status.readers) + advice)
    readers = min(readers, left - 4) if left >= 9 else left
    sections.append(Layout(_panel("readers", _readers(status, width - 4, readers - 3, 0)), size=readers))
    if left - readers >= 3:
        sections.append(Layout(_events(watch, left - readers - 2, 0)))
    return sections


def _summary(watch: Watch, status: MountStatus, notes: Sequence[tuple[str, str]], width: int) -> RenderableType:
    remote, cache, coverage = status.remote, status.cache, status.coverage
    listed, miss = status.listed, status.miss
    so_far = "" if remote.listed else " so far"
    bars = max(10, min(width - LABEL - 36, width * 2 // 3))
    limit = max(cache.limit_bytes, 1)
    fresh = max(0, cache.bytes - listed.bytes - cache.left_out_bytes) if status.generation else 0
    parts = [
        ((cache.bytes - fresh - cache.left_out_bytes) / limit, "▆", "green"),
        (fresh / limit, "▆", "cyan"),
        (cache.left_out_bytes / limit, "▅", "yellow"),
        (cache.orphan_bytes / limit, "▅", "red"),
        (cache.in_flight_bytes / limit, "▃", "blue"),
    ]
    table = Table.grid(padding=(0, 1))
    table.add_column(width=LABEL - 1, style="bright_black")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_row("cache", bar(parts, bars), f"{_size(cache.bytes)} of {_size(cache.limit_bytes)}")
    share = cache.content_bytes / remote.bytes if remote.bytes else 0.0
    table.add_row(
        "remote",
        bar([(share, "▆", "green")], bars),
        f"{share:.0%} of {_size(remote.bytes)}, {files(remote.files)}{so_far}",
    )
    seen = coverage.files_seen / coverage.files if coverage.files else 0.0
    table.add_row(
        "coverage", bar([(seen, "▆", "magenta")], bars), f"{seen:.0%} cached at some time, pass {coverage.pass_}"
    )
    opens = Text(f"{status.opens.mean:.2f} per file   ").append(columns(_histogram(watch.survey.opens)))
    misses = Text(f"{miss.files_total:,}")
    if miss.files_total:
        waited = f", waited {miss.wait_s_total:.1f} s, {miss.wait_s_total / miss.files_total:.2f} s each"
        misses.append(waited)
    if miss.waiting:
        misses.append(f", {miss.waiting:,} wait{'s' if miss.waiting == 1 else ''} now", "red")
    lines = Table.grid(padding=(0, 1))
    lines.add_column(width=LABEL - 1, style="bright_black")
    lines.add_column(no_wrap=True, overflow="ellipsis")
    lines.add_row("opens", opens)
    lines.add_row("misses", misses)
    for label, note in notes:
        lines.add_row(Text(label, "yellow"), Text(printable(note)))
    title = f"generation {status.generation}: {files(listed.files)} listed"
    if not status.generation:
        title = f"{files(cache.files)} cached, none listed yet"
    return _panel(title, Group(table, lines), _legend(parts))


def _legend(parts: Sequence[tuple[float, str, str]]) -> Text:
    text = Text(" ")
    for (share, character, style), name in zip(
        parts, ("listed", "new", "delisted", "evicted, still open", "on its way"), strict=True
    ):
        if share > 0:
            text.append(f"{character}", style).append(f" {name}  ", "bright_black")
    return text


def _histogram(opens: dict[int, int]) -> dict[str, int]:
    """How many files were opened how often, in a few ranges of equal width."""
    if not opens:
        return {}
    least, most = min(opens), max(opens)
    width = -(-(most - least + 1) // HISTOGRAM)
    counts = dict.fromkeys(range(least, most + 1, width), 0)
    for number, count in opens.items():
        counts[least + (number - least) // width * width] += count
    return {f"{first:,}" if width == 1 else f"{first:,}-{first + width - 1:,}": n for first, n in counts.items()}


def _rates(watch: Watch, status: MountStatus, width: int, height: int) -> RenderableType:
    samples = list(watch.samples)
    graphs = Layout()
    half = width // 2
    limit = status.fetch.limit_bytes_per_s
    note = f"limit {_size(limit)}/s" if limit else f"{_size(status.fetch.bytes_total)} in all"
    fetched = _rate_panel("fetched", note, _rates_of(samples, "fetched"), half, height, "cyan")
    per_s = _now(samples, "opens")
    name = f"opened {per_s:,.0f} files/s"
    opened = _rate_panel(name, "sizes of the opened files", _rates_of(samples, "opened"), width - half, height, "green")
    graphs.split_row(Layout(fetched, size=half), Layout(opened))
    return graphs


def _rate_panel(name: str, note: str, rates: list[float], width: int, height: int, style: str) -> Panel:
    rows, most = max(1, height - 2), max(rates[-(width - 4) :], default=0.0)
    recent = rates[-round(NOW_S) :]
    now = sum(recent) / len(recent) if recent else 0.0
    title = Text(f"{name} ").append(f"{_size(now)}/s", f"bold {style}")
    peak = f"peak {_size(most)}/s, " if most and width >= len(note) + 24 else ""
    subtitle = Text(f"{peak}{note}", "bright_black")
    return _panel(title, Group(*graph(rates, max(1, width - 4), rows, style, most)), subtitle)


def _rates_of(samples: Sequence[Counts], counter: str) -> list[float]:
    """The rate between each two samples, per second."""
    return [
        max(0.0, (getattr(after, counter) - getattr(before, counter)) / max(0.001, after.at - before.at))
        for before, after in pairwise(samples)
    ]


def _now(samples: Sequence[Counts], counter: str) -> float:
    recent = _rates_of(samples, counter)[-round(NOW_S) :]
    return sum(recent) / len(recent) if recent else 0.0


def _readers(status: MountStatus, width: int, rows: int, first: int, wraps: bool = False) -> RenderableType:
    readers = status.readers
    if not readers:
        is_plain = status.engine == "folder"
        return Text("not known: who reads plain files is not seen" if is_plain else "nobody reads", "bright_black")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="bright_black")
    table.add_column("process", no_wrap=True, overflow="ellipsis", max_width=max(8, min(32, width - 58)))
    table.add_column("listed", no_wrap=True)
    table.add_column("gen.", justify="right", no_wrap=True)
    table.add_column("opened of shown", no_wrap=True)
    table.add_column("opens", justify="right", no_wrap=True)
    table.add_column("holds", justify="right", no_wrap=True)
    lines: list[RenderableType] = [table]
    for reader in readers[first : first + max(1, rows)]:
        share = min(1.0, reader.files_opened / reader.files_shown) if reader.files_shown else 0.0
        opened = bar([(share, "▆", "green")], max(4, width // 10))
        opened.append(f" {reader.files_opened:,}", "default")
        opened.append(f" of {reader.files_shown:,}" if reader.files_shown else " files", "default")
        table.add_row(
            Text(printable(f"{reader.command} {reader.pid or '(other namespace)'}")),
            _listed(reader),
            str(reader.generation or ""),
            opened,
            f"{reader.opens:,}",
            _size(reader.held_bytes),
        )
    for reader in readers[first : first + max(1, rows)]:
        if reader.advice:
            advice = Text(printable(f"{reader.command} {reader.pid}: {reader.advice}"), "yellow")
            advice.no_wrap, advice.overflow = not wraps, "ellipsis"
            lines.append(advice)
    return Group(*lines)


def _listed(reader: ReaderStatus) -> str:
    if reader.listed_at is None:
        return "never"
    ago_s = max(0, round(time.time() - reader.listed_at))
    return f"{_short(ago_s)} ago"


def _directories(watch: Watch, width: int, height: int, first: int) -> RenderableType:
    directories = watch.survey.directories
    if not directories:
        return _panel("directories", Text("the database is being read", "bright_black"))
    whole = sum(directory.files for directory in directories)
    overall = sum(directory.cached for directory in directories) / whole if whole else 0.0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="bright_black")
    table.add_column("directory", no_wrap=True, overflow="ellipsis", ratio=1, min_width=12)
    table.add_column("files", justify="right", no_wrap=True)
    table.add_column("cached", justify="right", no_wrap=True)
    table.add_column("share", no_wrap=True)
    table.add_column("delisted", justify="right", no_wrap=True)
    table.add_column("opens per file", justify="right", no_wrap=True)
    rows = max(1, height - 3)
    first = max(0, min(first, len(directories) - rows))
    for directory in directories[first : first + rows]:
        table.add_row(*_directory(directory, max(6, width // 5)))
    title = f"directories {first + 1} to {min(first + rows, len(directories))} of {len(directories):,}"
    return _panel(title, table, Text(f"{overall:.0%} of their files are cached", "bright_black"))


def _directory(directory: DirectoryShare, width: int) -> Iterable[RenderableType]:
    share = directory.cached / directory.files if directory.files else 0.0
    delisted = directory.delisted / directory.files if directory.files else 0.0
    yield Text(printable(directory.path or "/"))
    yield f"{directory.files:,}"
    yield f"{directory.cached:,}"
    parts = [(share - delisted, "▆", "green"), (delisted, "▅", "yellow")]
    yield bar(parts, width).append(f" {share:>4.0%}", "default")
    yield f"{directory.delisted:,}"
    yield f"{directory.opens / directory.cached:.2f}" if directory.cached else ""


def _events(watch: Watch, rows: int, back: int) -> RenderableType:
    """The last events; back: without so many of the last."""
    events = watch.events
    end = max(min(rows, len(events)), len(events) - back)
    lines = [_event(event) for event in events[max(0, end - rows) : end]]
    return _panel("events", Group(*lines) if lines else Text("nothing has happened yet", "bright_black"))


def _event(event: Event) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis").append(f"{_clock(event.at)} ", "bright_black")
    return text.append(printable(event.text), LEVELS.get(event.level, "default"))


def _panel(title: str | Text, content: RenderableType, note: Text | None = None) -> Panel:
    return Panel(
        content,
        box=ROUNDED,
        border_style="bright_black",
        title=Text(title, "bold") if isinstance(title, str) else title,
        title_align="left",
        subtitle=note,
        subtitle_align="right",
        padding=(0, 1),
    )


def _both(left: Text, right: Text) -> RenderableType:
    """A line with text at both ends; the left one is cut where they do not fit."""
    table = Table.grid(expand=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    table.add_row(left, right)
    return table


def printable(text: object) -> str:
    """Text from outside without what would move the cursor or change colours: a name of the remote may be anything."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(text))


def _size(count: float) -> str:
    return decimal(round(count))


def _clock(at: float) -> str:
    """A time of the day, from seconds since 1970."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def _short(seconds: int) -> str:
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min" if seconds < 3600 else f"{seconds // 3600} h"
