"""Draws the known state of mounts as frames of any size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Literal

from rich.box import ROUNDED
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.filesize import decimal
from rich.layout import Layout
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from growfs.daemon.status_text import files, generation_text, notes, printable, state_text
from growfs.extensions.top.watch import Watch
from growfs.status_and_metrics import MountStatus, ReaderStatus

EIGHTHS = "▁▁▂▃▄▅▆▇█"
BAR_MAX = 20
"""Columns of a bar in a table, on a wide terminal. Those of the summary are longer."""
LEVELS = {"NEWS": "green", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}

Part = tuple[float, str, str]
"""(share, character, style) of a bar."""


class TopPage(Enum):
    """The page below the state; the value is its key."""

    OVERVIEW = "o"
    READERS = "r"
    DIRECTORIES = "d"
    EVENTS = "e"


@dataclass(frozen=True, slots=True)
class Shown:
    """The view on the screen: a page of the mount with this number, from this row on."""

    page: TopPage = TopPage.OVERVIEW
    number: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True)
class Fitted:
    """Something that is drawn to fit the columns and rows of its place."""

    draw: Callable[[int, int], RenderableType]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        yield from console.render(self.draw(options.max_width, options.height or 1), options)


def frame(watches: Sequence[Watch], shown: Shown) -> Fitted:
    """The whole screen. Below 80 by 24 it is cut off."""
    return Fitted(partial(_frame, watches, shown))


def _frame(watches: Sequence[Watch], shown: Shown, width: int, height: int) -> Layout:
    number = shown.number % len(watches)
    watch = watches[number]
    state, style, note = _state(watch)
    room = max(1, width - len(note) - 5)
    rows = 1 if state.cell_len <= room else min(3, state.cell_len // room + 2)  # a word may not fit at an end
    line = _grid(2, None)
    line.columns[1].no_wrap = rows == 1
    line.add_column(justify="right", no_wrap=True)
    line.add_row(Text(" ●", style), state, Text(f"{note} ", "bright_black"))
    layout = Layout()
    layout.split_column(
        Layout(_tabs(watches, number, width), size=1),
        Layout(line, size=rows),
        Layout(_page(watch, shown) if watch.status else Text()),
        Layout(_keys(shown.page, len(watches)), size=1),
    )
    return layout


def _tabs(watches: Sequence[Watch], current: int, width: int) -> RenderableType:
    """The mounts, beginning with the current one if there is no room for those before it."""
    names = [f"  {printable(watch.mountpoint)}" for watch in watches]
    clock = time.strftime("%H:%M:%S ")
    first = 0 if sum(map(cell_len, names[: current + 1])) < width - 20 else current
    text = Text.assemble((" growfs ", "bold white on blue"), no_wrap=True, overflow="ellipsis")
    for number, name in enumerate(names[first:], first):
        text.append(name, "bold" if number == current else "bright_black")
    line = _grid(None)
    line.add_column(justify="right", no_wrap=True)
    line.add_row(text, Text(clock, "bright_black"))
    return line


def _state(watch: Watch) -> tuple[Text, str, str]:
    """(what the mount is doing or waiting for, its style, a note)"""
    if watch.trouble:
        note = f"as of {_clock(watch.taken_at)}" if watch.status else ""
        return Text(printable(watch.trouble), "red"), "red", note
    if not watch.status:
        return Text("asking the daemon", "bright_black"), "bright_black", ""
    return Text(printable(state_text(watch.status)), "bold"), watch.status.state.color, watch.status.engine


def _keys(page: TopPage, mounts: int) -> Text:
    keys = [("q", "quit", "bright_black")]  # first, because a narrow terminal cuts the others
    keys += [(other.value, other.name.lower(), "bold" if other is page else "bright_black") for other in TopPage]
    keys += [("tab", "next mount", "bright_black")] * (mounts > 1)
    keys += [("↑↓", "scroll", "bright_black")] * (page is not TopPage.OVERVIEW)
    text = Text(" ", no_wrap=True, overflow="ellipsis")
    for key, name, style in keys:
        text.append(key, "bold cyan").append(f" {name}   ", style)
    return text


def _page(watch: Watch, shown: Shown) -> Fitted:
    pages = {TopPage.READERS: _readers, TopPage.DIRECTORIES: _directories, TopPage.EVENTS: _events}
    return Fitted(partial(pages[shown.page], watch, shown.row) if shown.page in pages else partial(_overview, watch))


def _overview(watch: Watch, width: int, height: int) -> Layout:
    assert watch.status
    status = watch.status
    remarks = list(notes(status))[: max(0, (height - 15) // 2)]
    advice = sum(-(-cell_len(text) // max(1, width - 4)) for text in _advice(status.readers))
    readers = 3 + max(1, len(status.readers) + advice)
    rates, layout = Layout(ratio=2, minimum_size=4), Layout()
    limit = status.fetch.limit_bytes_per_s
    known = (*watch.earlier, *watch.rates)
    total = f"limit {_size(limit)}/s" if limit else f"{_size(status.fetch.bytes_total)} in all"
    sizes = f"{_size(_mean([rate.opened for rate in watch.rates]))}/s by size"
    rates.split_row(
        Layout(Fitted(partial(_rate, "fetched", _size, total, [rate.fetched for rate in known], "cyan"))),
        Layout(Fitted(partial(_rate, "opened", _count, sizes, [rate.opens for rate in known], "green"))),
    )
    layout.split_column(
        Layout(_summary(watch, status, remarks), size=7 + len(remarks)),
        rates,
        Layout(Fitted(partial(_readers, watch, 0)), size=max(4, min(readers, height - len(remarks) - 14))),
        Layout(Fitted(partial(_events, watch, 0)), ratio=3, minimum_size=3),
    )
    return layout


def _summary(watch: Watch, status: MountStatus, remarks: Sequence[tuple[str, str]]) -> Panel:
    remote, cache, coverage, listed, miss = status.remote, status.cache, status.coverage, status.listed, status.miss
    fresh = max(0, cache.bytes - listed.bytes - cache.left_out_bytes) if status.generation else 0
    kinds = (
        ("listed", cache.bytes - fresh - cache.left_out_bytes, "▆", "green"),
        ("new", fresh, "▆", "cyan"),
        ("outgoing", cache.left_out_bytes, "▅", "yellow"),
        ("evicted, still open", cache.orphan_bytes, "▅", "red"),
        ("being fetched", cache.in_flight_bytes, "▃", "blue"),
    )
    limit = max(cache.limit_bytes, 1)
    bars = _grid(10, None)
    bars.columns[1].min_width = 10
    bars.add_column(no_wrap=True, overflow="ellipsis")
    bars.add_row(
        "cache",
        _bar([(count / limit, character, style) for _, count, character, style in kinds]),
        f"{_size(cache.bytes)} of {_size(cache.limit_bytes)}",
    )
    share = cache.content_bytes / remote.bytes if remote.bytes else 0.0
    so_far = "" if remote.listed else " so far"
    of = f"{share:.0%} of {_size(remote.bytes)}, {files(remote.files)}{so_far}"
    bars.add_row("remote", _bar([(share, "▆", "green")]), of)
    seen = coverage.files_seen / coverage.files if coverage.files else 0.0
    text = f"{seen:.0%} cached at some time, pass {coverage.pass_}"
    bars.add_row("coverage", _bar([(seen, "▆", "magenta")]), text)
    lines = _grid(10, None)
    lines.add_row("opens", Text(f"{status.opens.mean:.2f} per file   ").append_text(histogram(watch.survey.opens)))
    misses = Text(f"{miss.files_total:,}")
    if miss.files_total:
        misses.append(f", waited {miss.wait_s_total:.1f} s, {miss.wait_s_total / miss.files_total:.2f} s each")
    if miss.waiting:
        misses.append(f", {miss.waiting:,} wait{'s' if miss.waiting == 1 else ''} now", "red")
    lines.add_row("misses", misses)
    for label, note in remarks:
        lines.add_row(Text(label, "yellow"), Text(printable(note)))
    title = f"{generation_text(status)}: {files(listed.files)} listed"
    if not status.generation:
        title = f"{files(cache.files)} cached, none listed yet"
    legend = Text(" ")
    for name, count, character, style in kinds:
        if count > 0:
            legend.append(character, style).append(f" {name}  ")
    return _panel(title, Group(bars, lines), legend)


def _rate(
    name: str, amount: Callable[[float], str], note: str, rates: list[float], style: str, width: int, height: int
) -> Panel:
    shown = rates[-max(1, width - 4) :]
    most = max(shown, default=0.0)
    peak = f"peak {amount(most)}/s, " if most and width >= len(note) + 24 else ""
    title = Text(f"{name} ").append(f"{amount(_mean(rates))}/s", f"bold {style}")
    return _panel(title, Group(*graph(shown, max(1, width - 4), max(1, height - 2), style)), Text(peak + note))


def _readers(watch: Watch, first: int, width: int, height: int) -> Panel:
    assert watch.status
    readers = watch.status.readers[first:]
    if not watch.status.readers:
        is_plain = watch.status.engine == "folder"
        text = "unknown: readers of plain files cannot be seen" if is_plain else "no process is reading"
        return _panel("readers", Text(text, "bright_black"))
    table = _table("process", "listed", ">gen.", "opened of listed", ">opens", ">holds")
    table.columns[0].max_width = max(8, min(32, width - 62))
    shown = readers[: max(1, height - 3)]
    for reader in shown:
        share = min(1.0, reader.files_opened / reader.files_shown) if reader.files_shown else 0.0
        opened = bar([(share, "▆", "green")], max(4, min(BAR_MAX, width // 11)))
        opened.append(f" {reader.files_opened:,}", "default")
        opened.append(f" of {reader.files_shown:,}" if reader.files_shown else " files", "default")
        table.add_row(
            Text(printable(f"{reader.command} {reader.pid or '(other namespace)'}")),
            "never" if reader.listed_at is None else f"{_short(time.time() - reader.listed_at)} ago",
            str(reader.generation or ""),
            opened,
            f"{reader.opens:,}",
            _size(reader.held_bytes),
        )
    advice = (Text(each, "yellow") for each in _advice(shown))
    return _panel("readers", Group(*advice, table))  # the advice first: a small panel cuts the table instead


def _advice(readers: Sequence[ReaderStatus]) -> list[str]:
    return [printable(f"{each.command} {each.pid}: {each.advice}") for each in readers if each.advice]


def _directories(watch: Watch, first: int, width: int, height: int) -> Panel:
    directories = watch.survey.directories
    if not directories:
        return _panel("directories", Text("the database is being read", "bright_black"))
    table = _table("directory", ">files", ">cached", "share", ">outgoing", ">opens per file")
    table.columns[0].ratio = 1
    rows = max(1, height - 3)
    first = max(0, min(first, len(directories) - rows))
    shown = directories[first : first + rows]
    for each in shown:
        share, delisted = each.cached / each.files, each.delisted / each.files
        parts = [(share - delisted, "▆", "green"), (delisted, "▅", "yellow")]
        table.add_row(
            Text(printable(each.path or "/")),
            f"{each.files:,}",
            f"{each.cached:,}",
            bar(parts, max(6, min(BAR_MAX, width // 5))).append(f" {share:>4.0%}", "default"),
            f"{each.delisted:,}",
            f"{each.opens / each.cached:.2f}" if each.cached else "",
        )
    overall = sum(each.cached for each in directories) / sum(each.files for each in directories)
    title = f"directories {first + 1} to {first + len(shown)} of {len(directories):,}"
    return _panel(title, table, Text(f"{overall:.0%} of their files are cached"))


def _events(watch: Watch, back: int, width: int, height: int) -> Panel:
    """The last events; back: without this many of the latest."""
    events, rows = watch.events, max(1, height - 2)
    end = max(min(rows, len(events)), len(events) - back)
    lines = [
        Text.assemble(
            (f"{_clock(event.at)} ", "bright_black"),
            (printable(event.text), LEVELS.get(event.level, "default")),
            no_wrap=True,
            overflow="ellipsis",
        )
        for event in events[max(0, end - rows) : end]
    ]
    return _panel("events", Group(*lines) if lines else Text("nothing has happened yet", "bright_black"))


def bar(parts: Sequence[Part], width: int) -> Text:
    """A bar of shares of the whole, from the left. Every share above 0 is visible."""
    text, used, before = Text(no_wrap=True), 0, 0.0
    for share, character, style in parts:
        before += share
        end = min(width, max(round(before * width), used + (share > 0)))
        text.append(character * (end - used), style)
        used = max(used, end)
    return text.append("▁" * (width - used), "bright_black")


def _bar(parts: Sequence[Part]) -> Fitted:
    return Fitted(lambda width, _: bar(parts, min(60, width)))


def graph(values: Sequence[float], width: int, height: int, style: str) -> Iterator[Text]:
    """Rows of a graph, top row first: a column for each value, the latest at the right; the largest has full height."""
    most = max(values, default=0.0) or 1.0
    eighths = [max(1, round(8 * height * value / most)) if value > 0 else 0 for value in values]
    for row in reversed(range(height)):
        text = Text(" " * (width - len(values)), no_wrap=True)
        for count in eighths:
            part = min(8, max(0, count - 8 * row))
            text.append(EIGHTHS[part] if part or not row else " ", style if part else "bright_black")
        yield text


def histogram(opens: dict[int, int]) -> Text:
    """How many files were opened how often: a few ranges, each with a column in proportion to the largest."""
    text = Text(no_wrap=True)
    # There are at most five columns.
    least, width = min(opens, default=0), -(-(max(opens, default=-1) - min(opens, default=0) + 1) // 5)
    counts = dict.fromkeys(range(least, max(opens, default=-1) + 1, max(1, width)), 0)
    for number, count in opens.items():
        counts[least + (number - least) // width * width] += count
    for first, count in counts.items():
        height = max(1, round(8 * count / max(counts.values()))) if count else 0
        text.append(f"{first:,} " if width == 1 else f"{first:,}-{first + width - 1:,} ", "bright_black")
        text.append(f"{EIGHTHS[height]}  ", "green" if height else "bright_black")
    return text


def _panel(title: str | Text, content: RenderableType, note: Text | None = None) -> Panel:
    if note:
        note.style = "bright_black"
    title = Text(title, "bold") if isinstance(title, str) else title
    return Panel(
        content, box=ROUNDED, border_style="bright_black", padding=(0, 1),
        title=title, title_align="left", subtitle=note, subtitle_align="right",
    )  # fmt: skip


def _table(*names: str) -> Table:
    """A table with these columns; ">" marks numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="bright_black")
    for name in names:
        justify: Literal["right", "left"] = "right" if name.startswith(">") else "left"
        table.add_column(name.lstrip(">"), justify=justify, no_wrap=True, overflow="ellipsis")
    return table


def _grid(*widths: int | None) -> Table:
    """A table without lines. Columns of these widths; None for the rest."""
    table = Table.grid(padding=(0, 1), expand=True)
    for width in widths:
        table.add_column(width=width, ratio=None if width else 1, no_wrap=True, overflow="ellipsis")
    return table


def _mean(rates: Sequence[float]) -> float:
    """The current rate: that of the last three samples."""
    recent = rates[-3:]
    return sum(recent) / len(recent) if recent else 0.0


def _size(count: float) -> str:
    return decimal(round(count))


def _count(opens: float) -> str:
    return f"{opens:,.0f} files"


def _clock(at: float) -> str:
    """A time of day, from seconds since 1970."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def _short(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < 60 else f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h"
