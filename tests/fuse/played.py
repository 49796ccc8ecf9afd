"""The access patterns of the simulation, played by real processes on a real mount.

Simulated seconds pass a thousand times as fast, except for what the daemon times itself.
"""

from __future__ import annotations

import heapq
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from growfs.simulation.cache import File
from growfs.simulation.simulator import Process
from tests.harness import Growfs, until
from tests.simulation.world import World, catalog

SPEED = 1000.0
FILE_BYTES = 4096
SPARE = 2
DEADLINE_S = 60.0

PROGRAM = """
import json, os, sys
opened = {}
os.chdir("/")
for line in sys.stdin:
    verb, path = json.loads(line)
    result = None
    if verb == "list":
        result = os.listdir(path)
    elif verb == "open":
        opened.setdefault(path, []).append(os.open(path, os.O_RDONLY))
        result = len(os.read(opened[path][-1], 1 << 20))
    else:
        os.close(opened[path].pop())
    print(json.dumps(result), flush=True)
"""


class MountReader:
    """A process that lists and opens, as SimReader does. Files are numbers."""

    def __init__(self, mount: MountedWorld) -> None:
        self._mount = mount
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def list(self, directory: int) -> list[int]:
        """What a directory shows, in the order of admission."""
        ids = [self._mount.ids[f"c{directory}/{name}"] for name in self._ask("list", f"c{directory}")]
        self._mount.shown.update(ids)
        return ids

    def open(self, id: int, keep: bool = False) -> float:
        """Open a file, read it, and keep it open."""
        assert keep
        assert self._ask("open", self._mount.files[id].path) == FILE_BYTES
        return 0.0

    def close(self, id: int) -> None:
        """Close it."""
        self._ask("close", self._mount.files[id].path)

    def exit(self) -> None:
        """End, and return when the kernel knows it."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _ask(self, verb: str, path: str) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([verb, str(self._mount.mountpoint / path)]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class MountedWorld(World):
    """A World whose simulation is a mount. shown: all that was ever listed.

    Processes may end when there were enough opens, and, where the pattern grows, when more was shown than fits.
    """

    def __init__(
        self, growfs: Growfs, opens: int, grows: bool, files: list[File] | None = None, share: float = 0.2
    ) -> None:
        self.growfs = growfs
        self.mountpoint = growfs.mountpoint
        self.files = catalog(1000) if files is None else files
        self.ids = {file.path: id for id, file in enumerate(self.files)}
        self.room = int(share * len(self.files))
        self.opens_wanted = opens
        self.opens = 0
        self.random = random.Random(0)
        self.directories = sorted({file.directory for file in self.files})
        self.shown: set[int] = set()
        self.simulation = self  # type: ignore[assignment]  # it has what the patterns ask of one
        self._grows = grows
        self._spare: list[MountReader] = []
        self._began = time.monotonic()

    def mount(self, remote: Path, filled: float, settle_s: float) -> None:
        """Write the files, mount them, and wait until so much of the cache is full."""
        content = random.Random(1).randbytes(FILE_BYTES)
        for file in self.files:
            (remote / file.path).parent.mkdir(parents=True, exist_ok=True)
            (remote / file.path).write_bytes(content)
        flags = ["--settle", f"{settle_s}s", "--min-free", "0MB", "--wait-files", max(1, int(filled * self.room))]
        self.growfs.mount(remote, "--cache-size", self.room * FILE_BYTES, *flags)
        until(lambda: all((self.mountpoint / f"c{directory}").exists() for directory in self.directories))
        self._began = time.monotonic()

    @property
    def enough(self) -> bool:
        assert time.monotonic() - self._began < DEADLINE_S, "nothing new is shown"
        return self.opens >= self.opens_wanted and (not self._grows or len(self.shown) > 1.5 * self.room)

    def reader(self) -> MountReader:
        """A process that starts now: it was started before, so that it is there at once."""
        while len(self._spare) <= SPARE:
            self._spare.append(MountReader(self))
        return self._spare.pop(0)

    def run(self, *processes: Process) -> None:
        self.play(processes)
        for spare in self._spare:
            spare.exit()

    def play(self, processes: Iterable[Process]) -> None:
        """Let processes go on side by side until all have ended."""
        heap = [(0.0, number, process) for number, process in enumerate(processes)]
        began = time.monotonic()
        while heap:
            at, number, process = heap[0]
            time.sleep(max(0.0, began + at / SPEED - time.monotonic()))
            try:
                pause = next(process)
            except StopIteration:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (at + pause, number, process))
