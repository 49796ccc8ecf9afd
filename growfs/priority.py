"""What a process that nobody waits for asks of the kernel: to come after those that somebody does wait for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import time
from pathlib import Path

NICEST = 19
SLICE_NS = 3_000_000
"""A little more than anybody has by default: 0.7 to 2.8 ms, by the number of cores (kernel/sched/fair.c)."""
_SYSTEM_CALLS = {"x86_64": (251, 314), "aarch64": (30, 274)}  # ioprio_set(2), sched_setattr(2): libc has no functions
_WHO_PROCESS = 1
_CLASS_IDLE = 3 << 13
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # struct sched_attr, version 1
_AUTOGROUP_PAUSE_S = 0.12  # an ordinary user may change one in so long only (kernel/sched/autogroup.c: HZ / 10)
_AUTOGROUP_TRIES = 10


def step_aside() -> None:
    """Give this process the last turn at cores, and at disks whose scheduler knows turns (mq-deadline, bfq).

    It also asks for longer slices. Since Linux 6.12 whoever wakes and has a shorter one takes the core at once, as a
    rule (kernel/sched/fair.c, do_preempt_short); with equal ones it waits for the end of the other's, and niceness does
    not help. Its share of a busy core stays that of its niceness.

    It gets a session of its own: where the kernel shares cores out by session (sched(7), the autogroup feature), a
    process's niceness counts within its session only, and so does the session's. What is refused stays as it is.
    Threads that run already keep their turn.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICEST)
    if calls := _SYSTEM_CALLS.get(platform.machine()):
        ioprio_set, sched_setattr = calls
        call = ctypes.CDLL(None).syscall
        call(ioprio_set, _WHO_PROCESS, 0, _CLASS_IDLE)
        call(sched_setattr, 0, _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, NICEST, 0, SLICE_NS, 0, 0), 0)
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
