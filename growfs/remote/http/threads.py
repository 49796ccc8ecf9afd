"""`TransferThreads`: the threads of one process that transfer files. Whole files and parts of files share them.

A free thread first helps with the earliest file that has parts left, and only then begins the next file. So files end
about in the order in which they began, and a large last file is not left to one thread. While there is work, one free
thread keeps checking for it even if the limit is reached, so that it notices when the limit rises.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

THREADS_MAX = 192
"""Above the limit on transfers at a time, so that an urgent job always finds a thread."""
CHECK_INTERVAL_S = 0.1
"""How soon a thread notices that the limit has risen."""
THREADS_DEFAULT = 4
"""The limit of a process that is not given one."""


class SharedWork:
    """Work that several threads do together. `work` does one piece; it returns False if there was none left."""

    def __init__(self, work: Callable[[], bool], lock: threading.Lock) -> None:
        self.work = work
        self.helpers = 0
        self.helper_left = threading.Condition(lock)


class TransferThreads:
    """Owns the threads, which are started as they are needed.

    limit: how many may transfer at the same time; called again and again, as it may change. throttle: each thread
    calls it with the number of bytes that it has read; it may sleep.
    """

    def __init__(
        self, limit: Callable[[], int] = lambda: THREADS_DEFAULT, throttle: Callable[[int], None] = lambda count: None
    ) -> None:
        self.throttle = throttle
        self._limit = limit
        self._lock = threading.Lock()
        self._work_arrived = threading.Condition(self._lock)
        self._urgent: deque[Callable[[], None]] = deque()
        self._jobs: deque[Callable[[], None]] = deque()
        self._shared: list[SharedWork] = []
        self._working = self._idle = 0  # idle: all others, including those that are still starting
        self._is_polling = False  # one of the idle threads wakes up every CHECK_INTERVAL_S

    def submit(self, job: Callable[[], None], urgent: bool = False) -> None:
        """Have a thread call job, which must raise nothing. An urgent job does not count against the limit."""
        with self._lock:
            (self._urgent if urgent else self._jobs).append(job)
            self._wake()

    def make_urgent(self, job: Callable[[], None]) -> None:
        """Make a submitted job urgent; nothing happens if it has begun."""
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)
                self._urgent.append(job)
                self._wake()

    @contextmanager
    def helping(self, work: Callable[[], bool]) -> Iterator[None]:
        """Inside the block, free threads call work, which must raise nothing, until it returns False.

        The block ends once they have all returned.
        """
        shared = SharedWork(work, self._lock)
        with self._lock:
            self._shared.append(shared)
            self._wake()
        try:
            yield
        finally:
            with self._lock:
                if shared in self._shared:
                    self._shared.remove(shared)
                shared.helper_left.wait_for(lambda: not shared.helpers)

    def _wake(self) -> None:
        """Have one thread look for work; before it begins, it wakes the next one."""
        if self._is_polling and not self._urgent and self._working >= self._limit():
            return  # it could not begin, and waking it costs a tenth of a small file
        if self._idle:
            self._work_arrived.notify()
        elif self._working < THREADS_MAX:
            with suppress(RuntimeError) if self._working else nullcontext():  # the system allows no more threads
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
        if self._is_polling or not (self._shared or self._jobs):
            self._work_arrived.wait()
            return
        self._is_polling = True
        self._work_arrived.wait(CHECK_INTERVAL_S)
        self._is_polling = False

    def _next(self) -> Callable[[], None] | None:
        if self._urgent:
            return self._urgent.popleft()
        if self._working >= self._limit():
            return None
        if self._shared:
            shared = self._shared[0]
            shared.helpers += 1
            return lambda: self._help(shared)
        return self._jobs.popleft() if self._jobs else None

    def _help(self, shared: SharedWork) -> None:
        more = shared.work()
        with self._lock:
            shared.helpers -= 1
            if not more and shared in self._shared:
                self._shared.remove(shared)
            shared.helper_left.notify_all()
