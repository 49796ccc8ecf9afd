"""The access patterns of the simulation, run by real processes on a real mount.

A simulated second takes a millisecond, except for the timers of the daemon.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterable
from pathlib import Path

from growfs.rotation.rules import EVERYWHERE
from growfs.simulation.cache import File
from tests.fuse.reader import Reader
from tests.harness import Growfs, until
from tests.simulation.world import Process, World, catalog

SPEED = 1000.0
FILES = 200
"""Unless the pattern brings its own: fewer than in the simulation, which takes no time."""
FILE_BYTES = 4096
SPARE = 2
DEADLINE_S = 60.0


class MountReader:
    """A process that lists and opens files, with the interface of SimProcess. A file is identified by its number."""

    def __init__(self, mount: MountedWorld) -> None:
        self._mount = mount
        self._process = Reader(mount.mountpoint, job="pattern")

    def list(self, directory: int) -> list[int]:
        if directory == EVERYWHERE:
            return [self._mount.ids[path] for path in self._process.request("lines", ".growfs/files")]
        names = self._process.request("list", f"c{directory}")
        ids = [self._mount.ids[f"c{directory}/{name}"] for name in names]
        self._mount.shown.update(ids)
        return ids

    def open(self, id: int, keep: bool = False) -> float:
        assert keep
        assert self._process.request("keep_open", self._mount.files[id].path) == FILE_BYTES
        return 0.0

    def close(self, id: int) -> None:
        self._process.request("close", self._mount.files[id].path)

    def exit(self) -> None:
        self._process.end()


class MountedWorld(World):
    """A World whose simulation is a mount. shown: all files that were ever listed.

    Processes end after enough opens and, where the pattern sees growth, once they saw more files than the cache holds.
    """

    def __init__(
        self, growfs: Growfs, opens: int, grows: bool, files: list[File] | None = None, share: float = 0.2
    ) -> None:
        self.growfs = growfs
        self.mountpoint = growfs.mountpoint
        self.files = catalog(FILES) if files is None else files
        self.ids = {file.path: id for id, file in enumerate(self.files)}
        self.capacity = int(share * len(self.files))
        self.opens_target = opens
        self.opens = 0
        self.random = random.Random(0)
        self.directories = sorted({file.directory for file in self.files})
        self.shown: set[int] = set()
        self.simulation = self  # type: ignore[assignment]  # it has the attributes that the patterns use
        self._grows = grows
        self._spare: list[MountReader] = []
        self._began = time.monotonic()

    def mount(self, remote: Path, filled: float, settle_s: float) -> None:
        """Write the files, mount them, and wait until the cache is filled to this fraction."""
        content = random.Random(1).randbytes(FILE_BYTES)
        for file in self.files:
            (remote / file.path).parent.mkdir(parents=True, exist_ok=True)
            (remote / file.path).write_bytes(content)
        flags = ["--settle", f"{settle_s}s", "--min-free", "0MB", "--wait-files", max(1, int(filled * self.capacity))]
        self.growfs.mount(remote, "--cache-size", self.capacity * FILE_BYTES, *flags)
        until(lambda: all((self.mountpoint / f"c{directory}").exists() for directory in self.directories))
        self._began = time.monotonic()

    @property
    def enough(self) -> bool:
        assert time.monotonic() - self._began < DEADLINE_S, "no new files were listed"
        return self.opens >= self.opens_target and (not self._grows or len(self.shown) > 1.5 * self.capacity)

    def reader(self) -> MountReader:
        """A new reader: a process from a pool of started ones, so that it is ready at once."""
        while len(self._spare) <= SPARE:
            self._spare.append(MountReader(self))
        return self._spare.pop(0)

    def run(self, *processes: Process) -> None:
        self.play(processes)
        for spare in self._spare:
            spare.exit()

    def play(self, processes: Iterable[Process]) -> None:
        """Interleave the processes until all have ended."""
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
