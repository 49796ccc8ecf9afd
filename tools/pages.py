"""Pages that tools write from results: options, templates, tables, paragraphs, and the replacement of a section."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tools.benchmarks.measure import ROOT

QUICK = "**This was `--quick`: it shows only that everything runs.**\n\n"
"""A paragraph."""


def add_options(parser: argparse.ArgumentParser, quick: str) -> None:
    """Add the options of a program that measures and writes pages. quick: what --quick measures."""
    parser.add_argument("--quick", action="store_true", help=f"{quick}: only shows that it runs")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page from the results")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the results there (default: docs; with --quick: build)"
    )


def results_file(parser: argparse.ArgumentParser, arguments: argparse.Namespace, file: Path, is_read: bool) -> Path:
    """The file of the results, in the folder `out`, which is created. file: where it is by default. Exits with a usage
    error if it is read and does not exist.
    """
    folder = arguments.out or (ROOT / "build" if arguments.quick else file.parent)
    if is_read and not (folder / file.name).exists():
        parser.error(f"there are no results in {folder / file.name}")
    folder.mkdir(parents=True, exist_ok=True)
    return Path(folder / file.name)


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
