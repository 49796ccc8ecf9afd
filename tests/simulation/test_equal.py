"""Listings that must be equal are: those of the ranks of a job, and the two listings of Keras."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest

from growfs.rotation.jobs import Job
from tests.simulation.world import STEP_S, Process, World, seeds

RANKS = 8
CHILDREN = 4
EPOCHS = 30


@pytest.mark.promise(6)
@pytest.mark.parametrize("seed", seeds(1, 3))
@pytest.mark.parametrize(
    ("step_s", "filled"), [(STEP_S, 0.1), (10 * STEP_S, 1.0)], ids=["short epochs while it fills", "epochs of minutes"]
)
def test_ranks_get_equal_listings(seed: int, filled: float, step_s: float) -> None:
    world = World(seed=seed)
    world.fill(filled)
    listings: dict[int, set[tuple[int, frozenset[int]]]] = defaultdict(set)
    at_barrier = [0] * RANKS
    finished = [0] * RANKS

    def child(rank: int, ids: list[int], number: int) -> Process:
        """A DataLoader worker, whose opens count for its parent."""
        yield from world.read(readers[rank], ids[number::CHILDREN], step_s=STEP_S * (1 + rank / 20))
        finished[rank] += 1

    def process(rank: int) -> Process:
        for epoch in range(EPOCHS):
            yield world.random.uniform(0, 60)
            ids = yield from world.walk(readers[rank], pause_s=0.2)
            view = readers[rank].reader.view
            assert view
            listings[epoch].add((view.number, frozenset(ids)))
            finished[rank] = 0
            own = world.shuffled(ids)[rank::RANKS]
            children = [child(rank, own, number) for number in range(CHILDREN)]
            while children:
                for one in list(children):
                    if next(one, None) is None:
                        children.remove(one)
                yield step_s
            at_barrier[rank] = epoch + 1
            while min(at_barrier) <= epoch:
                yield 0.5

    job = Job()
    readers = [world.simulation.reader(job) for _ in range(RANKS)]
    world.run(*(process(rank) for rank in range(RANKS)))
    assert len(listings) == EPOCHS
    assert all(len(seen) == 1 for seen in listings.values())
    distinct = len({seen.copy().pop() for seen in listings.values()})
    settled = EPOCHS - 2 if step_s > STEP_S else EPOCHS // 3  # the first epochs of a cache that fills are short
    assert distinct >= settled, "the job sees something new"
    assert world.simulation.misses == 0


@pytest.mark.promise(6)
@pytest.mark.parametrize(("phase_s", "filled"), [*zip(range(0, 130, 5), itertools.cycle([0.1, 1.0]))])
def test_keras_gets_equal_sets(phase_s: int, filled: float) -> None:
    """Its two listings begin at any time after another process began a generation."""
    world = World(downloads=2.0)
    world.fill(filled)

    def other() -> Process:
        reader = world.simulation.reader()
        yield from world.walk(reader)
        yield 10_000.0
        reader.exit()

    def keras() -> Process:
        yield float(phase_s)
        reader = world.simulation.reader()
        for _ in range(5):
            training = yield from world.walk(reader, pause_s=0.5)
            yield 4.0
            validation = yield from world.walk(reader, pause_s=0.5)
            assert set(training) == set(validation)
            yield from world.read(reader, world.shuffled(training)[:50])
        reader.exit()

    world.run(other(), keras())
    assert world.simulation.misses == 0


@pytest.mark.promise(6)
@pytest.mark.parametrize("seed", seeds(2, 12))
def test_keras_and_ranks_get_equal_sets_beside_another_job(seed: int) -> None:
    """The other job lists again, and begins generations, at any time, also between the two calls of Keras."""
    world = World(downloads=2.0, seed=seed, opens=20_000)
    world.fill()
    pairs: list[tuple[set[int], set[int]]] = []
    epochs: list[list[frozenset[int]]] = []
    job = Job()

    def keras() -> Process:
        while not world.enough:
            reader = world.simulation.reader()
            training = yield from world.walk(reader, pause_s=0.5)
            yield 10.0
            validation = yield from world.walk(reader, pause_s=0.5)
            pairs.append((set(training), set(validation)))
            yield from world.read(reader, world.shuffled(training))
            reader.exit()

    def rank(number: int) -> Process:
        reader = world.simulation.reader(job)
        epoch = 0
        while not world.enough:
            yield world.random.uniform(0, 5)
            ids = yield from world.walk(reader, pause_s=0.3)
            if len(epochs) == epoch:
                epochs.append([])
            epochs[epoch].append(frozenset(ids))
            while len(epochs[epoch]) < RANKS and not world.enough:
                yield 0.5
            yield from world.read(reader, sorted(ids)[number::RANKS], step_s=4.0)
            epoch += 1
        reader.exit()

    ranks = [rank(number) for number in range(RANKS)]
    world.run(keras(), *ranks, world.train(start_s=world.random.uniform(0, 100), step_s=0.3))
    assert len(pairs) > 10
    assert [training ^ validation for training, validation in pairs if training != validation] == []
    whole = [lists for lists in epochs if len(lists) == RANKS]
    assert len(whole) > 10
    assert [len(set(lists)) for lists in whole] == [1] * len(whole)
    assert all(world.simulation.shown)
