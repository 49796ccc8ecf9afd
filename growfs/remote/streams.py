"""`Streams`: the threads of a process that fetch. Whole files and parts of files share them.

A stream that is free helps with the earliest file that has parts left, and else begins the next one: so files end
about as they were begun, and the last ones of many do not end alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

THREADS_MAX = 128
LOOK_EVERY_S = 0.1
"""How soon a thread sees that there may be more streams."""
STREAMS = 4
"""Of a process that nobody tells how many."""


class Shared:
    """Work that several threads do together: each calls `work`, which returns when there is nothing left to begin."""

    def __init__(self, work: Callable[[], None], lock: threading.Lock) -> None:
        self.work = work
        self.helpers = 0
        self.left = threading.Condition(lock)


class Streams:
    """Owns the threads, which come to life as they are needed.

    limit: how many may be at work; asked again and again. spend: called by each for the bytes that it has read, and
    may take its time.
    """

    def __init__(
        self, limit: Callable[[], int] = lambda: STREAMS, spend: Callable[[int], None] = lambda count: None
    ) -> None:
        self.spend = spend
        self._limit = limit
        self._lock = threading.Lock()
        self._comes = threading.Condition(self._lock)
        self._urgent: deque[Callable[[], None]] = deque()
        self._jobs: deque[Callable[[], None]] = deque()
        self._shared: list[Shared] = []
        self._working = self._idle = 0

    def begin(self, job: Callable[[], None], urgent: bool = False) -> None:
        """Have a thread call job, which raises nothing; one that is urgent does not wait for a free stream."""
        with self._lock:
            (self._urgent if urgent else self._jobs).append(job)
            self._wake(urgent)

    @contextmanager
    def shared(self, work: Callable[[], None], most: int) -> Iterator[None]:
        """Have up to `most` free threads call work, which raises nothing, until the block ends and they returned."""
        ours = Shared(work, self._lock)
        with self._lock:
            self._shared.append(ours)
            for _ in range(most):
                self._wake()
        try:
            yield
        finally:
            with self._lock:
                if ours in self._shared:
                    self._shared.remove(ours)
                ours.left.wait_for(lambda: not ours.helpers)

    def _wake(self, urgent: bool = False) -> None:
        if self._idle:
            self._comes.notify()
        elif self._working < (THREADS_MAX if urgent else min(THREADS_MAX, self._limit())):
            self._working += 1
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._working -= 1
                self._idle += 1
                while (task := self._next()) is None:
                    self._comes.wait(LOOK_EVERY_S if self._shared or self._jobs else None)
                self._idle -= 1
                self._working += 1
            task()

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
        ours.work()
        with self._lock:
            ours.helpers -= 1
            if ours in self._shared:
                self._shared.remove(ours)  # there is nothing left to begin
            ours.left.notify_all()
