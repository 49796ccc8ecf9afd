"""`RangeDownloader`: downloads files by plain GETs, a large file in parts that arrive in parallel.

It owns the connections of a process, and decides which responses are acceptable. The stores
(growfs/remote/stores) say what to request, and which version a response is of. Everything unusual (a proxy,
a redirect, a response without a length, an untrusted certificate, a refusal) is left to the store's library, whose
own result then counts.
"""

from __future__ import annotations

import errno
import math
import os
import re
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Generic, TypeVar
from urllib.request import getproxies, proxy_bypass

from growfs.remote.digest import Digest
from growfs.remote.http.checksum import ExpectedChecksum, expected_checksum
from growfs.remote.http.connection import (
    WRITE_BYTES,
    Connection,
    ConnectionFailed,
    ConnectionTimedOut,
    FallBack,
    Headers,
    HttpRequest,
    HttpResponse,
    Timeouts,
    close_all,
)
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import FetchTask

USELESS_HEADS_MAX = 8
FALLBACKS_MAX = 3  # files in a row that were left to the library; after that all are, for a while
FALLBACK_S = 60.0  # how long; a store that refused for some seconds is not slow for ever
SLOW_S = 0.5
"""A part that needs so much longer, at less than half the rate of the others, is shared with the thread that waits for
it: its connection may be new, or lose packets, and the file is not shown before its last part is there."""
CHECK_PARTS_S = 0.1
CONTINUED_MAX = 4
"""How often a part is continued whose connection failed. Its file would begin anew, with all that its parts brought."""
GOOD_STATUSES = (200, 206)
BUSY_STATUSES = (408, 425, 429, 500, 502, 503, 504)
REFUSED_STATUSES = (400, 401, 403)  # what stores return for an expired signature
MISSING_STATUSES = (404, 410, 416)  # 416: a range of an empty file

T = TypeVar("T")
SignRequest = Callable[..., HttpRequest]
"""Returns a freshly signed request for the file: a GET, or the method that is given. May raise FallBack."""
CheckResponse = Callable[[int, Headers], T]
"""Checks the size of a file and the headers of the response before the body is read; may raise FallBack or any error
to end the fetch with."""


class HttpError(Exception):
    """The server returned an error status; remote.errors.translate knows what it means."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ChecksumMismatch(Exception):
    """The bytes that arrived do not have the checksum that the store sent."""


class RangeDownloader:
    """Fetches files, in any thread.

    uses_proxies: as the environment says. heads_useful: HEADs bring checksums that the GET of a part does not.
    """

    def __init__(
        self,
        threads: TransferThreads,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        timeouts: Timeouts | None = None,
        *,
        uses_proxies: bool = True,
        heads_useful: bool = True,
    ) -> None:
        self.threads = threads
        self._tls = tls
        self._timeouts = timeouts
        self.splits_at_once = True  # until a server sends a whole file where a part was requested
        self.heads_useful = heads_useful
        self._uses_proxies = uses_proxies
        self._is_proxied = cache(_is_proxied)  # reading the environment is slow for a small file
        self._fallbacks = self._useless_heads = 0
        self._unusable_until = -math.inf
        self._connections: list[Connection] = []
        self._idle: list[Connection] = []
        weakref.finalize(self, close_all, self._connections)

    @property
    def usable(self) -> bool:
        """Whether to try: not in the minute after too many files in a row had to be left to the library."""
        return time.monotonic() >= self._unusable_until

    def fetch(self, task: FetchTask, sign: SignRequest, check: CheckResponse[T]) -> tuple[int, T] | None:
        """Write the file, or the range of it, to task.target. Returns (bytes written, what check returned).

        Returns None where the store's library has to do it; task.progress was not called then. task.digest takes every
        byte. sign is called again when a signature has expired. sign and task.progress are called from any thread,
        progress from one at a time. check gets the size of the whole file, even if only a range is written.
        Raises HttpError, ChecksumMismatch, ConnectionFailed, what check and progress raise, and OSError of the local
        disk.
        """
        with task.target.open("wb", buffering=0) as out:
            transfer = _FileTransfer(self, task, out.fileno(), sign, check)
            try:
                with self.connection() as connection:
                    transfer.run(connection)
            except FallBack as reason:
                self._fallbacks += reason.counts
                if self._fallbacks >= FALLBACKS_MAX:
                    self._unusable_until = time.monotonic() + FALLBACK_S
                if transfer.has_progress:
                    raise ConnectionFailed(f"an answer that makes no sense: {reason}") from reason
                return None
            finally:
                self.threads.release_helpers()
        self._fallbacks = 0
        return transfer.total, transfer.checked

    def begin(self, connection: Connection, request: HttpRequest, headers: Headers) -> HttpResponse:
        """Send the first request for a file; returns the head of the response.

        Raises HttpError, ConnectionFailed, and FallBack if the library may do better.
        """
        scheme, host = request.origin
        if scheme not in ("http", "https") or self.is_proxied(scheme, host):
            raise FallBack("no web server, or one behind a proxy")
        response = connection.send(request, headers)
        if response.status in BUSY_STATUSES:
            raise HttpError(response.status, response.reason)
        if response.status not in GOOD_STATUSES:
            raise FallBack(f"status {response.status}", counts=response.status not in MISSING_STATUSES)
        return response

    def is_proxied(self, scheme: str, host: str) -> bool:
        """Whether requests to a host go through a proxy."""
        return self._uses_proxies and self._is_proxied(scheme, host)

    def record_head(self, useful: bool) -> None:
        """Record whether a HEAD brought a checksum. After too many that did not, no more are sent."""
        self._useless_heads = 0 if useful else self._useless_heads + 1
        self.heads_useful = self._useless_heads < USELESS_HEADS_MAX

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for the time of the block. Any error in the block closes it."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = Connection(self._tls, self._timeouts)
            self._connections.append(connection)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        finally:
            self._idle.append(connection)


@dataclass(slots=True, eq=False)
class _Part:
    """Bytes of a target that one stream brings. at: the next one to come. began: when they were requested."""

    start: int
    end: int
    began: float = field(default_factory=time.monotonic)
    at: int = field(init=False)

    def __post_init__(self) -> None:
        self.at = self.start

    def split(self, bytes_per_s: float) -> _Part | None:
        """If this part is slow, give away what a stream of that rate brings until this one has brought the rest."""
        took_s, left = time.monotonic() - self.began, self.end - self.at
        rate = (self.at - self.start) / took_s
        if took_s < SLOW_S or left < SLOW_S * rate or bytes_per_s < 2 * rate:
            return None
        block = self.at // WRITE_BYTES + 1  # the one being written ends here
        middle = max(block, round((self.end - left * bytes_per_s / (bytes_per_s + rate)) / WRITE_BYTES)) * WRITE_BYTES
        if middle >= self.end:
            return None
        given = _Part(middle, self.end)
        self.end = middle
        return given


class _FileTransfer(Generic[T]):
    """The transfer of one file, or of a range of it.

    _begin() sets `total` (the bytes to transfer), `_file_bytes` (the size of the whole file), `_part_bytes` and
    `checked`, which do not change any more. The threads share the rest. Every response must be of the version of the
    first one; else the file would be a mix of two versions.
    """

    total: int
    checked: T
    _file_bytes: int
    _part_bytes: int

    def __init__(
        self, owner: RangeDownloader, task: FetchTask, fd: int, sign: SignRequest, check: CheckResponse[T]
    ) -> None:
        self.has_progress = False
        self._first = task.byte_range.offset if task.byte_range else 0
        self._owner, self._task, self._fd, self._sign, self._check = owner, task, fd, sign, check
        self._digest = task.digest or Digest()
        self._lock = threading.Lock()
        self._part_ended = threading.Condition(self._lock)
        self._parts: list[_Part] = []  # under way
        self._error: BaseException | None = None
        self._validators: dict[str, str | None] = {}
        self._starts: Iterator[int] = iter(())
        self._expected: ExpectedChecksum | None = None
        self._connections: list[Connection] = []
        self._begun = threading.Event()
        self._is_split = False

    def run(self, connection: Connection) -> None:
        """Fetch the file, or the first part of it, and all other parts with the help of free threads.

        If the size is known, the threads request their parts at once, and wait for the head of the first response: it
        says which version they have to be of.
        """
        owner, part = self._owner, self._task.byte_range
        self._request = self._sign()
        size = part.size if part else self._task.file.size
        self._part_bytes = owner.threads.part_bytes(size)
        at_once = size is not None and size > self._part_bytes and owner.splits_at_once
        with ExitStack() as stack:
            if at_once:
                self.total = size or 0
                self._starts = iter(range(self._part_bytes, self.total, self._part_bytes))
                stack.enter_context(owner.threads.helping(self._help))
            with self._registered(connection):
                began = time.monotonic()
                try:
                    response = self._begin(connection, size)
                    self._is_split = self.total > (response.length or 0)
                finally:
                    self._begun.set()
                if not self._is_split:
                    self._starts = iter(())
                    owner.splits_at_once = owner.splits_at_once and not at_once
                    owner.threads.release_helpers()
                elif not at_once:
                    self._starts = iter(range(response.length or 0, self.total, self._part_bytes))
                    stack.enter_context(owner.threads.helping(self._help))
                first = _Part(0, response.length or 0, began)
                with self._lock:
                    self._parts.append(first)
                self._fetch_part(connection, first, response)
                while more := self._next() or self._rest_of_a_slow_part():
                    self._fetch_part(connection, more)
        if self._error:
            raise self._error
        if self._expected and (mismatch := self._expected.mismatch(self.total, self._task.target)):
            raise ChecksumMismatch(mismatch)

    def _begin(self, connection: Connection, size: int | None) -> HttpResponse:
        """Request the file, or its first part if it is large or of unknown size, and check the response's head."""
        part, first, part_bytes = self._task.byte_range, self._first, self._part_bytes
        whole = part is None and size is not None and size <= part_bytes
        response = self._owner.begin(connection, self._request, {} if whole else _range(first, first + part_bytes - 1))
        length, extent = extent_of(response)
        if extent:
            start, self._file_bytes = extent
            self.total = part.size if part else self._file_bytes
            if start != first or length != min(part_bytes, self.total):
                raise FallBack("another range than was requested")
        elif part:
            raise FallBack("the whole file")
        else:
            self.total = self._file_bytes = length
            if not whole and (length == part_bytes or (size and length != size)):
                raise FallBack("a body that may be the part, or another file")
        self.checked = self._check(self._file_bytes, response.headers)
        self._validators = {name: response.headers.get(name) for name in ("etag", "last-modified")}
        if length < self.total:
            if not _has_validator(response.headers):
                raise FallBack("no version that lasts")
            if size is not None:  # else it may not fit, and the progress callback ends the fetch in time
                preallocate(self._fd, self.total)  # the parts are written out of order; so the file is not fragmented
            else:
                self._part_bytes = self._owner.threads.part_bytes(self.total)
        if part:
            return response  # a checksum would be of the whole file
        self._expected = expected_checksum(response.headers)
        if length < self.total and not self._expected and self._owner.heads_useful:
            self._expected = self._checksum_by_head()
        return response

    def _checksum_by_head(self) -> ExpectedChecksum | None:
        """The checksum of a file that comes in parts. S3 sends it with the whole file only, so also with a HEAD."""
        checksum = None
        with suppress(FallBack, ConnectionFailed), self._owner.connection() as connection:
            response = connection.send(self._sign("HEAD"), {})
            if response.status in GOOD_STATUSES and response.headers.get("etag") == self._validators["etag"]:
                checksum = expected_checksum(response.headers)
        self._owner.record_head(checksum is not None)
        return checksum

    def _help(self) -> bool:
        """Fetch one part; False if there is none left."""
        if (part := self._next()) is None:
            return False
        with self._owner.connection() as connection, self._registered(connection):
            self._fetch_part(connection, part)
        return True

    @contextmanager
    def _registered(self, connection: Connection) -> Iterator[None]:
        """If one thread fails, the connections of all others are interrupted. The first error counts."""
        with self._lock:
            self._connections.append(connection)
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            with self._lock:
                self._error = self._error or error
                self._starts = iter(())
                for other in self._connections:
                    other.interrupt()
        finally:
            with self._lock:
                self._connections.remove(connection)

    def _copy(self, connection: Connection, response: HttpResponse, part: _Part) -> None:
        digest = self._digest.part(part.start)
        expected = self._expected and self._expected.part(part.start)

        def on_piece(piece: memoryview) -> None:
            if self._error:
                raise ConnectionFailed("another part has failed")
            digest.update(piece)
            if expected:
                expected.update(piece)
            self._owner.threads.throttle(len(piece))
            with self._lock:
                part.at += len(piece)
                self.has_progress = True
                self._task.progress(len(piece))

        connection.copy(response, self._fd, part.start, on_piece, lambda: part.end)
        self._owner.threads.record(part.end - part.start, time.monotonic() - part.began)

    def _fetch_part(self, connection: Connection, part: _Part, response: HttpResponse | None = None) -> None:
        """Fetch a part; where its connection fails, the rest of it. response: the head of its response, if it came."""
        try:
            for left in reversed(range(CONTINUED_MAX + 1)):
                try:
                    if response is None:
                        part.began = time.monotonic()
                        response = self._request_part(connection, part)
                    if response:
                        self._copy(connection, response, part)
                    return
                except ConnectionTimedOut:
                    raise
                except ConnectionFailed:
                    connection.close()
                    self._begun.wait()
                    if self._error or not left or not self._is_split:
                        raise
                    with self._lock:
                        part.start, response = part.at, None
                        if part.start == part.end:
                            return
        finally:
            with self._part_ended:
                self._parts.remove(part)
                self._part_ended.notify()

    def _next(self) -> _Part | None:
        with self._lock:
            start = next(self._starts, None)
            if start is None:
                return None
            part = _Part(start, min(start + self._part_bytes, self.total))
            self._parts.append(part)
            return part

    def _rest_of_a_slow_part(self) -> _Part | None:
        """Wait for the other threads' parts, or have one of them share its part; None if all have ended."""
        while self._parts and not self._error:
            with self._part_ended:
                for part in self._parts:
                    if rest := part.split(self._owner.threads.stream_bytes_per_s):
                        self._parts.append(rest)
                        return rest
                self._part_ended.wait(CHECK_PARTS_S)
        return None

    def _request_part(self, connection: Connection, part: _Part) -> HttpResponse | None:
        """Request one part; None if the file turns out not to come in parts.

        The signature was good for the first part; if it is refused now, it has expired.
        """
        if self._error:
            raise ConnectionFailed("another part has failed")
        request, etag = self._request, self._validators.get("etag")
        start, end = self._first + part.start, self._first + part.end - 1
        headers = _range(start, end) | ({"If-Match": etag} if etag and _is_strong(etag) else {})
        response = connection.send(request, headers)
        self._begun.wait()
        if not self._is_split:
            connection.close()
            return None
        if response.status in REFUSED_STATUSES:
            connection.close()
            response = connection.send(self._renew_signature(request), headers)
        if response.status not in GOOD_STATUSES:
            raise HttpError(response.status, response.reason)
        length, extent = extent_of(response)
        changed = any(response.headers.get(name) != pin for name, pin in self._validators.items())
        if changed or (extent[1] if extent else length) != self._file_bytes:
            raise HttpError(412, "another version")
        if extent != (start, self._file_bytes) or length != end - start + 1:
            raise FallBack("another range than was requested")
        return response

    def _renew_signature(self, refused: HttpRequest) -> HttpRequest:
        with self._lock:
            if self._request is refused:
                self._request = self._sign()
            return self._request


def _range(start: int, end: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-{end}"}


def extent_of(response: HttpResponse) -> tuple[int, tuple[int, int] | None]:
    """(size of the body, (its offset in the file, size of the file)); None as the second if the body is the whole file.

    This goes by Content-Range and not by the status: `rclone serve s3` sends a range with status 200.
    """
    if response.length is None:
        raise FallBack("no length")
    content_range = response.headers.get("content-range")
    if content_range is None and response.status == 200:
        return response.length, None
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", content_range or "")
    if not found or int(found[2]) - int(found[1]) + 1 != response.length:
        raise FallBack("a range that cannot be read")
    return response.length, (int(found[1]), int(found[3]))


def _is_strong(etag: str) -> bool:
    return etag.startswith('"') and len(etag) > 2  # rclone sends "" for no ETag


def _has_validator(headers: Headers) -> bool:
    """Whether a change of the content would show: by a strong ETag, or a time in the past (RFC 9110, 8.8.2.2)."""
    if _is_strong(headers.get("etag", "")):
        return True
    with suppress(KeyError, ValueError):  # there is none, or it is no date
        age = parsedate_to_datetime(headers["date"]) - parsedate_to_datetime(headers["last-modified"])
        return age > timedelta(seconds=1)
    return False


def _is_proxied(scheme: str, host: str) -> bool:
    proxies = getproxies()
    return (scheme in proxies or "all" in proxies) and not proxy_bypass(host)


def preallocate(fd: int, size: int) -> None:
    """Allocate size bytes on the disk, if the file system can; raises OSError if they do not fit."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV, errno.ESPIPE, errno.EINVAL):
            raise
