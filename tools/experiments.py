"""Tests whether a model trains as well from a rotating cache of a tenth of the data as from all of it.

Within a repetition, every way to read has the same images, initial weights and batch size; the order of the samples
differs, and if training ends after a fixed time, their number. Run it as tools/experiments.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tools.benchmarks.measure import BenchError, exit_status, temporary_folder
from tools.pages import add_options, results_file
from tools.training import orders, page, recording
from tools.training.mnist import TRAIN, download, split, train
from tools.training.orders import OPENS_PER_S, Order, Reading, take
from tools.training.results import EXACT, GROWFS, KEEPING, LOCAL, LRU, STATIC, Findings, Row

REPETITIONS = 30
EPOCHS, EPOCHS_QUICK = 10, 1
"""The length of training with everything local. Others train for as many samples, or for as long."""
OPENS_PER_FETCH = (10, 4, 2, 1)
LINKS = (10, 4, 2)
"""The links on which those that wait are tested. With a file for each open, none of them would have to."""
WAITING: dict[str, Callable[[int, int], Order]] = {EXACT: orders.exact, LRU: orders.lru, KEEPING: orders.keeping}
FILE = "experiments.json"

Way = Callable[[int], Reading]
"""Maps a seed to the samples that are read."""


def ways(epochs: int, recorded: dict[str, Reading]) -> list[tuple[Row, Way]]:
    """All ways to read. The first is the baseline."""
    opens, until_s = epochs * TRAIN, epochs * TRAIN / OPENS_PER_S

    def simulated(order: Callable[[int, int], Order], link: int, seed: int) -> Reading:
        return take(order(link, seed), opens, until_s)

    def again(reading: Reading, seed: int) -> Reading:
        return reading

    return [
        (Row(LOCAL), lambda seed: take(orders.everything(seed), opens)),
        *((Row(GROWFS, link, True), partial(simulated, orders.rotating, link)) for link in OPENS_PER_FETCH),
        (Row(EXACT), lambda seed: take(orders.exact(1, seed), opens)),
        (Row(STATIC), lambda seed: take(orders.static(seed), opens)),
        *((Row(way, link, True), partial(simulated, WAITING[way], link)) for way in WAITING for link in LINKS),
        *((Row(way, page.USUAL, True, True), partial(again, reading)) for way, reading in recorded.items()),
    ]


def record(way: str, until_s: float) -> Reading | None:
    """The order of a real mount, None if it does not work here."""
    print(f"recording {way} for {until_s:.0f} s", file=sys.stderr, flush=True)
    try:
        with temporary_folder() as folder:
            return recording.record(way, page.USUAL, until_s, folder)
    except BenchError as error:
        print(f"{way}, mounted: {error}", file=sys.stderr)
        return None


def measure(arguments: argparse.Namespace, file: Path) -> Findings:
    """Train with every way to read. The results are saved after each repetition."""
    download()
    epochs = EPOCHS_QUICK if arguments.quick else EPOCHS
    mounts = [GROWFS] if arguments.quick else recording.HOW
    recorded = {way: reading for way in mounts if (reading := record(way, epochs * TRAIN / OPENS_PER_S))}
    wanted = ways(epochs, recorded)
    found = Findings(arguments.quick, epochs, [row for row, _ in wanted])
    for seed in range(1 if arguments.quick else REPETITIONS):
        began, data = time.monotonic(), split(seed)
        for row, way in wanted:
            reading = way(seed)
            row.add(reading, train(data, reading.samples, seed))
        found.save(file)
        print(f"repetition {seed + 1}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


def experiments() -> int:
    """Train, and write the results. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="tools/experiments", description="Does a rotating cache train as well?")
    add_options(parser, "one short repetition")
    arguments = parser.parse_args()
    file = results_file(parser, arguments, page.DOCS / FILE, arguments.page)
    found = Findings.load(file) if arguments.page else measure(arguments, file)
    page.write(found, file.parent)
    return 0


if __name__ == "__main__":
    sys.exit(exit_status("experiments", experiments))
