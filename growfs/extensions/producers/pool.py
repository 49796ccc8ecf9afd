"""`ProducerPool`: the processes that run the user's function, as seen from the worker that starts them.

A process is started with exec, makes one file after the other, is watched, and is killed along with all processes it
started. It writes into its own scratch folder, below partial/, until a file is complete. process.py is the other side.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any, NamedTuple

from growfs import own_code
from growfs.errors import GrowfsError, NotMade, UsageError
from growfs.extensions.producers.produced import Producer
from growfs.paths import StrPath
from growfs.remote.interface import START_S_MAX, Progress, RemoteFile, RemoteSpec
from growfs.remote.rate_limits import SharedLimits
from growfs.units import format_size, format_timespan

CHECK_INTERVAL_S = 0.1
"""How often a process is checked for the bytes it has written, its time and its memory."""
OUTPUT_NAME = "out"
"""The file that a process writes in its scratch folder."""

log = logging.getLogger(__name__)


class StartProducer(NamedTuple):
    """The first message to a process, which answers whether the kernel confines its writes to its scratch folder.

    Each further message is the source of a file: a remote file, or the number of a sample. When the file is complete,
    the process answers with the mtime_ns of that remote file, or None. Any answer may be an error instead.
    """

    spec: RemoteSpec
    """The spec of the remote to read from."""
    producer: Producer
    limits: int | None
    """The descriptor of the SharedLimits."""


class ProducerFailed(Exception):
    """The user's function did not make the file. The text says why; another attempt may help."""


class ProducerPool:
    """Owns the producer processes of a worker. Several threads may use it."""

    def __init__(self, spec: RemoteSpec, producer: Producer, limits: SharedLimits | None = None) -> None:
        self._start = StartProducer(replace(spec, maker=None), producer, limits.fd if limits else None)
        self._idle: list[ProducerProcess] = []
        self._slots = threading.BoundedSemaphore(1 + 4)  # one for prefetching, and four for waiting readers
        self._lock = threading.Lock()
        weakref.finalize(self, _end_all, self._idle)

    def produce(self, path: str, source: RemoteFile | int, target: StrPath, progress: Progress) -> int | None:
        """Make a file at target, again if the function fails; returns the mtime_ns of its source.

        path: of the file, for messages. source: a remote file, or the number of a sample. progress: called every
        CHECK_INTERVAL_S with the bytes written since; 0 if there are none. Raises NotMade, the RemoteError of the
        source, and errors of progress.
        """
        producer = self._start.producer
        tries = producer.retries + 1
        for number in range(1, tries + 1):
            try:
                with self._slots, self._process(Path(target).parent, progress) as process:
                    mtime_ns = process.produce(source, progress)
                    process.deliver(target)
                    return mtime_ns
            except ProducerFailed as error:
                failure = error
                log.warning("%s: %s: %s (try %d of %d)", path, producer.function, error, number, tries)
        raise NotMade(f"{path}: {producer.function}: {failure}; skipped after {tries} tries, see the log")

    @contextmanager
    def _process(self, partial: Path, progress: Progress) -> Iterator[ProducerProcess]:
        """An idle or new process for the duration of the block. Any error in the block ends the process."""
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
        """Whether the kernel confines the writes of the function. Raises UsageError if it cannot be imported."""
        try:
            process = ProducerProcess(self._start, Path(tempfile.gettempdir()), lambda _: None)
        except ProducerFailed as error:
            raise UsageError(f"{self._start.producer.function}: cannot be run: {error}") from None
        process.end()
        return process.is_confined


class ProducerProcess:
    """Owns one process and its scratch folder.

    Raises ProducerFailed if the process does not start, UsageError if it never will.
    """

    def __init__(self, start: StartProducer, partial: Path, progress: Progress) -> None:
        self._producer = start.producer
        self._folder = folder = Path(tempfile.mkdtemp(prefix="producer-", dir=partial))
        self._connection, theirs = Pipe()
        fds = [theirs.fileno(), *([] if start.limits is None else [start.limits])]
        command, code = own_code.command("growfs.extensions.producers.process", str(theirs.fileno()))
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[*fds, *code],
                cwd=folder,
                env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )
        try:
            self._connection.send(start)
            late = f"its module was not imported within {format_timespan(START_S_MAX)}"
            self.is_confined: bool = self._answer(START_S_MAX, 0.0, late, progress)
        except BaseException:
            self.end()
            raise

    def produce(self, source: RemoteFile | int, progress: Progress) -> int | None:
        """Make one file; returns the mtime_ns of its source.

        Raises ProducerFailed, the GrowfsError of the source, and errors of progress.
        """
        timeout_s = self._producer.timeout_s
        try:
            self._connection.send(source)
        except OSError:
            raise ProducerFailed(f"its process ended: {self._exit_reason()}") from None
        late = f"did not finish within {format_timespan(timeout_s)} and was killed; see --producer-timeout"
        # At its timeout, it logs its position and ends by itself, or is killed.
        mtime_ns: int | None = self._answer(timeout_s, 2.0, late, progress)
        return mtime_ns

    def deliver(self, target: StrPath) -> None:
        """Move its file to target, and clear the scratch folder for the next file. Raises ProducerFailed."""
        out = self._folder / OUTPUT_NAME
        found = out.lstat() if os.path.lexists(out) else None
        if not found or not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise ProducerFailed("it replaced its file with something else; write to out, or to out.name")
        os.rename(out, target)
        for entry in list(os.scandir(self._folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):  # processes that it started may also write there
                    os.unlink(entry.path)

    @property
    def is_bloated(self) -> bool:
        """Whether it uses so much memory that it should be replaced."""
        # Otherwise it might be killed during the next file.
        return self._memory() > 0.75 * self._producer.memory_bytes

    def end(self) -> None:
        """Kill it and all processes of its session, and remove its folder."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)  # recovery removes what is left, with partial/

    def _answer(self, timeout_s: float, grace_s: float, late: str, progress: Progress) -> Any:
        """Its next message; it is watched meanwhile. Raises ProducerFailed, and an error sent as the message.

        late: the text of the error if it ends without a message after timeout_s, or sends none within grace_s more. A
        timeout_s of 0 is no limit.
        """
        began, reported = time.monotonic(), 0
        while not self._connection.poll(CHECK_INTERVAL_S):
            if self._process.poll() is not None and not self._connection.poll():  # a child of it may hold the pipe open
                raise ProducerFailed(f"its process ended: {self._exit_reason()}")
            written = _size_of(self._folder)
            progress(max(0, written - reported))
            reported = max(reported, written)
            if self._memory() > self._producer.memory_bytes:
                most = format_size(self._producer.memory_bytes, binary=True)
                raise ProducerFailed(f"took more memory than {most} and was killed; see --producer-memory")
            if timeout_s and time.monotonic() - began > timeout_s + grace_s:
                raise ProducerFailed(late)
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            if timeout_s and time.monotonic() - began > timeout_s:
                raise ProducerFailed(late) from None
            raise ProducerFailed(f"its process ended: {self._exit_reason()}") from None
        if isinstance(answer, (GrowfsError, ProducerFailed)):
            raise answer
        written = _size_of(self._folder)
        progress(max(0, written - reported))
        return answer

    def _exit_reason(self) -> str:
        code = self._process.wait()
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def _memory(self) -> int:
        """Its resident memory in bytes (proc(5), statm)."""
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGESIZE")


def _end_all(processes: list[ProducerProcess]) -> None:
    for process in processes:
        process.end()


def _size_of(folder: Path) -> int:
    """The total size of the files in a folder where another process creates and removes files meanwhile."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total
