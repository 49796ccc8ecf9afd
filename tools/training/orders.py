"""The order of the samples, for each way to read a dataset of which a tenth fits on the disk.

Each way is simulated: an infinite sequence of opens, with the time at which training takes the sample, and the number
of files fetched so far. Training reads OPENS_PER_S samples a second if it does not wait, and the link delivers a file
in the time of a fixed number of opens. Every cache is empty at the start.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from growfs.rotation.parts import CatalogFile, ExactPass, divide
from growfs.simulation.cache import File, MountSettings
from growfs.simulation.simulator import Simulation
from tools.training.mnist import BATCH, CLASSES, RESIDENT, TRAIN, Numbers, labels

FILE_BYTES = 4096
"""Each sample is a file of this size, a block of the disk."""
OPENS_PER_S = 250
PART_SHARE = 0.2
"""`--part-size`. The default, 5% of so small a cache, would make parts of 28 files."""
AHEAD = 2 * BATCH
"""How many samples a data loader fetches ahead of training."""


class Opened(NamedTuple):
    sample: int
    at_s: float
    fetched: int
    """Files fetched until then."""


Order = Iterator[Opened]


@dataclass(frozen=True, slots=True)
class Reading:
    """The reads of one training run. samples: indices, in order. at_s: when training took each of them."""

    samples: Numbers
    at_s: NDArray[np.float64]
    fetched: int

    def seen_after(self, s: float = float("inf")) -> float:
        """The fraction of the data that training had taken by then."""
        return len(np.unique(self.samples[self.at_s <= s])) / TRAIN


def take(order: Order, opens: int, until_s: float = float("inf")) -> Reading:
    taken = itertools.takewhile(lambda opened: opened.at_s <= until_s, itertools.islice(order, opens))
    samples, at_s, fetched = zip(*taken, strict=True)
    return Reading(np.array(samples, np.int64), np.array(at_s), fetched[-1])


def everything(seed: int) -> Order:
    """All data is local; each epoch reads it in a new random order."""
    return _local(seed, range(TRAIN))


def static(seed: int) -> Order:
    """A subset that is local."""
    return _local(seed, np.random.default_rng((seed, 1)).permutation(TRAIN)[:RESIDENT].tolist())


def _local(seed: int, samples: range | list[int]) -> Order:
    for number, sample in enumerate(_shuffled(seed, samples), 1):
        yield Opened(sample, number / OPENS_PER_S, len(samples))


def rotating(opens_per_fetch: int, seed: int) -> Order:
    """A mount of growfs, by growfs.simulation. The reader lists, opens each listed file once in random order, and lists
    again. It begins when each class has a file.

    The turnover is the one for which a fraction t of the cache is replaced while the rest, 1 - t, is listed and read.
    """
    files = [File(int(label) + 1, f"{label}/{sample:05}.png", FILE_BYTES) for sample, label in enumerate(labels())]
    simulation = Simulation(
        files,
        RESIDENT * FILE_BYTES,
        bandwidth=FILE_BYTES * OPENS_PER_S / opens_per_fetch,
        settings=MountSettings("growfs", seed, 1 / (1 + opens_per_fetch)),
    )
    while sum(map(bool, simulation.cache.folders.values())) <= CLASSES:  # they have one folder more, of all files
        simulation.sleep(1 / OPENS_PER_S)
    generator = np.random.default_rng(seed)
    reader = simulation.reader()
    while True:
        for sample in generator.permutation(reader.list()).tolist():
            simulation.sleep(reader.open(sample) + 1 / OPENS_PER_S)
            yield Opened(sample, simulation.now, int(simulation.remote_bytes // FILE_BYTES))


def exact(opens_per_fetch: int, seed: int) -> Order:
    """A mount of growfs with --exact: the parts are growfs's own, each read in random order.

    The cache has room for two parts, so a part is fetched once the part before the last one has been read.
    """
    files = [
        CatalogFile(id, f"{label}/{id:05}.png", FILE_BYTES, FILE_BYTES, False) for id, label in enumerate(labels(), 1)
    ]
    generator = np.random.default_rng(seed)
    link_s = now = before = 0.0
    fetched = 0
    for number in itertools.count(1):
        cache_bytes = RESIDENT * FILE_BYTES
        division, ids = divide(files, ExactPass(seed, number, cache_bytes, int(PART_SHARE * cache_bytes)))
        for part in division.parts:
            lacking = (part.end if number == 1 else part.kept) - part.start
            link_s = max(link_s, before) + lacking * opens_per_fetch / OPENS_PER_S
            fetched += lacking
            before, now = now, max(now, link_s)
            for id in generator.permutation(ids[part.start : part.end]).tolist():
                now += 1 / OPENS_PER_S
                yield Opened(id - 1, now, fetched)


def lru(opens_per_fetch: int, seed: int) -> Order:
    """A mount that lists everything, with an LRU cache."""
    return _waiting(opens_per_fetch, seed, evicts=True)


def keeping(opens_per_fetch: int, seed: int) -> Order:
    """A mount that lists everything, keeps the first files, and fetches the others each time."""
    return _waiting(opens_per_fetch, seed, evicts=False)


def _waiting(opens_per_fetch: int, seed: int, evicts: bool) -> Order:
    """Read everything in random order, and fetch what is not cached, up to AHEAD samples before training takes it."""
    cached = OrderedDict[int, None]()
    now = link_s = 0.0
    fetched = 0
    taken = deque([0.0] * AHEAD, AHEAD)
    for sample in _shuffled(seed, range(TRAIN)):
        if sample in cached:
            cached.move_to_end(sample)
        else:
            link_s = max(link_s, taken[0]) + opens_per_fetch / OPENS_PER_S
            fetched += 1
            now = max(now, link_s)
            if evicts and len(cached) == RESIDENT:
                cached.popitem(last=False)
            if len(cached) < RESIDENT:
                cached[sample] = None
        now += 1 / OPENS_PER_S
        taken.append(now)
        yield Opened(sample, now, fetched)


def _shuffled(seed: int, samples: range | list[int]) -> Iterator[int]:
    generator = np.random.default_rng(seed)
    while True:
        yield from generator.permutation(samples).tolist()
