"""Pages that tools write from results: templates, tables, paragraphs, and the replacement of a section."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

QUICK = "**This was `--quick`: it shows only that everything runs.**\n\n"
"""A paragraph."""


def rendered(template: Path, common: Mapping[str, Any], values: Callable[[str], Mapping[str, Any] | None]) -> str:
    """The text of a template. Each line `=== CASE` in it begins a part.

    common: the values for the first part, and for the parts named `all`. values: those for the part of a case, None to
    leave it out.
    """
    head, *sections = template.read_text().split("=== ")
    parts = [head.format_map(common)]
    for case, _, text in (section.partition("\n") for section in sections):
        found = common if case == "all" else values(case)
        if found is not None:
            parts.append(text.format_map(found))
    return wrapped("".join(parts))


def wrapped(text: str) -> str:
    """Paragraphs in lines of 120 characters; tables, lists, headings and pictures as they are."""
    return "\n\n".join(
        block if block[:1] in "|-#!" else textwrap.fill(block, 120, break_long_words=False, break_on_hyphens=False)
        for block in text.split("\n\n")
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    names = list(head)
    return "".join(f"| {' | '.join(line)} |\n" for line in (names, ["---"] * len(names), *rows))


def replaced(page: str, begin: str, text: str, end: str = "") -> str:
    """A page with this text from a mark to the next `end`, or to the end of the page."""
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{text}{rest[rest.index(end) :] if end else ''}"
