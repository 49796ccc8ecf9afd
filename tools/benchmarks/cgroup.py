"""Measures the CPU time of a command and everything it starts, including daemons, with a cgroup."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tools.benchmarks.measure import BenchError, wait_until

JOIN = 'echo $$ > "$0"/cgroup.procs && exec "$@"'


class Cgroup:
    """A child of this process's cgroup (version 2). The block's end waits until its processes have ended.

    part: distinguishes it from others of this process. If it cannot be created (that takes root or a delegated cgroup),
    commands run without it and nothing is counted.
    """

    def __init__(self, part: str = "") -> None:
        mounted = re.search(r"^\S+ (\S+) cgroup2 ", Path("/proc/mounts").read_text(errors="replace"), re.MULTILINE)
        own = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
        self._folder = Path(mounted[1], own[1], f"growfs-bench-{os.getpid()}{part}") if mounted and own else None

    def __enter__(self) -> Cgroup:
        try:
            if self._folder:
                self._folder.mkdir()
        except OSError:
            self._folder = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder:
            wait_until(self._is_removed, f"{self._folder}: its processes did not end", timeout_s=30.0)

    def _is_removed(self) -> bool:
        assert self._folder
        with suppress(OSError):
            self._folder.rmdir()
        return not self._folder.exists()

    def command(self, command: Sequence[object]) -> list[object]:
        """The same command, wrapped to run in the cgroup."""
        return ["sh", "-c", JOIN, self._folder, *command] if self._folder else list(command)

    def processes(self) -> list[int]:
        return [int(pid) for pid in (self._folder / "cgroup.procs").read_text().split()] if self._folder else []

    def cpu_s(self) -> float | None:
        """User and system time so far, in seconds; None without a cgroup."""
        if not self._folder:
            return None
        found = re.search(r"^usage_usec (\d+)$", (self._folder / "cpu.stat").read_text(), re.MULTILINE)
        if not found:
            raise BenchError(f"{self._folder}/cpu.stat has no usage_usec")
        return int(found[1]) / 1e6
