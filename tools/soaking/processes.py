"""Processes: readings of /proc, and their logs."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from growfs.proc import pids, process
from tools.benchmarks.measure import memory_bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a process uses. bytes: memory, with shared pages divided among the sharing processes.

    descriptors: excluding those of cached files, of which a daemon keeps as many as there are.
    """

    bytes: int
    descriptors: int
    threads: int


def kill(pid: int) -> None:
    """Send SIGKILL, unless the process has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The running processes that a process and its children have started."""
    running = list(map(process, pids()))
    found, next_ones = [], {pid}
    while next_ones:
        next_ones = {each.pid for each in running if each and each.parent in next_ones}
        found += sorted(next_ones)
    return found


def started(pid: int) -> int | None:
    """When a process started, in ticks since boot, which distinguishes it from a later one with the same number. None
    if it has ended, even if it is a zombie: if all of its threads have.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" and fields[16] == "1" else int(fields[18])


def usage(pid: int) -> Usage | None:
    folder = Path(f"/proc/{pid}")
    try:
        open_files = [_target(link) for link in (folder / "fd").iterdir()]
        threads = len(list((folder / "task").iterdir()))
    except OSError:
        return None
    if (bytes := memory_bytes(pid)) is None:
        return None
    descriptors = sum("/files/" not in path or path.endswith(" (deleted)") for path in open_files)
    return Usage(bytes, descriptors, threads)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""  # it was closed meanwhile


class Tail:
    """The lines that were added to a file since the last look, even if it was replaced by a new one meanwhile."""

    def __init__(self, path: Path) -> None:
        self.bytes_total = 0
        self._path = path
        self._inode, self._offset, self._rest = 0, 0, b""

    def lines(self) -> list[str]:
        """The new lines, only complete ones."""
        try:
            with self._path.open("rb") as file:
                if (inode := os.fstat(file.fileno()).st_ino) != self._inode:
                    self._inode, self._offset, self._rest = inode, 0, b""
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        self.bytes_total += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in whole]
