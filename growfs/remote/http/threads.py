"""`TransferThreads`: the threads of one process that transfer files. Whole files and parts of files share them.

A free thread first helps with the earliest file that has parts left, and only then begins the next file. So the link
goes to the files that come first, and they arrive in the order in which they were submitted. A file that a reader waits
for overtakes them all: while it is transferred, no thread begins a part of another file. While there is work, one free
thread keeps checking for it even if the limit is reached, so that it notices when the limit rises.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

THREADS_MAX = 192
"""Above the limit on transfers at a time, so that an urgent job always finds a thread."""
CHECK_INTERVAL_S = 0.1
"""How soon a thread notices that the limit has risen."""
SLEEPING_MAX = 32
"""Transfers that wait before they repeat a request while others take their place. With more, a store that is
overloaded would get more requests."""
THREADS_DEFAULT = 4
"""The limit of a process that is not given one."""
PART_S = 0.5
"""A part takes a stream at least this long, so that a slow link does not drown in requests. A miss waits for the parts
that are under way: with a second, it waited twice as long as the link needs for a file of 4 MiB at 10 MB/s."""
PART_BYTES_MIN = 256 << 10
PART_BYTES_MAX = 16 << 20
SAMPLE_BYTES_MIN = 64 << 10
"""A smaller body says more about the round trip than about the link."""
SAMPLE_DECAY = 1 / 32
"""The mean rate of a stream goes back over about so many bodies."""
SAMPLE_MORE_S = 2.0
"""Added to the time that bodies took. Servers and links let a burst pass before they limit the rate, and parts of what
a burst promises are whole files, which arrive late and together."""
PARTS_PER_STREAM = 4
"""Parts of the first file, for each stream: when the last ones end, few streams are left without one."""
HOLD_S = 0.5
"""No other file begins for so long after bytes of a large urgent one arrived."""
STREAMS_PER_FILE = 6
"""A large file that cannot be split counts as so many streams: two of them at first, and more if that brings more."""
UNSPLIT_BYTES_MIN = 2 << 20
"""Smaller files that cannot be split go side by side, as the round trips for them count more than their bytes."""


class Job:
    """The transfer of one file. run: does it, and raises nothing. size: in bytes, if it is known.

    urgent: a reader waits for the file. Everything else belongs to TransferThreads. work: transfers one part; returns
    False if there was none left; None while it is not known. helpers_max: for so many more threads there are parts.
    number: in the order in which jobs begin.
    """

    def __init__(self, run: Callable[[], None], size: int | None = None, urgent: bool = False) -> None:
        self.run = run
        self.size = size
        self.urgent = urgent
        self.work: Callable[[], bool] | None = None
        self.helpers = self.helpers_max = 0
        self.number = 0


class TransferThreads:
    """Owns the threads, which are started as they are needed, and knows how fast one stream is.

    limit: how many may transfer at the same time; called again and again, as it may change. throttle: each thread
    calls it with the number of bytes that it has read; it may sleep.
    """

    def __init__(
        self, limit: Callable[[], int] = lambda: THREADS_DEFAULT, throttle: Callable[[int], None] = lambda count: None
    ) -> None:
        self._throttle = throttle
        self._limit = limit
        self._lock = threading.Lock()
        self._work_arrived = threading.Condition(self._lock)
        self._shared_changed = threading.Condition(self._lock)
        self._urgent: deque[Job] = deque()
        self._jobs: deque[Job] = deque()
        self._running: list[Job] = []
        self._begun = 0
        self._shared: list[Job] = []  # begun, with parts that no thread has begun, in the order in which they began
        self._current = threading.local()
        self._working = self._idle = self._sleeping = 0  # idle: all others, including those that are still starting
        self._is_polling = False  # one of the idle threads wakes up every CHECK_INTERVAL_S
        self._unsplit: list[Job] = []  # at work or waiting, in order
        self._held_until = 0.0
        self._sampled_bytes = self._sampled_s = 0.0

    def submit(self, job: Job) -> None:
        """Have a thread run the job. The beginning of an urgent one does not count against the limit."""
        with self._lock:
            (self._urgent if job.urgent else self._jobs).append(job)
            self._wake()

    def prioritize(self, job: Job) -> None:
        """Make a submitted job urgent, whether it has begun or not."""
        with self._lock:
            job.urgent = True
            if job in self._jobs:
                self._jobs.remove(job)
                self._urgent.append(job)
            elif job in self._shared:
                self._hold(job)
            self._wake()

    def throttle(self, bytes: int) -> None:
        """Called after each read of a transfer. Sleeps as the limit on the bandwidth demands."""
        self._throttle(bytes)
        job = self._current_job()
        if job.urgent and (job.size or 0) > PART_BYTES_MIN:
            self._held_until = time.monotonic() + HOLD_S

    def sleep(self, seconds: float) -> None:
        """Called by a transfer before it repeats a request. Another may begin meanwhile."""
        with self._lock:
            gives_way = self._sleeping < SLEEPING_MAX and self._current_job() in self._running
            self._working -= gives_way
            self._sleeping += gives_way
            self._wake()
        time.sleep(seconds)
        with self._lock:
            self._working += gives_way
            self._sleeping -= gives_way

    # The size of parts.

    def record(self, bytes: int, seconds: float) -> None:
        """Take into account how long one stream took for a body."""
        if bytes >= SAMPLE_BYTES_MIN:
            with self._lock:
                self._sampled_bytes += bytes - SAMPLE_DECAY * self._sampled_bytes
                self._sampled_s += seconds - SAMPLE_DECAY * self._sampled_s

    @property
    def stream_bytes_per_s(self) -> float:
        """The mean rate of one stream, of late; 0 if it is not known. Each body counts by the time that it took."""
        return self._sampled_bytes / (self._sampled_s + SAMPLE_MORE_S)

    def part_bytes(self, size: int | None) -> int:
        """The size of the parts of a file of this size; the last one may be smaller.

        Before anything is known about the link, a file has several parts for each stream.
        """
        least = self.stream_bytes_per_s * PART_S or (size or 0) / (PARTS_PER_STREAM * self._limit())
        least = round(min(max(least, PART_BYTES_MIN), PART_BYTES_MAX))
        if size is None:
            return least
        return -(-size // max(1, size // least, -(-size // PART_BYTES_MAX)))

    # Called by the job that a thread runs.

    @contextmanager
    def helping(self, work: Callable[[], bool]) -> Iterator[None]:
        """Inside the block, free threads call work, which must raise nothing, until it returns False.

        The block ends once they have all returned.
        """
        job = self._current_job()
        with self._lock:
            job.work = work
            job.helpers_max = THREADS_MAX
            if job not in self._shared:
                self._shared.append(job)
            self._shared_changed.notify_all()
            self._wake()
        try:
            yield
        finally:
            self._release_helpers(job)

    def release_helpers(self) -> None:
        """Let go the threads that wait for parts of this thread's file: it has none, or they cannot be had yet."""
        self._release_helpers(self._current_job())

    @contextmanager
    def unsplit(self, size: int | None) -> Iterator[None]:
        """Wait until a file that cannot be split may be transferred; the block transfers it.

        Streams cannot share such a file. So there are few at a time, or all would arrive late, and together.
        """
        job = self._current_job()
        self._release_helpers(job)
        if (size or 0) < UNSPLIT_BYTES_MIN:
            yield
            return
        with self._lock:
            self._unsplit.append(job)
            self._unsplit.sort(key=lambda job: job.number)  # threads begin in no order
            while self._unsplit.index(job) >= max(1, self._limit() // STREAMS_PER_FILE) and not job.urgent:
                self._shared_changed.wait(CHECK_INTERVAL_S)
        try:
            yield
        finally:
            with self._lock:
                self._unsplit.remove(job)
                self._shared_changed.notify_all()

    def _release_helpers(self, job: Job) -> None:
        with self._lock:
            job.work = None
            if job in self._shared:
                self._shared.remove(job)
            self._shared_changed.notify_all()
            self._shared_changed.wait_for(lambda: not job.helpers)

    def _current_job(self) -> Job:
        """The job that this thread runs. Another thread, which is none of these, has a job of its own."""
        try:
            return self._current.job  # type: ignore[no-any-return]
        except AttributeError:
            job = self._current.job = Job(lambda: None)
            return job

    # The threads.

    def _wake(self) -> None:
        """Have one thread look for work; before it begins, it wakes the next one."""
        if self._is_polling and not self._has_urgent() and self._working >= self._limit():
            return  # it could not begin, and waking it costs a tenth of a small file
        if self._idle:
            self._work_arrived.notify()
        elif self._working < THREADS_MAX:
            with suppress(RuntimeError) if self._working else nullcontext():  # the system allows no more threads
                threading.Thread(target=self._run, daemon=True).start()
                self._idle += 1

    def _has_urgent(self) -> bool:
        return bool(self._urgent) or any(job.urgent for job in self._shared)

    def _run(self) -> None:
        while True:
            with self._lock:
                while (task := self._next()) is None:
                    self._wait()
                self._idle -= 1
                self._working += 1
                if self._urgent or self._shared or self._jobs:
                    self._wake()
            task()
            with self._lock:
                self._working -= 1
                self._idle += 1

    def _wait(self) -> None:
        if self._is_polling or not (self._shared or self._jobs):
            self._work_arrived.wait()
            return
        self._is_polling = True
        held_s = self._held_until - time.monotonic()
        self._work_arrived.wait(held_s if 0 < held_s < CHECK_INTERVAL_S else CHECK_INTERVAL_S)
        self._is_polling = False

    def _next(self) -> Callable[[], None] | None:
        if self._urgent:
            return self._begin(self._urgent.popleft())
        limit = self._limit()
        shared = next((job for job in self._shared if job.urgent and job.helpers < job.helpers_max), None)
        if shared and shared.helpers < limit:  # as many as if it were alone; those of other files end meanwhile
            return self._begin_part(shared)
        if self._working >= limit or self._is_held:
            return None
        shared = next((job for job in self._shared if job.helpers < job.helpers_max), None)
        if shared:
            return self._begin_part(shared)
        return self._begin(self._jobs.popleft()) if self._jobs else None

    def _begin(self, job: Job) -> Callable[[], None]:
        if job.size is not None and job.size > PART_BYTES_MIN:
            job.helpers_max = -(-job.size // self.part_bytes(job.size)) - 1
            if job.helpers_max:
                self._shared.append(job)  # the others wait for its parts rather than begin the next file
        self._running.append(job)
        self._begun += 1
        job.number = self._begun
        self._hold(job)
        return lambda: self._run_job(job)

    def _run_job(self, job: Job) -> None:
        self._current.job = job
        job.run()
        if job.helpers_max:
            self._release_helpers(job)
        with self._lock:
            self._running.remove(job)
            if job.urgent:
                self._wake()  # others may begin again

    def _begin_part(self, job: Job) -> Callable[[], None]:
        job.helpers += 1
        self._hold(job)
        return lambda: self._help(job)

    def _hold(self, job: Job) -> None:
        """Have no other file begin for as long as a stream may need for a part of an urgent one.

        While bytes of a large one arrive, that is extended. So many small ones do not stop the rest.
        """
        if job.urgent:
            rate = self.stream_bytes_per_s
            part_s = min(self.part_bytes(job.size) / rate, PART_S) if rate else PART_S
            self._held_until = max(self._held_until, time.monotonic() + 2 * part_s)

    @property
    def _is_held(self) -> bool:
        return time.monotonic() < self._held_until and any(job.urgent for job in self._running)

    def _help(self, job: Job) -> None:
        self._current.job = job
        began = time.monotonic()
        with self._lock:
            self._shared_changed.wait_for(lambda: job.work or job not in self._shared)
            self._sampled_s += time.monotonic() - began  # it could have transferred in that time
            work = job.work
        more = work is not None and work()
        with self._lock:
            job.helpers -= 1
            if not more and job in self._shared:
                self._shared.remove(job)
            self._shared_changed.notify_all()
