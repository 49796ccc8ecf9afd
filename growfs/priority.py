"""What a process that nobody waits for asks of the kernel: to come after those that somebody does wait for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import time
from pathlib import Path

NICEST = 19
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # ioprio_set(2), which libc has no function for
_WHO_PROCESS = 1
_CLASS_IDLE = 3 << 13
_AUTOGROUP_PAUSE_S = 0.12  # an ordinary user may change one in so long only (kernel/sched/autogroup.c: HZ / 10)
_AUTOGROUP_TRIES = 10


def step_aside() -> None:
    """Give this process the last turn at cores, and at disks whose scheduler knows turns (mq-deadline, bfq).

    It gets a session of its own: where the kernel shares cores out by session (sched(7), the autogroup feature), a
    process's niceness counts within its session only, and so does the session's. What is refused stays as it is.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICEST)
    if number := _IOPRIO_SET.get(platform.machine()):
        ctypes.CDLL(None).syscall(number, _WHO_PROCESS, 0, _CLASS_IDLE)
    with contextlib.suppress(PermissionError):  # it leads its session already
        os.setsid()
    for _ in range(_AUTOGROUP_TRIES):
        try:
            Path("/proc/self/autogroup").write_text(str(NICEST))
        except BlockingIOError:
            time.sleep(_AUTOGROUP_PAUSE_S)
        except OSError:  # a kernel without it
            return
        else:
            return
