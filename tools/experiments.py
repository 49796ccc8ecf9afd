"""Tests whether a model trains as well from a rotating cache of a tenth of the data as from all of it.

Within a repetition, every way to read has the same split, initial weights, batch size and number of steps; only the
order of the samples differs. Run it as tools/experiments.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from tools.training import results
from tools.training.digits import BATCH, RESIDENT, TRAIN, Numbers, split, train
from tools.training.orders import Reading, cached, everything, stream
from tools.training.results import CONFIDENCE, GOAL_OPENS_MAX, GOAL_POINTS, Row

DOCS = Path(__file__).parents[1] / "docs"
REPETITIONS = 30
EPOCHS = (10, 40)
"""Lengths of training, in epochs with everything local: each amounts to a number of opens."""
OPENS_PER_FETCH = (10, 4, 2, 1)
USUAL = 4
"""Opens per fetch if only one value is tested: the result of the default turnover."""

Way = Callable[[Numbers, int, int], Reading]
"""Maps (labels, opens, seed) to the samples that are read."""

ABOUT = f"""
`{{command}}` wrote this page.

This experiment tests whether a model that trains through a rotating cache becomes as accurate as one that trains on all
of the data. A small convolutional network learns scikit-learn's digits.

There are {TRAIN:,} training images, of which {RESIDENT} are local at a time, and 597 held-out images. There are
{{repetitions}} repetitions. Each has a random split (with the same fraction of each class in both parts), random
initial weights, which are the same for all ways to read, and random orders. The batch size is {BATCH}. The
optimizer is Adam, and its learning rate falls to zero along a cosine.

The accuracy is measured on the held-out images, ± half of the {CONFIDENCE:.0%} confidence interval (Student's t) over
the repetitions. The differences are paired, so the effects of split and initial weights cancel. All repetitions use the
same 1,797 images: the intervals hold for training runs on this data set, not for other data sets.

"Epochs" are epochs of everything local; every other way to read gets the same number of steps. "Fetches per open" and
"opens that waited" exclude the first fill of the cache; "fetched" includes it.

- everything local: each epoch shuffles all of the data.
- growfs: a simulation with the rules of a mount (`growfs.simulation`). The reader lists, opens each listed file once in
  random order, and lists again. The cache is full at the start. For d fetches per open the turnover is d / (1 + d), and
  the remote delivers d files in the time of one open. Files in flight at a listing count as free space, so with so
  small a cache somewhat fewer files are fetched if d is small.
- LRU: the reader lists the cached files. Each new file replaces the least recently used one, whether that is listed or
  not. The remote is as fast as for growfs. A listed file that was evicted before it was read is fetched again, and the
  reader waits.
- never evict: a static subset, the files that came first. A reader that lists only once sees the same files.
- stream, repeated: as many fetches as growfs, pass after pass in random order, through a shuffle buffer of {RESIDENT}
  samples. The model trains on each sample as often as the number in the table says.
- stream, once: as many bytes as growfs fetches at {USUAL} opens per fetch. The model trains on each sample once. They
  last for {1 / USUAL:.0%} of the steps, and training ends there.
"""


def ways() -> list[tuple[Row, Way]]:
    """All ways to read. The first is the baseline."""

    def streamed(opens_per_fetch: int, labels: Numbers, opens: int, seed: int) -> Reading:
        return stream(opens_per_fetch, opens, seed)

    return [
        (Row("everything local", None), lambda labels, opens, seed: everything(opens, seed)),
        *((Row("growfs", number), partial(cached, "growfs", number)) for number in OPENS_PER_FETCH),
        (Row("LRU", USUAL), partial(cached, "lru", USUAL)),
        (Row("never evict", None), partial(cached, "never", USUAL)),
        *((Row("stream, repeated", number), partial(streamed, number)) for number in OPENS_PER_FETCH),
        (Row("stream, once", None), lambda labels, opens, seed: stream(1, opens // USUAL, seed)),
    ]


def repeat(epochs: int, repetitions: int) -> list[Row]:
    """Train with every way to read."""
    found = ways()
    for seed in range(repetitions):
        data = split(seed)
        for row, way in found:
            reading = way(data.labels, epochs * TRAIN, seed)
            row.readings.append(reading)
            row.accuracies.append(train(data, reading.samples, seed))
            row.differences.append(row.accuracies[-1] - found[0][0].accuracies[-1])
    return [row for row, _ in found]


def main() -> int:
    """Train, and write the results."""
    parser = argparse.ArgumentParser(prog="tools/experiments", description="Does a rotating cache train as well?")
    parser.add_argument(
        "--quick", action="store_true", help="one short repetition, only printed, to check that it runs"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the page there (default: docs; with --quick: nowhere)"
    )
    arguments = parser.parse_args()
    repetitions = 1 if arguments.quick else REPETITIONS
    torch.set_num_threads(1)  # more threads slow so small a network down
    found = {}
    for epochs in EPOCHS[:1] if arguments.quick else EPOCHS:
        began = time.monotonic()
        found[epochs] = repeat(epochs, repetitions)
        print(f"{epochs} epochs, {repetitions} times: {time.monotonic() - began:.0f} s", file=sys.stderr)
    page = report(found, "tools/experiments" + " --quick" * arguments.quick, repetitions)
    print(page)
    if out := arguments.out or (None if arguments.quick else DOCS):
        (out / "experiments.md").write_text(page)
        results.draw(found, out / "experiments.svg")
    return 0


def report(found: dict[int, list[Row]], command: str, repetitions: int) -> str:
    """The whole page, in Markdown."""
    parts = [
        "# Accuracy of training through a rotating cache",
        ABOUT.format(command=command, repetitions=repetitions),
        "![accuracy over the opens per fetch](experiments.svg)\n",
    ]
    for epochs, rows in found.items():
        goal = f"The goal: within {GOAL_POINTS} points of everything local at {GOAL_OPENS_MAX} opens per fetch."
        parts += [f"## {epochs} epochs' worth of steps\n", results.table(rows)]
        parts.append("\n".join([goal, "", *results.verdict(rows)]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
