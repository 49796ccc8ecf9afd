"""The threads that transfer files and parts: how many run, in which order, and that no job is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from growfs.remote.http import threads as module
from growfs.remote.http.threads import TransferJob, TransferThreads
from tests.harness import until

WAIT_S = 20
STRAY_S = 0.3
MIB = 1 << 20


class Jobs:
    """Jobs that block until `release`. order: their names in the order in which they began. peak: the most at once."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.done = 0
        self.peak = self._now = 0
        self._released = False
        self._changed = threading.Condition()

    def job(self, name: str = "") -> Callable[[], None]:
        def work() -> None:
            with self._changed:
                self.order.append(name)
                self._now += 1
                self.peak = max(self.peak, self._now)
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: self._released, WAIT_S)
                self._now -= 1
                self.done += 1
                self._changed.notify_all()

        return work

    def release(self) -> None:
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def until(self, condition: Callable[[Jobs], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), WAIT_S), (self.order, self.done)


def wait_for_stray_work() -> None:
    """Give threads the time to do what they should not do."""
    time.sleep(STRAY_S)


def test_no_more_jobs_run_at_once_than_the_limit() -> None:
    jobs, threads = Jobs(), TransferThreads(lambda: 5)
    for _ in range(50):
        threads.submit(TransferJob(jobs.job()))
    jobs.until(lambda jobs: jobs.peak == 5)
    wait_for_stray_work()
    assert len(jobs.order) == 5
    jobs.release()
    jobs.until(lambda jobs: jobs.done == 50)
    assert jobs.peak == 5


@pytest.mark.parametrize("sleeping_max", [1, 2])
def test_few_jobs_that_sleep_give_way(monkeypatch: pytest.MonkeyPatch, sleeping_max: int) -> None:
    """They wait before they repeat a request. Else an overloaded store would get more requests than the limit."""
    monkeypatch.setattr(module, "SLEEPING_MAX", sleeping_max)
    jobs, threads = Jobs(), TransferThreads(lambda: 1)

    def sleep() -> None:
        jobs.order.append("began")
        threads.sleep(STRAY_S)
        jobs.order.append("repeated")
        jobs.job()()

    for _ in range(4):
        threads.submit(TransferJob(sleep))
    jobs.release()
    jobs.until(lambda jobs: jobs.done == 4)
    begun = sleeping_max + 1  # the last one keeps its place
    assert jobs.order[: begun + 1] == ["began"] * begun + ["repeated"]


def test_jobs_submitted_together_begin_together() -> None:
    """Even if only one thread exists yet, which is idle."""
    jobs, threads = Jobs(), TransferThreads(lambda: 20)
    first = threading.Event()
    threads.submit(TransferJob(first.set))
    assert first.wait(WAIT_S)
    for _ in range(20):
        threads.submit(TransferJob(jobs.job()))
    jobs.until(lambda jobs: jobs.peak == 20)
    jobs.release()


def test_urgent_jobs_do_not_wait() -> None:
    jobs, threads = Jobs(), TransferThreads(lambda: 2)
    for _ in range(4):
        threads.submit(TransferJob(jobs.job("file")))
    jobs.until(lambda jobs: jobs.peak == 2)
    for _ in range(3):
        threads.submit(TransferJob(jobs.job("urgent"), urgent=True))
    jobs.until(lambda jobs: jobs.peak == 5)
    assert jobs.order == ["file"] * 2 + ["urgent"] * 3
    jobs.release()
    jobs.until(lambda jobs: jobs.done == 7)


def test_parts_of_the_earliest_file_come_first_and_files_in_order() -> None:
    """In the order of their numbers, and not in that in which they were submitted."""
    jobs, gate = Jobs(), Jobs()
    jobs.release()
    threads = TransferThreads(lambda: 1)
    threads.submit(TransferJob(gate.job()))
    gate.until(lambda gate: gate.peak == 1)

    def share(name: str) -> Callable[[], None]:
        return lambda: threads.share([jobs.job(name)] * 3)

    threads.submit(TransferJob(jobs.job("last"), 1, number=4))
    threads.submit(TransferJob(share("late"), 40 * MIB, number=2))
    threads.submit(TransferJob(jobs.job("next"), 1, number=3))
    threads.submit(TransferJob(share("early"), 40 * MIB, number=1))
    gate.release()
    jobs.until(lambda jobs: jobs.done == 8)
    assert jobs.order == ["early"] * 3 + ["late"] * 3 + ["next", "last"]


def test_after_the_first_error_no_part_begins() -> None:
    jobs, threads = Jobs(), TransferThreads(lambda: 4)

    def fail() -> None:
        jobs.until(lambda jobs: jobs.peak == 4)
        threading.Timer(0.1, jobs.release).start()
        raise InterruptedError

    with pytest.raises(InterruptedError):
        threads.share([fail, *[jobs.job()] * 1000])
    assert jobs.done == 4
    wait_for_stray_work()
    assert jobs.done == 4


def test_a_lowered_limit_applies_from_the_next_part() -> None:
    """Otherwise a file of many parts would keep its streams until its end."""
    limit, most_at_end, now, done = 8, 0, 0, 0
    lock, ended = threading.Lock(), threading.Event()
    threads = TransferThreads(lambda: limit)

    def part() -> None:
        nonlocal limit, most_at_end, now, done
        with lock:
            now += 1
        time.sleep(0.001)
        with lock:
            done += 1
            if done > 70:
                most_at_end = max(most_at_end, now)
            now -= 1
            if done == 50:
                limit = 2

    def file() -> None:
        threads.share([part] * 120)
        ended.set()

    threads.submit(TransferJob(file, 40 * MIB))
    assert ended.wait(WAIT_S)
    assert (done, most_at_end) == (120, 2)


def test_no_job_is_lost() -> None:
    """Thousands of tiny jobs and shared files from several threads, while the limit changes."""
    limit, done, count = 3, 0, 1000
    lock, all_done = threading.Lock(), threading.Event()
    threads = TransferThreads(lambda: limit)

    def job() -> None:
        nonlocal done
        with lock:
            done += 1
            if done == 4 * count:
                all_done.set()

    def file() -> None:
        threads.share([lambda: None] * 5)
        job()

    def source(seed: int) -> None:
        nonlocal limit
        for number in range(count):
            threads.submit(TransferJob(file if number % 10 == seed else job, urgent=number % 7 == seed))
            limit = 1 + (number + seed) % 9
            threads.check_limit()
            if number % 500 == 0:
                time.sleep(0.01)  # so that threads become idle

    sources = [threading.Thread(target=source, args=[seed]) for seed in range(4)]
    for thread in sources:
        thread.start()
    for thread in sources:
        thread.join()
    assert all_done.wait(WAIT_S), (done, threads.busy, threads._idle)


def test_existing_threads_do_all_jobs_when_no_more_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, threads = Jobs(), TransferThreads(lambda: 10)
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
            threads.submit(TransferJob(jobs.job()))
        jobs.until(lambda jobs: jobs.peak == 2)
    jobs.release()
    jobs.until(lambda jobs: jobs.done == 10)


def test_an_error_is_raised_when_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError):
        TransferThreads().submit(TransferJob(lambda: None))


def test_a_waiting_job_can_be_made_urgent() -> None:
    threads, gate, ran = TransferThreads(lambda: 1), threading.Event(), threading.Event()
    submitted = [TransferJob(partial(until, gate.is_set)), TransferJob(lambda: None), TransferJob(ran.set)]
    for job in submitted:
        threads.submit(job)
    assert not ran.wait(0.3)
    threads.prioritize(submitted[2])
    threads.prioritize(submitted[2])  # nothing happens if it has begun
    assert ran.wait(WAIT_S)
    gate.set()


def test_a_file_begins_when_those_before_it_have_no_part_left() -> None:
    """The threads that are free wait for the parts of the first file, which it knows after its first response."""
    jobs, threads, head = Jobs(), TransferThreads(lambda: 4), threading.Event()

    def first() -> None:
        assert head.wait(WAIT_S)
        threads.share([lambda: jobs.until(lambda jobs: jobs.order.count("part") == 6), *[jobs.job("part")] * 6])

    threads.submit(TransferJob(first, 40 * MIB))
    threads.submit(TransferJob(jobs.job("second"), 40 * MIB, number=1))
    wait_for_stray_work()
    assert jobs.order == []
    head.set()
    jobs.until(lambda jobs: len(jobs.order) == 3)
    assert jobs.order == ["part"] * 3
    jobs.release()
    jobs.until(lambda jobs: jobs.done == 7)
    assert jobs.order.index("second") >= 5, "with the last part, which another thread takes, or after it"


@pytest.mark.parametrize("fails", [False, True])
def test_threads_do_not_wait_for_parts_that_do_not_come(fails: bool) -> None:
    """A server that ignores ranges sends the whole file; another one refuses it."""
    jobs, threads = Jobs(), TransferThreads(lambda: 4)

    def first() -> None:
        if not fails:
            with threads.unsplit(40 * MIB):
                jobs.job("first")()

    threads.submit(TransferJob(first, 40 * MIB))
    for _ in range(3):
        threads.submit(TransferJob(jobs.job("small"), 1, number=1))
    jobs.until(lambda jobs: jobs.order.count("small") == 3)
    jobs.release()


def test_large_files_that_cannot_be_split_come_two_at_a_time_and_in_their_order() -> None:
    jobs, limit = Jobs(), 2 * module.STREAMS_PER_FILE
    threads = TransferThreads(lambda: limit)

    def file(name: str, size: int) -> Callable[[], None]:
        def run() -> None:
            with threads.unsplit(size):
                jobs.job(name)()

        return run

    for number in range(6):
        threads.submit(TransferJob(file(str(number), 8 * MIB), 8 * MIB, number=number))
    wait_for_stray_work()
    assert sorted(jobs.order) == ["0", "1"]
    threads.submit(TransferJob(file("small", 1000), 1000, number=6))
    jobs.until(lambda jobs: jobs.order[2:] == ["small"])
    limit += module.STREAMS_PER_FILE
    threads.check_limit()
    jobs.until(lambda jobs: jobs.order[2:] == ["small", "2"])
    threads.submit(TransferJob(file("urgent", 8 * MIB), 8 * MIB, urgent=True))
    jobs.until(lambda jobs: jobs.order[-1] == "urgent")
    jobs.release()
    jobs.until(lambda jobs: jobs.done == 8)
    assert sorted(jobs.order[5:]) == ["3", "4", "5"]


def test_parts_of_an_urgent_file_come_before_those_of_all_others() -> None:
    jobs, first, threads = Jobs(), Jobs(), TransferThreads(lambda: 2)
    for name in ("a", "b"):
        threads.submit(TransferJob(first.job(name)))
    first.until(lambda first: first.peak == 2)
    for name in ("c", "d"):
        threads.submit(TransferJob(jobs.job(name)))

    def urgent() -> None:
        threads.share([lambda: jobs.until(lambda jobs: jobs.order.count("urgent") == 4), *[jobs.job("urgent")] * 4])

    threads.submit(TransferJob(urgent, 40 * MIB, urgent=True))
    jobs.until(lambda jobs: len(jobs.order) == 2)
    assert jobs.order == ["urgent"] * 2, "as many parts at a time as if it were alone, beside those that end"
    first.release()
    wait_for_stray_work()
    assert jobs.order == ["urgent"] * 2, "the streams that became free begin no other file"
    jobs.release()
    jobs.until(lambda jobs: jobs.done == 6)
    assert jobs.order[:4] == ["urgent"] * 4
    assert sorted(jobs.order[4:]) == ["c", "d"]


def test_a_file_that_has_begun_can_become_urgent() -> None:
    jobs, threads, begun = Jobs(), TransferThreads(lambda: 1), threading.Event()
    released = threading.Event()

    def file() -> None:
        begun.set()
        threads.share([lambda: until(released.is_set), *[jobs.job("part")] * 2])

    job = TransferJob(file, 40 * MIB)
    threads.submit(job)
    assert begun.wait(WAIT_S)
    wait_for_stray_work()
    assert jobs.order == []
    threads.prioritize(job)
    jobs.until(lambda jobs: jobs.order == ["part"])
    released.set()
    jobs.release()
    jobs.until(lambda jobs: jobs.done == 2)


def test_a_file_comes_in_so_many_parts_that_each_stream_has_some() -> None:
    threads = TransferThreads()
    assert threads.segment_bytes(64 * MIB) == MIB
    assert threads.segment_bytes(100_000) == 100_000
    assert threads.segment_bytes(400_000) == 400_000, "two parts would be too small"
    assert threads.segment_bytes(4 * MIB) == module.SEGMENT_BYTES_MIN
    assert threads.segment_bytes(1 << 40) == module.SEGMENT_BYTES_MAX
    assert threads.segment_bytes(None) == module.SEGMENT_BYTES_UNKNOWN
    for _ in range(100):
        threads.record(MIB, 0.05)
    assert threads.segment_bytes(64 * MIB) == 2 * MIB, "a stream brings that in a moment"
    for _ in range(100):
        threads.record(100 * MIB, 0.05)
    assert threads.segment_bytes(64 * MIB) == 4 * MIB, "there is still one for each stream"
    for _ in range(100):
        threads.record(MIB, 5.0)
    assert threads.segment_bytes(64 * MIB) == MIB
