"""`TransferThreads`: the threads of a process that transfer files, in the order that the daemon wants.

There is a single queue. A free thread takes the first task in it: a file that has not begun, or a segment of one that
has. So the link serves the first files first, and they arrive in order. Files that readers wait for come before all
others, and are exempt from the limit on streams.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

from growfs.remote.client_choice import LibraryUse

SLEEPING_MAX = 32
"""Transfers that wait before repeating a request while others take their place. With more, an overloaded store would
get more requests."""
THREADS_DEFAULT = 4
"""The limit of a process that does not get one."""
SEGMENT_BYTES_MIN = 256 << 10
SEGMENT_BYTES_MAX = 16 << 20
SEGMENT_BYTES_UNKNOWN = 1 << 20
"""The size of the first request for a file of unknown size."""
STREAMS_PER_FILE = 6
"""A large file that arrives in one piece counts as this many streams. Otherwise such files would arrive late, and all
together; so two of them arrive at first, and more if more streams help."""
UNSPLIT_BYTES_MIN = 2 << 20
"""Smaller files are nevertheless fetched in parallel, because their round trips count more than their bytes."""


class TransferJob:
    """The transfer of one file. Attributes after `number` belong to TransferThreads."""

    def __init__(
        self,
        run: Callable[[], None],
        size: int | None = None,
        urgent: bool = False,
        number: int = 0,
        has_other_source: bool = False,
    ) -> None:
        self.run = run
        """Transfers the file, and raises nothing."""
        self.size = size
        """In bytes, if known."""
        self.urgent = urgent
        """Whether a reader waits for the file."""
        self.number = number
        """Its place among files of the same urgency."""
        self.has_other_source = has_other_source
        """Whether it may not need the remote."""
        self.segments = deque[Callable[[], None]]()
        """The segments that no thread has begun; none while they are unknown."""
        self.helpers = 0
        """How many threads work on segments in addition to the one that runs the job."""
        self.has_failed = False
        """Whether one of its segments has failed."""

    @property
    def order(self) -> tuple[bool, int]:
        """The sort key of jobs."""
        return not self.urgent, self.number

    @property
    def is_large(self) -> bool:
        """Whether the file is expected to arrive in segments, or counts as several streams."""
        return self.size is not None and self.size >= 2 * SEGMENT_BYTES_MIN


class _CurrentJob(threading.local):
    """The job that a thread runs. A thread from outside has a job of its own."""

    def __init__(self) -> None:
        self.job = TransferJob(lambda: None)


class TransferThreads:
    """Owns the threads, which are started as needed, and their queue.

    limit: how many may transfer at the same time; called repeatedly, since it may change. throttle: called by each
    transfer with the number of bytes read, and a function that says whether it is urgent; it may sleep.
    latency_s: how long the remote takes to deliver a file, as far as other processes know; 0 if they do not.
    """

    def __init__(
        self,
        limit: Callable[[], int] = lambda: THREADS_DEFAULT,
        throttle: Callable[[int, Callable[[], bool]], None] = lambda count, is_urgent: None,
        latency_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._throttle = throttle
        self.latency_s = latency_s
        self.library = LibraryUse()
        self._limit = limit
        self._lock = threading.Lock()
        self._work_arrived = threading.Condition(self._lock)
        self._helper_ended = threading.Condition(self._lock)
        self._pause_ended = threading.Condition(self._lock)
        self._releases = 0
        """How often the remote has come back."""
        self.is_held = False
        """Whether the remote is away. Only jobs with another source begin, and those that repeat a request wait."""
        self._queue: list[TransferJob] = []
        """In order: jobs that have not begun, and jobs that have (or may have) segments that have not begun."""
        self._running: set[TransferJob] = set()
        self._unsplit: set[TransferJob] = set()
        """The running jobs for large files that arrive in one piece."""
        self._current = _CurrentJob()
        self.busy = self._idle = 0
        """Threads that transfer, and all others, including those that are still starting."""
        self._sleeping = 0
        self.stream_bytes_per_s = 0.0
        """The mean rate of a stream that fetches a segment of a large file."""

    def submit(self, *jobs: TransferJob) -> None:
        """Make threads run the jobs. An urgent one begins even if the limit is reached."""
        with self._lock:
            for job in jobs:
                self._enqueue(job)

    def prioritize(self, job: TransferJob) -> None:
        """Make a submitted job urgent, whether or not it has begun."""
        with self._lock:
            job.urgent = True
            if job in self._queue:
                self._queue.remove(job)
                self._enqueue(job)

    def hold(self, is_held: bool) -> None:
        """Make transfers wait while the remote is away, or continue."""
        with self._lock:
            if is_held == self.is_held:
                return
            self._releases += not is_held
            self.is_held = is_held
            self._pause_ended.notify_all()
            self._wake()

    def check_limit(self) -> None:
        """Make threads begin the tasks that are now allowed: the limit may have risen."""
        with self._lock:
            self._wake()

    # Called by the job that a thread runs.

    def throttle(self, count: int) -> None:
        """Sleep until so many more bytes may be read; an urgent job comes first."""
        job = self._current.job
        self._throttle(count, lambda: job.urgent)

    def segment_bytes(self, size: int | None) -> int:
        """The size of the segments of a file of this size; the last one may be smaller.

        A large file has 64, four for each of the initial streams. So while the last ones are under way, few streams are
        left without one, and a miss waits only for a small share of a file. It has fewer, down to one for each stream,
        if a stream fetches them within 0.1 s.
        """
        if size is None:
            return SEGMENT_BYTES_UNKNOWN
        least = min(max(size // 64, round(self.stream_bytes_per_s * 0.1)), size // 16)
        least = min(max(least, SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX)
        return -(-size // max(1, size // least, -(-size // SEGMENT_BYTES_MAX)))

    def record(self, bytes: int, seconds: float) -> None:
        """Record how long a stream took for a segment."""
        with self._lock:
            # The mean over about 16 segments.
            self.stream_bytes_per_s += (bytes / seconds - self.stream_bytes_per_s) / 16

    def share(self, segments: Iterable[Callable[[], None]]) -> None:
        """Run the segments in order on this thread, which does the first, and on idle threads.

        Returns when all have ended. Raises the first error; segments that have not begun by then do not begin.
        """
        job = self._current.job
        errors: list[BaseException] = []

        def do(segment: Callable[[], None]) -> None:
            try:
                segment()
            except BaseException as error:  # noqa: BLE001 - raised below
                with self._lock:
                    errors.append(error)
                    job.has_failed = True
                    self._pause_ended.notify_all()
                    left.clear()
                    self._dequeue(job)

        left: deque[Callable[[], None]] = deque(partial(do, segment) for segment in segments)
        own: Callable[[], None] | None = left.popleft()
        with self._lock:
            job.segments = left
            job.has_failed = False  # it may be another attempt
            self._dequeue(job)
            if left:
                self._enqueue(job)
        while own:
            own()
            own = self._take_segment(job)
        with self._giving_way(), self._lock:
            self._helper_ended.wait_for(lambda: not job.helpers)
        if errors:
            raise errors[0]

    @contextmanager
    def unsplit(self, size: int | None) -> Iterator[None]:
        """The block transfers this many bytes in one piece, which cannot be split among streams."""
        job = self._current.job
        if not job.is_large and size is not None and size < UNSPLIT_BYTES_MIN:  # it holds nothing back
            yield
            return
        with self._lock:
            self._dequeue(job)
            if (size or 0) >= UNSPLIT_BYTES_MIN:
                self._unsplit.add(job)
            self._wake()
        try:
            yield
        finally:
            with self._lock:
                self._unsplit.discard(job)

    def sleep(self, seconds: float) -> bool:
        """Called by a transfer before it repeats a request: pause for that long, and while transfers are held.

        Another transfer may begin meanwhile. Ends early if another segment of the file fails. Returns whether it was
        held.
        """
        job = self._current.job
        with self._lock:
            if not job.segments:  # otherwise others take them meanwhile
                self._dequeue(job)
            self._sleeping += 1
            others_sleep = self._sleeping > SLEEPING_MAX
        with nullcontext() if others_sleep else self._giving_way(), self._lock:
            before = self._releases
            self._pause_ended.wait_for(lambda: job.has_failed or self._releases > before, seconds)
            self._pause_ended.wait_for(lambda: job.has_failed or not self.is_held)
            self._sleeping -= 1
            return self._releases > before

    @contextmanager
    def _giving_way(self) -> Iterator[None]:
        """Within the block, this thread does not count, so another one may begin a task."""
        counts = self._current.job in self._running
        with self._lock:
            self.busy -= counts
            self._wake()
        try:
            yield
        finally:
            with self._lock:
                self.busy += counts

    # The queue.

    def _enqueue(self, job: TransferJob) -> None:
        if self._queue and job.order < self._queue[-1].order:
            insort(self._queue, job, key=lambda job: job.order)
        else:  # by far the most frequent case
            self._queue.append(job)
        self._wake()

    def _dequeue(self, job: TransferJob) -> None:
        if job in self._queue:
            self._queue.remove(job)

    def _next(self) -> Callable[[], None] | None:
        """The next task for a free thread; None if there is nothing that it may begin."""
        limit = self._limit()
        must_wait = self.busy >= limit
        for job in self._queue:
            if self.is_held and not job.has_other_source:
                continue
            if must_wait and not job.urgent:
                return None
            if job.segments:
                if job.helpers < limit:  # an urgent one gets as many streams as if it were alone
                    job.helpers += 1
                    return partial(self._help, job, self._pop_segment(job))
            elif job in self._running:
                must_wait = True  # its segments will be known in a moment, and precede the files after it
            elif job.urgent or not job.is_large or len(self._unsplit) < max(1, limit // STREAMS_PER_FILE):
                return self._begin(job)
        return None

    def _begin(self, job: TransferJob) -> Callable[[], None]:
        if not job.is_large:
            self._queue.remove(job)
        self._running.add(job)
        return partial(self._run_job, job)

    def _take_segment(self, job: TransferJob) -> Callable[[], None] | None:
        with self._lock:
            return self._pop_segment(job) if job.segments else None

    def _pop_segment(self, job: TransferJob) -> Callable[[], None]:
        segment = job.segments.popleft()
        if not job.segments:
            self._dequeue(job)
        return segment

    # The threads.

    def _wake(self) -> None:
        """Make one thread look for work; before it begins, it wakes the next one."""
        if not self._queue or (self.busy >= self._limit() and not self._queue[0].urgent):
            return  # it could not begin, and waking it costs a tenth of a small file's time
        if self._idle:
            self._work_arrived.notify()
        elif self.busy < 320:  # more than the limit on streams, so that an urgent file always finds a thread
            with suppress(RuntimeError) if self.busy else nullcontext():  # the system allows no more threads
                threading.Thread(target=self._run, daemon=True).start()
                self._idle += 1

    def _run(self) -> None:
        while True:
            with self._lock:
                while (task := self._next()) is None:
                    self._work_arrived.wait()
                self._idle -= 1
                self.busy += 1
                self._wake()
            task()
            with self._lock:
                self.busy -= 1
                self._idle += 1

    def _run_job(self, job: TransferJob) -> None:
        self._current.job = job
        job.run()
        with self._lock:
            self._running.remove(job)
            if job.is_large:  # others are not in the queue
                self._dequeue(job)

    def _help(self, job: TransferJob, segment: Callable[[], None]) -> None:
        self._current.job = job
        segment()
        with self._lock:
            job.helpers -= 1
            self._helper_ended.notify_all()
