"""`Makers`: the processes in which the user's own function runs, as a worker sees them.

One is started afresh (exec), used for file after file, watched, and killed with all that it started. What it writes
lies in a scratch folder of its own, below partial/, until it is whole. `growfs.workers.producer` is the other side.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Pipe
from pathlib import Path

from humanfriendly import format_size, format_timespan

from growfs.errors import GrowfsError, NotMade, UsageError
from growfs.remote.limits import SharedLimits
from growfs.remote.protocol import Producer, Progress, RemoteFile, RemoteSpec

LOOK_EVERY_S = 0.1
"""How soon what a maker writes is counted, and that it takes too long or too much memory is seen."""
START_S_MAX = 120.0
"""Imports of the user's may take long, on a busy machine."""
GRACE_S = 2.0
"""After its time is up a maker ends by itself, having told the log where it was; after so much more it is killed."""
URGENT_PROCESSES_MAX = 4
"""Makers beside the one for what nobody waits for."""
RETIRED_SHARE = 0.75
"""Of the memory that it may take; one that has more after a file is let go, before it has to be killed over one."""
OUTPUT_NAME = "out"
"""The file that a maker writes, in its folder."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartProducer:
    """What a maker is told first. spec: of the remote that it reads from. pace: a descriptor, or None."""

    spec: RemoteSpec
    producer: Producer
    limits: int | None


@dataclass(frozen=True, slots=True)
class ProduceFile:
    """Make a file: of source, or of a number."""

    path: str
    source: RemoteFile | int


@dataclass(frozen=True, slots=True)
class FileProduced:
    """It is whole. mtime_ns: of what it was made of."""

    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ProducerReady:
    """The function is imported. confined: the kernel refuses what it writes elsewhere."""

    confined: bool


class ProducerFailed(Exception):
    """The user's function did not make the file; the text says why. Another try may help."""


class ProducerPool:
    """Owns the makers of a process. May be used by several threads."""

    def __init__(self, spec: RemoteSpec, producer: Producer, limits: SharedLimits | None = None) -> None:
        self._start = StartProducer(replace(spec, producer=None), producer, limits.fd if limits else None)
        self._idle: list[ProducerProcess] = []
        self._few = threading.BoundedSemaphore(1 + URGENT_PROCESSES_MAX)
        self._lock = threading.Lock()
        weakref.finalize(self, _end_all, self._idle)

    def make(self, wanted: ProduceFile, target: Path, progress: Progress) -> FileProduced:
        """Have a file made at target, trying again where the function fails.

        progress: told, again and again, how many bytes more there are; 0 where that is all that can be said.
        Raises NotMade, the RemoteError of the source, and what progress raises.
        """
        producer = self._start.producer
        tries = producer.retries + 1
        for number in range(1, tries + 1):
            try:
                with self._few, self._maker(target.parent, progress) as process:
                    made = process.make(wanted, progress)
                    process.deliver(target)
                    return made
            except ProducerFailed as error:
                failure = error
                log.warning("%s: %s: %s (try %d of %d)", wanted.path, producer.function, error, number, tries)
        raise NotMade(f"{wanted.path}: {producer.function}: {failure}; skipped after {tries} tries, see the log")

    @contextmanager
    def _maker(self, partial: Path, progress: Progress) -> Iterator[ProducerProcess]:
        """A maker for the time of the block; any error there ends it."""
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or ProducerProcess(self._start, partial, progress)
        try:
            yield process
        except BaseException:
            process.end()
            raise
        with self._lock:
            keep = not (self._idle or process.is_bloated)
            if keep:
                self._idle.append(process)
        if not keep:
            process.end()

    def check(self) -> bool:
        """Raises UsageError where the function cannot be imported. Whether the kernel confines what it writes."""
        process = ProducerProcess(self._start, Path(tempfile.gettempdir()), lambda _: None)
        process.end()
        return process.is_confined


class ProducerProcess:
    """Owns a process, and its folder. Raises MakerFailed where it does not start, UsageError where it never will."""

    def __init__(self, start: StartProducer, partial: Path, progress: Progress) -> None:
        self._producer = start.producer
        self._folder = folder = Path(tempfile.mkdtemp(prefix="maker-", dir=partial))
        self._line, theirs = Pipe()
        fds = [theirs.fileno(), *([] if start.limits is None else [start.limits])]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "growfs.workers.producer", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                cwd=folder,
                env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )
        try:
            self._line.send(start)
            answer = self._answer(START_S_MAX, progress)
        except BaseException:
            self.end()
            raise
        self.is_confined = isinstance(answer, ProducerReady) and answer.confined

    def make(self, wanted: ProduceFile, progress: Progress) -> FileProduced:
        """Have it make one file. Raises MakerFailed, the GrowfsError of the source, and what progress raises."""
        timeout_s = self._producer.timeout_s
        try:
            self._line.send(wanted)
        except OSError:
            raise ProducerFailed(f"its process ended: {self._ending()}") from None
        answer = self._answer(timeout_s + GRACE_S if timeout_s else None, progress)
        assert isinstance(answer, FileProduced)
        return answer

    def deliver(self, target: Path) -> None:
        """Put what it made at target, and clear its folder for the next file. Raises MakerFailed."""
        out = self._folder / OUTPUT_NAME
        found = out.lstat() if os.path.lexists(out) else None
        if not found or not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise ProducerFailed("it left something else in the place of its file; let it write to out, or to out.name")
        os.rename(out, target)
        for entry in list(os.scandir(self._folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):  # what it started may be at work there, too
                    os.unlink(entry.path)

    @property
    def is_bloated(self) -> bool:
        """Whether it keeps more memory than it should go on with."""
        return self._memory() > RETIRED_SHARE * self._producer.memory_bytes

    def end(self) -> None:
        """Kill it, and all that it started in its session; remove its folder."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._line.close()
        shutil.rmtree(self._folder, ignore_errors=True)  # what is left is swept with partial/

    def _answer(self, timeout_s: float | None, progress: Progress) -> object:
        """What it says next, while it is watched."""
        began, told = time.monotonic(), 0
        while not self._line.poll(LOOK_EVERY_S):
            if self._process.poll() is not None and not self._line.poll():  # what it forked may hold the line
                raise ProducerFailed(f"its process ended: {self._ending()}")
            written = _bytes_in(self._folder)
            progress(max(0, written - told))
            told = max(told, written)
            if self._memory() > self._producer.memory_bytes:
                most = format_size(self._producer.memory_bytes, binary=True)
                raise ProducerFailed(f"took more memory than {most} and was killed; see --producer-memory")
            if timeout_s and time.monotonic() - began > timeout_s:
                raise ProducerFailed(self._too_late(timeout_s - GRACE_S))
        try:
            answer: object = self._line.recv()
        except (EOFError, OSError):
            if timeout_s and time.monotonic() - began > timeout_s - GRACE_S:
                raise ProducerFailed(self._too_late(timeout_s - GRACE_S)) from None
            raise ProducerFailed(f"its process ended: {self._ending()}") from None
        if isinstance(answer, (GrowfsError, ProducerFailed)):
            raise answer
        written = _bytes_in(self._folder)
        progress(max(0, written - told))
        return answer

    @staticmethod
    def _too_late(timeout_s: float) -> str:
        return f"was not done after {format_timespan(timeout_s)} and was killed; see --producer-timeout"

    def _ending(self) -> str:
        code = self._process.wait()
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def _memory(self) -> int:
        """Bytes that it has in memory (proc(5), statm)."""
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGESIZE")


def _end_all(processes: list[ProducerProcess]) -> None:
    for process in processes:
        process.end()


def _bytes_in(folder: Path) -> int:
    """What lies in a folder in which others make and remove files meanwhile."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def check(spec: RemoteSpec) -> bool | None:
    """Whether the kernel confines what a mount's producer writes; None where it has none.

    Raises UsageError where its function cannot be imported.
    """
    if spec.producer is None:
        return None
    try:
        return ProducerPool(spec, spec.producer).check()
    except ProducerFailed as error:
        raise UsageError(f"{spec.producer.function}: cannot be run: {error}") from None
