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

_PAGE = struct.Struct("=IId")  # streams of each worker; number of workers; bytes/s of each, 0 for no limit

RATE_MAX = (1 << 64) - 1
"""A higher rate is no different, and an integer of any size would not fit the page."""
CHECK_INTERVAL_S = 0.1
"""How soon a stream that waits for bandwidth notices a change of the limit."""
BURST_S = 0.1
"""For this long, unused bandwidth can still be used."""


class SharedLimits:
    """Owns the page. fd: its file descriptor, with which another process can also map it."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = memfd_create("growfs-limits") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, mmap.PAGESIZE)
        self._page = mmap.mmap(self.fd, mmap.PAGESIZE)
        if fd is None:
            self.set(1, 1, 0)

    def set(self, streams: int, workers: int, bytes_per_s: int) -> None:
        """Set the limits of all workers together; each gets an equal share. Only the daemon calls it."""
        workers = max(1, workers)
        page = _PAGE.pack(max(1, -(-streams // workers)), workers, min(bytes_per_s, RATE_MAX) / workers)
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

    def _read(self) -> tuple[int, int, float]:
        return _PAGE.unpack_from(self._page)


class TokenBucket:
    """A token bucket (https://en.wikipedia.org/wiki/Token_bucket) for the threads of one worker.

    Threads continue in the order in which they arrived, each as soon as there are tokens for its own bytes. If all
    waited for the sum, many threads with a low rate would be silent for so long that the worker would seem to hang.
    """

    def __init__(self, rate: Callable[[], float]) -> None:
        """rate: bytes per second, which may change at any time; 0 for no limit."""
        self._rate = rate
        self._lock = threading.Lock()
        self._spent = self._earned = 0.0  # bytes
        self._updated_at = time.monotonic()

    def consume(self, count: int) -> None:
        """Take count tokens, one for each byte that was read; sleep until they are available."""
        if not self._rate():
            return
        with self._lock:
            self._earn()
            self._spent += count
            mine = self._spent
        while (wait_s := self._wait_s(mine)) > 0:
            time.sleep(min(wait_s, CHECK_INTERVAL_S))

    def _wait_s(self, mine: float) -> float:
        with self._lock:
            rate = self._earn()
            return (mine - self._earned) / rate if rate else 0.0

    def _earn(self) -> float:
        rate, now = self._rate(), time.monotonic()
        most = self._spent + BURST_S * rate
        self._earned = min(self._earned + (now - self._updated_at) * rate, most) if rate else most
        self._updated_at = now
        return rate
