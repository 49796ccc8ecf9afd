"""Random mixes of all kinds of readers on one mount lose no listed file."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from growfs.simulation.cache import File
from tests.simulation.world import Process, World, seeds

OPENS = 3000


def run_mix(seed: int) -> World:
    """Run up to five random processes in a world of random sizes, cache, link and turnover; returns that world."""
    chance = random.Random(seed)
    directories, many = chance.choice([1, 3, 10, 40]), chance.choice([100, 300, 900])
    sigma = chance.choice([0.0, 0.7])
    files = [
        File(1 + i % directories, f"c{i % directories}/{i}.rec", int(1000 * chance.lognormvariate(0, sigma)) + 1)
        for i in range(many)
    ]
    world = World(
        opens=OPENS,
        files=files,
        share=chance.choice([0.2, 0.4, 0.8]),
        downloads=chance.choice([0.1, 0.5, 2.0]),
        seed=seed,
        turnover=chance.choice([0.1, 0.2, 0.5]),
    )
    world.fill(chance.choice([0.1, 0.5, 1.0]))
    kinds: list[Callable[[float, float], Process]] = [
        lambda start_s, step_s: world.train(start_s, step_s=step_s),
        lambda start_s, step_s: world.train(start_s, step_s=step_s, relist=False),
        lambda start_s, step_s: world.train(start_s, step_s=step_s, part=0.3),
        lambda start_s, step_s: world.train(start_s, step_s=step_s, times=lambda epoch: 3),
        lambda start_s, step_s: world.train(
            start_s, step_s=step_s, choose=lambda ids: world.random.choices(ids, k=len(ids)) if ids else []
        ),
        world.train_listing_at_each_sample,
        lambda start_s, step_s: world.train_listing_at_each_sample(start_s, step_s, workers=3),
        lambda start_s, step_s: world.train_listing_at_each_sample(start_s, step_s, workers=3, relist=False),
        lambda start_s, step_s: world.look(10 + start_s / 2),
        lambda start_s, step_s: world.look(100 + start_s / 2, copies=True, step_s=step_s / 5),
    ]
    several = range(chance.randint(1, 4))
    others = [chance.choice(kinds)(chance.uniform(0, 2000), chance.choice([0.2, 1.0, 3.0])) for _ in several]
    world.run(world.train(), *others)
    return world


@pytest.mark.promise(17)
@pytest.mark.parametrize("seed", seeds(12, 40))
def test_a_mix_of_readers_loses_no_listed_file(seed: int) -> None:
    world = run_mix(seed)
    assert sum(world.simulation.opens) >= OPENS
    assert world.simulation.misses == 0
