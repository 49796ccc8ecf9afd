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
from tests.harness import may_take_precedence, policy

needs_precedence = pytest.mark.skipif(not may_take_precedence(), reason="real-time scheduling is not allowed here")


@needs_precedence
def test_child_processes_and_threads_do_not_inherit_the_boost() -> None:
    boost = RealtimeBoost()
    boost.enable(True)
    try:
        with ThreadPoolExecutor() as pool:
            others = pool.submit(policy).result()
        child = subprocess.run(
            [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"], stdout=-1, check=True
        )
        assert (policy(), others, int(child.stdout)) == (os.SCHED_FIFO, os.SCHED_OTHER, os.SCHED_OTHER)
    finally:
        boost.enable(False)
    assert policy() == os.SCHED_OTHER


@needs_precedence
async def test_requests_are_boosted_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single request is answered with the boost. The last of many requests in a row, and other tasks, have none."""
    monkeypatch.setattr(session, "BATCH_REQUESTS_MAX", 8)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    met: dict[bytes, set[int]] = {b"lone": set(), b"burst": set(), b"last": set()}

    def answer(message: bytes) -> int:
        met[message].add(policy())
        if message == b"lone" and policy() == os.SCHED_FIFO:  # without the boost, it came while other tasks ran
            for _ in range(3 * session.BATCH_REQUESTS_MAX):
                theirs.send(b"burst")
            theirs.send(b"last")
        return 1

    with theirs, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.Session(ours.detach()).serve, answer, lambda: False)
            while not met[b"last"]:
                sender = Timer(0.02, theirs.send, [b"lone"])
                sender.start()
                await trio.to_thread.run_sync(sender.join)
                assert policy() == os.SCHED_OTHER
            nursery.cancel_scope.cancel()
    assert os.SCHED_FIFO in met[b"lone"]
    assert met[b"last"] == {os.SCHED_OTHER}
    assert policy() == os.SCHED_OTHER
