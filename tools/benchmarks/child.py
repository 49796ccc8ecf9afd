"""Child processes: servers, mounts in the foreground, and programs that answer lines with lines, like reader.py."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from tools.benchmarks.measure import COMMAND_S_MAX, END_S, ROOT, SHIM, BenchError, environment, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

READER = Path(__file__).with_name("reader.py")
READER_VARIABLES = {"PYTHONPATH": str(SHIM), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
T = TypeVar("T")


class Child:
    """A process in a session of its own, all of which is killed at the block's end.

    What it prints is kept, and is the message if it ends too early. variables: added to its environment. answers: its
    standard input and output are pipes, for `send` and `expect`, and only what it prints to standard error is kept.
    name: for messages. folder: where it runs.
    """

    def __init__(
        self,
        command: Sequence[object],
        variables: Mapping[str, str] = MappingProxyType({}),
        *,
        answers: bool = False,
        name: str = "",
        folder: Path = ROOT,
    ) -> None:
        self.name = name or str(command[0])
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE if answers else subprocess.DEVNULL,
            stdout=subprocess.PIPE if answers else self._log,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env=environment() | dict(variables),
            cwd=folder,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.communicate()
        self._log.close()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def log(self) -> str:
        """What it has printed so far. Reading does not move the position at which it writes."""
        fd = self._log.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")

    def error(self) -> BenchError:
        """An error that says why it failed. The first line of the message is the last one that it printed. Kills it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)  # it may still be writing its message
        self.kill()
        *before, last = self.log().strip().splitlines() or [f"status {self._process.wait()}"]
        return BenchError("\n".join([f"{self.name} failed: {last}", *before[-30:]]))

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended with status 0. Raises BenchError if it does not."""
        try:
            failed = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{self.name} has not ended after {timeout_s:g} s") from None
        if failed:
            raise self.error()

    def wait_until(self, condition: Callable[[], T], timeout_s: float, every_s: float = 0.01) -> T:
        """Poll until the condition is true, and return its value. Raises BenchError if it ends or the time is up."""

        def met() -> T:
            if not (value := condition()) and self.has_ended:
                raise self.error()
            return value

        return wait_until(met, self.name, every_s, timeout_s)

    def send(self, line: str) -> None:
        """Send a line. Raises BenchError if it has ended."""
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self.error() from None

    def lines(self, timeout_s: float) -> Iterator[str]:
        """The lines that it prints, until its output ends. It is killed if that takes longer."""
        assert self._process.stdout
        timer = Timer(timeout_s, self.kill)
        timer.start()
        try:
            yield from iter(self._process.stdout.readline, "")  # the end of this generator would close a file
        finally:
            timer.cancel()

    def expect(self, pattern: str) -> re.Match[str]:
        """Wait for a line that begins with a match, and skip others, which frameworks print. Raises BenchError."""
        for line in self.lines(COMMAND_S_MAX):
            if found := re.match(pattern, line):
                return found
        raise self.error()


class ReaderProcess(Child):
    """A process without any growfs code that runs commands, one line of JSON each.

    One process runs many measurements, so none of them includes its start. program: reads the commands. variables:
    added to its environment.
    """

    def __init__(self, program: Path = READER, **variables: str) -> None:
        super().__init__(
            [sys.executable, program], READER_VARIABLES | variables, answers=True, name="the reader", folder=Path("/")
        )

    def start(self, command: str, *arguments: object) -> None:
        """Send a command. arguments: JSON values and paths."""
        self.send(json.dumps([command, *arguments], default=str))

    def result(self) -> Any:
        return json.loads(self.expect(r"[{\d].*")[0])

    def call(self, command: str, *arguments: object) -> Any:
        self.start(command, *arguments)
        return self.result()
