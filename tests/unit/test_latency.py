"""The answering thread has real-time priority while it answers, and at no other time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Timer

import pytest
import trio

from growfs.fuse import session
from growfs.fuse.latency import RealtimeBoost
from tests.harness import may_use_real_time, scheduling_policy

needs_real_time = pytest.mark.skipif(not may_use_real_time(), reason="real-time scheduling is not allowed here")


@needs_real_time
def test_child_processes_and_threads_do_not_inherit_the_boost() -> None:
    boost = RealtimeBoost()
    boost.enable(True)
    try:
        with ThreadPoolExecutor() as pool:
            others = pool.submit(scheduling_policy).result()
        child = subprocess.run(
            [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"], stdout=-1, check=True
        )
        assert (scheduling_policy(), others, int(child.stdout)) == (os.SCHED_FIFO, os.SCHED_OTHER, os.SCHED_OTHER)
    finally:
        boost.enable(False)
    assert scheduling_policy() == os.SCHED_OTHER


@needs_real_time
async def test_a_request_is_boosted_but_not_a_long_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single request is answered with the boost. The last of many requests in a row, and other tasks, run without."""
    monkeypatch.setattr(session, "BATCH_REQUESTS_MAX", 8)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    policies: dict[bytes, set[int]] = {b"lone": set(), b"burst": set(), b"last": set()}

    def answer(message: bytes) -> None:
        policies[message].add(scheduling_policy())
        # Without the boost, the request arrived while other tasks ran.
        if message == b"lone" and scheduling_policy() == os.SCHED_FIFO:
            for _ in range(3 * session.BATCH_REQUESTS_MAX):
                theirs.send(b"burst")
            theirs.send(b"last")

    with theirs, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.Session(ours.detach()).serve, answer, lambda: False)
            while not policies[b"last"]:
                sender = Timer(0.02, theirs.send, [b"lone"])
                sender.start()
                await trio.to_thread.run_sync(sender.join)
                assert scheduling_policy() == os.SCHED_OTHER
            nursery.cancel_scope.cancel()
    assert os.SCHED_FIFO in policies[b"lone"]
    assert policies[b"last"] == {os.SCHED_OTHER}
    assert scheduling_policy() == os.SCHED_OTHER
