"""Processes and threads, as /proc describes them (proc(5))."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process, as /proc describes it. start: clock ticks after boot (proc(5), field 22)."""

    pid: int
    parent: int
    start: str
    command: str


def process(pid: int) -> Process | None:
    """The process with that id, or None where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # the kernel may cut a command within a character
    except OSError:
        return None
    command, _, rest = stat.partition("(")[2].rpartition(") ")
    fields = rest.split()
    return Process(pid, int(fields[1]), fields[19], command)


def thread_group(tid: int) -> int:
    """The process that a thread belongs to; the number itself where /proc does not know it."""
    try:
        with open(f"/proc/{tid}/status", errors="replace") as status:
            for line in status:
                if line.startswith("Tgid:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return tid
