"""The threads that files and parts share: how many are at work, what comes first, and that nothing is forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from growfs.remote.http import threads as module
from growfs.remote.http.threads import TransferThreads
from tests.harness import until

WAIT_S = 20


class Desk:
    """Jobs that stay at work until they are let go. order: their names as they began."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.done = 0
        self.most = self._now = 0
        self._open = False
        self._changed = threading.Condition()

    def job(self, name: str = "") -> Callable[[], None]:
        def work() -> None:
            with self._changed:
                self.order.append(name)
                self._now += 1
                self.most = max(self.most, self._now)
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: self._open, WAIT_S)
                self._now -= 1
                self.done += 1
                self._changed.notify_all()

        return work

    def let_go(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def until(self, condition: Callable[[Desk], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), WAIT_S), (self.order, self.done)


class Parts:
    """A file in parts, to be shared: `work` does one."""

    def __init__(self, name: str, count: int, desk: Desk) -> None:
        self.left = count
        self.name, self._desk, self._lock = name, desk, threading.Lock()

    def work(self) -> bool:
        with self._lock:
            if not self.left:
                return False
            self.left -= 1
        self._desk.job(self.name)()
        return True


def settle(threads: TransferThreads) -> None:
    """Give threads the time to do what they should not."""
    time.sleep(3 * module.CHECK_INTERVAL_S)


def test_the_limit_is_heeded() -> None:
    desk, threads = Desk(), TransferThreads(lambda: 5)
    for _ in range(50):
        threads.submit(desk.job())
    desk.until(lambda desk: desk.most == 5)
    settle(threads)
    assert len(desk.order) == 5
    desk.let_go()
    desk.until(lambda desk: desk.done == 50)
    assert desk.most == 5


def test_all_that_come_at_once_are_begun_at_once() -> None:
    """Also where a single thread is there that waits for them."""
    desk, threads = Desk(), TransferThreads(lambda: 20)
    first = threading.Event()
    threads.submit(first.set)
    assert first.wait(WAIT_S)
    for _ in range(20):
        threads.submit(desk.job())
    desk.until(lambda desk: desk.most == 20)
    desk.let_go()


def test_what_is_urgent_does_not_wait() -> None:
    desk, threads = Desk(), TransferThreads(lambda: 2)
    for _ in range(4):
        threads.submit(desk.job("file"))
    desk.until(lambda desk: desk.most == 2)
    for _ in range(3):
        threads.submit(desk.job("urgent"), urgent=True)
    desk.until(lambda desk: desk.most == 5)
    assert desk.order == ["file"] * 2 + ["urgent"] * 3
    desk.let_go()
    desk.until(lambda desk: desk.done == 7)


def test_what_is_urgent_finds_a_thread_where_all_streams_are_at_work() -> None:
    desk, threads = Desk(), TransferThreads(lambda: 128)
    for _ in range(200):
        threads.submit(desk.job("file"))
    desk.until(lambda desk: desk.most == 128)
    threads.submit(desk.job("urgent"), urgent=True)
    desk.until(lambda desk: "urgent" in desk.order)
    desk.let_go()
    desk.until(lambda desk: desk.done == 201)


def test_parts_of_the_earliest_file_come_first_and_files_in_their_order() -> None:
    desk, gate = Desk(), Desk()
    desk.let_go()
    threads = TransferThreads(lambda: 1)
    threads.submit(gate.job())
    gate.until(lambda gate: gate.most == 1)
    early, late = Parts("early", 3, desk), Parts("late", 3, desk)
    for name in ("next", "last"):
        threads.submit(desk.job(name))
    with threads.helping(early.work), threads.helping(late.work):
        gate.let_go()
        desk.until(lambda desk: desk.done == 8)
    assert desk.order == ["early"] * 3 + ["late"] * 3 + ["next", "last"]


def test_a_shared_block_ends_when_its_helpers_have_left() -> None:
    desk, threads = Desk(), TransferThreads(lambda: 4)
    parts = Parts("part", 3, desk)
    ended = threading.Event()

    def own() -> None:
        with threads.helping(parts.work):
            desk.until(lambda desk: desk.most == 3)
        ended.set()

    threads.submit(own)
    desk.until(lambda desk: desk.most == 3)
    assert not ended.wait(3 * module.CHECK_INTERVAL_S)
    desk.let_go()
    assert ended.wait(WAIT_S)
    assert desk.done == 3


def test_a_block_that_fails_takes_its_helpers_along() -> None:
    desk, threads = Desk(), TransferThreads(lambda: 4)
    parts = Parts("part", 1000, desk)

    def fail() -> None:
        with threads.helping(parts.work):
            desk.until(lambda desk: desk.most == 4)
            threading.Timer(0.1, desk.let_go).start()
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail()
    done = desk.done
    assert done >= 4
    settle(threads)
    assert desk.done == done


@pytest.mark.parametrize("shared", [False, True])
def test_a_limit_that_is_raised_is_noticed(shared: bool) -> None:
    """Though nothing comes that would wake a thread, and all are in the middle of something."""
    limit = 2
    desk, threads = Desk(), TransferThreads(lambda: limit)
    if shared:
        parts = Parts("part", 30, desk)
        with threads.helping(parts.work):
            desk.until(lambda desk: desk.most == 2)
            limit = 10
            desk.until(lambda desk: desk.most == 10)
            desk.let_go()
    else:
        for _ in range(30):
            threads.submit(desk.job())
        desk.until(lambda desk: desk.most == 2)
        limit = 10
        desk.until(lambda desk: desk.most == 10)
        desk.let_go()
    desk.until(lambda desk: desk.done >= 10)
    assert desk.most == 10


def test_no_thread_is_woken_for_what_may_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would cost a small file a tenth of its CPU: where many wait, each that ends is followed by the next one."""
    desk = Desk()
    threads = TransferThreads(lambda: 1)
    threads.submit(desk.job())
    threads.submit(desk.job())
    until(lambda: threads._is_polling)
    woken, notify = 0, threads._work_arrived.notify

    def wake() -> None:
        nonlocal woken
        woken += 1
        notify()

    monkeypatch.setattr(threads._work_arrived, "notify", wake)
    for _ in range(100):
        threads.submit(desk.job())
    assert not woken
    desk.let_go()
    desk.until(lambda desk: desk.done == 102)
    assert (desk.most, woken < 10) == (1, True)


def test_a_limit_that_is_lowered_counts_from_the_next_part_on() -> None:
    """A file of many parts would else keep its streams to its end."""
    limit, most_at_end, now = 8, 0, 0
    lock = threading.Lock()
    done = threading.Semaphore(0)
    threads = TransferThreads(lambda: limit)

    def work() -> bool:
        nonlocal now, most_at_end
        with lock:
            now += 1
            most_at_end = max(most_at_end, now)
        time.sleep(0.001)
        with lock:
            now -= 1
        done.release()
        return True

    def several(count: int) -> None:
        for _ in range(count):
            assert done.acquire(timeout=WAIT_S)

    with threads.helping(work):
        several(50)
        limit = 2
        several(20)
        with lock:
            most_at_end = now
        several(50)
    assert most_at_end <= 2


def test_what_is_urgent_comes_between_the_parts_of_a_file() -> None:
    desk = Desk()
    threads = TransferThreads(lambda: 1)
    desk.let_go()
    with threads.helping(Parts("part", 10_000, desk).work):
        desk.until(lambda desk: desk.done > 10)
        threads.submit(desk.job("urgent"), urgent=True)
        desk.until(lambda desk: "urgent" in desk.order)


def test_nothing_is_forgotten() -> None:
    """Thousands of tiny jobs and shared files from several threads, with limits that come and go."""
    limit, done, count = 3, 0, 3000
    lock, all_done = threading.Lock(), threading.Event()
    threads = TransferThreads(lambda: limit)

    def job() -> None:
        nonlocal done
        with lock:
            done += 1
            if done == 4 * count:
                all_done.set()

    def file() -> None:
        parts = iter(range(5))

        def work() -> bool:
            with lock:
                return next(parts, None) is not None

        with threads.helping(work):
            while work():
                pass
        job()

    def source(seed: int) -> None:
        nonlocal limit
        for number in range(count):
            threads.submit(file if number % 10 == seed else job, urgent=number % 7 == seed)
            limit = 1 + (number + seed) % 9
            if number % 500 == 0:
                time.sleep(0.01)  # so that threads fall idle

    sources = [threading.Thread(target=source, args=[seed]) for seed in range(4)]
    for thread in sources:
        thread.start()
    for thread in sources:
        thread.join()
    assert all_done.wait(WAIT_S), (done, threads._working, threads._idle)


def test_where_no_more_threads_can_be_had_those_that_are_there_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, threads = Desk(), TransferThreads(lambda: 10)
    start = threading.Thread.start
    started = 0

    def refused(thread: threading.Thread) -> None:
        nonlocal started
        started += 1
        if started > 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        for _ in range(10):
            threads.submit(desk.job())
        desk.until(lambda desk: desk.most == 2)
    desk.let_go()
    desk.until(lambda desk: desk.done == 10)


def test_where_no_thread_can_be_had_at_all_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError):
        TransferThreads().submit(lambda: None)


def test_what_waits_can_be_hurried() -> None:
    threads, gate, ran = TransferThreads(lambda: 1), threading.Event(), threading.Event()
    jobs: list[Callable[[], Any]] = [lambda: gate.wait(WAIT_S), lambda: None, ran.set]
    for job in jobs:
        threads.submit(job)
    assert not ran.wait(0.3)
    threads.make_urgent(jobs[2])
    threads.make_urgent(jobs[2])  # it may have begun meanwhile
    assert ran.wait(WAIT_S)
    gate.set()
