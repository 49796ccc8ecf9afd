"""The producer process, `python -m growfs.workers.producer FD`: makes local files by the user's function, one by one.

Its working folder is for scratch, and where the kernel has Landlock it can write nowhere else. What the function prints
goes to the daemon's log. It ends with the worker that started it, and so does all that the function started.
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

from growfs.errors import GrowfsError, NoRoom, UsageError
from growfs.remote import open_remote
from growfs.remote.file import SeekableStream, open_seekable
from growfs.remote.http.threads import TransferThreads
from growfs.remote.limits import SharedLimits, TokenBucket
from growfs.remote.protocol import Remote
from growfs.remote.wrappers.producer_pool import (
    OUTPUT_NAME,
    FileProduced,
    ProduceFile,
    ProducerFailed,
    ProducerReady,
    StartProducer,
)
from growfs.workers import sandbox
from growfs.workers.process import lower_priority

REASON_CHARS_MAX = 300
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_GLOBS = ("nvidia*", "dri/*", "kfd")
"""What reads data fast may be a GPU, which is opened for writing."""


def main() -> None:
    """Serve the worker at the other end of the descriptor given."""
    line = Connection(int(sys.argv[1]))
    os.set_inheritable(line.fileno(), False)
    start: StartProducer = line.recv()
    if start.limits is not None:
        os.set_inheritable(start.limits, False)
    lower_priority()
    try:
        confined = _confine(Path.cwd())
        make = start.producer.function.load()
    except UsageError as error:
        traceback.print_exception(error)
        line.send(error)
        return
    except OSError as error:
        line.send(ProducerFailed(str(error)))
        return
    wanted: queue.SimpleQueue[ProduceFile] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(line, wanted), daemon=True).start()
    line.send(ProducerReady(confined))
    bench = _Bench(start, make)
    while True:
        line.send(bench.made(wanted.get()))


def _listen(line: Connection, wanted: queue.SimpleQueue[ProduceFile]) -> None:
    """Hand on what is wanted; end with the worker, also in the middle of a file."""
    try:
        while True:
            wanted.put(line.recv())
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)


def _confine(scratch: Path) -> bool:
    devices = [Path("/dev", name) for name in _DEVICES]
    for pattern in _DEVICE_GLOBS:
        devices += [path for path in Path("/dev").glob(pattern) if not path.is_dir()]
    return sandbox.allow_writes([scratch, Path("/dev/shm")], devices)  # multiprocessing keeps its locks there


def generator(seed: int, index: int) -> random.Random:
    """Of the sample with that number: the same in every process, whatever was made before."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))


class _Bench:
    """Owns the remote, once it is needed, and runs the function."""

    def __init__(self, start: StartProducer, make: Callable[..., object]) -> None:
        self._start, self._make = start, make
        self._remote: Remote | None = None
        self._out = str(Path.cwd() / OUTPUT_NAME)

    def made(self, wanted: ProduceFile) -> FileProduced | GrowfsError | ProducerFailed:
        """Make one file in the working folder; what became of it."""
        source: SeekableStream | None = None
        timeout_s = self._start.producer.timeout_s
        if timeout_s:  # a thread that needs no interpreter: it says in the log where that hangs, and ends the process
            faulthandler.dump_traceback_later(timeout_s, exit=True, file=2)
        try:
            with open(self._out, "w+b") as out:
                if isinstance(wanted.source, int):
                    self._make(wanted.source, generator(self._start.producer.seed or 0, wanted.source), out)
                    return FileProduced()
                with open_seekable(self._opened(), wanted.source) as file:
                    source = file.raw
                    self._make(file, out)
                return FileProduced(source.file.mtime_ns)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the user's, and is told
            return _failure(error, source)
        finally:
            faulthandler.cancel_dump_traceback_later()
            sys.stdout.flush()

    def _opened(self) -> Remote:
        if self._remote is None:
            limits = self._start.limits
            streams = TransferThreads(throttle=TokenBucket(SharedLimits(limits)).spend) if limits is not None else None
            self._remote = open_remote(self._start.spec, streams)
        return self._remote


def _failure(error: BaseException, source: SeekableStream | None) -> GrowfsError | ProducerFailed:
    """What is told of an error: the remote's own where that is the cause, else the last line."""
    if source and source.error:
        return source.error
    if isinstance(error, GrowfsError):
        return error
    traceback.print_exception(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoRoom(f"the disk of the cache is full ({error.strerror}); see --min-free")
    return ProducerFailed(_last_line(error))


def _last_line(error: BaseException) -> str:
    text = " ".join(traceback.format_exception_only(error)[-1].split())
    return text if len(text) <= REASON_CHARS_MAX else text[:REASON_CHARS_MAX] + "..."


if __name__ == "__main__":
    with suppress(EOFError, BrokenPipeError):  # the worker is gone
        main()
