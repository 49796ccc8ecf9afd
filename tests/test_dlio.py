"""tools/bench dlio: its page is what its results say, and a quick run measures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.dlio import page
from tools.dlio.cases import CACHED, CASES
from tools.dlio.profiles import PROFILES
from tools.peers.results import Results

ROOT = Path(__file__).parent.parent


def test_the_page_has_the_figures_of_the_results() -> None:
    assert page.FILE.with_name(page.PAGE).read_text() == page.markdown(Results.load(page.FILE))


def test_the_reasons_are_those_of_all_rounds() -> None:
    def run(samples_per_s: float, cpu_s: float) -> dict[str, object]:
        epoch = {"utilization": 0.5, "samples_per_s": samples_per_s}
        return {"epochs": [epoch], "cpu_s": cpu_s, "cores": 1.0}

    results = Results.load(page.FILE)
    results.runs.clear()
    name, sizes = next(page.profiles(results))
    samples = sizes["files"] * sizes["samples_per_file"] * sizes["epochs"]
    for cpu_ms in (1, 3, 3):
        results.add(CACHED, "growfs, links", name, run(1.0, cpu_ms * samples / 1e3))
        results.add(CACHED, "JuiceFS", name, run(2.0, cpu_ms * samples / 1e3))
    assert "DLIO takes 3.0 ms of CPU for a sample over growfs, links, and 3.0" in page.reasons(results, CACHED)


def test_a_file_of_a_profile_is_whole_batches() -> None:
    for profile in PROFILES:
        assert profile.samples_per_file % profile.batch == 0


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="DLIO needs a package that has no wheel for Python 3.13")
def test_a_quick_run_writes_the_page(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tools.bench", "dlio", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = Results.load(tmp_path / page.FILE.name)
    for case in CASES:
        assert "rclone mount" in results.named(case)
        assert any(map(page.is_growfs, results.named(case)))
    assert not results.left_out
    assert "--quick" in (tmp_path / page.PAGE).read_text()
