"""tools/experiments: its pages are what its results say, its orders are as described, and a quick run works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.forkserver import FORK_ALL_VARIABLE
from tests.frameworks.harness import ENV, FORKS
from tools import experiments
from tools.training import orders, page
from tools.training.mnist import BATCH, RESIDENT, TRAIN
from tools.training.orders import OPENS_PER_S, take
from tools.training.results import EXACT, GROWFS, KEEPING, LOCAL, LRU, STATIC, Findings

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def committed() -> Findings:
    """The committed results."""
    return Findings.load(page.DOCS / experiments.FILE)


def test_the_pages_have_the_figures_of_the_results(committed: Findings) -> None:
    assert (page.DOCS / "experiments.md").read_text() == page.markdown(committed)
    sizing, readme = page.SIZING.read_text(), page.README.read_text()
    assert page.with_section(sizing, committed) == sizing
    assert page.with_sentence(readme, committed) == readme
    assert page.SENTENCE.search(" ".join(readme.split())), "else it is never written again"
    assert page.sentence(committed) in " ".join(readme.split())


def test_the_plot_has_the_figures_of_the_results(committed: Findings) -> None:
    plot = (page.DOCS / page.PLOT).read_text()
    for way in (STATIC, EXACT):
        row = committed.row(way)
        assert row
        assert f"{way}: {committed.difference(row, 1)}" in plot


def test_the_results_are_those_of_all_ways_to_read(committed: Findings) -> None:
    assert not committed.quick
    assert all(len(row.accuracies) == experiments.REPETITIONS for row in committed.rows)
    expected = [row for row, _ in experiments.ways(experiments.EPOCHS, {})]
    for row in expected:
        assert committed.row(row.way, row.opens_per_fetch, row.in_time)
    assert {row.way for row in committed.rows if row.mounted} == {GROWFS, EXACT, LRU}


def test_the_mounts_read_much_as_simulated(committed: Findings) -> None:
    for row in (row for row in committed.rows if row.mounted):
        simulated = committed.row(row.way, row.opens_per_fetch, in_time=True)
        assert simulated
        assert row.samples == pytest.approx(simulated.samples, rel=0.3)
        assert row.opens_of_each == pytest.approx(simulated.opens_of_each, rel=0.3)
        assert row.seen[0] == pytest.approx(np.mean(simulated.seen, axis=0), abs=0.25)


def test_rotation_opens_each_fetched_file_as_often_as_it_should_and_never_waits() -> None:
    for number in (10, 4):
        reading = take(orders.rotating(number, 0), 5 * TRAIN)
        assert len(reading.samples) / reading.fetched == pytest.approx(number, rel=0.03)
        assert np.diff(reading.at_s).max() == pytest.approx(1 / OPENS_PER_S)
        assert reading.seen_after() == pytest.approx(min(1, 5 / number), abs=0.05)


def test_a_pass_of_exact_has_each_sample_once() -> None:
    reading = take(orders.exact(2, 0), 2 * TRAIN)
    for pass_ in np.split(reading.samples, 2):
        assert sorted(pass_) == list(range(TRAIN))
    assert TRAIN < reading.fetched < 2 * TRAIN - 0.7 * RESIDENT  # most of the cache keeps its files


def test_readers_that_fetch_each_sample_are_as_fast_as_the_link() -> None:
    until_s = 2 * TRAIN / OPENS_PER_S
    lru, keeping = (take(order(4, 0), 2 * TRAIN, until_s) for order in (orders.lru, orders.keeping))
    assert lru.fetched == pytest.approx(2 * TRAIN / 4, abs=1)
    assert len(lru.samples) - lru.fetched < 0.02 * TRAIN
    assert lru.fetched == keeping.fetched
    assert len(keeping.samples) >= len(lru.samples)


def test_a_static_subset_is_as_large_as_the_cache() -> None:
    assert take(orders.static(0), TRAIN).seen_after() == RESIDENT / TRAIN


@pytest.mark.long
def test_a_quick_run_trains_in_every_way(tmp_path: Path) -> None:
    words = ["-m", "tools.experiments", "--quick", "--out", str(tmp_path)]
    done = FORKS.run(words, {**ENV, FORK_ALL_VARIABLE: "1"}, timeout_s=200)
    assert done.returncode == 0, done.stderr
    found = Findings.load(tmp_path / experiments.FILE)
    assert [row.way for row in found.rows if row.mounted] == [GROWFS]
    for row in found.rows:
        assert all(0.97 * TRAIN < count <= TRAIN for count in row.samples) or (row.in_time and row.way != GROWFS)
        assert row.accuracies[0] > 70 or row.samples[0] < TRAIN / 3  # guessing gives 10
    assert {row.way for row in found.rows} == {LOCAL, GROWFS, EXACT, STATIC, LRU, KEEPING}
    assert "--quick" in (tmp_path / "experiments.md").read_text()
    assert (tmp_path / page.PLOT).read_text().startswith("<?xml")
    assert found.rows[0].samples == [TRAIN - TRAIN % BATCH]
