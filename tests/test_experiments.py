"""tools/experiments runs and trains on the samples it reports. Accuracies are its result, so they are not checked."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.forkserver import FORK_ALL_VARIABLE
from tests.frameworks.harness import ENV, FORKS
from tests.needs import SET_UP

ROOT = Path(__file__).parents[1]
NEEDED = ("torch", "sklearn", "matplotlib")
WAYS = {
    "everything local",
    *(f"growfs, {opens_per_fetch}" for opens_per_fetch in (10, 4, 2, 1)),
    "LRU, 4",
    "never evict",
    *(f"stream, repeated, {opens_per_fetch}" for opens_per_fetch in (10, 4, 2, 1)),
    "stream, once",
}

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(any(find_spec(name) is None for name in NEEDED), reason=f"needs {', '.join(NEEDED)}; {SET_UP}"),
]


def rows(page: str) -> list[dict[str, str]]:
    """The rows of all tables of a page, by column name; the first column is named `way`."""
    table, names = [], ["way"]
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.startswith("| way to read"):
            names[1:] = cells[1:]
        elif line.startswith("| "):
            table.append(dict(zip(names, cells, strict=True)))
    return table


def share(cell: str) -> float:
    return float(cell.removesuffix("%")) / 100


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a quick run, forked from a process that has imported its libraries."""
    folder = tmp_path_factory.mktemp("experiments")
    words = ["-m", "tools.experiments", "--quick", "--out", str(folder)]
    done = FORKS.run(words, {**ENV, FORK_ALL_VARIABLE: "1"}, timeout_s=200)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def by_way(quick: Path) -> dict[str, dict[str, str]]:
    """The rows of the quick run."""
    return {row["way"]: row for row in rows((quick / "experiments.md").read_text())}


@pytest.mark.long
def test_every_way_to_read_has_a_row(by_way: dict[str, dict[str, str]]) -> None:
    assert set(by_way) == WAYS


@pytest.mark.long
def test_every_way_trains_for_the_same_steps_except_the_stream_that_ends(by_way: dict[str, dict[str, str]]) -> None:
    steps = {way: int(row["steps"]) for way, row in by_way.items()}
    assert steps.pop("stream, once") == steps["everything local"] // 4
    assert len(set(steps.values())) == 1


@pytest.mark.long
def test_fetches_per_open_are_as_configured(by_way: dict[str, dict[str, str]]) -> None:
    for way, row in by_way.items():
        name, _, number = way.rpartition(", ")
        if name in ("growfs", "stream, repeated"):
            assert 0.8 / int(number) < float(row["fetches per open"]) < 1.05 / int(number), way
    assert float(by_way["LRU, 4"]["fetches per open"]) > 0.25  # a file that was evicted unread is fetched again
    assert float(by_way["never evict"]["fetches per open"]) == 0


@pytest.mark.long
def test_a_static_subset_is_a_tenth_of_the_data_and_rotation_covers_all(by_way: dict[str, dict[str, str]]) -> None:
    seen = {way: share(row["data seen"]) for way, row in by_way.items()}
    assert seen["never evict"] == 0.1
    assert all(seen[way] > 0.9 for way in seen if way.startswith(("everything", "growfs", "stream, repeated")))


@pytest.mark.long
def test_only_opens_of_the_lru_cache_wait(by_way: dict[str, dict[str, str]]) -> None:
    waited = {way for way, row in by_way.items() if share(row["opens that waited"])}
    assert waited == {"LRU, 4"}


@pytest.mark.long
def test_every_way_learns_more_than_guessing(by_way: dict[str, dict[str, str]]) -> None:
    for way, row in by_way.items():
        assert 50 < float(row["accuracy, %"]) <= 100, way  # guessing gives 10


@pytest.mark.long
def test_the_plot_shows_the_rotation(quick: Path) -> None:
    assert b"growfs" in ElementTree.tostring(ElementTree.parse(quick / "experiments.svg").getroot())


def test_the_committed_results_cover_these_ways() -> None:
    assert {row["way"] for row in rows((ROOT / "docs" / "experiments.md").read_text())} == WAYS
