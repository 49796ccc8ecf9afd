"""Keeps idle cores awake while requests come one upon the other, where this process may ask for that (root).

A reader that opens one small file after the other sleeps in each open until the daemon has answered, and its core goes
idle. Waking it takes tens of microseconds, on a virtual machine above all: more than the answer does. The kernel lets a
process say what it can stand (Documentation/power/pm_qos_interface.rst); that holds while a file is open.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from struct import Struct

import trio

from growfs.events import Signal

DEVICE = "/dev/cpu_dma_latency"
DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")
LIGHT_SLEEP_US = 2
"""A core of a real machine wakes from its lightest sleep (C1) in this time; only the deeper ones are ruled out."""

BUSY_REQUESTS, BUSY_S = 64, 0.2
"""From about 300 requests in a second on: waking up twice for each, 80 us, is then 2% of a reader's time and more."""


def tolerable_us() -> int:
    """The wake-up time to ask for: none on a virtual machine, whose cores halt and are woken by way of the host."""
    try:
        return 0 if DRIVER.read_text().strip() == "haltpoll" else LIGHT_SLEEP_US
    except OSError:
        return LIGHT_SLEEP_US


class Wakefulness:
    """Owns what is asked of the kernel: held from BUSY_REQUESTS within BUSY_S on, for as long as they come so fast."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._allowed = os.access(DEVICE, os.W_OK)
        self._held = Signal[[]]()
        self._count = 0
        self._judged = -BUSY_S

    def note(self) -> None:
        """A request came."""
        self._count += 1
        if self._count % BUSY_REQUESTS == 0:
            now = time.monotonic()
            if now - self._judged < BUSY_S and self._fd is None and self._allowed:
                self._hold()
            self._judged = now

    async def run(self) -> None:
        """Let cores sleep again when requests come slowly, and at the end; until cancelled."""
        try:
            while True:
                if self._fd is None:
                    await self._held.wait()
                before = self._count
                await trio.sleep(2 * BUSY_S)
                if self._count - before < BUSY_REQUESTS:
                    self._release()
        finally:
            self._release()

    def _hold(self) -> None:
        try:
            self._fd = os.open(DEVICE, os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._fd, Struct("=i").pack(tolerable_us()))
            self._held.notify()
        except OSError:
            self._allowed = False

    def _release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
