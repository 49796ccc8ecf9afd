"""Runs DLIO from the benchmark, by program.py."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.measure import BenchError, environment
from tools.dlio.environment import PYTHON, VARIABLES
from tools.dlio.profiles import Profile

PROGRAM = Path(__file__).with_name("program.py")
RUN_S_MAX = 120.0
"""A run that takes longer is stopped; epochs that it finished count."""
SLACK_S = 60.0
"""For what program.py does besides, such as waiting for a part."""


class Runner:
    """A process that starts DLIO. group: counts its CPU time. log: its messages, with those of a DLIO that failed."""

    def __init__(self, process: subprocess.Popen[str], group: Cgroup, log: Path) -> None:
        self._process, self._log = process, log
        self.group = group

    def run(
        self, profile: Profile, data: Path, *, files: int, epochs: int = 1, generate: bool = False, part: bool = False
    ) -> list[dict[str, Any]]:
        """Run DLIO on a folder that has train/ and valid/. Returns its lines, one for each epoch.

        generate: write the files instead. part: begin the next part of a mount with --exact, and read that; the first
        line says which it is. Raises BenchError if there is not a line for each epoch.
        """
        overrides = list(profile.overrides(data, self._log.parent / "output", files, epochs, generate))
        folder = str(data / "train") if part else None
        spec = {"overrides": overrides, "epochs": epochs, "seconds": RUN_S_MAX, "part": folder}
        assert self._process.stdin
        assert self._process.stdout
        timer = threading.Timer(RUN_S_MAX + SLACK_S, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(spec) + "\n")
            self._process.stdin.flush()
            lines = [json.loads(line) for line in iter(self._process.stdout.readline, "\n") if line]
        finally:
            timer.cancel()
        if not generate and len(lines) < epochs + part:
            raise BenchError(f"DLIO: {last_line(self._log)}")
        return lines


@contextmanager
def running(folder: Path) -> Iterator[Runner]:
    """Start program.py. folder: for its log, and what DLIO writes."""
    log = folder / "log"
    with log.open("wb") as output, Cgroup("-dlio") as group:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [str(word) for word in group.command([PYTHON, PROGRAM])],
            stdin=pipe,
            stdout=pipe,
            stderr=output,
            text=True,
            start_new_session=True,
            env=environment() | VARIABLES,
            cwd=folder,
        )
        assert process.stdout
        try:
            if process.stdout.readline().strip() != "ready":
                raise BenchError(f"DLIO: {last_line(log)}")
            yield Runner(process, group, log)
        finally:
            process.kill()
            process.wait()


def last_line(log: Path) -> str:
    """The last line of a log, which is usually the error."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it ended without a message"
