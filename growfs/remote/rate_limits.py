"""How fast the worker processes may transfer: a page of shared memory that the daemon writes and all of them read.

So a change reaches a worker in the middle of a file, without a message.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable

from growfs.syscalls import memfd_create

_PAGE = struct.Struct("=IIdd")  # streams of each worker; number of workers; bytes/s of each, 0 for no limit; latency


class SharedLimits:
    """Owns the page. fd: its file descriptor, with which another process can also map it."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = memfd_create("growfs-limits") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, mmap.PAGESIZE)
        self._page = mmap.mmap(self.fd, mmap.PAGESIZE)
        if fd is None:
            self.set(1, 1, 0)

    def set(self, streams: int, workers: int, bytes_per_s: int, latency_s: float = 0.0) -> None:
        """Set the limits of all workers together; each gets an equal share. Only the daemon calls it.

        latency_s: in which the remote delivers a file; 0 if that is not known.
        """
        workers = max(1, workers)
        rate = min(bytes_per_s, 1 << 64) / workers  # an integer of any size would not fit the page
        page = _PAGE.pack(max(1, -(-streams // workers)), workers, rate, latency_s)
        self._page[: len(page)] = page  # pack_into would first fill it with zeros, and a worker might read them

    @property
    def streams(self) -> int:
        """How many requests this worker may have in flight."""
        return self._read()[0]

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self._read()[1]

    @property
    def bytes_per_s(self) -> float:
        """How fast this worker may fetch; 0 for no limit."""
        return self._read()[2]

    @property
    def latency_s(self) -> float:
        """In how many seconds the remote delivers a file; 0 if that is not known."""
        return self._read()[3]

    def _read(self) -> tuple[int, int, float, float]:
        return _PAGE.unpack_from(self._page)


class TokenBucket:
    """A token bucket (https://en.wikipedia.org/wiki/Token_bucket) for the threads of one worker.

    Threads continue in the order in which they arrived, each as soon as there are tokens for its own bytes. If all
    waited for the sum, many threads with a low rate would be silent for so long that the worker would seem to hang.
    Urgent threads come before all others: there may be hundreds, each with a piece that takes seconds.
    """

    def __init__(self, rate: Callable[[], float]) -> None:
        """rate: bytes per second, which may change at any time; 0 for no limit."""
        self._rate = rate
        self._lock = threading.Lock()
        self._earned = 0.0  # bytes, as all that follow
        self._asked = self._granted = 0.0  # by all threads but urgent ones
        self._urgent = 0.0  # asked by urgent ones
        self._updated_at = time.monotonic()

    def consume(self, count: int, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Take count tokens, one for each byte that was read; sleep until they are available.

        is_urgent: whether the thread is urgent. It may become so while it waits.
        """
        if not count or not self._rate():
            return
        waits_in_turn = not is_urgent()
        with self._lock:
            self._earn()
            if waits_in_turn:
                self._asked += count
                mine = self._asked
            else:
                self._urgent += count
                mine = self._urgent
        while True:
            with self._lock:
                if waits_in_turn and is_urgent():
                    waits_in_turn = False
                    self._granted += count  # those after it keep their places
                    self._earned += count
                    self._urgent += count
                    mine = self._urgent
                rate = self._earn()
                missing = mine + (self._urgent if waits_in_turn else self._granted) - self._earned
                if not rate or missing <= 0:
                    self._granted += count if waits_in_turn else 0
                    return
            time.sleep(min(missing / rate, 0.1))  # to notice soon if the limit changes

    def _earn(self) -> float:
        rate, now = self._rate(), time.monotonic()
        most = self._asked + self._urgent + 0.1 * rate  # what was not used within 0.1 s is lost
        self._earned = min(self._earned + (now - self._updated_at) * rate, most) if rate else most
        self._updated_at = now
        return rate
