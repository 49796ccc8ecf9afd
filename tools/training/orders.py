"""The order of the samples, for each way to read a data set of which a tenth is local.

What is cached comes from growfs.simulation, which runs the mount's own rules. Its reader lists, opens each listed file
once in random order, and lists again; an open takes one second, plus its wait on a miss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from growfs.simulation.cache import File, MountSettings
from growfs.simulation.simulator import Simulation
from tools.training.digits import RESIDENT, TRAIN, Numbers

FILE_BYTES = 8192
"""Each sample is a file of this size: the disk space of a file that tools.training.through_mount writes."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One training run's reads. samples: indices, in the order of the opens.

    fill: fetches before the first open. fetches: fetches after it. waited: opens that waited for a fetch.
    """

    samples: Numbers
    fill: int
    fetches: int
    waited: int = 0

    @property
    def fetches_per_open(self) -> float:
        """Fetches per open, without the first fill."""
        return self.fetches / len(self.samples)

    @property
    def fetched(self) -> float:
        """All fetches, with the first fill, as a multiple of the data."""
        return (self.fill + self.fetches) / TRAIN

    @property
    def seen(self) -> float:
        """The fraction of the data that was trained on."""
        return len(np.unique(self.samples)) / TRAIN


def path(sample: int, label: int) -> str:
    """The file of a sample, in its class folder."""
    return f"{label}/{sample:04}.npy"


def everything(opens: int, seed: int) -> Reading:
    """All data is local; each epoch reads it in a new random order."""
    return Reading(_take(_shuffled(np.random.default_rng(seed)), opens), TRAIN, 0)


def turnover(fetches_per_open: float) -> float:
    """The turnover t for which a fraction t of the cache is replaced while the listed rest, 1 - t, is read once."""
    return fetches_per_open / (1 + fetches_per_open)


def cached(policy: str, fetches_per_open: float, labels: Numbers, opens: int, seed: int) -> Reading:
    """A cache of a tenth of the data, full at the first listing, with a policy of growfs.simulation.

    The remote delivers fetches_per_open files in the time of one open, so no policy can fetch more between two opens;
    fetches for misses come on top.
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

    read = _take(samples(), opens)
    return Reading(read, fill, sum(simulation.fetches) - fill, waited)


def stream(fetches_per_open: float, opens: int, seed: int) -> Reading:
    """Stream samples in random order, pass after pass, through a shuffle buffer of a tenth of the data.

    It makes as many fetches and steps as the rotating cache, so each fetched sample is trained on several times ("data
    echoing", Choi et al., 2019): a step draws from the buffer at random, and a sample that was drawn often enough is
    replaced by the next.
    """
    repeats = round(1 / fetches_per_open)
    rng = np.random.default_rng(seed)
    source = _shuffled(np.random.default_rng((seed, 1)))
    fetches = 0

    def samples() -> Iterator[int]:
        nonlocal fetches
        buffer = [next(source) for _ in range(RESIDENT)]
        left = [repeats] * RESIDENT
        while True:
            place = int(rng.integers(RESIDENT))
            yield buffer[place]
            left[place] -= 1
            if not left[place]:
                buffer[place], left[place] = next(source), repeats
                fetches += 1

    return Reading(_take(samples(), opens), RESIDENT, fetches)


def _shuffled(rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from map(int, rng.permutation(TRAIN))


def _take(samples: Iterator[int], count: int) -> Numbers:
    return np.fromiter(samples, np.int64, count)
