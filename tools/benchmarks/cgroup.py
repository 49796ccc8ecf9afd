"""The CPU time of a command with all that it starts, daemons and ended processes too: a cgroup of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tools.benchmarks.measure import BenchError, until

JOIN = 'echo $$ > "$0"/cgroup.procs && exec "$@"'
END_S_MAX = 30.0


class Group:
    """A child of this process's own cgroup (version 2), for as long as the block lasts; all in it has ended by then.

    Where none can be made (it takes root, or a cgroup that was delegated), commands run outside and nothing is counted.
    """

    def __init__(self) -> None:
        mounted = re.search(r"^\S+ (\S+) cgroup2 ", Path("/proc/mounts").read_text(), re.MULTILINE)
        own = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
        self._folder = Path(mounted[1], own[1], f"growfs-bench-{os.getpid()}") if mounted and own else None

    def __enter__(self) -> Group:
        try:
            if self._folder:
                self._folder.mkdir()
        except OSError:
            self._folder = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder:
            until(self._is_removed, f"{self._folder}: its processes have not ended", timeout_s=END_S_MAX)

    def _is_removed(self) -> bool:
        assert self._folder
        with suppress(OSError):
            self._folder.rmdir()
        return not self._folder.exists()

    def command(self, command: Sequence[object]) -> list[object]:
        """The same command, to run in the group."""
        return ["sh", "-c", JOIN, self._folder, *command] if self._folder else list(command)

    def cpu_s(self) -> float | None:
        """User and system time so far, in seconds; None where it cannot be told."""
        if not self._folder:
            return None
        found = re.search(r"^usage_usec (\d+)$", (self._folder / "cpu.stat").read_text(), re.MULTILINE)
        if not found:
            raise BenchError(f"{self._folder}/cpu.stat tells no usage")
        return int(found[1]) / 1e6
