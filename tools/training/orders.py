"""Which sample is trained on at which step, for each way to read a data set of which a tenth is local.

The order of what is resident is that of growfs.simulation, which runs the mount's own rules. Its reader lists, opens
what it was shown once each in random order, and lists again; an open takes a second, waits for misses apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from growfs.simulation.cache import File, MountSettings
from growfs.simulation.simulator import Simulation
from tools.training.digits import RESIDENT, TRAIN, Numbers

FILE_BYTES = 8192
"""Each sample is a file of its own, all alike: what tools.training.mount writes takes so much of a disk."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader read. samples: indices, in the order of the opens.

    fill: samples fetched before the first open. fetches: those since. waited: opens that waited for a fetch.
    """

    samples: Numbers
    fill: int
    fetches: int
    waited: int = 0

    @property
    def fetches_per_open(self) -> float:
        """Without the first fill."""
        return self.fetches / len(self.samples)

    @property
    def fetched(self) -> float:
        """With the first fill: how many times the whole of the data."""
        return (self.fill + self.fetches) / TRAIN

    @property
    def seen(self) -> float:
        """The share of the data that was trained on."""
        return len(np.unique(self.samples)) / TRAIN


def path(sample: int, label: int) -> str:
    """The file of a sample: class folders."""
    return f"{label}/{sample:04}.npy"


def everything(opens: int, seed: int) -> Reading:
    """All of the data is local; each epoch reads it in a new order."""
    return Reading(_drawn(_shuffled(np.random.default_rng(seed)), opens), TRAIN, 0)


def turnover(fetches_per_open: float) -> float:
    """The turnover t at which t of the cache is replaced while the other 1 - t, which is listed, is read once."""
    return fetches_per_open / (1 + fetches_per_open)


def cached(policy: str, fetches_per_open: float, labels: Numbers, opens: int, seed: int) -> Reading:
    """A cache of a tenth of the data, full at the first listing, with the policies of growfs.simulation.

    The remote gives fetches_per_open files in the time of an open, so no policy can fetch more between two opens;
    what a miss fetches comes on top.
    """
    files = [File(int(label) + 1, path(sample, label), FILE_BYTES) for sample, label in enumerate(labels)]
    simulation = Simulation(
        files,
        RESIDENT * FILE_BYTES,
        bandwidth=FILE_BYTES * fetches_per_open,
        settings=MountSettings(policy, seed, turnover(fetches_per_open)),
    )
    while sum(simulation.fetches) < RESIDENT:
        simulation.sleep(1)
    fill = sum(simulation.fetches)
    waited = 0

    def samples() -> Iterator[int]:
        nonlocal waited
        rng = np.random.default_rng(seed)
        reader = simulation.reader()
        while True:
            for sample in rng.permutation(reader.list()):
                wait = reader.open(int(sample))
                waited += wait > 0
                simulation.sleep(1 + wait)
                yield int(sample)

    read = _drawn(samples(), opens)
    return Reading(read, fill, sum(simulation.fetches) - fill, waited)


def stream(fetches_per_open: float, opens: int, seed: int) -> Reading:
    """Samples come from the remote in random order, pass after pass, through a shuffle buffer of a tenth of the data.

    As many fetches and as many steps as the rotating cache has, so each sample that comes is trained on several times
    ("data echoing", Choi et al., 2019): a step draws from the buffer at random, and what was drawn so often makes room
    for the next.
    """
    repeats = round(1 / fetches_per_open)
    rng = np.random.default_rng(seed)
    coming = _shuffled(np.random.default_rng((seed, 1)))
    fetches = 0

    def samples() -> Iterator[int]:
        nonlocal fetches
        buffer = [next(coming) for _ in range(RESIDENT)]
        left = [repeats] * RESIDENT
        while True:
            place = int(rng.integers(RESIDENT))
            yield buffer[place]
            left[place] -= 1
            if not left[place]:
                buffer[place], left[place] = next(coming), repeats
                fetches += 1

    return Reading(_drawn(samples(), opens), RESIDENT, fetches)


def _shuffled(rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from map(int, rng.permutation(TRAIN))


def _drawn(samples: Iterator[int], count: int) -> Numbers:
    return np.fromiter(samples, np.int64, count)
