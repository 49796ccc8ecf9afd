"""`LibraryTransfer`: a file, or a range of it, that a store's library reads in parts, with the help of free threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

from growfs.remote.digest import Digest
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import ByteRange, FetchTask


class LibraryTransfer:
    """Owns the parts that are left. read: returns the bytes from an offset of the file up to another."""

    def __init__(
        self,
        threads: TransferThreads,
        task: FetchTask,
        extent: ByteRange,
        part_bytes: int,
        read: Callable[[int, int], bytes],
    ) -> None:
        self._threads = threads
        self._task = task
        self._digest = task.digest or Digest()
        self._first, self._end = extent.offset, extent.offset + extent.size
        self._part_bytes = part_bytes
        self._starts: Iterator[int] = iter(range(self._first, self._end, part_bytes))
        self._read = read
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Write all parts to task.target, which exists. Raises the first error of read and of task.progress."""
        with self._task.target.open("r+b", buffering=0) as out:
            self._fd = out.fileno()
            with self._threads.helping(self._fetch_part):
                while self._fetch_part():
                    pass
        if self._error:
            raise self._error

    def _fetch_part(self) -> bool:
        """Fetch one part; False if there is none left."""
        with self._lock:
            start = None if self._error else next(self._starts, None)
        if start is None:
            return False
        try:
            self._copy(start, min(start + self._part_bytes, self._end))
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            with self._lock:
                self._error = self._error or error
        return True

    def _copy(self, start: int, end: int) -> None:
        began = time.monotonic()
        content = memoryview(self._read(start, end))
        at = start - self._first
        self._digest.part(at).update(content)
        while content:
            written = os.pwrite(self._fd, content, at)
            at, content = at + written, content[written:]
        self._threads.throttle(end - start)
        self._threads.record(end - start, time.monotonic() - began)
        with self._lock:
            self._task.progress(end - start)
