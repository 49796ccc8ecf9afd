"""Keeps idle cores awake while requests come one upon the other, where this process may ask for that (root).

A reader that opens one small file after the other sleeps in each open until the daemon has answered, and its core goes
idle. Waking it takes tens of microseconds, on a virtual machine above all: more than the answer does. The kernel lets a
process say what it can stand (Documentation/power/pm_qos_interface.rst); that holds while a file is open.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct

DEVICE = "/dev/cpu_dma_latency"
DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")
LIGHT_SLEEP_US = 2
"""A core of a real machine wakes from its lightest sleep (C1) in this time; only the deeper ones are ruled out."""


def tolerable_us() -> int:
    """The wake-up time to ask for: none on a virtual machine, whose cores halt and are woken by way of the host."""
    try:
        return 0 if DRIVER.read_text().strip() == "haltpoll" else LIGHT_SLEEP_US
    except OSError:
        return LIGHT_SLEEP_US


class Wakefulness:
    """Owns the request to the kernel."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._allowed = os.access(DEVICE, os.W_OK)

    @property
    def held(self) -> bool:
        """Whether cores stay awake now."""
        return self._fd is not None

    def hold(self) -> None:
        """Ask for it, where that is possible."""
        if self._fd is None and self._allowed:
            try:
                self._fd = os.open(DEVICE, os.O_WRONLY | os.O_CLOEXEC)
                os.write(self._fd, Struct("=i").pack(tolerable_us()))
            except OSError:
                self._allowed = False

    def release(self) -> None:
        """Let cores sleep again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
