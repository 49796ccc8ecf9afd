"""Bars and graphs of block characters, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

EIGHTHS = " ▁▂▃▄▅▆▇█"
FREE = "▁"


def bar(parts: Sequence[tuple[float, str, str]], width: int, free: str = FREE) -> Text:
    """A bar of shares of the whole, from the left. parts: (share, character, style). Every share above 0 is visible."""
    text, used, before = Text(no_wrap=True), 0, 0.0
    for share, character, style in parts:
        before += share
        end = min(width, max(round(before * width), used + (share > 0)))
        text.append(character * (end - used), style)
        used = max(used, end)
    return text.append(free * (width - used), "bright_black")


def graph(values: Sequence[float], width: int, height: int, style: str, most: float) -> list[Text]:
    """Rows of a graph, the top one first: a column for each of the last values, the latest at the right.

    most: the value of a column as high as the graph.
    """
    shown = list(values)[-width:]
    eighths = [min(8 * height, round(8 * height * value / most)) if most else 0 for value in shown]
    eighths = [max(1, count) if value > 0 else count for count, value in zip(eighths, shown, strict=True)]
    rows = []
    for row in reversed(range(height)):
        text = Text(" " * (width - len(shown)), no_wrap=True)
        for count in eighths:
            part = min(8, max(0, count - 8 * row))
            text.append(EIGHTHS[part] if part or row else FREE, style if part else "bright_black")
        rows.append(text)
    return rows


def columns(counts: Mapping[str, int]) -> Text:
    """A name and a column for each count, as high as its share of the largest."""
    text, most = Text(no_wrap=True), max(counts.values(), default=0)
    for name, count in counts.items():
        height = max(1, round(8 * count / most)) if count else 0
        text.append(f"{name} ", "bright_black")
        text.append(EIGHTHS[height] if height else FREE, "green" if height else "bright_black").append("  ")
    return text
