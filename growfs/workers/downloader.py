"""Downloads files in a worker, and reports what happened to many of them in one message."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial

from growfs import disk
from growfs.errors import GrowfsError, RemoteBusy, RemoteChanged, RemoteMissing, RemoteThrottled, unexpected
from growfs.remote import digest, open_remote
from growfs.remote.digest import Digest
from growfs.remote.http.threads import TransferJob, TransferThreads
from growfs.remote.interface import Fetched, FetchTask, OtherFetcher, RemoteSpec
from growfs.remote.rate_limits import SharedLimits, TokenBucket
from growfs.remote.retries import Retries
from growfs.remote.stores.registry import choose_client
from growfs.workers.messages import (
    HEARTBEAT_S,
    REPORT_FILES,
    FetchFailed,
    FetchFiles,
    FetchProgress,
    FetchRequest,
    SizeExceeded,
)

REPORT_EVERY_S = 0.05
"""Files that finish within this time after a message share the next one, and the transaction that admits them. At 100
files a second, 20 ms cost a third more CPU."""
AT_ONCE_BYTES = 8 << 20
"""A file of this size is reported at once: the message adds next to nothing, and a reader may list at any moment."""


class Downloader:
    """Owns a worker's transfer threads. send: sends a message to the daemon. Raises UsageError like open_remote."""

    def __init__(self, spec: RemoteSpec, limits: SharedLimits, send: Callable[[FetchProgress], None]) -> None:
        throttle = TokenBucket(lambda: limits.bytes_per_s).consume
        streams = (lambda: 1) if spec.traits.is_computed else lambda: limits.streams
        self._threads = TransferThreads(streams, throttle, lambda: limits.latency_s)
        self._retries = Retries(self._threads.sleep, self._count_failure, workers=lambda: limits.workers)
        self._remote = open_remote(spec, self._threads, self._retries, limits)
        self._other: OtherFetcher | None = None
        self._client = choose_client(spec)
        self._send = send
        self._lock = threading.Lock()
        self._report_due = threading.Condition(self._lock)
        self._jobs: dict[int, TransferJob] = {}
        self._finished: list[tuple[int, Fetched | FetchFailed]] = []
        self._bytes = self._other_bytes = self._answered = self._library_files = 0
        self._throttled = self._unfinished = 0
        self._latency_s = math.inf
        self._failure: GrowfsError | None = None
        self._is_report_due = self._progressed = False
        threading.Thread(target=self._report, daemon=True).start()

    def submit(self, batch: FetchFiles) -> None:
        """Also fetch these files."""
        self._threads.hold(batch.is_held)
        self._threads.library.give_up(batch.gave_up)
        if batch.open_other and not self._other:
            self._other = batch.open_other(self._threads)
        with self._lock:
            self._unfinished += len(batch.files)
            self._report_due.notify()
        jobs = {
            request.id: TransferJob(
                partial(self._fetch, request),
                request.file.size,
                request.urgent,
                request.number,
                has_other_source=bool(request.hosts),
            )
            for request in batch.files
        }
        self._jobs.update(jobs)
        self._threads.submit(*jobs.values())
        for id in batch.prioritize:
            if submitted := self._jobs.get(id):
                self._threads.prioritize(submitted)

    def _fetch(self, request: FetchRequest) -> None:
        try:
            try:
                result: Fetched | FetchFailed = self._download(request)
            except GrowfsError as error:
                result = self._failed(request, error)
        except OSError as error:
            result = FetchFailed(disk.cannot_write(error))
        except Exception as error:  # noqa: BLE001 - a bug in a client library must not look like a crash
            result = FetchFailed(unexpected(error, f"{request.file.path}: "))
        if isinstance(result, FetchFailed):
            with contextlib.suppress(OSError):
                os.unlink(request.target)
        job = self._jobs.pop(request.id)
        with self._lock:
            self._finished.append((request.id, result))
            self._unfinished -= 1
            self._is_report_due |= job.urgent or (request.file.size or 0) >= AT_ONCE_BYTES
            if len(self._finished) == 1 or self._should_report():
                self._report_due.notify()

    def _download(self, request: FetchRequest) -> Fetched:
        file, target = request.file, request.target
        total, from_other = 0, bool(request.hosts)

        def progress(count: int) -> None:
            nonlocal total
            total += count
            if total > request.size_max:
                raise SizeExceeded(f"{file.path}: larger than {request.size_max} bytes")
            with self._lock:
                self._other_bytes += count * from_other
                self._bytes += count * (not from_other)
                self._progressed = True

        def restart() -> None:
            nonlocal total
            total = 0
            streamed.reset()

        streamed = Digest()
        task = FetchTask(file, target, progress, streamed, restart=restart)
        found = self._other.fetch(task, request.hosts) if self._other else None
        if found is None:
            from_other = self._jobs[request.id].has_other_source = False
            if self._threads.is_held:
                raise RemoteBusy(f"{file.path}: the remote is away, and no other node has it")
            began = time.monotonic()
            found = self._remote.fetch(task)
            self._latency_s = min(self._latency_s, time.monotonic() - began)
        mtime_ns = found.mtime_ns or file.mtime_ns
        if mtime_ns is not None:
            os.utime(target, ns=(mtime_ns, mtime_ns))
        os.chmod(target, 0o444)
        if streamed.bytes == found.size:  # otherwise some bytes did not pass through this process
            return Fetched(found.size, found.mtime_ns, streamed.text(), from_other)
        return Fetched(os.stat(target).st_size, found.mtime_ns, digest.of(target, progress), from_other)

    def _failed(self, request: FetchRequest, error: GrowfsError) -> FetchFailed:
        """The failure to report. If the remote no longer has this version, it is asked for its current one."""
        if not isinstance(error, (RemoteChanged, RemoteMissing)):
            return FetchFailed(error)
        try:
            return FetchFailed(error, self._remote.stat(request.file.path, request.file.version))
        except GrowfsError as other:
            return FetchFailed(other)

    def _count_failure(self, error: GrowfsError) -> None:
        with self._lock:
            self._throttled += isinstance(error, RemoteThrottled)
            self._failure = error

    def _should_report(self) -> bool:
        """Whether to report at once: a reader waits for a file, or a large one, many or all are finished."""
        return self._is_report_due or len(self._finished) >= REPORT_FILES or not self._unfinished

    def _report(self) -> None:
        reported_at = alone_from = time.monotonic()
        while True:
            self._threads.check_limit()
            with self._report_due:
                self._report_due.wait_for(lambda: self._unfinished or self._finished)
                self._report_due.wait_for(lambda: self._finished, REPORT_EVERY_S)
                # A file that finishes alone does not wait here: it may be the last one of a part, or of a first batch.
                self._report_due.wait_for(self._should_report, alone_from - time.monotonic())
                answered, library = self._retries.answered, self._threads.library
                library_files = library.files
                report = FetchProgress(
                    self._bytes, self._throttled, self._finished, time.process_time(), self._failure, time.monotonic(),
                    self._other_bytes, answered - self._answered, library_files - self._library_files, library.gave_up,
                    self._latency_s, self._threads.busy, self._client.after(library.gave_up),
                )  # fmt: skip
                self._bytes = self._other_bytes = self._throttled = 0
                self._answered, self._library_files, self._failure = answered, library_files, None
                self._finished, self._is_report_due = [], False
                heartbeat = self._progressed and time.monotonic() > reported_at + HEARTBEAT_S
                self._progressed = self._progressed and not heartbeat
            if report.bytes or report.other_bytes or report.failure or report.files or heartbeat:
                reported_at = time.monotonic()
                alone_from = reported_at + REPORT_EVERY_S * bool(report.files)
                self._send(report)
