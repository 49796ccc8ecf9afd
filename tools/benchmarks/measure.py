"""What the benchmarks share: settings, figures, commands, and what the kernel says of processes, files and memory."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ACCESS_KEY, SECRET_KEY = "growfs-bench", "growfs-bench-secret"
COMMAND_S_MAX = 900.0
NOISE_MAX = 0.03
CACHESTAT = 451
"""The number of cachestat(2) on all architectures (Linux 6.5)."""


class BenchError(Exception):
    """The benchmark cannot be run; `str(error)` is the whole line."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How to measure. folder: empty, and the benchmark's own. contenders: engines, and peers."""

    folder: Path
    quick: bool
    rounds: int
    contenders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A median and what it was taken from. met: None where there is no target.

    noise: the median's standard error, as a share of it; None where there are too few rounds to tell.
    """

    name: str
    measured: float
    unit: str
    rounds: list[float] = field(default_factory=list)
    noise: float | None = None
    target: str | None = None
    met: bool | None = None


def figure(
    name: str, rounds: Sequence[float], unit: str, target: str | None = None, met: Callable[[float], bool] | None = None
) -> Figure:
    """The median of the rounds, held against the target."""
    median = statistics.median(rounds)
    return Figure(name, median, unit, list(rounds), noise(rounds), target, met(median) if met else None)


def at_least(name: str, rounds: Sequence[float], unit: str, target: float | None) -> Figure:
    """A figure whose target, if it has one, is a lower bound."""
    if target is None:
        return figure(name, rounds, unit)
    return figure(name, rounds, unit, f"at least {target:g}", lambda median: median >= target)


def at_most(name: str, rounds: Sequence[float], unit: str, target: float | None) -> Figure:
    """A figure whose target, if it has one, is an upper bound."""
    if target is None:
        return figure(name, rounds, unit)
    return figure(name, rounds, unit, f"at most {target:g}", lambda median: median <= target)


def noise(rounds: Sequence[float]) -> float | None:
    """1.25 sigma / sqrt(n), the standard error of a median; sigma from the quartiles: one bad round counts little."""
    median = statistics.median(rounds)
    if len(rounds) < 3 or not median:
        return None
    lower, _, upper = statistics.quantiles(rounds, n=4, method="inclusive")
    return abs(1.25 * (upper - lower) / 1.35 / math.sqrt(len(rounds)) / median)


# Disk and commands.


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards, unless something is still mounted in it."""
    folder = Path(tempfile.mkdtemp(prefix="growfs-bench-"))
    try:
        yield folder
    finally:
        if f"{folder}/" in Path("/proc/self/mounts").read_text():
            print(f"bench: something is still mounted in {folder}; take it off and remove the folder", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def need_space(folder: Path, bytes: int) -> None:
    """Raise BenchError where the disk has less."""
    free = shutil.disk_usage(folder).free
    if free < bytes + (2 << 30):  # growfs leaves 1 GiB to others
        raise BenchError(
            f"{folder.parent} has {free >> 20} MiB free, and {(bytes >> 20) + 2048} are needed;"
            " name another folder: TMPDIR=/somewhere tools/bench"
        )


def make_file(path: Path, mib: int) -> None:
    """A file without holes that no file system can shrink."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))


def run(command: Sequence[object], **variables: object) -> str:
    """A command's output. variables: more of its environment. Raises BenchError with what it said where it fails."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
            env=environment() | {name: str(value) for name, value in variables.items()},
            cwd=ROOT,
        )
    except FileNotFoundError:
        raise BenchError(f"{command[0]} is not installed") from None
    if done.returncode:
        raise BenchError(f"{' '.join(map(str, command[:6]))} ...: {done.stderr.strip() or done.returncode}")
    return done.stdout


def environment() -> dict[str, str]:
    """This one, with the credentials of the benchmarks' servers and no others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GROWFS_", "RCLONE_"))}
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    files = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    return {**kept, **keys, **files, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}


def until(condition: Callable[[], Any], what: str, every_s: float = 0.05, timeout_s: float = COMMAND_S_MAX) -> Any:
    """Poll until it is true, and return its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not after {timeout_s:g} s")
        time.sleep(every_s)
    return value


# What the kernel says.


def cpu_s(pid: int) -> float:
    """User and system time of all threads of a process, in seconds: the clock of clock_getcpuclockid(3).

    It counts nanoseconds, where /proc/PID/stat counts ticks of 10 ms.
    """
    return time.clock_gettime(~pid << 3 | 2)


def memory_mb(pid: int, which: str) -> float:
    """VmRSS or VmHWM (the peak), in 10^6 bytes."""
    found = re.search(rf"^{which}:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024 / 1e6


@contextlib.contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """What is started meanwhile runs on these only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def drop(*paths: Path) -> None:
    """Have the kernel forget the pages of these files, in the cache's folder or in a mount."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a mount's file has nothing to write, and may not know how to
            os.fdatasync(fd)  # what is not on the disk yet would stay
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def touched_memory(bytes: int) -> mmap.mmap:
    """So much memory that is there, but no more than half of what is free; close it just before it is wanted.

    A virtual machine's host may take back what is free for some seconds, and the first write to such a page takes four
    times as long.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return mmap.mmap(-1, max(mmap.PAGESIZE, min(bytes, free // 2)), flags)


def cached_bytes(fd: int) -> int | None:
    """What the page cache holds of an open file by cachestat(2), or None where the kernel does not have that.

    It counts pages of the inode that was opened: those of a mount's file do not count the cached file's.
    """

    class Range(ctypes.Structure):
        _fields_ = (("start", ctypes.c_uint64), ("length", ctypes.c_uint64))

    pages = (ctypes.c_uint64 * 5)()
    failed = ctypes.CDLL(None).syscall(CACHESTAT, fd, ctypes.byref(Range(0, 0)), ctypes.byref(pages), 0)
    return None if failed else int(pages[0]) * os.sysconf("SC_PAGE_SIZE")


def cached_in_all() -> int:
    """Bytes of the whole page cache, as /proc/meminfo counts them."""
    found = re.search(r"^Cached:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024
