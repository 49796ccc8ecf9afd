"""tools/bench runs, and what it writes can be read by a program. Its figures are not looked at: machines differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FIGURE = {"benchmark", "name", "measured", "unit", "rounds", "target", "met"}


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.bench", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=100, check=False)


def test_figures_as_json(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = bench("reads", "--quick", "--rounds", 2, "--json", file)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(file.read_text())
    assert told["quick"] is True
    assert {"cores", "kernel", "python"} <= told["machine"].keys()
    assert told["figures"]
    for figure in told["figures"]:
        assert set(figure) == FIGURE
        assert figure["benchmark"] == "reads"
        assert figure["measured"] > 0
        assert len(figure["rounds"]) == 2
        assert (figure["target"] is None) == (figure["met"] is None)
    assert any(figure["target"] for figure in told["figures"])
    assert "first read" in done.stdout


def test_an_unknown_benchmark_is_a_wrong_usage() -> None:
    done = bench("walks")
    assert done.returncode == 2
    assert "walks" in done.stderr
    assert "small-files" in done.stderr
