"""tools/bench peers: its pages are what its results say, and a quick run measures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.peers import page
from tools.peers.cases import CASES, LARGER
from tools.peers.peer import PEERS
from tools.peers.results import FILE, Results
from tools.peers.trainer import IMPORTS, SOURCES, samples_of

ROOT = Path(__file__).parent.parent


def test_the_pages_have_the_figures_of_the_results() -> None:
    results = Results.load(FILE)
    performance = page.PERFORMANCE.read_text()
    assert page.REST in performance
    assert page.with_section(performance, page.markdown(results)) == performance
    for document, table_of in page.PAGES_WITH_TABLE.items():
        text = document.read_text()
        assert page.with_table(text, table_of(results)) == text, document


def test_the_html_page_has_the_figures_and_the_plot_of_the_results() -> None:
    plot = (FILE.parent / page.PLOT).read_text()
    pytest.importorskip("markdown")
    assert (FILE.parent / "side-by-side.html").read_text() == page.html(page.markdown(Results.load(FILE)), plot)


def test_each_peer_has_a_name_and_a_source_of_its_own() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    assert {peer.source for peer in PEERS} == set(SOURCES)
    assert set(IMPORTS) <= set(SOURCES)


def test_a_shard_has_the_samples_that_were_written(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-c",
        "import sys; sys.path.insert(0, 'tools/peers'); import data; from pathlib import Path;",
    ]
    words[-1] += f"data.write_tars(Path({str(tmp_path / 'shards')!r}), 30, 1024, 10)"
    subprocess.run(words, cwd=ROOT, check=True)
    shards = sorted((tmp_path / "shards").iterdir())
    assert [samples_of(shard.read_bytes()[:-1024], 1024) for shard in shards] == [
        list(range(start, start + 10)) for start in (0, 10, 20)
    ]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_quick_run_writes_the_page(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tools.bench", "peers", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = Results.load(tmp_path / "benchmarks.json")
    for case in CASES:
        assert {"growfs", "rclone mount"} <= set(results.named(case))
        assert not [failed for failed in results.left_out if case in failed]
    assert all(len(run["figures"]["epochs"]) == 2 for run in results.runs if run["case"] == LARGER)
    assert "--quick" in (tmp_path / "side-by-side.md").read_text()
    assert "<svg" in (tmp_path / "side-by-side.html").read_text()
