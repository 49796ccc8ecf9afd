"""What a reader of all files in each epoch fetches: the formulas of `growfs plan` against simulated caches."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from growfs.simulation.training import Workload, whole_epoch_bytes

FILES, EPOCHS = 400, 8
Order = Callable[[int], list[int]]
"""The order of the reads of an epoch."""


def reshuffled(epoch: int) -> list[int]:
    return random.Random(epoch).sample(range(FILES), FILES)


def cyclic(epoch: int) -> list[int]:
    return list(range(FILES))


def fetches(policy: str, size: int, order: Order) -> float:
    """Fetches per epoch after the first. Evicts the file that the policy ranks highest; the new one may be that."""
    reads = [file for epoch in range(EPOCHS) for file in order(epoch)]
    next_read, upcoming = [math.inf] * len(reads), dict[int, float]()
    for at in reversed(range(len(reads))):
        next_read[at] = upcoming.get(reads[at], math.inf)
        upcoming[reads[at]] = at
    ranks = dict[int, float]()  # of the cached files
    missed = 0
    for at, file in enumerate(reads):
        missed += at >= FILES and file not in ranks
        if policy == "mru" and file not in ranks and len(ranks) == size:  # MRU would evict the new file
            del ranks[max(ranks, key=ranks.__getitem__)]
        ranks[file] = {"lru": -at, "mru": at, "never": ranks.get(file, at), "belady": next_read[at]}[policy]
        if len(ranks) > size:
            del ranks[max(ranks, key=ranks.__getitem__)]
    return missed / (EPOCHS - 1)


def formula(policy: str, size: int) -> int:
    found = whole_epoch_bytes(Workload(FILES, FILES, size, 1, 1), policy)
    assert found is not None
    return found


@pytest.mark.parametrize("size", [40, 140, 260])
@pytest.mark.parametrize("order", [reshuffled, cyclic])
def test_even_the_best_cache_saves_only_its_size(size: int, order: Order) -> None:
    least = formula("mru", size)
    assert fetches("belady", size, order) == fetches("never", size, order) == least == FILES - size
    assert least <= fetches("mru", size, order) <= least + 1


@pytest.mark.parametrize("size", [40, 140, 260, 400])
def test_lru_saves_little_of_reshuffled_epochs(size: int) -> None:
    assert fetches("lru", size, reshuffled) == pytest.approx(formula("lru", size), abs=0.02 * FILES)


def test_lru_saves_nothing_of_epochs_in_the_same_order() -> None:
    assert fetches("lru", 260, cyclic) == FILES
