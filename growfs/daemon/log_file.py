"""The log of a daemon: one file and its predecessor, of limited size, for all output of its processes.

The daemon's own standard output and error are the file, so that it also has the interpreter's last words if it dies.
They follow when the file is rotated. The workers, and the producers that they start, write to a pipe, which a thread
copies to the file.
"""

from __future__ import annotations

import fcntl
import logging
import logging.handlers
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path

LOG_BYTES_MAX = 4 << 20
"""Size at which the file is rotated."""
OUTPUT_BYTES_PER_S = 64 << 10
"""How much of the workers' output is kept. A producer may print for each file, and must leave room for others."""
OUTPUT = "output"
"""The name of log records that hold output."""
LAST_LINES = 1000
"""The number of lines of `last_lines`."""


class LogFile(logging.handlers.RotatingFileHandler):
    """Owns the file, the descriptors 1 and 2 of this process, and a pipe. output: the end that workers write to.

    has_trouble: whether the log has more than information: a warning, an error, or output.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=LOG_BYTES_MAX, backupCount=1)
        self.setFormatter(OutputFormatter("%(asctime)s %(levelname)s %(message)s"))
        self.has_trouble = False
        reading, self.output = os.pipe()
        with suppress(OSError):
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, 1 << 20)  # what an ordinary user may have (pipe(7), pipe-max-size)
        self._copier = threading.Thread(target=self._copy, args=(reading,), name="log", daemon=True)
        self._copier.start()

    def finish(self) -> None:
        """Return when all processes that write to the pipe have ended, and the file has their output."""
        os.close(self.output)
        self._copier.join(5.0)  # processes left behind by a producer may hold the pipe for longer

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self.has_trouble |= record.levelno != logging.INFO
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - an override
        """Called in the except clause if a record cannot be written. A full disk is not worth printing there."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def _open(self) -> TextIOWrapper:
        """Open the file, at the start and after each rotation."""
        stream = super()._open()
        for standard in (1, 2):
            os.dup2(stream.fileno(), standard)
        return stream

    def _copy(self, reading: int) -> None:
        allowance = Allowance(OUTPUT_BYTES_PER_S)
        line = b""  # its end has not arrived yet
        while chunk := os.read(reading, 1 << 20):
            kept, dropped = allowance.take(len(chunk), time.monotonic())
            if dropped:
                self._write(line + f"\n[{dropped:,} bytes of output omitted]\n".encode())
                line = b""
            whole, end, line = (line + chunk[:kept]).rpartition(b"\n")
            if len(line) > OUTPUT_BYTES_PER_S:
                whole, end, line = whole + end + line, b"\n", b""
            if end:
                self._write(whole + end)
            if kept < len(chunk):
                time.sleep(0.02)  # so that a producer that only prints takes no CPU time from the daemon

    def _write(self, output: bytes) -> None:
        text = output.decode(errors="replace").removesuffix(self.terminator)
        self.handle(logging.makeLogRecord({"name": OUTPUT, "msg": text}))


def last_lines(path: Path) -> bytes:
    """The last lines of a log. If the disk fails, the last one is the reason."""
    lines: deque[bytes] = deque(maxlen=LAST_LINES)
    try:
        for each in (path.with_name(f"{path.name}.1"), path):
            with suppress(FileNotFoundError), each.open("rb") as file:
                lines.extend(file)
    except OSError as error:
        lines.append(f"{error}\n".encode())
    return b"".join(lines)


class OutputFormatter(logging.Formatter):
    """Puts the time before each record, but leaves the output of workers as it is."""

    def format(self, record: logging.LogRecord) -> str:
        """The text of a record."""
        return str(record.msg) if record.name == OUTPUT else super().format(record)


class Allowance:
    """How much may be written each second. Owns the count of dropped bytes that are not reported yet."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._second = 0
        self._left = 0
        self._dropped = 0

    def take(self, size: int, now_s: float) -> tuple[int, int]:
        """(how many of these bytes may be written, how many were dropped before and have to be reported first)."""
        told = 0
        if int(now_s) != self._second:
            self._second, self._left = int(now_s), self._bytes_per_s
            told, self._dropped = self._dropped, 0
        kept = min(size, self._left)
        self._left -= kept
        self._dropped += size - kept
        return kept, told
