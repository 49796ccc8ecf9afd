"""The order of the samples, for each way to read a data set of which a tenth is local.

The cached files come from growfs.simulation, which runs the mount's own rules. Its reader lists, opens each listed file
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
"""Each sample is a file of this size."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The reads of one training run. samples: indices, in the order of the opens.

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
        """All fetches, including the first fill, as a multiple of the data."""
        return (self.fill + self.fetches) / TRAIN

    @property
    def seen(self) -> float:
        """The fraction of the data that was used for training."""
        return len(np.unique(self.samples)) / TRAIN


def everything(opens: int, seed: int) -> Reading:
    """All data is local; each epoch reads it in a new random order."""
    return Reading(_take(_shuffled(np.random.default_rng(seed)), opens), TRAIN, 0)


def cached(policy: str, opens_per_fetch: int, labels: Numbers, opens: int, seed: int) -> Reading:
    """A cache of a tenth of the data, full at the first listing, with a policy of growfs.simulation.

    The remote delivers a file in the time of that many opens, so no policy can fetch more; fetches for misses are
    additional. The turnover is the one for which a fraction t of the cache is replaced while the rest, 1 - t, is listed
    and read.
    """
    files = [File(int(label) + 1, f"{label}/{sample:04}", FILE_BYTES) for sample, label in enumerate(labels)]
    simulation = Simulation(
        files,
        RESIDENT * FILE_BYTES,
        bandwidth=FILE_BYTES / opens_per_fetch,
        settings=MountSettings(policy, seed, 1 / (1 + opens_per_fetch)),
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


def stream(opens_per_fetch: int, opens: int, seed: int) -> Reading:
    """Stream samples in random order, pass after pass, through a shuffle buffer of a tenth of the data.

    It makes as many fetches and steps as the rotating cache, so each fetched sample is trained on several times ("data
    echoing", Choi et al., 2019): a step draws from the buffer at random, and a sample that was drawn often enough is
    replaced by the next.
    """
    rng = np.random.default_rng(seed)
    source = _shuffled(np.random.default_rng((seed, 1)))
    fetches = 0

    def samples() -> Iterator[int]:
        nonlocal fetches
        buffer = [next(source) for _ in range(RESIDENT)]
        left = [opens_per_fetch] * RESIDENT
        while True:
            place = int(rng.integers(RESIDENT))
            yield buffer[place]
            left[place] -= 1
            if not left[place]:
                buffer[place], left[place] = next(source), opens_per_fetch
                fetches += 1

    return Reading(_take(samples(), opens), RESIDENT, fetches)


def _shuffled(rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from map(int, rng.permutation(TRAIN))


def _take(samples: Iterator[int], count: int) -> Numbers:
    return np.fromiter(samples, np.int64, count)
