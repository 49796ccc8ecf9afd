"""The producer process: calls the user's function, for one file at a time.

`python -m growfs.extensions.producers.process FD` starts it. Its working folder is a scratch folder; if the kernel has
Landlock, it can write nowhere else. Whatever the function prints goes to the daemon's log. The process ends with the
worker that started it, and so do all processes that the function started.
"""

from __future__ import annotations

import errno
import faulthandler
import hashlib
import os
import queue
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from growfs.errors import DiskFull, GrowfsError, UsageError
from growfs.extensions.producers import sandbox
from growfs.extensions.producers.pool import OUTPUT_NAME, ProducerFailed, StartProducer
from growfs.remote import open_remote
from growfs.remote.file import SeekableStream, open_seekable
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import Remote, RemoteFile
from growfs.remote.rate_limits import SharedLimits, TokenBucket
from growfs.remote.retries import Retries
from growfs.workers.process import lower_priority

REASON_CHARS_MAX = 300


def main() -> None:
    """Serve the worker at the other end of the given descriptor."""
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    start: StartProducer = connection.recv()
    if start.limits is not None:
        os.set_inheritable(start.limits, False)
    lower_priority()
    try:
        confined = _confine(Path.cwd())
        make = start.producer.function.load()
    except UsageError as error:
        traceback.print_exception(error)
        connection.send(error)
        return
    except OSError as error:
        connection.send(ProducerFailed(str(error)))
        return
    requests: queue.SimpleQueue[RemoteFile | int] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, requests), daemon=True).start()
    connection.send(confined)
    runner = _FunctionRunner(start, make)
    while True:
        connection.send(runner.run(requests.get()))


def _receive(connection: Connection, requests: queue.SimpleQueue[RemoteFile | int]) -> None:
    """Put requests in the queue. Kill this process group when the worker is gone, even in the middle of a file."""
    try:
        while True:
            requests.put(connection.recv())
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)


def _confine(scratch: Path) -> bool:
    devices = [Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom")]
    for pattern in ("nvidia*", "dri/*", "kfd"):  # decoders may use a GPU, which requires write access to its device
        devices += [path for path in Path("/dev").glob(pattern) if not path.is_dir()]
    return sandbox.allow_writes([scratch, Path("/dev/shm")], devices)  # multiprocessing has its locks there


def sample_rng(seed: int, index: int) -> random.Random:
    """The random generator for a sample: the same in every process, whichever samples were made before."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))


class _FunctionRunner:
    """Runs the function. Owns the remote, which is opened on first use."""

    def __init__(self, start: StartProducer, make: Callable[..., object]) -> None:
        self._start, self._make = start, make
        self._remote: Remote | None = None
        self._out = str(Path.cwd() / OUTPUT_NAME)

    def run(self, source: RemoteFile | int) -> int | GrowfsError | ProducerFailed | None:
        """Produce one file in the working folder. Returns the mtime_ns of its source, or the error.

        An error of the source is returned even if the function has caught it, because the file may be cut short.
        """
        stream: SeekableStream | None = None
        timeout_s = self._start.producer.timeout_s
        if timeout_s:  # works without the GIL: logs where the function hangs, and ends the process
            faulthandler.dump_traceback_later(timeout_s, exit=True, file=2)
        try:
            with open(self._out, "w+b") as out:
                if isinstance(source, int):
                    self._make(source, sample_rng(self._start.producer.seed or 0, source), out)
                    return None
                with open_seekable(self._open_remote(), source) as file:
                    stream = file.raw
                    self._make(file, out)
                return stream.error or stream.file.mtime_ns
        except BaseException as error:  # noqa: BLE001 - any error of the user's function is reported
            return _failure(error, stream)
        finally:
            faulthandler.cancel_dump_traceback_later()
            sys.stdout.flush()

    def _open_remote(self) -> Remote:
        if self._remote is None:
            threads = None
            if self._start.limits is not None:
                limits = SharedLimits(self._start.limits)
                threads = TransferThreads(throttle=TokenBucket(lambda: limits.bytes_per_s).consume)
            self._remote = open_remote(self._start.spec, threads, Retries())
        return self._remote


def _failure(error: BaseException, stream: SeekableStream | None) -> GrowfsError | ProducerFailed:
    """The error to report: the remote's own if that is the cause, otherwise the last line of the traceback."""
    if stream and stream.error:
        return stream.error
    if isinstance(error, GrowfsError):
        return error
    traceback.print_exception(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"the disk of the cache is full ({error.strerror}); see --min-free")
    text = " ".join(traceback.format_exception_only(error)[-1].split())
    return ProducerFailed(text if len(text) <= REASON_CHARS_MAX else text[:REASON_CHARS_MAX] + "...")


if __name__ == "__main__":
    with suppress(EOFError, BrokenPipeError):  # the worker is gone
        main()
