"""The limits that the daemon shares with its workers in a page of memory, and the bandwidth, on a simulated clock."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from growfs.remote import rate_limits as module
from growfs.remote.rate_limits import SharedLimits, TokenBucket

RATE = 1_000_000
TICK_S = 1e-6


class Clock:
    """Simulated time, which passes only while all threads sleep; the thread that wakes first then runs alone.

    It replaces `time` in growfs.remote.rate_limits. Of the threads that `run` starts, one runs at a time.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self._wakes: list[tuple[float, int]] = []
        self._changed = threading.Condition()
        self._running = self._count = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, delay_s: float) -> None:
        with self._changed:
            self._running -= 1
            self._wait(delay_s)

    def _wait(self, delay_s: float) -> None:
        self._count += 1
        mine = self.now + max(delay_s, TICK_S), self._count
        self._wakes.append(mine)
        self._changed.notify_all()
        self._changed.wait_for(lambda: not self._running and min(self._wakes) == mine)
        self._wakes.remove(mine)
        self._running += 1
        self.now = max(self.now, mine[0])

    def run(self, *tasks: Callable[[], None]) -> None:
        """Run each task in a thread, and return when all have finished."""

        def run_task(task: Callable[[], None]) -> None:
            with self._changed:
                self._wait(0)
            try:
                task()
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

        threads = [threading.Thread(target=run_task, args=[task], daemon=True) for task in tasks]
        self._running = 1  # no task begins before all threads wait
        for thread in threads:
            thread.start()
        with self._changed:
            self._changed.wait_for(lambda: len(self._wakes) == len(threads))
            self._running = 0
            self._changed.notify_all()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def limits() -> Iterator[SharedLimits]:
    limits = SharedLimits()
    yield limits
    os.close(limits.fd)


def bucket_of(limits: SharedLimits) -> TokenBucket:
    return TokenBucket(lambda: limits.bytes_per_s)


def spender(bandwidth: TokenBucket, pieces: int, piece: int) -> Callable[[], None]:
    def spend() -> None:
        for _ in range(pieces):
            bandwidth.consume(piece)

    return spend


def test_another_process_sees_the_limits(limits: SharedLimits) -> None:
    request, reply = os.pipe(), os.pipe()
    if not (child := os.fork()):
        try:
            mapped_again = SharedLimits(os.dup(limits.fd))
            while os.read(request[0], 1):
                os.write(reply[1], f"{limits.streams} {mapped_again.streams} {mapped_again.bytes_per_s:.0f}\n".encode())
        finally:
            os._exit(0)
    replies = []
    for streams, workers, rate in ((16, 1, 0), (16, 2, RATE), (7, 2, RATE), (1, 8, 0)):
        limits.set(streams, workers, rate)
        os.write(request[1], b"?")
        replies.append(os.read(reply[0], 100).decode())
    for fd in (*request, *reply):
        os.close(fd)
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert replies == ["16 16 0\n", "8 8 500000\n", "4 4 500000\n", "1 1 0\n"]


def test_a_limit_that_is_being_changed_is_never_read_as_zero(limits: SharedLimits) -> None:
    limits.set(16, 2, RATE)
    if not (child := os.fork()):
        while True:
            limits.set(16, 2, RATE)
    seen = {(limits.streams, limits.workers, limits.bytes_per_s) for _ in range(50_000)}
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert seen == {(8, 2, RATE / 2)}


def test_limits_are_read_as_they_were_set(limits: SharedLimits) -> None:
    assert (limits.streams, limits.bytes_per_s) == (1, 0), "at first"
    limits.set(16, 0, RATE, 0.25)
    assert (limits.streams, limits.bytes_per_s, limits.latency_s) == (16, RATE, 0.25)
    limits.set(16, 1, 10**400)
    assert limits.bytes_per_s == pytest.approx(2**64)


@pytest.mark.promise(34)
@pytest.mark.parametrize(("threads", "piece"), [(1, 1000), (8, 1 << 18), (20, 25_000), (3, 5 * RATE)])
def test_the_total_rate_is_the_limit(clock: Clock, limits: SharedLimits, threads: int, piece: int) -> None:
    limits.set(threads, 1, RATE)
    bandwidth = bucket_of(limits)
    pieces = max(3, 5 * RATE // (threads * piece))
    clock.now += 3600  # an hour without any request
    began = clock.now
    clock.run(*[spender(bandwidth, pieces, piece)] * threads)
    total = threads * pieces * piece
    assert 0.9 * total / RATE <= clock.now - began <= 1.1 * total / RATE
    assert clock.now - began >= total / RATE - 0.1


def test_each_stream_resumes_as_soon_as_its_own_bytes_are_allowed(clock: Clock, limits: SharedLimits) -> None:
    """With a low rate and many streams, waiting for the sum of all would take longer than a worker may be silent."""
    limits.set(100, 1, RATE)
    bandwidth = bucket_of(limits)
    resumed: list[float] = []

    def consume() -> None:
        bandwidth.consume(1 << 20)
        resumed.append(clock.now)

    resumed.append(clock.now)
    clock.run(*[consume] * 20)
    gaps = [after - before for before, after in itertools.pairwise(resumed)]
    assert max(gaps) <= 1.1 * (1 << 20) / RATE


def test_no_bytes_wait_for_nobody(clock: Clock, limits: SharedLimits) -> None:
    """A file has ended when a read returns nothing; the other files have bytes that wait."""
    limits.set(1, 1, RATE)
    bandwidth, ended_at = bucket_of(limits), list[float]()

    def end() -> None:
        clock.sleep(1)
        bandwidth.consume(0)
        ended_at.append(clock.now)

    clock.run(spender(bandwidth, 1, 100 * RATE), end)
    assert ended_at == [pytest.approx(1001, abs=0.1)]


def test_no_limit_costs_nothing(clock: Clock, limits: SharedLimits) -> None:
    limits.set(16, 1, 0)
    bandwidth = bucket_of(limits)
    began = clock.now
    clock.run(*[spender(bandwidth, 10, 1 << 30)] * 8)
    assert clock.now == pytest.approx(began, abs=0.001)
    limits.set(16, 1, RATE)
    clock.run(lambda: bandwidth.consume(RATE))
    assert clock.now - began == pytest.approx(1, abs=0.2), "the bytes before are neither debt nor credit"


@pytest.mark.promise(34)
@pytest.mark.parametrize(("rate", "ends_after_s"), [(0, 1), (10 * RATE, 2), (RATE // 2, 19)])
def test_a_change_of_the_rate_applies_at_once(
    clock: Clock, limits: SharedLimits, rate: int, ends_after_s: float
) -> None:
    limits.set(16, 1, RATE)
    bandwidth = bucket_of(limits)
    began = clock.now

    def change() -> None:
        clock.sleep(1)
        limits.set(16, 1, rate)

    clock.run(change, *[lambda: bandwidth.consume(RATE)] * 10)
    assert clock.now - began == pytest.approx(ends_after_s, abs=0.3)


@pytest.mark.promise(34)
@pytest.mark.parametrize("urgent_at_once", [True, False])
def test_urgent_bytes_come_before_all_that_wait(clock: Clock, limits: SharedLimits, urgent_at_once: bool) -> None:
    """A reader waits for them, and others may wait for minutes."""
    limits.set(20, 1, RATE)
    bandwidth = bucket_of(limits)
    began, took = clock.now, list[float]()

    def miss() -> None:
        clock.sleep(3)
        asked = [0.0]
        for _ in range(20 if urgent_at_once else 5):
            asked[0] = clock.now
            bandwidth.consume(RATE // 10, lambda: urgent_at_once or clock.now > asked[0] + 0.5)
            took.append(clock.now - asked[0])

    clock.run(miss, *[spender(bandwidth, 2, RATE)] * 8)
    assert max(took) < 0.3 + (0 if urgent_at_once else 0.5)
    assert clock.now - began == pytest.approx(17, rel=0.1), "they count for the others"
