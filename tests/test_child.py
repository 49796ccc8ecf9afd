"""The children of tools/: what they say when they fail, and that nothing is left of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.harness import until
from tools.benchmarks.child import Child
from tools.benchmarks.measure import BenchError

PYTHON = [sys.executable, "-c"]


def test_one_that_ends_before_it_is_ready_is_an_error_with_its_last_lines() -> None:
    with (
        Child([*PYTHON, "print('before'); raise SystemExit('no space')"], name="the server") as child,
        pytest.raises(BenchError) as error,
    ):
        child.wait_until(lambda: False, timeout_s=60)
    assert str(error.value) == "the server failed: no space\nbefore"


def test_one_that_answers_is_heard_line_by_line() -> None:
    program = "print('ready')\nfor line in iter(input, 'end'): print('noise', line, sep='\\n', flush=True)\nexit(3)"
    with Child([*PYTHON, program], {"PYTHONUNBUFFERED": "1"}, answers=True, name="it") as child:
        child.expect("ready")
        for number in range(3):
            child.send(str(number))
            assert child.expect(r"\d")[0] == str(number)
        child.send("end")
        with pytest.raises(BenchError, match="it failed: status 3"):
            child.expect("another line")
        with pytest.raises(BenchError):
            child.send("to nobody")


def test_one_that_is_too_slow_is_ended() -> None:
    with Child(["sleep", "60"]) as child, pytest.raises(BenchError, match="has not ended after"):
        child.wait(0.01)
    with Child([*PYTHON, "print(1, flush=True); input()"], answers=True) as child:
        child.expect("1")
        assert not list(child.lines(0.01))


def test_what_it_has_started_ends_with_it(tmp_path: Path) -> None:
    with Child(["sh", "-c", "sleep 60 & echo $! > pid; wait"], folder=tmp_path):
        until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text().endswith("\n"))
        started = Path("/proc", (tmp_path / "pid").read_text().strip())
        assert started.exists()
    until(lambda: not started.exists() or "Z" in (started / "stat").read_text().rpartition(")")[2])
