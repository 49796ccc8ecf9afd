"""Runs DLIO from the benchmark, by program.py."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.child import Child
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
        self._folder = folder
        self._running = ExitStack()
        self._program: Child | None = None
        self.group = Cgroup("-dlio")

    def __enter__(self) -> Runner:
        self._running.enter_context(self.group)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def run(
        self, profile: Profile, data: Path, *, files: int, epochs: int = 1, generate: bool = False, part: bool = False
    ) -> list[dict[str, Any]]:
        """Run DLIO on a folder that has train/ and valid/. Returns its lines, one for each epoch.

        generate: write the files instead. part: begin the next part of a mount with --exact, and read that; the first
        line says which it is. Raises BenchError if there is not a line for each epoch.
        """
        overrides = list(profile.overrides(data, self._folder / "output", files, epochs, generate))
        folder = str(data / "train") if part else None
        if not self._program or self._program.has_ended:
            self._program = self._start()
        program, lines = self._program, []
        program.send(json.dumps({"overrides": overrides, "epochs": epochs, "seconds": RUN_S_MAX, "part": folder}))
        for line in program.lines(RUN_S_MAX + SLACK_S):
            if not line.startswith("{"):
                break
            lines.append(json.loads(line))
        if not generate and len(lines) < epochs + part:
            raise program.error()
        return lines

    def _start(self) -> Child:
        """A process that has imported DLIO. It is killed, and leaves files, so its TMPDIR is the folder."""
        variables, command = VARIABLES | {"TMPDIR": str(self._folder)}, self.group.command([PYTHON, PROGRAM])
        program = Child(command, variables, answers=True, name="DLIO", folder=self._folder)
        self._running.enter_context(program).expect("ready")
        return program
