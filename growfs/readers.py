"""Who listed, and who opened: what decides when the next generation begins, and what `status` tells of each reader.

A process is its thread group and start time, because FUSE names the thread that asks, and numbers are used again.
It is looked up while the kernel holds the asking thread in its call, so it cannot end meanwhile.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import trio

from growfs.rotation import Listing, begins_generation
from growfs.store import Generation, Store

FORGET_THREADS_S = 1.0
"""How long a thread number is taken for the same thread. Numbers are handed out in turn, so reuse takes far longer."""
READERS_MAX = 256
"""Readers that are remembered before those that ended are looked for."""
EVERYWHERE = 0
"""Stands for all directories at once, where a file of .growfs/ lists them."""


@dataclass(eq=False, slots=True)
class Reader:
    """A process that listed a directory, or opened a file without any ancestor that had listed.

    pid: of the process; 0 stands for all those in other pid namespaces, which the kernel does not name.
    listed: for each directory, the generation that it listed, and its count of opens then.
    shown: for each directory, the files that its last listing in this generation showed.
    """

    pid: int
    start: str
    command: str
    listed: dict[int, tuple[int, int]] = field(default_factory=dict)
    listed_at: float | None = None
    generation: int = 0
    shown: dict[int, int] = field(default_factory=dict)
    opens: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc tells of a process. start: clock ticks after boot (proc(5), field 22)."""

    pid: int
    parent: int
    start: str
    command: str


def process(pid: int) -> Process | None:
    """The process with that id, or None where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a command may be cut within a letter
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


class Readers:
    """Owns the readers. Only it begins a generation."""

    def __init__(self, store: Store, settle_s: float) -> None:
        self.settle_s = settle_s
        self._store = store
        self._readers: dict[tuple[int, str], Reader] = {}
        self._threads: dict[int, tuple[float, Reader]] = {}

    def listing(self, tid: int, directory: int) -> tuple[Reader, Generation]:
        """Note that a thread lists a directory (EVERYWHERE: all); returns who it is, and what it is shown."""
        reader = self._self(tid)
        generation = self._store.generation
        number, opens = reader.listed.get(directory, (0, 0))
        known = Listing(
            listed_ever=reader.listed_at is not None,
            listed_here=generation is not None and number == generation.number,
            opened_since=reader.opens > opens,
        )
        now = trio.current_time()
        if generation is None or begins_generation(known, now - generation.began_at, self.settle_s):
            generation = self._store.begin_generation()
        if reader.generation != generation.number:
            reader.generation = generation.number
            reader.shown.clear()
        if reader.listed_at is None:
            self._threads.clear()  # from now on it is credited with what its children open
        reader.shown[directory] = self._store.listed_totals()[0] if directory == EVERYWHERE else 0
        reader.listed_at = now
        reader.listed[directory] = (generation.number, reader.opens)
        return reader, generation

    def opened(self, tid: int) -> None:
        """Credit an open to the nearest of the process and its ancestors that listed, else to the process."""
        now = time.monotonic()
        known_at, reader = self._threads.get(tid, (-FORGET_THREADS_S, None))
        if reader is None or now - known_at >= FORGET_THREADS_S:
            reader = self._lister(tid)
            if len(self._threads) > READERS_MAX:
                self._threads.clear()
            self._threads[tid] = (now, reader)
        reader.opens += 1

    def living(self) -> list[Reader]:
        """The readers that have not ended, the last to list first."""
        self._forget_ended()
        return sorted(self._readers.values(), key=lambda reader: -(reader.listed_at or 0))

    def _self(self, tid: int) -> Reader:
        found = process(thread_group(tid)) or Process(0, 0, "", "another pid namespace")
        key = (found.pid, found.start)
        if key not in self._readers:
            if len(self._readers) >= READERS_MAX:
                self._forget_ended()
            self._readers[key] = Reader(found.pid, found.start, found.command)
            self._threads.clear()
        return self._readers[key]

    def _lister(self, tid: int) -> Reader:
        current = process(thread_group(tid))
        while current:
            reader = self._readers.get((current.pid, current.start))
            if reader and reader.listed_at is not None:
                return reader
            current = process(current.parent) if current.parent > 1 else None
        return self._self(tid)

    def _forget_ended(self) -> None:
        for key, reader in list(self._readers.items()):
            found = process(reader.pid)
            if reader.pid and (found is None or found.start != reader.start):
                del self._readers[key]
        self._threads.clear()
