"""Mounts for tests: the real command, a real daemon, the real kernel."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from growfs.cache.cache_folder import DATABASE
from growfs.daemon import spawn
from growfs.daemon.control_client import call
from growfs.daemon.launch import stop
from growfs.daemon.running import find_living
from growfs.errors import GrowfsError
from growfs.fuse.mounting import mounted_at, unmount
from growfs.fuse.probe import why_not_passthrough
from tests.forkserver import PRELOADED, PRELOADED_NETWORK, ForkServer, Process

COMMAND_S = 100.0
PAUSE_S_MIN, PAUSE_SHARE, PAUSE_S_MAX = 0.02, 0.25, 0.5
"""The pause between two looks at a condition: the shortest, its share of the time waited so far, and the longest."""
GROWFS = [sys.executable, "-m", "growfs.cli"]
FORKS = ForkServer(PRELOADED, os.environ)
NETWORK_FORKS = ForkServer((*PRELOADED, *PRELOADED_NETWORK), os.environ)


def forks_for(words: Sequence[object]) -> ForkServer:
    """The fork server for a command: that with the clients of S3 and HTTP, if the command names a URL."""
    return NETWORK_FORKS if any("://" in str(word) for word in words) else FORKS


class Growfs:
    """The command, with a mountpoint and a cache directory of its own.

    Its log must hold no traceback when the test ends, unless the test sets `tolerate_log`. Commands, daemons and
    workers are forked from a process that has imported their modules, unless the test sets `starts_python`.
    """

    def __init__(self, folder: Path) -> None:
        self.mountpoint = folder / "mnt"
        self.cache_dir = folder / "cache"
        self.mountpoint.mkdir()
        self.env = dict(os.environ)
        self.tolerate_log = False
        self.starts_python = False

    def run(
        self, *arguments: object, check: bool = True, timeout_s: float = COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command. With check, a failure fails the test, with the output of the command."""
        command = [*GROWFS, *map(str, arguments)]
        forks = forks_for(command)
        if self.starts_python or not forks.suits(self.env):
            done = subprocess.run(command, capture_output=True, text=True, env=self.env, timeout=timeout_s, check=False)
        else:
            done = forks.run(command[1:], self.env, timeout_s)
        if check and done.returncode:
            pytest.fail(f"growfs {' '.join(map(str, arguments))}: {done.returncode}: {done.stderr}{self.log()}")
        return done

    def mount(self, url: object, *flags: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Mount with the default cache size of a test, 1 GB, unless flags say otherwise."""
        return self.run(*self.mount_words(url, *flags), check=check)

    def mount_words(self, url: object, *flags: object) -> tuple[object, ...]:
        """The command of `mount`, for a test that runs it in another way."""
        size = [] if "--cache-size" in flags else ["--cache-size", "1GB"]
        return ("mount", url, self.mountpoint, "--cache-dir", self.cache_dir, *size, *flags)

    def umount(self, lazy: bool = False) -> None:
        """Unmount, and return when the daemon has ended. As the command does, but without a new process."""
        stop(self.mountpoint, lazy)

    def status(self) -> dict[str, Any]:
        """The status, from the control socket. As the command, but without a new process, since tests poll it."""
        caches = [path.parent for path in self.cache_dir.glob("*/daemon.json")]
        return dict(call(caches[0] if len(caches) == 1 else find_living(self.mountpoint).cache, "status"))

    def listed(self) -> str | None:
        """The state that `growfs list` shows for this mount, or None. Other mounts change the widths of its table."""
        rows = json.loads(self.run("list", "--json").stdout)
        return next((row["state"] for row in rows if row["mountpoint"] == str(self.mountpoint)), None)

    def until_cached(self, files: int) -> None:
        """Wait until exactly this many files are cached."""
        until(lambda: self.status()["cache"]["files"] == files)

    def resize(self, files: int, each: int) -> None:
        """Set the size of the cache to that of so many files of `each` bytes, and wait until it has them."""
        self.run("set", self.mountpoint, f"cache-size={files * each}")
        self.until_cached(files)

    @property
    def cache(self) -> Path:
        """The cache folder, if there is exactly one."""
        (cache,) = (path for path in self.cache_dir.iterdir() if path.is_dir())
        return cache

    def log(self) -> str:
        """The logs of all daemons."""
        return "".join(path.read_text() for path in self.cache_dir.glob("*/log"))

    @property
    def pid(self) -> int:
        """The process of the daemon."""
        return int(json.loads((self.cache / "daemon.json").read_text())["pid"])

    def kill(self) -> None:
        """SIGKILL the daemon, and return when all of its threads have ended, so that the kernel has seen its end."""
        process = os.pidfd_open(self.pid)
        signal.pidfd_send_signal(process, signal.SIGKILL)
        ended, _, _ = select.select([process], [], [], COMMAND_S)
        os.close(process)
        assert ended, "SIGKILL did not end the daemon"

    def names(self) -> set[str]:
        """The files that a walk of the mount lists."""
        return files_below(self.mountpoint)

    def content(self) -> dict[str, bytes]:
        """All that a walk of the mount lists, as it reads."""
        return {path: (self.mountpoint / path).read_bytes() for path in self.names()}


def set_format(cache: Path, number: int) -> None:
    """Say that a cache has this format, as if another version of growfs had written it."""
    with closing(sqlite3.connect(cache / DATABASE)) as connection:
        connection.execute(f"PRAGMA user_version = {number}")


def files_below(folder: Path) -> set[str]:
    """The relative paths of all files below a folder. Raises OSError if a daemon has died with its mount there."""

    def refuse_dead_mount(error: OSError) -> None:  # os.walk takes it for an empty folder
        if error.errno == errno.ENOTCONN:
            raise error

    walk = os.walk(folder, onerror=refuse_dead_mount)
    return {str(Path(root, name).relative_to(folder)) for root, _, names in walk for name in names}


def descendants(pid: int) -> list[int]:
    """All descendants of a process, as this namespace numbers them."""
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return children + [below for child in children for below in descendants(child)]


def starting_with(workers: int) -> str:
    """Python code for SETUP_VARIABLE: downloads begin with so many workers at once, if --workers allows them."""
    return f"from growfs.scheduler import dispatcher; dispatcher.WORKERS_FIRST = {workers}\n"


def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Poll until the condition is true, and return its value; fails the test after the timeout.

    The longer it takes, the longer the pauses are: to ask for the status takes CPU time, which other tests need.
    """
    began = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            pytest.fail(f"the condition was false for {timeout_s:g} s")
        time.sleep(min(PAUSE_S_MIN + PAUSE_SHARE * waited_s, PAUSE_S_MAX))
    return value


def make_tree(
    folder: Path, directories: int = 3, files: int = 5, size: int = 10_000, suffix: str = ".bin"
) -> dict[str, bytes]:
    """Random files in class folders, the same each time; returns their content by relative path."""
    generator = random.Random(7)
    tree = {}
    for directory in range(directories):
        (folder / f"class{directory}").mkdir(parents=True, exist_ok=True)
        for number in range(files):
            path = f"class{directory}/{number:04}{suffix}"
            tree[path] = generator.randbytes(size)
            (folder / path).write_bytes(tree[path])
    return tree


@contextmanager
def mapped_only(path: Path) -> Iterator[int]:
    """The address of a mapping of a file that no process has open. (Python's mmap keeps a descriptor.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = path.stat().st_size
    fd = os.open(path, os.O_RDONLY)
    address = libc.mmap(None, size, 1, 2, fd, 0)  # PROT_READ, MAP_PRIVATE
    os.close(fd)
    try:
        yield address
    finally:
        libc.munmap(address, size)


ENGINES = ("libfuse", "passthrough", "links")


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Each engine in turn: a test with this fixture runs once with each."""
    return usable_engine(str(request.param), tmp_path_factory.getbasetemp())


def usable_engine(wanted: str, folder: Path) -> str:
    """The engine that is wanted; for "either", passthrough if it works here. Skips the test if the engine does not."""
    reason = why_not_passthrough(folder) if wanted in ("either", "passthrough") else None
    if reason and wanted == "passthrough":
        pytest.skip(f"passthrough cannot run here: {reason}")
    return wanted if wanted != "either" else "libfuse" if reason else "passthrough"


@pytest.fixture
def growfs(tmp_path: Path) -> Iterator[Growfs]:
    """The command. After the test its mount is removed, and its log is checked for tracebacks."""
    command = Growfs(tmp_path)
    yield command
    refused = ""
    if mounted_at(command.mountpoint):
        try:
            command.umount()
        except GrowfsError as error:
            refused = str(error)
    if mounted_at(command.mountpoint):
        with contextlib.suppress(Exception):
            command.kill()
        unmount(command.mountpoint, lazy=True)
        pytest.fail(f"the mount could not be removed: {refused}")
    if not command.tolerate_log:
        log = command.log()
        if "Traceback" in log:
            pytest.fail(f"the log has a traceback:\n{log}")


@pytest.fixture
def daemons_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that this process starts, as those that commands start."""

    def popen(words: list[str], env: Mapping[str, str] | None, **more: Any) -> Process:
        process = FORKS.start(words[1:], env or os.environ, **more)
        process.stdin = process.stdin.detach()  # type: ignore[union-attr]
        return process

    forking = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(spawn, "subprocess", forking)


def scheduling_policy(tid: int = 0) -> int:
    """The scheduling policy of a thread: SCHED_OTHER, SCHED_FIFO, ... The default is the calling thread."""
    return os.sched_getscheduler(tid) & ~os.SCHED_RESET_ON_FORK


def may_use_real_time() -> bool:
    """Whether real-time scheduling is allowed here."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True
