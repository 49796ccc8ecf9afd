"""Process settings: low CPU and disk priority for workers, and less frequent garbage collection."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import threading
import time
from pathlib import Path

from growfs.proc import read_lines

NICENESS = 10
"""A tenth of a core, beside a process of normal priority that never rests. With the highest, 19, it is a hundredth."""
IDLE_GROUP = "growfs"
STARVATION_CHECK_S = 1.0
STARVED_PAUSE_S = 30.0
"""A starved process stays out of the idle group for this long, and is only nice meanwhile."""
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # ioprio_set(2) has no wrapper in libc

KEEP_PRIORITY_VARIABLE = "_GROWFS_KEEP_PRIORITY"
"""The tests set this environment variable: they use all cores, and wait for workers, which would get next to no CPU."""


def tune_gc() -> None:
    """Collect garbage less often, and never scan the objects that exist now (mostly modules).

    This also keeps forked processes from copying their memory pages.
    """
    gc.freeze()
    # With Python's default of 700 new objects, a collection took 5% of a worker's and the daemon's CPU time.
    # With 50,000, the daemon grew by 11 MB in 4,000 generations: each leaves a few cycles of tasks and exceptions.
    gc.set_threshold(10_000)


def lower_priority() -> None:
    """Give this process a low CPU priority, and the lowest for disks whose scheduler has priorities (mq-deadline, bfq).

    The process gets its own session: with the autogroup feature (sched(7)) the kernel shares cores between sessions,
    and niceness counts only within a session. So the session's niceness is also set. Settings that the kernel refuses
    are skipped.
    """
    if os.environ.get(KEEP_PRIORITY_VARIABLE):
        return
    threads = map(int, os.listdir("/proc/self/task"))
    for thread in (0, *threads):  # this one first, for those that it starts
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
        lower_disk_priority(thread)
    with contextlib.suppress(PermissionError):  # it already leads a session
        os.setsid()
    for _ in range(10):
        try:
            Path("/proc/self/autogroup").write_text(str(NICENESS))
        except BlockingIOError:
            time.sleep(0.12)  # ordinary users may change it only every HZ / 10 (kernel/sched/autogroup.c)
        except OSError:  # the kernel has no autogroups
            break
        else:
            break
    with contextlib.suppress(OSError):  # the kernel has no control groups
        if group := idle_group():
            threading.Thread(target=_be_idle_unless_starved, args=(group,), daemon=True).start()


def lower_disk_priority(thread: int = 0) -> None:
    """Give a thread (by default, this one) the lowest priority for disks whose scheduler has priorities."""
    if number := _IOPRIO_SET.get(platform.machine()):
        ctypes.CDLL(None).syscall(number, 1, thread, 3 << 13)  # IOPRIO_WHO_PROCESS, IOPRIO_CLASS_IDLE


def idle_group() -> Path | None:
    """Return a control group that is idle as a whole, created if needed. It is kept for the next mount.

    Any task that wakes up takes the core from an idle group at once, but from a merely nice task milliseconds later
    (kernel/sched/fair.c, check_preempt_wakeup_fair).

    None if there is no such group: it needs root, Linux 5.15, and a process that is not in another group.
    """
    own: dict[str, str] = {}
    for line in read_lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    for line in read_lines("/proc/self/mounts"):
        _, where, kind, options, *_ = line.split(" ")
        controller = {"cgroup": "cpu", "cgroup2": ""}.get(kind, kind)
        if own.get(controller, "") in ("/", f"/{IDLE_GROUP}") and (
            controller == "" or controller in options.split(",")
        ):
            with contextlib.suppress(OSError):
                if _make_idle(group := Path(where, IDLE_GROUP)):
                    return group
    return None


def _make_idle(group: Path) -> bool:
    group.mkdir(exist_ok=True)
    if (idle := group / "cpu.idle").exists():  # in version 2, only if the root group delegates the cpu controller
        idle.write_text("1")
        return True
    group.rmdir()
    return False


def _be_idle_unless_starved(group: Path) -> None:
    """Join the group, but not on a machine that is always busy, where an idle group gets next to nothing."""
    while True:
        if not _is_starved():
            _join(group)
            while not _is_starved():
                pass
            _join(group.parent)
        time.sleep(STARVED_PAUSE_S)


def _join(group: Path) -> None:
    with contextlib.suppress(OSError):
        (group / "cgroup.procs").write_text(str(os.getpid()))


def _is_starved() -> bool:
    """Measure for STARVATION_CHECK_S."""
    ran_s, waited_s = _schedstat_s()
    time.sleep(STARVATION_CHECK_S)
    now = _schedstat_s()
    # It waited for a core for over half of the time between two checks, and four times as long as it ran.
    return now[1] - waited_s > max(STARVATION_CHECK_S / 2, 4 * (now[0] - ran_s))


def _schedstat_s() -> tuple[float, float]:
    """How long this process's threads ran, and waited for a core (Documentation/scheduler/sched-stats.rst)."""
    ran_ns = waited_ns = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread ended, or the kernel keeps no statistics
            ran, waited, _ = (task / "schedstat").read_text().split()
            ran_ns, waited_ns = ran_ns + int(ran), waited_ns + int(waited)
    return ran_ns / 1e9, waited_ns / 1e9
