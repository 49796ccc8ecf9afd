"""Runs DLIO from the benchmark, by program.py."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.measure import BenchError, environment
from tools.dlio.environment import PYTHON, VARIABLES
from tools.dlio.profiles import Profile

PROGRAM = Path(__file__).with_name("program.py")
RUN_S_MAX = 120.0
"""A run that takes longer is stopped."""
SLACK_S = 60.0
"""For what program.py does besides, such as waiting for a part."""


class Runner:
    """Runs program.py until the block's end, and starts it again if it has ended. folder: for what it and DLIO write.

    group: counts its CPU time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "dlio.log"
        self.group = Cgroup("-dlio")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Runner:
        self.group.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
        self.group.__exit__()

    def run(
        self, profile: Profile, data: Path, *, files: int, epochs: int = 1, generate: bool = False, part: bool = False
    ) -> list[dict[str, Any]]:
        """Run DLIO on a folder that has train/ and valid/. Returns its lines, one for each epoch.

        generate: write the files instead. part: begin the next part of a mount with --exact, and read that; the first
        line says which it is. Raises BenchError if there is not a line for each epoch.
        """
        overrides = list(profile.overrides(data, self._folder / "output", files, epochs, generate))
        folder = str(data / "train") if part else None
        words = {"overrides": overrides, "epochs": epochs, "seconds": RUN_S_MAX, "part": folder}
        if not self._process or self._process.poll() is not None:
            self._process = self._started()
        process, lines = self._process, []
        assert process.stdin
        assert process.stdout
        timer = threading.Timer(RUN_S_MAX + SLACK_S, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
            while (line := process.stdout.readline()).startswith("{"):
                lines.append(json.loads(line))
        finally:
            timer.cancel()
        if not generate and len(lines) < epochs + part:
            raise BenchError(f"DLIO: {self._last_line()}")
        return lines

    def _started(self) -> subprocess.Popen[str]:
        """A process that has imported DLIO."""
        with self._log.open("wb") as output:
            process = subprocess.Popen(
                [str(word) for word in self.group.command([PYTHON, PROGRAM])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
                env=environment() | VARIABLES | {"TMPDIR": str(self._folder)},  # it is killed, and leaves files
                cwd=self._folder,
            )
        assert process.stdout
        if process.stdout.readline().strip() != "ready":
            process.kill()
            raise BenchError(f"DLIO: {self._last_line()}")
        return process

    def _last_line(self) -> str:
        """The last line of the log, which is usually the error."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a message"
