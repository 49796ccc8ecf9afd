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


def workflow(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text()))


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_the_schema_of_github(path: Path) -> None:
    check = Path(sys.executable).with_name("check-jsonschema")
    words: list[str | Path] = [check, "--builtin-schema", "vendor.github-workflows", path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_ci_runs_the_script_of_the_project() -> None:
    assert commands(workflow("ci")["jobs"]["test"]) == ['sudo env "PATH=$PATH" .ci/run']
    assert (ROOT / ".ci/run").exists()


def test_a_release_publishes_without_a_secret_of_its_own() -> None:
    jobs = workflow("release")["jobs"]
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}
    assert "secrets.PYPI" not in (ROOT / ".github/workflows/release.yml").read_text()
    (image,) = (step["with"] for step in jobs["image"]["steps"] if "build-push-action" in step["uses"])
    assert (ROOT / image["file"]).exists()
