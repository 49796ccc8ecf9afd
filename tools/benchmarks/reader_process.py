"""Starts the reading program, reader.py, and talks to it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.benchmarks.measure import ROOT, BenchError, environment

PROGRAM = Path(__file__).with_name("reader.py")
SHIM = ROOT / "tests" / "frameworks" / "shim"  # lets torchvision be imported
FIXED = {"PYTHONPATH": str(SHIM), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


class ReaderProcess:
    """A process without any growfs code that runs commands, one line of JSON each. It is killed at the block's end.

    One process runs many measurements, so none of them includes its start. program: reads the commands. variables:
    added to its environment.
    """

    def __init__(self, program: Path = PROGRAM, **variables: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            [sys.executable, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment() | FIXED | variables,
            cwd="/",
        )

    def __enter__(self) -> ReaderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def send(self, command: str, *arguments: object) -> None:
        """Send a command. arguments: JSON values and paths."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps([command, *arguments], default=str) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._error() from None

    def receive(self) -> Any:
        """Wait for the command's result; skips other lines, which frameworks print."""
        assert self._process.stdout
        for line in self._process.stdout:
            if line[0] in "{0123456789":
                return json.loads(line)
        raise self._error()

    def call(self, command: str, *arguments: object) -> Any:
        """Run a command and return its result."""
        self.send(command, *arguments)
        return self.receive()

    def _error(self) -> BenchError:
        self._process.wait()
        self._errors.seek(0)
        return BenchError(f"the reader ended: {self._errors.read().strip()[-2000:] or self._process.returncode}")
