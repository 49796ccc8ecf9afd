"""When a failed request is repeated, and when its file fails: one rule for every request to a remote.

Each layer does what it can about an error, and otherwise raises it to the next one:

| layer, all below growfs/ | error | what follows |
|---|---|---|
| remote/http/connection.py | the server closed a connection that it kept | it is opened again, at once |
| remote/http/download.py | the connection was cut, as it is slow | the rest of the segment, at once; twice at most |
| | RemoteBusy | after a pause, the rest of the segment |
| | 400, 401, 403 | the segment with a new signature, once |
| | FallBack: an unusual response | after a pause, the segment once more, unless it is the first |
| remote/stores/s3/bucket.py, `_has_learned` | RemoteDenied | once more, with other credentials |
| | FallBack | once more, in the bucket's region or another manner |
| | RemoteChanged | once more, in another manner, or regardless of ETags |
| remote/stores/fsspec.py | FallBack | the store's library makes the request (remote/client_choice.py) |
| remote/retrying.py | RemoteBusy | after a pause, the call from its start |
| | RemoteChanged, but the file is as it was listed | as RemoteBusy |
| | RemoteUnavailable, after the first page of a listing | after a pause, the next page, however often |
| workers/downloader.py | RemoteChanged, RemoteMissing | the file's current version is reported |
| scheduler/outage.py | RemoteUnavailable | a probe, and in an outage the file once it has ended |
| scheduler/fetcher.py | all others | the file fails, and is tried again later |

A request that found the store busy, or the network down, is repeated after a pause that grows with each consecutive
failure and is random by half, so that many requests do not return together
(https://sre.google/sre-book/handling-overload/). A segment of a file continues from its last byte. The file fails when
one of its segments has failed TRIES_MAX times while nothing else of the file arrived, or when it has failed too often
compared to its answers.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Hashable
from typing import TypeVar

from growfs.errors import RemoteBusy, RemoteError

T = TypeVar("T")

TRIES_MAX = 5
DELAY_S_MIN = 0.2
DELAY_S_MAX = 10.0
BUDGET = 100.0
"""Retries of a mount that are available without any answers."""
BUDGET_PER_S = 2.0
"""Added to the budget by each second. If the budget is empty, a retry waits: a store that does not
answer at all gets BUDGET_PER_S requests a second from all workers together, however many files are wanted."""


class Retries:
    """Owns the share of a process in the budget of the mount.

    workers: returns how many processes share the budget. sleep: makes the pauses, prolonged by outages; returns whether
    one was. on_failure: called before each pause, in any thread. tries_max: how often a request may fail in a row.
    """

    def __init__(
        self,
        sleep: Callable[[float], bool | None] = time.sleep,
        on_failure: Callable[[RemoteError], None] = lambda error: None,
        tries_max: int = TRIES_MAX,
        workers: Callable[[], int] = lambda: 1,
    ) -> None:
        self.sleep = sleep
        self.on_failure = on_failure
        self.tries_max = tries_max
        self.answered = 0
        """Requests that were answered in full."""
        self._workers = workers
        self._lock = threading.Lock()
        self._budget = BUDGET / workers()
        self._filled_at = time.monotonic()

    def add_answer(self) -> None:
        """Count a request that was answered in full."""
        with self._lock:
            self.answered += 1
            self._budget = min(BUDGET / self._workers(), self._budget + 0.2)

    def restore(self) -> None:
        """Restore the whole budget."""
        with self._lock:
            self._budget = BUDGET / self._workers()

    def spend(self) -> float:
        """Take one retry from the budget; returns how many seconds the retry has to wait for it."""
        with self._lock:
            now, workers = time.monotonic(), self._workers()
            per_s = BUDGET_PER_S / workers
            self._budget = min(BUDGET / workers, self._budget + (now - self._filled_at) * per_s) - 1
            self._filled_at = now
            return max(0.0, -self._budget / per_s)


class Tries:
    """The attempts for one file, or for one call that does not concern a file. Several threads may use it.

    restarts_max: how often a call that starts over may be made; by default as often as any other.
    """

    def __init__(self, retries: Retries, restarts_max: float | None = None) -> None:
        self._retries = retries
        self._restarts_max = restarts_max or retries.tries_max
        self._lock = threading.Lock()
        self._failures: dict[Hashable, int] = {}
        """Consecutive failures of each request since something of the file last arrived."""
        self._damaged = ""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._failures.clear()
        # So many more failures than answers: each of 256 streams may fail almost four times, as in an outage.
        self._left = 1000
        self._restarts = 0
        self._is_spent = False

    def answered(self) -> None:
        """Note that a response has arrived completely."""
        with self._lock:
            self._failures.clear()
            self._left += 1
        self._retries.add_answer()

    def has_arrived(self, digest: str) -> bool:
        """Whether the content with this digest, which has another checksum than the store sent, arrived before."""
        before, self._damaged = self._damaged, digest
        return before == digest

    def pause(self, error: RemoteBusy, request: Hashable = None) -> float:
        """Pause before a failed request is repeated; returns the seconds. Raises error if it is not to be repeated.

        request: identifies a request of the file.
        """
        with self._lock:
            failures = self._failures[request] = self._failures.get(request, 0) + 1
            self._left -= 1
            self._is_spent |= failures >= self._retries.tries_max or self._left <= 0
        return self._pause(error, failures)

    def repeat(self, call: Callable[[], T], request: Hashable) -> T:
        """Call until RemoteBusy is no longer raised, pausing as in `pause`."""
        while True:
            try:
                result = call()
            except RemoteBusy as error:
                self.pause(error, request)
            else:
                self.answered()
                return result

    def pause_to_restart(self, error: RemoteError) -> float:
        """The same for a call that starts over. Data that arrived meanwhile does not give it more attempts."""
        with self._lock:
            self._restarts += 1
            self._is_spent |= self._restarts >= self._restarts_max
        return self._pause(error, self._restarts)

    def _pause(self, error: RemoteError, failures: int) -> float:
        if self._is_spent:
            raise error
        self._retries.on_failure(error)
        delay_s: float = min(DELAY_S_MIN * 2 ** min(failures - 1, 10), DELAY_S_MAX) * random.uniform(1, 1.5)
        asked_s = min(error.retry_after_s, 60.0)  # a store may ask for longer (Retry-After)
        delay_s = max(delay_s, asked_s, self._retries.spend())
        if self._retries.sleep(delay_s):  # it was away, which says nothing about this file
            self._retries.restore()
            with self._lock:
                self._begin_anew()
        return delay_s
