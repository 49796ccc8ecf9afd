"""tools/bench peers: its pages are what its results say, and a quick run measures."""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.benchmarks.measure import BenchError
from tools.peers import command, page, runs
from tools.peers.cases import CASES, FILLED, LARGER, Setting
from tools.peers.data import write_tars
from tools.peers.peer import PEERS, Room
from tools.peers.results import FILE, Results
from tools.peers.runs import Stage, beside
from tools.peers.trainer import IMPORTS, SOURCES, samples_of

ROOT = Path(__file__).parent.parent


def test_the_pages_have_the_figures_of_the_results() -> None:
    results = Results.load(FILE)
    assert (FILE.parent / page.PAGE).read_text() == page.markdown(results)
    for document, table_of in page.PAGES_WITH_TABLE.items():
        text = document.read_text()
        assert page.with_table(text, table_of(results)) == text, document


def test_each_peer_has_a_name_and_a_source_of_its_own() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    assert {peer.source for peer in PEERS} == set(SOURCES)
    assert set(IMPORTS) <= {*SOURCES, "decode"}


def test_a_shard_has_the_samples_that_were_written(tmp_path: Path) -> None:
    write_tars(tmp_path / "shards", 30, 1024, 10)
    shards = sorted((tmp_path / "shards").iterdir())
    assert [samples_of(shard.read_bytes()[:-1024], 1024) for shard in shards] == [
        list(range(start, start + 10)) for start in (0, 10, 20)
    ]


OPTIONS = command.parser("tools/bench peers", "", "", CASES, PEERS)


def test_a_quick_run_writes_no_figures_into_the_documents() -> None:
    assert command.begin(OPTIONS, ["--quick"], FILE)[0].out == ROOT / "build"
    assert command.begin(OPTIONS, [], FILE)[0].out == FILE.parent


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BenchError("no space")])
def test_a_run_that_ends_before_its_first_figure_keeps_those_that_are_there(
    error: BaseException, tmp_path: Path
) -> None:
    def measure(arguments: argparse.Namespace, results: Results) -> None:
        raise error

    file = tmp_path / FILE.name
    file.write_bytes(FILE.read_bytes())
    try:
        assert command.run(OPTIONS, [], file, measure, page.write) == 1
    except KeyboardInterrupt:
        assert isinstance(error, KeyboardInterrupt)
    assert file.read_bytes() == FILE.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [FILE.name]


def test_a_run_that_works_is_no_longer_one_that_was_left_out(tmp_path: Path) -> None:
    def failing(folder: Path) -> dict[str, Any]:
        raise BenchError("no space")

    setting = Setting(tmp_path, True, 1, PEERS, Results())
    setting.attempt(LARGER, PEERS[0], "35%", failing)
    assert setting.results.left_out == {f"{PEERS[0].name} ({LARGER}, 35%)": "no space"}
    setting.attempt(LARGER, PEERS[0], "35%", lambda folder: {"a figure": 1})
    assert setting.results.left_out == {}


def test_results_of_an_older_version_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / FILE.name
    file.write_text(FILE.read_text().replace("{", '{"note": "of an older version",', 1))
    assert Results.load(file) == Results.load(FILE)


@pytest.mark.timeout(60)
def test_a_peer_that_cannot_start_beside_a_job_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(room: Room) -> AbstractContextManager[dict[str, Any]]:
        raise BenchError("it cannot start")

    monkeypatch.setattr(runs, "run", lambda words, **variables: "1.0")
    stage = Stage(replace(PEERS[0], running=fails), "http://127.0.0.1:1", tmp_path, FILLED, 1)
    with pytest.raises(BenchError, match="it cannot start"):
        beside(stage, 1, 0.1, tmp_path)


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
    assert "--quick" in (tmp_path / page.PAGE).read_text()
    assert "<svg" in (tmp_path / page.PLOT).read_text()
