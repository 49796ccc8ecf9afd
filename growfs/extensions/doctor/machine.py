"""The machine: FUSE, the rights of this process, the engine, and the limits of a container."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from growfs.cache.open_files import IDLE_MAX
from growfs.errors import GrowfsError
from growfs.extensions.doctor.check import Check, Level, attempt, ok, warning
from growfs.fuse.engine_choice import EngineChoice, has_pyfuse3
from growfs.fuse.mounting import (
    DEVICE,
    check_allow_other,
    check_device,
    check_fusermount,
    check_may_mount,
    has_sys_admin,
)
from growfs.fuse.probe import try_mount
from growfs.proc import read_lines
from growfs.syscalls import check_descriptors, check_kernel, ending_limits
from growfs.units import format_size

CGROUPS = Path("/sys/fs/cgroup")
PROCESSES_MIN = 512
"""Threads count. Each worker has one for each transfer, up to some 200."""
_UNLIMITED = 1 << 60
"""Version 1 of control groups writes a number above this if there is no limit."""


def check_machine(allow_other: bool) -> Iterator[Check]:
    """All checks that do not depend on the cache or the remote. allow_other: the option."""
    yield attempt("kernel", check_kernel, f"Linux {platform.release()}")
    device = attempt(DEVICE.name, check_device, f"{DEVICE} can be opened")
    yield device
    rights = list(_check_rights(allow_other, has_device=device.level is Level.OK))
    yield from rights
    if any(check.level is Level.FAILURE for check in (device, *rights)):
        yield warning("no mount", "a plain folder can be filled without one", "use growfs fill instead of growfs mount")
    yield attempt("open files", _check_descriptors)
    if limits := ending_limits():
        yield warning("ulimit", f"{limits}; may end the daemon, or its downloads", "raise the hard limit")
    yield from _check_limits()


def check_engine(requested: str, folder: Path, allow_other: bool) -> tuple[Check, str]:
    """The engine that a mount with its cache in folder would use, by trying it. Also returns its name; "" if none."""
    try:
        choice = EngineChoice(requested, folder, allow_other)
    except GrowfsError as error:
        return Check.failed("engine", error), ""
    except OSError as error:
        return Check(Level.FAILURE, "engine", f"cannot be tried: {error}", "pass another --cache-dir"), ""
    if choice.name == "passthrough":
        other = "is also installed" if has_pyfuse3() else "is not installed, and not needed here"
        return ok("engine", f"passthrough: {choice.reason}; libfuse {other}"), "passthrough"
    if requested == choice.name:
        return ok("engine", f"{choice.name}: {choice.reason}"), choice.name
    if choice.name == "links":
        seen = "programs see symbolic links, and a container needs the cache directory under the same path"
        return ok("engine", f"links: {seen} ({choice.reason})"), choice.name
    text, _, remedy = choice.reason.partition("; ")
    links = "pass --engine links (disk speed, but programs see symbolic links)"
    remedy = f"{remedy}, or {links}" if remedy else links
    return warning("engine", f"libfuse, which is slower; {text}", remedy), choice.name


def _check_rights(allow_other: bool, has_device: bool) -> Iterator[Check]:
    found = shutil.which("fusermount3")
    if os.geteuid() == 0:
        rights = attempt("capabilities", check_may_mount, "root with CAP_SYS_ADMIN")
        yield rights
        if has_device and rights.level is Level.OK:
            yield from _check_mount()
        yield ok("fusermount3", found or "not installed; root mounts without it")
        yield ok("other users", "can read the mount, because root mounts it")
        return
    ordinary = "none; an ordinary user mounts with fusermount3, without passthrough"
    yield ok("capabilities", "CAP_SYS_ADMIN" if has_sys_admin() else ordinary)
    yield attempt("fusermount3", check_fusermount, str(found))
    yield attempt("other users", partial(_check_others, allow_other))


def _check_others(allow_other: bool) -> Check:
    text = "cannot read the mount; no user_allow_other in /etc/fuse.conf"
    if check_allow_other(allow_other):
        how = "(user_allow_other in /etc/fuse.conf)" if allow_other else "with --allow-other"
        text = f"can read the mount {how}"
    return ok("other users", text)


def _check_mount() -> Iterator[Check]:
    try:
        if try_mount():
            yield ok("mounting", "the kernel allows it")
    except GrowfsError as error:
        yield Check.failed("mounting", error)


def _check_descriptors() -> Check:
    most = check_descriptors()
    if most < IDLE_MAX:
        return warning(
            "open files",
            f"{most:,} at a time; each file that readers have open takes one",
            "raise the hard limit: ulimit -Hn; LimitNOFILE= in a service, --ulimit nofile= in a container",
        )
    return ok("open files", f"{most:,} at a time")


def _check_limits() -> Iterator[Check]:
    memory = min(_limits("memory", "memory.max", "memory.limit_in_bytes"), default=_UNLIMITED)
    cores = min(_core_limits(), default=float("inf"))
    processes = min(_limits("pids", "pids.max", "pids.max"), default=_UNLIMITED)
    size = format_size(memory, binary=True)
    # The daemon and two downloading workers take a few hundred megabytes, and the page cache counts, too.
    if memory < 1 << 30:
        remedy = "allow 1 GiB or more, and as much again for the page cache"
        yield warning("memory", f"{size}, set by a control group; the daemon or a worker may be killed", remedy)
    if cores < 1:
        remedy = "allow one CPU or more (cpu.max; in Kubernetes: resources.limits.cpu)"
        yield warning("CPU", f"{cores:g}, set by a control group; growfs fetches no faster than that allows", remedy)
    if processes < PROCESSES_MIN:
        remedy = f"allow {PROCESSES_MIN} or more (pids.max; docker --pids-limit)"
        yield warning("processes", f"{processes:,}, set by a control group; each transfer needs a thread", remedy)
    available, load = min(cores, len(os.sched_getaffinity(0))), os.getloadavg()[0]
    if load > available:
        text = f"load {load:.1f} on {available:g} CPUs; downloads run at a low priority, so they will be slower"
        yield warning("CPU", f"{text} than measured", "leave a CPU to growfs, or measure on an idle machine")
    limits = [
        f"{available:g} CPUs",
        "no limit on memory" if memory == _UNLIMITED else f"{size} of memory",
        "no limit on processes" if processes == _UNLIMITED else f"{processes:,} processes",
    ]
    yield ok("limits", ", ".join(limits))


def _limits(controller: str, file: str, file_v1: str) -> Iterator[int]:
    """The limits of this process's control group, and of those above it, as far as visible."""
    for group in control_groups(""):
        yield from numbers_in(group / file)
    for group in control_groups(controller):
        yield from (number for number in numbers_in(group / file_v1) if number < _UNLIMITED)


def _core_limits() -> Iterator[float]:
    for group in control_groups(""):
        if len(numbers := list(numbers_in(group / "cpu.max"))) == 2:  # else there is no limit: the first word is "max"
            yield numbers[0] / numbers[1]
    for group in control_groups("cpu"):
        numbers = [*numbers_in(group / "cpu.cfs_quota_us"), *numbers_in(group / "cpu.cfs_period_us")]
        if len(numbers) == 2 and numbers[0] > 0:
            yield numbers[0] / numbers[1]


def control_groups(controller: str) -> Iterator[Path]:
    """The folders of this process's control group and those above it (cgroups(7)). controller: "" for version 2.

    In a container, the path may be the host's, while only the container's own group is visible, at the top.
    """
    top = CGROUPS / controller
    for line in read_lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            group = top / path.lstrip("/")
            yield from (each for each in (group, *group.parents) if each == top or top in each.parents)


def numbers_in(file: Path) -> list[int]:
    """The numbers in a file of a control group; none if it is missing or says that there is no limit."""
    try:
        return [int(word) for word in file.read_text().split() if word != "max"]
    except (OSError, ValueError):
        return []
