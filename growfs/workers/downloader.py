"""The part of a worker that fetches: takes files as they are sent, and tells of many at a time what became of them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial

from growfs.errors import GrowfsError, NoRoom, RemoteBusy, RemoteChanged, RemoteMissing
from growfs.remote import RemoteSpec, digest, open_remote
from growfs.remote.digest import Digest
from growfs.remote.http.threads import TransferThreads
from growfs.remote.limits import SharedLimits, TokenBucket
from growfs.remote.protocol import Fetched, FetchTask
from growfs.workers.messages import REPORT_FILES, FetchFailed, FetchFiles, FetchProgress, FetchRequest, SizeExceeded

TELL_EVERY_S = 0.1
"""What is through meanwhile is told in one message, and admitted in one transaction. Every 10 ms cost a third more."""
AT_WORK_EVERY_S = 20.0
"""How often it is told that something goes on of which no byte comes: a producer may think for minutes."""


class Downloader:
    """Owns the streams of a worker. say: sends a message to the daemon. Raises UsageError as open_remote does."""

    def __init__(self, spec: RemoteSpec, limits: SharedLimits, say: Callable[[FetchProgress], None]) -> None:
        one_at_a_time = spec.producer is not None  # each worker has a process that makes files
        self._streams = TransferThreads(lambda: 1 if one_at_a_time else limits.streams, TokenBucket(limits).spend)
        self._remote = open_remote(spec, self._streams, self._refused, limits)
        self._say = say
        self._lock = threading.Lock()
        self._worth = threading.Condition(self._lock)
        self._waiting: dict[int, Callable[[], None]] = {}
        self._files: list[tuple[int, Fetched | FetchFailed]] = []
        self._bytes = self._refusals = self._under_way = 0
        self._waited_for = self._at_work = False
        threading.Thread(target=self._tell, daemon=True).start()

    def take(self, request: FetchFiles) -> None:
        """Fetch these files, too."""
        with self._lock:
            self._under_way += len(request.files)
            self._worth.notify()
        for wanted in request.files:
            job = self._waiting[wanted.id] = partial(self._fetch, wanted)
            self._streams.begin(job, wanted.urgent)
        for id in request.hurry:
            if waiting := self._waiting.get(id):
                self._streams.hurry(waiting)

    def _fetch(self, wanted: FetchRequest) -> None:
        del self._waiting[wanted.id]
        try:
            try:
                became: Fetched | FetchFailed = self._fetched(wanted)
            except GrowfsError as error:
                became = self._lost(wanted, error)
        except OSError as error:
            became = FetchFailed(NoRoom(f"{error.strerror or error}: {error.filename or 'the cache directory'}"))
        except Exception as error:  # noqa: BLE001 - a bug of a client library must not read as a crash
            became = FetchFailed(RemoteBusy(f"{wanted.file.path}: unexpected {type(error).__name__}: {error}"))
        if isinstance(became, FetchFailed):
            with contextlib.suppress(OSError):
                wanted.target.unlink()
        with self._lock:
            self._files.append((wanted.id, became))
            self._under_way -= 1
            self._waited_for |= wanted.urgent
            if self._is_worth_telling():
                self._worth.notify()

    def _fetched(self, wanted: FetchRequest) -> Fetched:
        file, target = wanted.file, wanted.target
        total = 0

        def progress(count: int) -> None:
            nonlocal total
            total += count
            if total > wanted.size_max:
                raise SizeExceeded(f"{file.path}: larger than {wanted.size_max} bytes")
            with self._lock:
                self._bytes += count
                self._at_work = True

        passed = Digest()
        found = self._remote.fetch(FetchTask(file, target, progress, passed))
        mtime_ns = found.mtime_ns or file.mtime_ns
        if mtime_ns is not None:
            os.utime(target, ns=(mtime_ns, mtime_ns))
        os.chmod(target, 0o444)
        if passed.bytes == found.size:
            return Fetched(found, found.size, passed.text())
        return Fetched(found, target.stat().st_size, digest.of(target))

    def _lost(self, wanted: FetchRequest, error: GrowfsError) -> FetchFailed:
        """Why a file does not come; where the remote has not what it told, it is asked what it has."""
        if not isinstance(error, (RemoteChanged, RemoteMissing)):
            return FetchFailed(error)
        try:
            return FetchFailed(error, self._remote.stat(wanted.file.path, wanted.file.version))
        except GrowfsError as other:
            return FetchFailed(other)

    def _refused(self) -> None:
        with self._lock:
            self._refusals += 1

    def _is_worth_telling(self) -> bool:
        """Whether to tell now and not in a moment: somebody waits, many are through, or all."""
        return self._waited_for or len(self._files) >= REPORT_FILES or not self._under_way

    def _tell(self) -> None:
        told_at = time.monotonic()
        while True:
            with self._worth:
                self._worth.wait_for(lambda: self._under_way or self._files)
                self._worth.wait_for(self._is_worth_telling, TELL_EVERY_S)
                came = FetchProgress(self._bytes, self._refusals, self._files)
                self._bytes = self._refusals = 0
                self._files, self._waited_for = [], False
                due = self._at_work and time.monotonic() > told_at + AT_WORK_EVERY_S
                self._at_work = self._at_work and not due
            if came.bytes or came.refusals or came.files or due:
                told_at = time.monotonic()
                self._say(came)
