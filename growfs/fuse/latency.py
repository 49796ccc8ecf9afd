"""Wake-up latency of the thread that answers requests: where it sleeps, its priority, and how deeply cores sleep.

Priority and cores need root; without it, they stay as they are.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct

import trio

POLL_S_MAX = 0.01
"""While a reader opens file after file, the serving task sleeps in poll(2) between requests, and not in trio, where
sleeping and waking up takes longer than most requests. A task that becomes runnable ends this sleep. Trio's timers may
be this late.
"""
DEVICE = "/dev/cpu_dma_latency"

BUSY_REQUESTS, BUSY_S = 64, 0.2
"""About 300 requests a second. At this rate, two wake-ups per request, 80 us, take 2% of a reader's time or more."""


class RealtimeBoost:
    """Real-time scheduling (sched(7)) for a thread: it gets a core as soon as it wakes up, instead of after up to 3 ms.

    A niceness 20 steps lower, or shorter slices, gain half of that or nothing. Real-time scheduling is only for work
    that takes microseconds. Child processes and new threads do not inherit it.
    """

    def __init__(self) -> None:
        self._enabled = False
        self._allowed = True

    def enable(self, enabled: bool) -> None:
        """Turn it on or off, for the calling thread."""
        if enabled == self._enabled or not self._allowed:
            return
        policy = os.SCHED_FIFO if enabled else os.SCHED_OTHER
        try:
            os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(int(enabled)))
            self._enabled = enabled
        except OSError:
            self._allowed = False


class RequestWaiter(trio.abc.Instrument):
    """Waits for requests, for the task that enters it, and lets other tasks run. The task has the real-time boost while
    it waits, and until others run.
    """

    def __init__(self, fd: int) -> None:
        """fd: readable when there are requests."""
        self._fd = fd
        self._only_fd = [(fd, select.POLLIN)]
        self._poll = select.poll()
        for descriptor in (fd, *_epoll_descriptors()):
            self._poll.register(descriptor, select.POLLIN)
        self._boost = RealtimeBoost()
        self._serving = trio.lowlevel.current_task()
        # How many checkpoints it still owes the others. There are two, because a task that became runnable runs in
        # trio's next batch, but possibly after the serving task.
        self._owed = 2
        self._let_run_at = time.monotonic()

    def __enter__(self) -> RequestWaiter:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *_: object) -> None:
        trio.lowlevel.remove_instrument(self)
        self._boost.enable(False)

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Called by trio."""
        if task is not self._serving:
            self._owed = 2
            self._boost.enable(False)

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio."""
        if timeout:
            self._boost.enable(True)

    async def wait(self) -> None:
        """Let other tasks run, or wait for a request."""
        if self._owed or time.monotonic() - self._let_run_at > POLL_S_MAX:
            self._owed = max(0, self._owed - 1)
            await trio.lowlevel.checkpoint()
        else:
            self._boost.enable(True)
            if self._poll.poll(POLL_S_MAX * 1000) == self._only_fd:
                return
            await trio.lowlevel.wait_readable(self._fd)
        self._let_run_at = time.monotonic()

    async def let_others_run(self) -> None:
        """Let other tasks run, although there may be requests."""
        self._boost.enable(False)
        await trio.lowlevel.checkpoint()


def _epoll_descriptors() -> Iterator[int]:
    """The epoll descriptors of this process. One is trio's, which is readable when trio has events to handle."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of this listing is closed by now
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                yield int(name)


def latency_limit_us() -> int:
    """The wake-up latency to request: 0 on a virtual machine, where waking a halted core involves the host.

    On real hardware a core wakes from its lightest sleep (C1) within 2 us, so only deeper sleeps are ruled out.
    """
    try:
        driver = Path("/sys/devices/system/cpu/cpuidle/current_driver").read_text().strip()
    except OSError:
        driver = ""
    return 0 if driver == "haltpoll" else 2


class CpuLatencyRequest:
    """A PM QoS request (Documentation/power/pm_qos_interface.rst) that keeps cores awake while requests are frequent.

    A reader that opens small files one by one sleeps in each open until the daemon answers, and its core goes idle.
    Waking the core takes tens of microseconds, above all on a virtual machine; that is longer than the answer takes.

    The request is held while /dev/cpu_dma_latency is open: from BUSY_REQUESTS within BUSY_S on, until requests are less
    frequent.
    """

    def __init__(self) -> None:
        self._fd: int | None = None
        self._allowed = os.access(DEVICE, os.W_OK)
        self._waiting = trio.lowlevel.ParkingLot()
        self._count = 0
        self._checked_at = -BUSY_S

    def count(self) -> None:
        """Call this for each request."""
        self._count += 1
        if self._count % BUSY_REQUESTS == 0:
            now = time.monotonic()
            if now - self._checked_at < BUSY_S and self._fd is None and self._allowed:
                self._hold()
            self._checked_at = now

    async def run(self) -> None:
        """Release it when requests become less frequent, and at the end. Runs until cancelled."""
        try:
            while True:
                if self._fd is None:
                    await self._waiting.park()
                before = self._count
                await trio.sleep(2 * BUSY_S)
                if self._count - before < BUSY_REQUESTS:
                    self._release()
        finally:
            self._release()

    def _hold(self) -> None:
        try:
            self._fd = os.open(DEVICE, os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._fd, Struct("=i").pack(latency_limit_us()))
            self._waiting.unpark_all()
        except OSError:
            self._allowed = False

    def _release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
