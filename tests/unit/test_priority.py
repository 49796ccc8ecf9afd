"""Who comes first at a core, and who last but gets on all the same."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer

import pytest
import trio

from growfs.fuse import session
from growfs.workers.process import IDLE_GROUP, RealtimeBoost, idle_group
from tests.harness import may_take_precedence, policy, until

SPIN = "while True: pass"
needs_precedence = pytest.mark.skipif(not may_take_precedence(), reason="real-time scheduling is not allowed here")


@needs_precedence
def test_what_comes_first_starts_nothing_that_does() -> None:
    precedence = RealtimeBoost()
    precedence.take(True)
    try:
        with ThreadPoolExecutor() as pool:
            others = pool.submit(policy).result()
        child = subprocess.run(
            [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"], stdout=-1, check=True
        )
        assert (policy(), others, int(child.stdout)) == (os.SCHED_FIFO, os.SCHED_OTHER, os.SCHED_OTHER)
    finally:
        precedence.take(False)
    assert policy() == os.SCHED_OTHER


@needs_precedence
async def test_who_answers_comes_first_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lone request is answered before others compute; one of many in a row, and other tasks, are like anybody."""
    monkeypatch.setattr(session, "FAIR_REQUESTS", 8)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    met: dict[bytes, set[int]] = {b"lone": set(), b"burst": set(), b"last": set()}

    def answer(message: bytes) -> int:
        met[message].add(policy())
        if message == b"lone" and policy() == os.SCHED_FIFO:  # it may come where others have their turn
            for _ in range(3 * session.FAIR_REQUESTS):
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


@pytest.mark.skipif(not idle_group(), reason="no group can be made here that is idle as a whole")
def test_who_gets_no_core_is_idle_no_more() -> None:
    """While others, who are not nice, want all cores all the time."""
    with contextlib.ExitStack() as stack:

        def run(program: str) -> int:
            process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process.pid

        aside = run(f"from growfs.workers.process import lower_priority; lower_priority()\n{SPIN}")
        group = Path(f"/proc/{aside}/cgroup")
        until(lambda: f":/{IDLE_GROUP}\n" in group.read_text())
        for _ in os.sched_getaffinity(0):
            run(SPIN)
        until(lambda: f":/{IDLE_GROUP}\n" not in group.read_text(), timeout_s=60)
