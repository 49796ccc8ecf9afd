"""Who is to come first at a core: the thread that readers wait for; and who last: processes that nobody waits for."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import threading
import time
from pathlib import Path

NICEST = 19
IDLE_GROUP = "growfs"
LOOK_EVERY_S = 2.0
STARVED_S = 0.05
"""Who got less of a core than this between two looks, and waited for one in the meantime, is starved."""
NOT_IDLE_S = 30.0
"""For so long a process that starved is nice only."""
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # ioprio_set(2), which libc has no function for
_WHO_PROCESS = 1
_CLASS_IDLE = 3 << 13
_AUTOGROUP_PAUSE_S = 0.12  # an ordinary user may change one in so long only (kernel/sched/autogroup.c: HZ / 10)
_AUTOGROUP_TRIES = 10


class RealtimeBoost:
    """Whether a thread takes a core from whoever computes on it as soon as it wakes up; else it may wait for 3 ms.

    By real-time scheduling (sched(7)): niceness, 20 steps of it, and shorter slices do half of that or nothing. So it
    is for what takes microseconds. Takes root; without it nothing happens. Processes and threads that it starts are
    like any others.
    """

    def __init__(self) -> None:
        self._taken = False
        self._allowed = True

    def take(self, taken: bool) -> None:
        """Of the calling thread."""
        if taken == self._taken or not self._allowed:
            return
        policy = os.SCHED_FIFO if taken else os.SCHED_OTHER
        try:
            os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(int(taken)))
            self._taken = taken
        except OSError:
            self._allowed = False


def lower_priority() -> None:
    """Give this process the last turn at cores, and at disks whose scheduler knows turns (mq-deadline, bfq).

    It gets a session of its own: where the kernel shares cores out by session (sched(7), the autogroup feature), a
    process's niceness counts within its session only, and so does the session's. What is refused stays as it is.
    Threads that run already keep their niceness.
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
            break
        else:
            break
    with contextlib.suppress(OSError):  # a kernel without control groups
        if group := idle_group():
            _join(group)
            threading.Thread(target=_watch, args=(group,), daemon=True).start()


def idle_group() -> Path | None:
    """A control group that is idle as a whole: whoever wakes takes the core from it at once, where one that is only
    nice goes on for milliseconds (kernel/sched/fair.c, check_preempt_wakeup_fair). It stays, empty, for the next mount.

    None where there can be none: it takes root, Linux 5.15, and a process that is in no group yet.
    """
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        controller = {"cgroup": "cpu", "cgroup2": ""}.get(kind, kind)
        if own.get(controller, "") in ("/", f"/{IDLE_GROUP}") and (
            controller == "" or controller in options.split(",")
        ):
            with contextlib.suppress(OSError):
                if _made_idle(group := Path(where, IDLE_GROUP)):
                    return group
    return None


def _made_idle(group: Path) -> bool:
    group.mkdir(exist_ok=True)
    if (idle := group / "cpu.idle").exists():  # of version 2, where the root hands the controller down
        idle.write_text("1")
        return True
    group.rmdir()
    return False


def _watch(group: Path) -> None:
    """Have this process be nice only, for a while, where it gets next to nothing: on a machine that is always busy."""
    while True:
        if _starves():
            _join(group.parent)
            time.sleep(NOT_IDLE_S)
            _join(group)


def _join(group: Path) -> None:
    with contextlib.suppress(OSError):
        (group / "cgroup.procs").write_text(str(os.getpid()))


def _starves() -> bool:
    """Look for a while at what this process gets."""
    ran_s, waited_s = _scheduled_s()
    time.sleep(LOOK_EVERY_S)
    now = _scheduled_s()
    return now[0] - ran_s < STARVED_S and now[1] - waited_s > LOOK_EVERY_S / 2


def _scheduled_s() -> tuple[float, float]:
    """For how long the threads of this process ran, and waited to run (Documentation/scheduler/sched-stats.rst)."""
    ran_ns = waited_ns = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended, or the kernel does not count
            ran, waited, _ = (task / "schedstat").read_text().split()
            ran_ns, waited_ns = ran_ns + int(ran), waited_ns + int(waited)
    return ran_ns / 1e9, waited_ns / 1e9


OBJECTS = 50_000
"""New ones, until it looks: by its own default of 700, it took a worker and the daemon a twentieth of their CPU."""


def tune_gc() -> None:
    """Of what is there now, mostly modules, nothing is looked through again, nor copied after a fork."""
    gc.freeze()
    gc.set_threshold(OBJECTS)
