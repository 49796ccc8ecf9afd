"""A single reader that lists again sees all files about equally often, and nothing is fetched needlessly."""

from __future__ import annotations

import itertools
import random

import pytest

from growfs.rotation.rules import EVERYWHERE
from growfs.simulation.cache import File
from tests.simulation.statistics_of import dispersion, variation
from tests.simulation.world import Process, SimProcess, World, catalog, seeds

FILES = 1000
SHARES = [0.05, 0.3, 0.5, 0.9]
NO_END = 10**9


def of_different_sizes(seed: int = 1, files: int = FILES) -> list[File]:
    """Log-normal sizes: the largest files are tens of times the mean one."""
    sizes = random.Random(seed)
    return [File(file.directory, file.path, int(sizes.lognormvariate(8, 1)) + 1) for file in catalog(files)]


def passes(world: World, number: int, check: object = None) -> Process:
    """A training process that ends after `number` passes, once it has listed the files that they fetched."""
    reader: SimProcess = world.simulation.reader()
    last = False
    while not last:
        last = len(world.simulation.passes) > number
        ids = yield from world.walk(reader)
        if callable(check):
            check()
        yield from world.read(reader, world.shuffled(ids))
    reader.exit()


@pytest.mark.promise(18, 20)
@pytest.mark.parametrize(("share", "downloads"), [(0.05, 0.25), (0.1, 1.0), (0.5, 0.05), (0.9, 1.0)])
def test_fetched_files_are_shown_and_no_file_is_fetched_twice_in_a_pass(share: float, downloads: float) -> None:
    world = World(opens=NO_END, files=catalog(FILES), share=share, downloads=downloads)
    simulation = world.simulation
    progress: list[tuple[int, int]] = []

    def check() -> None:
        once = FILES - simulation.fetches.count(0)
        assert once == FILES or max(simulation.fetches) <= 1, "a file was fetched twice before all were fetched once"
        progress.append((once, simulation.shown_files))

    world.fill()
    world.run(passes(world, 1, check))
    assert progress[-1][0] == FILES
    for fetched, shown in progress[1:]:  # the first listing keeps some of a full cache for the second
        assert fetched < 0.99 * FILES or shown >= 0.99 * FILES
    assert simulation.misses == 0


@pytest.mark.promise(20)
@pytest.mark.parametrize(("share", "sizes"), [(0.1, "log-normal"), (0.5, "equal"), (0.9, "log-normal")])
def test_a_pass_fetches_no_more_bytes_than_the_catalog_has(share: float, sizes: str) -> None:
    files = catalog(FILES) if sizes == "equal" else of_different_sizes()
    world = World(opens=NO_END, files=files, share=share)
    world.fill()
    world.run(passes(world, 4))
    began = world.simulation.passes
    assert len(began) > 4
    for before, after in itertools.pairwise(began):
        assert after - before <= 1.01 * world.bytes
    assert began[1] > 0.99 * world.bytes, "the first pass fetches all of it"


@pytest.mark.promise(20)
@pytest.mark.parametrize("seed", seeds(1, 3))
@pytest.mark.parametrize("share", SHARES)
def test_opens_are_even_after_three_passes(share: float, seed: int) -> None:
    world = World(opens=NO_END, files=catalog(FILES), share=share, downloads=0.25, seed=seed)
    world.fill()
    world.run(passes(world, 3))
    opens = world.simulation.opens
    # What varies are the files in the middle of their stay in the cache; where half of the data is local, half of them.
    assert variation(opens) <= (0.13 if share == 0.5 else 0.12)
    assert dispersion(opens) < 0.5
    assert min(opens) > 0


@pytest.mark.promise(20)
@pytest.mark.parametrize("early", ["nothing", "an open", "index.csv"])
def test_opens_are_even_whatever_was_opened_before_the_first_listing(early: str) -> None:
    world = World(files=catalog(200), share=0.25)
    world.fill()

    def process() -> Process:
        reader = world.simulation.reader()
        if early == "an open":
            look = world.simulation.reader()
            look.list(1)
            look.exit()
            yield from world.read(reader, [0])
        elif early == "index.csv":
            reader.list(EVERYWHERE)
        yield from world.train(reader=reader, epochs=40)

    world.run(process())
    assert variation(world.simulation.opens) <= 0.35


def test_random_replacement_is_less_even() -> None:
    """So the evenness above is due to the rules."""
    world = World("random", opens=NO_END, files=catalog(FILES), share=0.1, downloads=0.25)
    world.fill()
    world.run(passes(world, 3))
    assert variation(world.simulation.opens) > 0.12
