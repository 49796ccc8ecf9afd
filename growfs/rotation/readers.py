"""The readers of a mount: which process a request comes from, what it holds, and when its listing begins a generation.

A process is identified by its thread group and start time, because FUSE passes the thread of a request, and the kernel
reuses thread numbers. The process is looked up while the kernel keeps that thread waiting in its system call, so it
cannot end meanwhile.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import trio

from growfs.bitmaps import BitMap64
from growfs.errors import TooManyOpen
from growfs.proc import Process, lineage, process, thread_group
from growfs.rotation.generations import Generations, Planner
from growfs.rotation.reader import Reader, held_by
from growfs.rotation.rules import EVERYWHERE, Generation
from growfs.signal import Signal
from growfs.syscalls import pidfd_open

SILENCE_EVERY_S = 5.0
"""How often the registry checks for readers that have fallen silent."""
NUMBERS = (1 << 20) - 1
"""How many numbers readers get before numbers are reused."""
NOTHING = Generation(0, 0)
"""Stands for the generation if there is none yet: it lists nothing."""
FOREIGN = 0
"""The pid that FUSE passes for processes of other pid namespaces."""


class Readers:
    """Owns the readers and their holds, and begins a mount's generations. `released` notifies when holds have ended.

    hold_idle_s: the silence after which a reader's holds end. recently_opened: returns ids of files that were opened,
    although their rows may not say so yet.
    """

    def __init__(
        self, generations: Generations, hold_idle_s: float, recently_opened: Callable[[], frozenset[int]]
    ) -> None:
        self.hold_idle_s = hold_idle_s
        self.released = Signal[[]]()
        self._generations = generations
        self._recently_opened = recently_opened
        self._open_folders = Counter[Generation]()
        self._held_until = dict[Generation, float]()
        self._beginning = trio.Lock()
        self._nursery: trio.Nursery | None = None  # while it runs
        self._readers: dict[tuple[int, str], Reader] = {}
        self._pidfds: dict[Reader, int] = {}
        self._processes: dict[Reader, Process] = {}
        self._by_number: dict[int, Reader] = {}
        self._threads: dict[int, Reader] = {}
        self._threads_since = 0.0
        self._numbers = (count % NUMBERS + 1 for count in itertools.count())  # 0 stands for no reader

    async def run(self) -> None:
        """End the holds of readers that have been silent for long. Runs the tasks that wait for readers to end."""
        async with trio.open_nursery() as nursery:
            for reader in self._pidfds:  # of an earlier run, which an error ended
                nursery.start_soon(self._until_it_ends, reader)
            self._nursery = nursery
            try:
                while True:
                    await trio.sleep(SILENCE_EVERY_S)
                    self._release_silent(trio.current_time())
            finally:
                self._nursery = None

    def _release_silent(self, now: float) -> None:
        settle_s = self._generations.settle_s
        over = [generation for generation, until in self._held_until.items() if until < now]
        silent = [
            reader
            for reader in self._readers.values()
            if (reader.held or reader.named) and reader.is_silent(now, self.hold_idle_s, settle_s)
        ]
        for generation in over:
            del self._held_until[generation]
        for reader in silent:
            reader.release()
        if over or silent:
            self.released.notify()

    # What readers do.

    def is_due(self, reader: Reader, directory: int) -> bool:
        """Whether a generation has to `begin` before a process lists a directory (EVERYWHERE: all)."""
        return self._view(reader, directory) is None

    def _view(self, reader: Reader, directory: int) -> Generation | None:
        """The generation to show; None if the next one has to begin first."""
        newest = self._generations.current
        found = self._processes.get(reader)  # it may have ended: another process reads the directory that it has opened
        if reader.listed_at is None and found:
            self._join(reader, found)
        if self._generations.is_over or newest is None:
            return None
        only_opens_count = newest.is_shown_once and not self._generations.counts_all
        settle_s = math.inf if only_opens_count else self._generations.settle_s
        return reader.next_view(directory, newest, trio.current_time(), settle_s, self._holding())

    def listing(self, reader: Reader, directory: int) -> Generation:
        """Note that a process begins to list a directory; returns the generation that it sees, which is held as a whole
        until `close_generation` (EVERYWHERE: as long as the reader holds it).

        It is the newest one if the next has not begun, although it is due.
        """
        generation = self._view(reader, directory) or self._generations.current or NOTHING
        if reader.listed_at is None:
            self._threads.clear()  # from now on it is credited with the opens of its children
        now = trio.current_time()
        reader.lists(directory, generation, now, self._generations.settle_s)
        if reader.pid == FOREIGN:
            self._hold_until(generation, now + self.hold_idle_s)
        if directory == EVERYWHERE:
            reader.job.is_shown(EVERYWHERE, generation, generation.files)
        else:
            self._open_folders[generation] += 1
        self.released.notify()  # its earlier holds have ended
        return generation

    async def begin(self, reader: Reader, directory: int) -> None:
        """Begin the generation that a listing needs, if it needs one, unless another listing begins it meanwhile.

        If it cannot begin (the disk refuses to write it, or --show-files asks for more files), the newest one stays.
        """
        await self.begin_if(partial(self.is_due, reader, directory), lister=reader)

    async def begin_number(self, number: int) -> None:
        """Begin the generation with that number, unless that has happened. Otherwise as `begin`."""
        await self.begin_if(lambda: self._generations.last_number < number)

    async def begin_after(self, number: int) -> Generation:
        """Begin the generation after one that was read, if that has not happened and there is something new.

        number: see `Generations.is_due_after`. Returns the newest one.
        """
        leaves = 0 < number <= self._generations.last_number
        await self.begin_if(partial(self._generations.is_due_after, number), leaves=leaves)
        return self._generations.current or NOTHING

    async def begin_if(
        self,
        is_due: Callable[[], bool],
        planner: Planner | None = None,
        lister: Reader | None = None,
        leaves: bool = True,
    ) -> None:
        """Begin a generation if one is due, also once no other one is about to begin.

        planner: of this generation; by default, that of the mount. leaves: it is for a program that reads the newest
        one, so what else reads that may go on soon. Raises the errors of `Planner.wait`.
        """
        while is_due():
            await (planner or self._generations.planner).wait()  # not in the lock: others may begin meanwhile
            async with self._beginning:
                if not is_due():
                    return
                lasting = (other.lasting_holds(lister) for other in self._holding() if other.pid != FOREIGN)
                left = {self._generations.current} if leaves else set()
                earlier = (each.listed for each in self._held_as_a_whole() - left)
                held = BitMap64().union(*lasting, *earlier)
                if await self._generations.begin(held, self._recently_opened(), planner):
                    return

    def opener(self, tid: int) -> int:
        """The reader to credit with a thread's opens: the nearest of its process and ancestors that has listed.

        If none has listed, its own process. Returns the reader's number, for `opened` and `closed`.
        """
        reader = self._known_thread(tid) or self._credited(tid, _process_of(tid))
        return reader.number

    def _known_thread(self, tid: int) -> Reader | None:
        # A number surely stands for the same thread for a second: the kernel counts up, so reuse takes far longer.
        if time.monotonic() - self._threads_since >= 1.0:
            self._threads.clear()
            self._threads_since = time.monotonic()
        return self._threads.get(tid)

    def opened(self, number: int, id: int, waited: bool) -> None:
        """Note that a reader has opened a file. waited: the open waited for the fetch."""
        self._generations.note_opened(id)
        if reader := self._by_number.get(number):
            is_of_view = self._generations.moves(id, reader.job.view)
            reader.opened(id, self._generations.current, trio.current_time(), waited, is_of_view)

    def opened_by(self, pid: int, id: int) -> bool:
        """Note that a process has opened a file a moment ago. False if it is the daemon, or was started by it.

        If the kernel names no process, the open counts for each reader that holds something. If that process has ended
        meanwhile, it counts for none.
        """
        reader = self._known_thread(pid)
        if reader is None and (found := process(pid)):
            if any(each.pid == os.getpid() for each in lineage(found)):
                return False
            with suppress(TooManyOpen):  # or it has just ended
                reader = self._credited(pid, found)
        self._generations.note_opened(id)
        now = trio.current_time()
        everybody = [each for each in self._holding() if each.held] if pid == FOREIGN else []
        for each in [reader] if reader else everybody:
            each.opened(id, self._generations.current, now, False, self._generations.moves(id, each.job.view))
            each.closed(now)
        return True

    def closed(self, number: int) -> None:
        """Note that a file opened by a reader was closed."""
        if reader := self._by_number.get(number):
            reader.closed(trio.current_time())

    # Generations that are opened by their path.

    def has_open_folder(self, generation: Generation) -> bool:
        """Whether a folder of a generation is open by its path."""
        return generation in self._open_folders

    def named_generations(self) -> dict[int, Generation]:
        """The generations that are kept or held, by number, the first one first."""
        found = {*self._generations.kept, *self._held_as_a_whole()} - {NOTHING}
        return {each.number: each for each in sorted(found, key=lambda each: each.number)}

    def open_generation(self, generation: Generation, tid: int) -> None:
        """Note that a thread has opened a folder of a generation: it is held, or in use if it is shown once."""
        reader, now = self.reader_of(tid), trio.current_time()
        self._open_folders[generation] += 1
        left, settle_s = reader.named, self._generations.settle_s
        if generation.is_shown_once:
            self._generations.planner.use(generation)
        elif reader.pid == FOREIGN:
            self._hold_until(generation, now + self.hold_idle_s)
        elif left is None:  # other ranks may start later
            self._hold_until(generation, now + settle_s)
        if left is None or left.number < generation.number:
            others = (other.named.number for other in self._readers.values() if other.named and other.pid != FOREIGN)
            # The others have yet to come to it.
            if left and not left.is_shown_once and any(number < left.number for number in others):
                self._hold_until(left, now + settle_s)
            reader.named, reader.files = generation, BitMap64()
            self._threads.clear()  # from now on it is credited with the opens of its children
            self.released.notify()  # its earlier hold may have ended
        reader.active_at = now

    def close_generation(self, generation: Generation) -> None:
        """Note that such a folder was closed by all processes that had it open, or that a listing has ended."""
        self._open_folders -= Counter([generation])  # which leaves out those that have none
        self.released.notify()

    def _hold_until(self, generation: Generation, until: float) -> None:
        self._held_until[generation] = max(until, self._held_until.get(generation, until))

    def _held_as_a_whole(self) -> set[Generation]:
        """The generations that are held because they were opened by their path, are being listed, or were listed by
        unknown processes.
        """
        now = trio.current_time()
        of_processes = (each.named for each in self._readers.values() if each.pid != FOREIGN)
        return {
            *self._open_folders,
            *self._generations.planner.in_use(),
            *(generation for generation in of_processes if generation and not generation.is_shown_once),
            *(generation for generation, until in self._held_until.items() if now <= until),
        }

    # What readers hold.

    def holds(self) -> BitMap64:
        """The admissions of the files that readers hold, and of those in generations that are kept or held."""
        readers = [reader for reader in self._holding() if reader.pid != FOREIGN]
        return held_by(readers, trio.current_time(), {*self._generations.kept[:-1], *self._held_as_a_whole()})

    def held_by(self, reader: Reader) -> BitMap64:
        """The admissions of the files that a reader holds."""
        whole = self._held_until if reader.pid == FOREIGN else filter(None, [reader.named])
        return held_by([reader], trio.current_time(), whole)

    def _holding(self) -> Iterator[Reader]:
        """The readers whose holds count: not if another process lists for them, such as rank 0, which broadcasts the
        names; with --rotation always, only until their job has opened all that it saw.
        """
        is_always = self._generations.rotation == "always"
        for reader in self._readers.values():
            is_listed_for = reader.listed_at is None and reader.job.listers
            is_read = reader.opened_all or reader.view is not reader.job.view
            if not (is_listed_for or (is_always and is_read)):
                yield reader

    def release(self) -> None:
        """End all holds but those of folders that are open by the path of their generation."""
        for reader in self._readers.values():
            reader.release()
        self._held_until.clear()
        self.released.notify()

    def active(self) -> list[Reader]:
        """The readers that have not ended; the last one to list comes first."""
        return sorted(self._readers.values(), key=lambda reader: -(reader.listed_at or 0))

    # Which process a thread belongs to.

    def reader_of(self, tid: int) -> Reader:
        """The reader that stands for a thread's process. Raises TooManyOpen."""
        return self._reader_of(_process_of(tid))

    def _reader_of(self, found: Process) -> Reader:
        key = (found.pid, found.start)
        if key not in self._readers:
            pidfd = _watched(found.pid) if found.pid != FOREIGN else None
            number = next(number for number in self._numbers if number not in self._by_number)
            reader = self._readers[key] = Reader(found.pid, found.start, found.command, number)
            self._processes[reader] = found
            self._by_number[reader.number] = reader
            self._threads.clear()
            if pidfd is not None:
                self._pidfds[reader] = pidfd
                if self._nursery:
                    self._nursery.start_soon(self._until_it_ends, reader)
        return self._readers[key]

    def _join(self, new: Reader, found: Process) -> None:
        """Find the job of a process that has not listed yet: that of the process above it, if it is a worker, that of a
        live process that started with it, or its own.
        """
        new.command_line = new.command_line or re.sub(rb"[0-9]+", b"", found.command_line)  # before it runs another
        if above := self._above(found):
            new.above, new.job = above, above.job
        else:
            began_s = trio.current_time() - found.age_s - self._generations.settle_s
            jobs_that_started_with_it = (
                reader.job
                for reader, known in self._processes.items()
                if reader is not new
                if are_ranks(known, found, reader.command_line == new.command_line != b"")
                or (reader.job.view and began_s <= reader.job.viewed_at and is_family(known, found))
            )
            new.job = next(jobs_that_started_with_it, new.job)

    def _above(self, found: Process) -> Reader | None:
        """The nearest process above that has listed, if it forked those below, or started them by multiprocessing."""
        for child, parent in itertools.pairwise(lineage(found)):
            if not (child.is_forked or b"from multiprocessing." in child.command_line):
                return None
            reader = self._readers.get((parent.pid, parent.start))
            if reader and reader.listed_at is not None:
                return reader
        return None

    def _credited(self, tid: int, found: Process) -> Reader:
        """The nearest of a thread's process and its ancestors that has listed, otherwise the process; remembers it."""
        readers = (self._readers.get((each.pid, each.start)) for each in lineage(found))
        lister = next((reader for reader in readers if reader and reader.newest), None)
        reader = lister or self._reader_of(found)
        if not (lister or reader.opens):
            self._join(reader, found)
        self._threads[tid] = reader
        return reader

    async def _until_it_ends(self, reader: Reader) -> None:
        await trio.lowlevel.wait_readable(self._pidfds[reader])
        os.close(self._pidfds.pop(reader))
        del self._readers[reader.pid, reader.start], self._processes[reader]
        reader.ended()
        self._by_number.pop(reader.number, None)
        self._threads.clear()
        self.released.notify()


def are_ranks(one: Process, other: Process, have_same_command_line: bool) -> bool:
    """Whether two processes started together, and are children of one launcher (torchrun, mpirun, multiprocessing) or
    have the same command line. The latter is for ranks that each have a wrapper script as parent.
    """
    # A launcher starts its processes within a minute, even if there are hundreds of them.
    if FOREIGN in (one.pid, other.pid) or abs(one.started_s - other.started_s) > 60.0:
        return False
    return one.parent == other.parent > 1 or have_same_command_line


def is_family(one: Process, other: Process) -> bool:
    """Whether one is a child of the other and runs the same program, like Lightning's ranks and data loader workers."""
    is_child = one.parent == other.pid or other.parent == one.pid
    return is_child and FOREIGN not in (one.pid, other.pid) and one.program == other.program is not None


def _process_of(tid: int) -> Process:
    return process(thread_group(tid)) or Process(FOREIGN, 0, "0", "another pid namespace")


def _watched(pid: int) -> int:
    """A descriptor that becomes readable when the process ends (pidfd_open(2))."""
    try:
        return pidfd_open(pid)
    except OSError as error:
        raise TooManyOpen(f"a reader cannot be watched: {error.strerror}") from error
