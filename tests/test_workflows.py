"""The workflows of GitHub: they are valid, and call nothing cleverer than a person would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_the_schema_of_github(path: Path) -> None:
    check = Path(sys.executable).with_name("check-jsonschema")
    words: list[str | Path] = [check, "--builtin-schema", "vendor.github-workflows", path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_what_the_workflows_name_is_there() -> None:
    jobs: dict[str, dict[str, Any]] = {}
    for path in WORKFLOWS:
        jobs |= yaml.safe_load(path.read_text())["jobs"]
    (script,) = (step["run"].split()[-1] for step in jobs["test"]["steps"] if "run" in step)
    (image,) = (step["with"]["file"] for step in jobs["image"]["steps"] if "build-push-action" in step["uses"])
    assert (ROOT / script).exists()
    assert (ROOT / image).exists()
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}, "it needs no secret of its own"
