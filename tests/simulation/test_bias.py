"""Size, name and class of a file do not decide how often or how early it is shown. Only the last file of a directory
is shown more often."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import pytest

from growfs.simulation.cache import File, MountSettings
from tests.simulation.statistics_of import chi_square_tail, holm_rejects, uniform_tail
from tests.simulation.test_coverage import NO_END, of_different_sizes, passes
from tests.simulation.world import Processes, World, seeds

SEEDS, SEEDS_OF_CLASSES = 100, 50
DECILES = 10
LEVEL = 0.01
RARE = (1, 2, 5, 10, 50)


def test_the_statistics_agree_with_tables() -> None:
    for freedom, at, tail in ((9, 16.919, 0.05), (9, 21.666, 0.01), (200, 249.445, 0.01)):  # from any table
        assert chi_square_tail(at, freedom) == pytest.approx(tail, rel=0.03)
    assert holm_rejects([0.5] * 100) == 0
    assert holm_rejects([1e-5, 1e-5, 0.5]) == 2
    assert uniform_tail([20] * DECILES) > 0.99
    assert uniform_tail([40, 0] * 5) < 1e-9


@pytest.mark.promise(20)
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_no_bias_by_size(seed: int) -> None:
    files = of_different_sizes(seed, 1500)
    world = World(opens=NO_END, files=files, share=0.2, downloads=0.25, seed=seed, parallel=8)
    world.fill()
    world.run(passes(world, 6))
    opens = world.simulation.opens
    by_size = sorted(range(len(files)), key=lambda id: files[id].size)
    tenth = len(files) // DECILES
    for decile in (by_size[:tenth], by_size[-tenth:]):
        assert fmean(opens[id] for id in decile) == pytest.approx(fmean(opens), rel=0.07)


def first_arrivals(files: list[File], seed: int) -> list[int]:
    """The rank of each file by its first arrival."""
    limit = sum(file.size for file in files)
    simulation = Processes(files, limit, limit / 1000, MountSettings(seed=seed, parallel=8))
    simulation.sleep(1500.0)
    assert len(set(simulation.first)) == len(files)
    return simulation.first


@pytest.mark.promise(20)
def test_no_bias_by_name() -> None:
    files = of_different_sizes(files=200)
    counts = [[0] * DECILES for _ in files]
    for seed in range(SEEDS):
        for id, rank in enumerate(first_arrivals(files, seed)):
            counts[id][(rank - 1) * DECILES // len(files)] += 1
    assert holm_rejects([uniform_tail(row) for row in counts]) == 0
    # Large files do not arrive later than small ones, and the test would detect it.
    by_size = sorted(range(len(files)), key=lambda id: files[id].size)
    large = [sum(counts[id][decile] for id in by_size[-50:]) for decile in range(DECILES)]
    assert uniform_tail(large) > LEVEL
    skewed = [row[:5] + [count + 9 for count in row[5:]] for row in counts]
    assert holm_rejects([uniform_tail(row) for row in skewed]) > 0


@pytest.mark.promise(20)
def test_no_bias_by_class() -> None:
    """In a flat folder, resident files are a simple random sample: the number of each class is hypergeometric.

    Their names are in the order of the classes.
    """
    classes = [number for number, size in enumerate((10, 40, 150, 300)) for _ in range(size)]
    files = [File(1, f"{place:05}.rec", 1000) for place in range(len(classes))]
    sizes = Counter(classes)
    squares = dict.fromkeys(sizes, 0.0)
    for seed in range(SEEDS_OF_CLASSES):
        world = World(opens=500, files=files, share=0.2, seed=seed)
        world.fill()
        world.run(world.train())
        resident = Counter(classes[id] for id in world.simulation.cache.folders[0])
        drawn, total = resident.total(), len(files)
        for number, size in sizes.items():
            share = size / total
            variance = drawn * share * (1 - share) * (total - drawn) / (total - 1)
            squares[number] += (resident[number] - drawn * share) ** 2 / variance
    tails = [chi_square_tail(squares[number], SEEDS_OF_CLASSES) for number in sizes]
    assert holm_rejects([2 * min(tail, 1 - tail) for tail in tails]) == 0


def rare_directories(share: float = 0.1, downloads: float = 0.25) -> dict[int, float]:
    """Opens of a file relative to files of large directories, by the number of files in its directory."""
    sizes = [number for number in RARE for _ in range(4)] + [800, 800]
    files = [
        File(directory, f"{directory}/{place}.rec", 1000)
        for directory, size in enumerate(sizes, start=1)
        for place in range(size)
    ]
    world = World(opens=NO_END, files=files, share=share, downloads=downloads)
    world.fill()
    world.run(passes(world, 8))
    of_size: dict[int, list[int]] = {}
    for file, opens in zip(files, world.simulation.opens, strict=True):
        of_size.setdefault(sizes[file.directory - 1], []).append(opens)
    usual = fmean(of_size[800])
    return {number: fmean(of_size[number]) / usual for number in RARE}


def table_of_rare_directories() -> str:
    """The table in docs/decisions/0015; `python -m tests.simulation.test_bias` prints it."""
    shares = (0.05, 0.1, 0.3, 0.5)
    rows = {share: rare_directories(share) for share in shares}
    lines = ["files in a directory  " + "".join(f"{f'cache {share:.0%}':>12}" for share in shares)]
    lines += [f"{number:>20}  " + "".join(f"{rows[share][number]:>12.1f}" for share in shares) for number in RARE]
    return "\n".join(lines)


@pytest.mark.promise(20)
def test_the_last_file_of_a_directory_is_shown_more_often() -> None:
    shown = rare_directories()
    assert list(shown.values()) == sorted(shown.values(), reverse=True)
    assert 10 < shown[1] < 15, "always shown, while the others are shown less than a tenth of the time"
    assert shown[50] == pytest.approx(1, rel=0.1)


if __name__ == "__main__":
    print(table_of_rare_directories())
