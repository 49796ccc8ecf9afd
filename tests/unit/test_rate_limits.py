"""How fast workers may be: the page that they share with the daemon, and the bandwidth, on a clock of the test's."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from growfs.remote import rate_limits as module
from growfs.remote.rate_limits import BURST_S, RATE_MAX, SharedLimits, TokenBucket

RATE = 1_000_000
TICK_S = 1e-6


class Clock:
    """Time that passes only while somebody sleeps, one after the other: the earliest to wake goes on first.

    Stands in for time in growfs.remote.rate_limits. Of the threads that `run` starts, one is at work at a time.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self._wakes: list[tuple[float, int]] = []
        self._changed = threading.Condition()
        self._on_busy = self._count = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, delay_s: float) -> None:
        with self._changed:
            self._on_busy -= 1
            self._wait(delay_s)

    def _wait(self, delay_s: float) -> None:
        self._count += 1
        mine = self.now + max(delay_s, TICK_S), self._count
        self._wakes.append(mine)
        self._changed.notify_all()
        self._changed.wait_for(lambda: not self._on_busy and min(self._wakes) == mine)
        self._wakes.remove(mine)
        self._on_busy += 1
        self.now = max(self.now, mine[0])

    def run(self, *tasks: Callable[[], None]) -> None:
        """Run each in a thread; returns when all are done."""

        def one(task: Callable[[], None]) -> None:
            with self._changed:
                self._wait(0)
            try:
                task()
            finally:
                with self._changed:
                    self._on_busy -= 1
                    self._changed.notify_all()

        threads = [threading.Thread(target=one, args=[task], daemon=True) for task in tasks]
        self._on_busy = 1  # none begins before all are there
        for thread in threads:
            thread.start()
        with self._changed:
            self._changed.wait_for(lambda: len(self._wakes) == len(threads))
            self._on_busy = 0
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


def spends(bandwidth: TokenBucket, pieces: int, piece: int) -> Callable[[], None]:
    def spend() -> None:
        for _ in range(pieces):
            bandwidth.consume(piece)

    return spend


def test_another_process_sees_what_is_set(limits: SharedLimits) -> None:
    ask, answer = os.pipe(), os.pipe()
    if not (child := os.fork()):
        try:
            again = SharedLimits(os.dup(limits.fd))
            while os.read(ask[0], 1):
                os.write(answer[1], f"{limits.streams} {again.streams} {again.bytes_per_s:.0f}\n".encode())
        finally:
            os._exit(0)
    told = []
    for streams, workers, rate in ((16, 1, 0), (16, 2, RATE), (7, 2, RATE), (1, 8, 0)):
        limits.set(streams, workers, rate)
        os.write(ask[1], b"?")
        told.append(os.read(answer[0], 100).decode())
    for fd in (*ask, *answer):
        os.close(fd)
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert told == ["16 16 0\n", "8 8 500000\n", "4 4 500000\n", "1 1 0\n"]


def test_a_page_that_nobody_wrote_lets_a_worker_go_on(limits: SharedLimits) -> None:
    assert (limits.streams, limits.bytes_per_s) == (1, 0)
    limits.set(16, 0, RATE)
    assert (limits.streams, limits.bytes_per_s) == (16, RATE)


def test_more_than_fits_into_the_page_is_as_much_as_there_is(limits: SharedLimits) -> None:
    limits.set(16, 1, 10**30)
    assert limits.bytes_per_s == pytest.approx(RATE_MAX)


@pytest.mark.promise(34)
@pytest.mark.parametrize(("threads", "piece"), [(1, 1000), (8, 1 << 18), (20, 25_000), (3, 5 * RATE)])
def test_the_rate_is_kept(clock: Clock, limits: SharedLimits, threads: int, piece: int) -> None:
    limits.set(threads, 1, RATE)
    bandwidth = TokenBucket(limits)
    pieces = max(3, 5 * RATE // (threads * piece))
    clock.now += 3600  # for an hour nothing was asked for
    began = clock.now
    clock.run(*[spends(bandwidth, pieces, piece)] * threads)
    total = threads * pieces * piece
    assert 0.9 * total / RATE <= clock.now - began <= 1.1 * total / RATE
    assert clock.now - began >= total / RATE - BURST_S


def test_workers_share_the_rate(clock: Clock, limits: SharedLimits) -> None:
    limits.set(16, 4, RATE)
    began = clock.now
    bandwidths = [TokenBucket(SharedLimits(os.dup(limits.fd))) for _ in range(4)]
    clock.run(*[spends(one, 100, 10_000) for one in bandwidths])
    assert clock.now - began == pytest.approx(4, rel=0.1)


def test_each_goes_on_as_soon_as_its_own_bytes_are_earned(clock: Clock, limits: SharedLimits) -> None:
    """With a low rate and many streams the sum takes longer than a worker may be silent."""
    limits.set(100, 1, RATE)
    bandwidth = TokenBucket(limits)
    went_on: list[float] = []

    def one() -> None:
        bandwidth.consume(1 << 20)
        went_on.append(clock.now)

    went_on.append(clock.now)
    clock.run(*[one] * 20)
    gaps = [after - before for before, after in itertools.pairwise(went_on)]
    assert max(gaps) <= 1.1 * (1 << 20) / RATE


def test_no_limit_costs_nothing(clock: Clock, limits: SharedLimits) -> None:
    limits.set(16, 1, 0)
    bandwidth = TokenBucket(limits)
    began = clock.now
    clock.run(*[spends(bandwidth, 10, 1 << 30)] * 8)
    assert clock.now == pytest.approx(began, abs=0.001)
    limits.set(16, 1, RATE)
    clock.run(lambda: bandwidth.consume(RATE))
    assert clock.now - began == pytest.approx(1, abs=2 * BURST_S), "what came before is no debt, and no credit"


@pytest.mark.promise(34)
@pytest.mark.parametrize(("rate", "ends_after_s"), [(0, 1), (10 * RATE, 2), (RATE // 2, 19)])
def test_a_change_counts_at_once(clock: Clock, limits: SharedLimits, rate: int, ends_after_s: float) -> None:
    limits.set(16, 1, RATE)
    bandwidth = TokenBucket(limits)
    began = clock.now

    def change() -> None:
        clock.sleep(1)
        limits.set(16, 1, rate)

    clock.run(change, *[lambda: bandwidth.consume(RATE)] * 10)
    assert clock.now - began == pytest.approx(ends_after_s, abs=0.3)
