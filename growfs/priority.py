"""What a process that nobody waits for asks of the kernel: to come after those that somebody does wait for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import time
from pathlib import Path

NICEST = 19
IDLE_GROUP = "growfs"
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # ioprio_set(2), which libc has no function for
_WHO_PROCESS = 1
_CLASS_IDLE = 3 << 13
_AUTOGROUP_PAUSE_S = 0.12  # an ordinary user may change one in so long only (kernel/sched/autogroup.c: HZ / 10)
_AUTOGROUP_TRIES = 10


def step_aside() -> None:
    """Give this process the last turn at cores, and at disks whose scheduler knows turns (mq-deadline, bfq).

    Whoever wakes takes the core from it at once, where niceness alone would let it run on for milliseconds (sched(7),
    SCHED_IDLE). What is refused stays as it is. Threads that run already keep their turn.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICEST)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if number := _IOPRIO_SET.get(platform.machine()):
        ctypes.CDLL(None).syscall(number, _WHO_PROCESS, 0, _CLASS_IDLE)
    _leave_session()
    _join_idle_group()


def _leave_session() -> None:
    """Get a session of its own, as nice as can be: where the kernel shares cores out by session (sched(7), the
    autogroup feature), a process's niceness counts within its session only.
    """
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


def _join_idle_group() -> None:
    """Get out of the sharing by session: there a session can be nice, but not idle.

    Sessions count in the root control group only. In any other there is nothing to do; in that one, root may make a
    group that is idle as a whole. It stays, empty, for the next mount.
    """
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        controller = {"cgroup": "cpu", "cgroup2": ""}.get(kind)
        if own.get(controller) == "/" and (controller == "" or controller in options.split(",")):
            with contextlib.suppress(OSError):
                _join(Path(where, IDLE_GROUP))


def _join(group: Path) -> None:
    group.mkdir(exist_ok=True)
    if (idle := group / "cpu.idle").exists():  # Linux 5.15; of version 2, where the root hands the controller down
        idle.write_text("1")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    else:
        group.rmdir()
