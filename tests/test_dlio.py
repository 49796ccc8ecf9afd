"""tools/bench dlio: its section is what its results say, and a quick run measures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.dlio import page
from tools.dlio.cases import CASES
from tools.dlio.profiles import PROFILES
from tools.peers.page import PERFORMANCE
from tools.peers.results import Results

ROOT = Path(__file__).parent.parent


def test_the_section_has_the_figures_of_the_results() -> None:
    performance = PERFORMANCE.read_text()
    assert page.with_section(performance, page.markdown(Results.load(page.FILE))) == performance


def test_a_file_of_a_profile_is_whole_batches() -> None:
    for profile in PROFILES:
        assert profile.samples_per_file % profile.batch == 0


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="DLIO needs a package that has no wheel for Python 3.13")
def test_a_quick_run_writes_the_section(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tools.bench", "dlio", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = Results.load(tmp_path / page.FILE.name)
    for case in CASES:
        assert "rclone mount" in results.named(case)
        assert any(map(page.is_growfs, results.named(case)))
    assert not results.left_out
    assert "--quick" in (tmp_path / "dlio.md").read_text()
