"""`Streams`: the threads of a process that fetch. Whole files and parts of files share them.

A stream that is free helps with the earliest file that has parts left, and else begins the next one: so files end
about as they were begun, and the last ones of many do not end alone. While there is something to do, one thread that
is free looks for it, also where all streams are at work: so that it sees when there may be more of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

THREADS_MAX = 192
"""More than there are streams, so that what is urgent finds one."""
LOOK_EVERY_S = 0.1
"""How soon a thread sees that there may be more streams."""
THREADS_DEFAULT = 4
"""Of a process that nobody tells how many."""


class Shared:
    """Work that several threads do together: `work` does a piece of it; False where there is nothing left to begin."""

    def __init__(self, work: Callable[[], bool], lock: threading.Lock) -> None:
        self.work = work
        self.helpers = 0
        self.left = threading.Condition(lock)


class TransferThreads:
    """Owns the threads, which come to life as they are needed.

    limit: how many may be at work; asked again and again. spend: called by each for the bytes that it has read, and
    may take its time.
    """

    def __init__(
        self, limit: Callable[[], int] = lambda: THREADS_DEFAULT, throttle: Callable[[int], None] = lambda count: None
    ) -> None:
        self.throttle = throttle
        self._limit = limit
        self._lock = threading.Lock()
        self._comes = threading.Condition(self._lock)
        self._urgent: deque[Callable[[], None]] = deque()
        self._jobs: deque[Callable[[], None]] = deque()
        self._shared: list[Shared] = []
        self._working = self._idle = 0  # idle: all others, those that have yet to begin too
        self._looks = False  # one of them does

    def begin(self, job: Callable[[], None], urgent: bool = False) -> None:
        """Have a thread call job, which raises nothing; one that is urgent does not wait for a free stream."""
        with self._lock:
            (self._urgent if urgent else self._jobs).append(job)
            self._wake()

    def hurry(self, job: Callable[[], None]) -> None:
        """Have a job that may not have begun yet be urgent."""
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)
                self._urgent.append(job)
                self._wake()

    @contextmanager
    def shared(self, work: Callable[[], bool]) -> Iterator[None]:
        """Have free threads call work, which raises nothing, until there is nothing left or the block ends.

        The block ends when they have returned.
        """
        ours = Shared(work, self._lock)
        with self._lock:
            self._shared.append(ours)
            self._wake()
        try:
            yield
        finally:
            with self._lock:
                if ours in self._shared:
                    self._shared.remove(ours)
                ours.left.wait_for(lambda: not ours.helpers)

    def _wake(self) -> None:
        """Have a thread look for what there is to do; it has the next one look before it begins."""
        if self._looks and not self._urgent and self._working >= self._limit():
            return  # it would find that it may not, and waking it costs a tenth of a small file
        if self._idle:
            self._comes.notify()
        elif self._working < THREADS_MAX:
            with suppress(RuntimeError) if self._working else nullcontext():  # there can be no more threads
                threading.Thread(target=self._run, daemon=True).start()
                self._idle += 1

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
        if self._looks or not (self._shared or self._jobs):
            self._comes.wait()
            return
        self._looks = True
        self._comes.wait(LOOK_EVERY_S)
        self._looks = False

    def _next(self) -> Callable[[], None] | None:
        if self._urgent:
            return self._urgent.popleft()
        if self._working >= self._limit():
            return None
        if self._shared:
            ours = self._shared[0]
            ours.helpers += 1
            return lambda: self._help(ours)
        return self._jobs.popleft() if self._jobs else None

    def _help(self, ours: Shared) -> None:
        more = ours.work()
        with self._lock:
            ours.helpers -= 1
            if not more and ours in self._shared:
                self._shared.remove(ours)
            ours.left.notify_all()
