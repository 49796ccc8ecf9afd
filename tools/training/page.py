"""What tools/experiments writes from its results: docs/experiments.md, the plot, a section of docs/sizing.md, and a
sentence of the README. page.template has the text of the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tools.benchmarks.measure import ROOT
from tools.pages import QUICK, rendered, replaced, table, wrapped
from tools.training import mnist, orders, results
from tools.training.mnist import TRAIN
from tools.training.recording import RTT_S
from tools.training.results import GROWFS, LRU, SEEN_AFTER, STATIC, Findings, Row, shown

DOCS = ROOT / "docs"
README, SIZING = ROOT / "README.md", DOCS / "sizing.md"
TEMPLATE = Path(__file__).with_name("page.template")
PLOT = "experiments.svg"
BEGIN = "<!-- tools/experiments writes this section -->\n"
SENTENCE = re.compile(r"In an \[experiment\].*?because training waited\.")
USUAL = 4
"""The opens of each fetched file with the default turnover."""


def write(found: Findings, folder: Path) -> None:
    """Write the page and the plot into a folder. Also write the other documents if that is docs/."""
    (folder / "experiments.md").write_text(markdown(found))
    results.draw(found, folder / PLOT)
    if folder.resolve() == DOCS:
        SIZING.write_text(with_section(SIZING.read_text(), found))
        README.write_text(with_sentence(README.read_text(), found))


def markdown(found: Findings) -> str:
    values = {
        "found": found,
        "mnist": mnist,
        "orders": orders,
        "results": results,
        "quick": f"\n\n{QUICK.strip()}" if found.quick else "",
        "plot": PLOT,
        "verdicts": results.verdicts(found),
        "rtt": RTT_S * 1000,
        "usual": USUAL,
        "seconds": found.epochs * TRAIN / orders.OPENS_PER_S,
    }
    tables = {"samples": samples_table, "time": time_table, "mounted": mounted_table}

    def of_part(part: str) -> dict[str, Any] | None:
        is_there = part != "mounted" or any(row.mounted for row in found.rows)
        return {**values, "table": tables[part](found)} if is_there else None

    return rendered(TEMPLATE, values, of_part) + "\n"


def short_name(row: Row) -> str:
    """The first column in docs/sizing.md."""
    if row.mounted:
        return f"{row.way}, a real mount, {row.opens_of_each:.1f} opens"
    return f"{row.way}, {opens(row.opens_per_fetch)}" if row.opens_per_fetch else row.way


def opens(number: int) -> str:
    return f"{number} open{'s' * (number > 1)}"


def samples_table(found: Findings) -> str:
    """The ways that read as many samples. growfs starts with the first files, so it reads a few fewer."""
    rows = [
        [
            f"{row.way}, {row.opens_per_fetch}" if row.way == GROWFS else row.way,
            f"{np.mean(row.samples):,.0f}",
            f"{np.mean(row.fetched) / TRAIN:.1f}",
            f"{row.opens_of_each:.1f}",
            f"{np.mean(row.seen, axis=0)[-1]:.1%}",
            shown(row.accuracies),
            found.difference(row),
        ]
        for row in found.rows
        if not row.mounted and (row.way == GROWFS or not row.in_time)
    ]
    head = "way to read, opens of each fetched file", "samples", "fetched, times the data", "opens of each, measured"
    return table([*head, "data seen", "accuracy, %", "difference from everything local, points"], rows).strip()


def time_table(found: Findings) -> str:
    """The ways that read for as long, for each link."""
    rows = [
        [
            opens(link),
            row.way,
            f"{1 - found.steps(row):.0%}",
            f"{np.mean(row.samples):,.0f}",
            f"{np.mean(row.seen, axis=0)[-1]:.1%}",
            shown(row.accuracies),
            found.difference(row),
        ]
        for link in found.links()
        for row in found.rows
        if not row.mounted and row.in_time and row.opens_per_fetch == link
    ]
    head = "the link delivers a file in the time of", "way to read", "waits", "samples", "data seen"
    return table([*head, "accuracy, %", "difference from everything local, points"], rows).strip()


def mounted_table(found: Findings) -> str:
    """The mounts, and the simulation of each."""

    def lines() -> Iterable[list[str]]:
        for row in (row for row in found.rows if row.mounted):
            simulated = found.row(row.way, row.opens_per_fetch, in_time=True)
            assert simulated
            for label, each in (("mounted", row), ("simulated", simulated)):
                yield [
                    f"{row.way}, {label}",
                    f"{np.mean(each.samples):,.0f}",
                    f"{each.opens_of_each:.2f}",
                    *(f"{share:.1%}" for share in np.mean(each.seen, axis=0)),
                    shown(each.accuracies),
                    shown(found.differences(row, simulated), "+") if each is row else "",
                ]

    seen = [f"seen after {epochs}" for epochs in SEEN_AFTER]
    seen[-1] += " epochs' time"
    return table(["", "samples", "opens of each fetched file", *seen, "accuracy, %", "difference"], lines()).strip()


def section(found: Findings) -> str:
    about = (
        f"In an experiment on MNIST, yes, as long as each fetched file is opened no more than about {USUAL} times. A"
        f" small convolutional network was trained on {TRAIN:,} images, with a cache that holds a tenth of them, in"
        f" {found.repetitions} repetitions. The table compares its accuracy with that of training on local data, after"
        " the same number of samples and after the same time. The link delivers one file in the time that the given"
        " number of opens takes. All reads are simulated, except in the row for the real mount."
    )
    rows = []
    for row in found.rows:
        always_shown = row.way in (GROWFS, STATIC)
        if always_shown or (row.in_time and row.opens_per_fetch == USUAL and not row.mounted):
            samples = row if always_shown else found.row(row.way)
            rows.append(
                [
                    short_name(row),
                    f"{max(0, 1 - found.steps(row)):.0%}",
                    found.difference(samples, 1) if samples else "the same samples",
                    found.difference(row, 1),
                ]
            )
    head = ("how the data is read", "training waits", "the same number of samples, points", "the same time, points")
    where = (
        "[The experiment](experiments.md) lists all results, including those of `ImageFolder` reading through real"
        " mounts. `tools/experiments` repeats it."
    )
    return f"{wrapped(about)}\n\n{table(head, rows)}\n{wrapped(where)}\n"


def sentence(found: Findings) -> str:
    growfs, lru = (found.row(way, USUAL, in_time=True) for way in (GROWFS, LRU))
    assert growfs
    assert lru
    return (
        "In an [experiment](docs/sizing.md) on MNIST (nothing larger was tried), the cache held a tenth of the images,"
        f" and each fetched one was opened {USUAL} times. The model came within {less(found, growfs)} points of its"
        f" accuracy with all images local. In the same time, an LRU mount cost it {less(found, lru)} points because"
        " training waited."
    )


def less(found: Findings, row: Row) -> str:
    """By how many points a way is less accurate than everything local."""
    return shown([-difference for difference in found.differences(row)], digits=1)


def with_section(sizing: str, found: Findings) -> str:
    return replaced(sizing, BEGIN, f"\n{section(found)}\n", "## ")


def with_sentence(readme: str, found: Findings) -> str:
    blocks = readme.split("\n\n")
    for place, block in enumerate(blocks):
        paragraph, found_here = SENTENCE.subn(lambda _: sentence(found), " ".join(block.split()))
        if found_here:
            blocks[place] = wrapped(paragraph)
    return "\n\n".join(blocks)
