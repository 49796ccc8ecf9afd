"""The benchmarks' side of the processes that read: reader.py, and the programs that train."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.benchmarks.measure import ROOT, BenchError, environment

HERE = Path(__file__).parent
SHIM = ROOT / "tests" / "frameworks" / "shim"  # lets torchvision be imported


class Reader:
    """A process that knows nothing of growfs and does what it is asked, a line of JSON each. Ends with the block.

    program: a file beside this one. It lives through many measurements, so that none of them pays for its start.
    """

    def __init__(self, program: str = "reader.py") -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            [sys.executable, HERE / program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**environment(), "PYTHONPATH": str(SHIM)},
            cwd="/",
        )

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ask(self, what: str, *arguments: object) -> None:
        """Have it begin. arguments: what JSON can say, and paths."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps([what, *arguments], default=str) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self) -> Any:
        """Wait for what it says to what it was asked; what else a framework prints is passed over."""
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        raise self._ended()

    def do(self, what: str, *arguments: object) -> Any:
        """Ask, and wait for the answer."""
        self.ask(what, *arguments)
        return self.answer()

    def _ended(self) -> BenchError:
        self._process.wait()
        self._errors.seek(0)
        return BenchError(f"the reader ended: {self._errors.read().strip()[-2000:] or self._process.returncode}")
