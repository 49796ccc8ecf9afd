"""Shared parts of the benchmarks: settings, figures, commands, and readings of processes, files and memory."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import mmap
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from operator import sub
from pathlib import Path
from typing import NoReturn, TypeVar

from growfs.extensions.doctor.machine import control_groups, numbers_in

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "tests" / "frameworks" / "shim"
"""A folder for PYTHONPATH that lets torchvision be imported."""
ACCESS_KEY, SECRET_KEY = "growfs-bench", "growfs-bench-secret"
COMMAND_S_MAX = 900.0
END_S = 10.0
"""In which a process ends."""
NOISE_MAX = 0.03
FAULT_IN_S_MAX = 20.0
"""How long `fault_in_memory` may take: a machine may have hundreds of GB."""
FAULT_IN_BLOCK = 64 << 20
ENGINES = ("passthrough", "links", "libfuse")
T = TypeVar("T")


class BenchError(Exception):
    """The benchmark cannot run; `str(error)` is the whole message."""


def exit_status(program: str, work: Callable[[], int]) -> int:
    """Do the work of a program, which returns its exit status. SIGTERM and SIGHUP end it as Ctrl-C does: through the
    usual cleanup, which unmounts.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return work()
    except BenchError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130


def _interrupt(signum: int, frame: object) -> NoReturn:
    signal.signal(signum, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class Setting:
    folder: Path
    """Empty, for this benchmark alone."""
    quick: bool
    """Whether to use small sizes, as a test run."""
    rounds: int
    engines: tuple[str, ...]
    plot: Path | None = None
    """The path of the plot."""

    def turns(self) -> Iterable[tuple[int, str]]:
        """Each engine in each round."""
        return itertools.product(range(self.rounds), self.engines)


@dataclass(slots=True)
class Figure:
    """A value for each round, and the target for their median."""

    name: str
    unit: str
    at_least: float | None
    at_most: float | None
    rounds: list[float] = field(default_factory=list)

    @property
    def measured(self) -> float:
        return statistics.median(self.rounds)

    @property
    def noise(self) -> float | None:
        """The median's standard error as a fraction of it, None with too few rounds: 1.25 sigma / sqrt(n), with sigma
        from the quartiles, so that outliers count little.
        """
        if len(self.rounds) < 3 or not self.measured:
            return None
        lower, _, upper = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return abs(1.25 * (upper - lower) / 1.35 / math.sqrt(len(self.rounds)) / self.measured)

    @property
    def target(self) -> str | None:
        """What the median should be, None if there is no target."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return None if self.at_most is None else f"at most {self.at_most:g}"

    @property
    def met(self) -> bool | None:
        """Whether the target is met, None if there is none."""
        if self.at_least is not None:
            return self.measured >= self.at_least
        return None if self.at_most is None else self.measured <= self.at_most


class Figures(dict[str, Figure]):
    """The figures of a benchmark by name, in the order in which they were first added."""

    def add(
        self, name: str, *values: float, unit: str = "", at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Add the value of one round, or of all rounds. at_least, at_most: the target for the median, if any."""
        self.setdefault(name, Figure(name, unit, at_least, at_most)).rounds.extend(values)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


# Disk and commands.


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is deleted at the block's end, unless something is still mounted in it."""
    folder = Path(tempfile.mkdtemp(prefix="growfs-"))
    try:
        yield folder
    finally:
        if f"{folder}/" in Path("/proc/self/mounts").read_text(errors="replace"):
            print(f"something is still mounted in {folder}; unmount it and remove the folder", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def need_space(folder: Path, bytes: int) -> None:
    """Raise BenchError if the disk has less free space."""
    free = shutil.disk_usage(folder).free
    if free < bytes + (2 << 30):  # growfs itself keeps 1 GiB free
        raise BenchError(
            f"{folder.parent} has {free >> 20} MiB free, but {(bytes >> 20) + 2048} MiB are needed;"
            " use another folder: TMPDIR=/somewhere"
        )


def need_modules(*modules: str) -> None:
    for module in modules:
        if find_spec(module) is None:
            raise BenchError(f"{module} is not installed; tools/setup test installs it")


def make_file(path: Path, mib: int) -> None:
    """Write random bytes: no holes, and incompressible. The file seems to be a minute old.

    If a server sends no ETags, a file that has just changed has no reliable version (RFC 9110, 8.8.2.2), and growfs
    fetches it as a whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
    os.utime(path, (time.time() - 60,) * 2)


def make_files(folder: Path, count: int, size: int, directories: int = 0) -> list[str]:
    """Write small files of random bytes, in so many class folders if there are any; returns their paths below it."""
    classes = [f"class{number:02}/" for number in range(directories)] or [""]
    paths = [f"{classes[number % len(classes)]}{number:06}.bin" for number in range(count)]
    for path in paths:
        write_file(folder / path, os.urandom(size))
    return paths


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder; 0 if there is none."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def run(command: Sequence[object], **variables: object) -> str:
    """Run a command and return its output. variables: added to its environment. Raises BenchError on failure."""
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
    except subprocess.TimeoutExpired:
        raise BenchError(f"{' '.join(map(str, command[:6]))} ...: has not ended after {COMMAND_S_MAX:g} s") from None
    if done.returncode:
        raise BenchError(f"{' '.join(map(str, command[:6]))} ...: {done.stderr.strip() or done.returncode}")
    return done.stdout


def environment() -> dict[str, str]:
    """This process's environment, with no credentials other than those of the benchmarks' servers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GROWFS_", "RCLONE_"))}
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    files = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    return {**kept, **keys, **files, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}


def wait_until(condition: Callable[[], T], what: str, every_s: float = 0.05, timeout_s: float = COMMAND_S_MAX) -> T:
    """Poll until the condition is true, and return its value. Raises BenchError if the time is up before."""
    if not (value := wait_for(condition, timeout_s, every_s)):
        raise BenchError(f"{what}: timed out after {timeout_s:g} s")
    return value


def wait_for(condition: Callable[[], T], timeout_s: float = END_S, every_s: float = 0.05) -> T:
    """Poll until the condition is true or the time is up, and return its last value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()) and time.monotonic() <= deadline:
        time.sleep(every_s)
    return value


# Processes, the page cache and memory.


def cpu_s(pid: int) -> float:
    """User and system time of all threads of a process, in seconds: the clock of clock_getcpuclockid(3).

    Its resolution is a nanosecond; that of /proc/PID/stat is 10 ms.
    """
    return time.clock_gettime(~pid << 3 | 2)


def memory_bytes(pid: int) -> int | None:
    """The memory of a process, with shared pages divided among the sharing processes; None if it has ended."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss:\s*(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else None
    return None


def drop_pages(*paths: Path) -> None:
    """Drop the pages of these files from the page cache. The files may be in the cache's folder or in a mount."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a mount's file is never dirty, and its file system may not support this
            os.fdatasync(fd)  # dirty pages would stay
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def fault_in_memory(bytes: int) -> None:
    """Touch the memory that the next run needs, and free it: call it just before. Prints how much that was.

    A virtual machine's host may take back memory that has been free for some seconds, and the first write to it then
    takes four times as long. The host takes large blocks, and the page cache of large files is made of them, so these
    are what is touched: small pages would come from others. It is at most half of the memory that this process may
    still take, and ends after FAULT_IN_S_MAX.
    """
    began, touched = time.monotonic(), []
    for _ in range(min(bytes, free_memory() // 2) // FAULT_IN_BLOCK):
        memory = mmap.mmap(-1, FAULT_IN_BLOCK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        touched.append(memory)
        with contextlib.suppress(OSError):  # this kernel has no huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        memory[:: mmap.PAGESIZE] = b"\1" * (FAULT_IN_BLOCK // mmap.PAGESIZE)
        if time.monotonic() - began > FAULT_IN_S_MAX:
            break
    for memory in touched:
        memory.close()
    if touched:
        seconds = time.monotonic() - began
        gb = len(touched) * FAULT_IN_BLOCK / 1e9
        print(f"faulted in {gb:.1f} GB of memory in {seconds:.1f} s", file=sys.stderr, flush=True)


def free_memory() -> int:
    """The bytes that are free on this machine, and that the control groups of this process still allow."""
    free = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for controller, limit, used in (
        ("", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for group in control_groups(controller):
            free += map(sub, numbers_in(group / limit), numbers_in(group / used))
    return max(0, min(free))


def cached_bytes(fd: int) -> int | None:
    """Bytes of an open file in the page cache, by cachestat(2) (Linux 6.5), or None if the kernel does not have it.

    It counts pages of the inode that was opened: for a mount's file, not those of the backing file.
    """

    class Range(ctypes.Structure):
        _fields_ = (("start", ctypes.c_uint64), ("length", ctypes.c_uint64))

    pages = (ctypes.c_uint64 * 5)()
    # 451: cachestat(2) on all architectures.
    failed = ctypes.CDLL(None).syscall(451, fd, ctypes.byref(Range(0, 0)), ctypes.byref(pages), 0)
    return None if failed else int(pages[0]) * os.sysconf("SC_PAGE_SIZE")
