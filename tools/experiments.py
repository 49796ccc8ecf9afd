"""Tests whether a model trains as well from a rotating cache of a tenth of the data as from all of it.

Within a repetition every way to read has the same split, initial weights, batch size and number of steps; only the
order of the samples differs. Run it as tools/experiments.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from tools.bench import stop
from tools.benchmarks.measure import BenchError, temporary_folder
from tools.training import results
from tools.training.digits import BATCH, RESIDENT, TRAIN, Numbers, split, train
from tools.training.orders import Reading, cached, everything, stream
from tools.training.results import CONFIDENCE, GOAL_OPENS_MAX, GOAL_POINTS, Row
from tools.training.through_mount import train_mounted

DOCS = Path(__file__).parents[1] / "docs"
REPETITIONS, REPETITIONS_MOUNT = 30, 5
EPOCHS = (10, 40)
"""Lengths of training, in epochs of everything local: each is a number of opens."""
OPENS_PER_FETCH = (10, 4, 2, 1)
USUAL = 4
"""Opens per fetch where only one value is tested: what the default turnover gives."""

Way = Callable[[Numbers, int, int], Reading]
"""Maps (labels, opens, seed) to what is read."""

ABOUT = f"""
`{{command}}` wrote this page.

A small convolutional network learns scikit-learn's digits. There are {TRAIN:,} training images, of which {RESIDENT} are
local at a time, and 597 held-out images. There are {{repetitions}} repetitions. Each has a random split (with equally
many images of each class in both parts), random initial weights, which are the same for all ways to read, and random
orders. The batch size is {BATCH}. The optimizer is Adam, and its learning rate falls to zero along a cosine.

The accuracy is that on the held-out images, ± half of the {CONFIDENCE:.0%} confidence interval (Student's t) over the
repetitions. The differences are paired, so the effects of split and initial weights cancel. All repetitions draw from
the same 1,797 images: the intervals are about training runs on this data set, not about other data sets.

"Epochs" are epochs of everything local; every other way to read gets as many steps. "Fetches per open" and "opens that
waited" exclude the first fill of the cache; "fetched" includes it.

- everything local: each epoch shuffles all of the data.
- growfs: the order that the rules of a mount (`growfs.simulation`) give to a reader that lists, opens each listed file
  once in random order, and lists again. The cache is full at the start. For d fetches per open the turnover is
  d / (1 + d), and the remote delivers d files in the time of one open. Files in flight at a listing count as free
  space, so with a cache of so few files somewhat less is fetched if d is small.
- LRU: lists what is cached. Each new file replaces the least recently used one, whether that is listed or not. The
  remote is as fast as for growfs. A listed file that was evicted before it was read is fetched again, and the reader
  waits.
- never evict: a static subset, the files that came first. A reader that lists only once sees the same.
- stream, repeated: as many fetches as growfs, pass after pass in random order, through a shuffle buffer of {RESIDENT}
  samples. Each sample is trained on as many times as the number says.
- stream, once: as many bytes as growfs fetches at {USUAL} opens per fetch, with each sample trained on once. They last
  for {1 / USUAL:.0%} of the steps, and training ends there.
"""

ABOUT_MOUNT = """
`{command}` wrote this page.

The same training as in [experiments.md](experiments.md), with each image in a file of its own, through a real
`growfs mount` with a cache for a tenth of them. The reader lists again for each epoch, and opens the listed files in
random order. There are {repetitions} repetitions, each with a new mount. "simulated" is the order that
`growfs.simulation` gives.
"""

console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def ways() -> list[tuple[Row, Way]]:
    """All ways to read. The first is the baseline."""
    return [
        (Row("everything local", None), lambda labels, opens, seed: everything(opens, seed)),
        *((Row("growfs", number), growfs(number)) for number in OPENS_PER_FETCH),
        (Row("LRU", USUAL), partial(cached, "lru", 1 / USUAL)),
        (Row("never evict", None), partial(cached, "never", 1 / USUAL)),
        *((Row("stream, repeated", number), streamed(number)) for number in OPENS_PER_FETCH),
        (Row("stream, once", None), lambda labels, opens, seed: stream(1.0, opens // USUAL, seed)),
    ]


def growfs(opens_per_fetch: int) -> Way:
    """Reading through a mount, simulated."""
    return partial(cached, "growfs", 1 / opens_per_fetch)


def streamed(opens_per_fetch: int) -> Way:
    """Streaming, with each sample used opens_per_fetch times."""
    return lambda labels, opens, seed: stream(1 / opens_per_fetch, opens, seed)


def repeat(epochs: int, repetitions: int) -> list[Row]:
    """Train with every way to read."""
    found = ways()
    for seed in range(repetitions):
        data = split(seed)
        for row, way in found:
            reading = way(data.labels, epochs * TRAIN, seed)
            add(row, reading, train(data, reading.samples, seed), found[0][0])
    return [row for row, _ in found]


def repeat_mounted(epochs: int, repetitions: int) -> list[Row]:
    """Train on everything, on the simulated order, and through a mount."""
    whole, simulated = Row("everything local", None), Row("growfs, simulated", USUAL)
    real = Row("growfs, mounted", USUAL)
    for seed in range(repetitions):
        data, opens = split(seed), epochs * TRAIN
        for row, reading in ((whole, everything(opens, seed)), (simulated, growfs(USUAL)(data.labels, opens, seed))):
            add(row, reading, train(data, reading.samples, seed), whole)
        with temporary_folder() as folder:
            accuracy, reading = train_mounted(data, 1 / USUAL, opens, seed, folder)
        add(real, reading, accuracy, whole)
    return [whole, simulated, real]


def add(row: Row, reading: Reading, accuracy: float, whole: Row) -> None:
    """Record a run. whole: the row of everything local, which already has this repetition's run."""
    row.readings.append(reading)
    row.accuracies.append(accuracy)
    row.differences.append(accuracy - whole.accuracies[len(row.accuracies) - 1])


def main(given: Sequence[str] | None = None) -> int:
    """Train, and write the results. given: the arguments, by default those of the process."""
    parser = argparse.ArgumentParser(prog="tools/experiments", description="Does a rotating cache train as well?")
    parser.add_argument(
        "--quick", action="store_true", help="one short repetition, only printed, to check that it runs"
    )
    parser.add_argument("--mount", action="store_true", help="train through a real mount; writes experiments-mount.md")
    parser.add_argument("--repetitions", type=int, help=f"default: {REPETITIONS}; with --mount: {REPETITIONS_MOUNT}")
    parser.add_argument("--epochs", type=int, action="append", help="a length of training; may be repeated")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the page there (default: docs; with --quick: nowhere)"
    )
    arguments = parser.parse_args(given)
    usual = 1 if arguments.quick else REPETITIONS_MOUNT if arguments.mount else REPETITIONS
    repetitions = usual if arguments.repetitions is None else arguments.repetitions
    lengths = arguments.epochs or (EPOCHS[:1] if arguments.quick else EPOCHS)
    if repetitions < 1 or min(lengths) < 1:
        parser.error("--repetitions and --epochs are at least 1")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    torch.set_num_threads(1)  # more threads slow so small a network down

    found = {}
    try:
        for epochs in lengths:
            began = time.monotonic()
            status = console.status(f"{epochs} epochs, {repetitions} times ...")
            with status if console.is_terminal else nullcontext():
                found[epochs] = (repeat_mounted if arguments.mount else repeat)(epochs, repetitions)
            console.print(f"{epochs} epochs, {repetitions} times: {time.monotonic() - began:.0f} s")
    except BenchError as error:
        print(f"experiments: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("experiments: interrupted", file=sys.stderr)
        return 130

    words = ["--quick"] * arguments.quick + ["--mount"] * arguments.mount
    words += [f"--repetitions {arguments.repetitions}"] if arguments.repetitions else []
    words += [f"--epochs {epochs}" for epochs in arguments.epochs or ()]
    command = " ".join(["tools/experiments", *words])
    page = report(found, command, repetitions, arguments.mount)
    print(page)
    if out := arguments.out or (None if arguments.quick else DOCS):
        name = "experiments-mount" if arguments.mount else "experiments"
        (out / f"{name}.md").write_text(page)
        if not arguments.mount:
            results.draw(found, out / f"{name}.svg")
    return 0


def report(found: dict[int, list[Row]], command: str, repetitions: int, mount: bool) -> str:
    """The whole page, in Markdown."""
    title = "# Training through a mount" if mount else "# Does a rotating cache train as well as all the data?"
    about = (ABOUT_MOUNT if mount else ABOUT).format(command=command, repetitions=repetitions)
    parts = [title, about]
    if not mount:
        parts.append("![accuracy over the opens per fetch](experiments.svg)\n")
    for epochs, rows in found.items():
        parts += [f"## {epochs} epochs' worth of steps\n", results.table(rows)]
        if lines := results.verdict(rows):
            goal = f"The goal: within {GOAL_POINTS} points of everything local at {GOAL_OPENS_MAX} opens per fetch."
            parts.append("\n".join([goal, "", *lines]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
