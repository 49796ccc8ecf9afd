"""Starts the reading program, reader.py, and talks to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tools.benchmarks.child import Child
from tools.benchmarks.measure import SHIM

PROGRAM = Path(__file__).with_name("reader.py")
FIXED = {"PYTHONPATH": str(SHIM), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


class ReaderProcess(Child):
    """A process without any growfs code that runs commands, one line of JSON each.

    One process runs many measurements, so none of them includes its start. program: reads the commands. variables:
    added to its environment.
    """

    def __init__(self, program: Path = PROGRAM, **variables: str) -> None:
        super().__init__(
            [sys.executable, program], FIXED | variables, answers=True, name="the reader", folder=Path("/")
        )

    def start(self, command: str, *arguments: object) -> None:
        """Send a command. arguments: JSON values and paths."""
        self.send(json.dumps([command, *arguments], default=str))

    def result(self) -> Any:
        return json.loads(self.expect(r"[{\d].*")[0])

    def call(self, command: str, *arguments: object) -> Any:
        self.start(command, *arguments)
        return self.result()
