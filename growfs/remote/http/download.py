"""`RangeDownloader`: downloads files by plain GETs, a large file in segments that arrive in parallel.

It owns the connections of a process, and decides which responses are acceptable. The stores (growfs/remote/stores)
provide the requests, and read the version from a response. Everything unusual (a response without a length, an
untrusted certificate, a refusal) is left to the store's library, whose own result then counts.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from growfs.errors import RemoteBusy
from growfs.remote import digest
from growfs.remote.digest import Digest
from growfs.remote.errors import is_busy
from growfs.remote.http.checksum import ExpectedChecksum, expected_checksum
from growfs.remote.http.connection import (
    Connection,
    ConnectionFailed,
    FallBack,
    Headers,
    HttpRequest,
    HttpResponse,
    OddStatus,
    Origin,
    RangeIgnored,
    Timeouts,
)
from growfs.remote.http.slow_streams import SlowStreams
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import FetchTask
from growfs.remote.metadata import SECOND_NS, to_ns

WRONG_FILES_MIN = 3
"""So many files whose content arrived twice, and none that matched, show that the store's checksums are wrong."""
CUTS_MAX = 2
"""How often a segment that arrives too slowly is requested anew. After that, its server is accepted as slow."""
GOOD_STATUSES = (200, 206)
MIXED = "segments of different versions"
"""Then the library fetches the file in one piece, if no version was listed: servers behind one name may differ."""
REFUSED_STATUSES = (400, 401, 403)  # what stores return for an expired signature

log = logging.getLogger(__name__)

_BEGUN = threading.Event()
"""An event that is set: for files that are not split at once, which are many. Making one for each takes 5 us."""
_BEGUN.set()

T = TypeVar("T")
SignRequest = Callable[..., HttpRequest]
"""Returns a freshly signed request for the file: a GET, or the given method. May raise FallBack."""
ErrorTranslator = Callable[[BaseException], Exception]
"""Turns a client's error into one of growfs's own."""
CheckResponse = Callable[[int, Headers], T]
"""Checks the size of a file and the headers of the response before the body is read; may raise FallBack, or any error
to end the fetch with."""


class HttpError(Exception):
    """The server returned an error status; remote.errors.translate interprets it. code: the store's own."""

    def __init__(self, status: int, reason: str, retry_after_s: float = 0.0, code: str = "") -> None:
        super().__init__(f"{reason} {code}".strip())
        self.status = status
        self.retry_after_s = retry_after_s
        self.code = code


class ChecksumMismatch(Exception):
    """The received bytes do not have the checksum that the store sent."""


class RangeDownloader:
    """Fetches files, in any thread.

    uses_proxies: as configured in the environment. heads_useful: HEADs return checksums that the GET of a range does
    not. refused_code: returns the code of a refusal from its body, if the library would also be refused; otherwise an
    empty string.
    """

    def __init__(
        self,
        threads: TransferThreads,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        timeouts: Timeouts | None = None,
        *,
        uses_proxies: bool = True,
        heads_useful: bool = False,
        refused_code: Callable[[bytes], str] = lambda _: "",
    ) -> None:
        self.threads = threads
        self._tls = tls
        self._timeouts = timeouts
        self.splits_at_once = True  # until a server sends a whole file instead of the requested range
        self.heads_useful = heads_useful
        self._uses_proxies = uses_proxies
        self._refused_code = refused_code
        self._useless_heads = 0
        self._wrong_checksums: dict[str, set[str] | None] = {}
        """By kind, the files that have another one than the store sent; None once a file had the right one."""
        self._connections: list[Connection] = []
        self._idle: list[Connection] = []
        self._slow_streams = SlowStreams(self._connections, lambda: threads.is_held, threads.latency_s)

    def fetch(
        self,
        task: FetchTask,
        sign: SignRequest,
        check: CheckResponse[T],
        translate: ErrorTranslator,
    ) -> tuple[int, T]:
        """Write the file, or the range of it, to task.target. Returns (bytes written, result of check).

        task.digest gets every byte. sign is called again when a signature has expired. sign and task.progress are
        called from any thread, progress from one at a time. check gets the size of the whole file, even if only a range
        is written. A failed request is repeated according to task.tries, and continues from the last byte that arrived.
        Raises FallBack if the store's library has to fetch the file, from the start; translated HttpError,
        ChecksumMismatch and ConnectionFailed; errors of check and progress; and OSError of the local disk.
        """
        self._slow_streams.start()
        fd = os.open(task.target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            transfer = _FileTransfer(self, task, fd, sign, check, translate)
            transfer.run()
        except (HttpError, ChecksumMismatch, ConnectionFailed) as error:
            raise translate(error) from None
        except FallBack:
            task.restart()
            raise
        finally:
            os.close(fd)
        return transfer.total, transfer.checked

    def begin(self, connection: Connection, request: HttpRequest, headers: Headers) -> HttpResponse:
        """Send a request; returns the head of its response, whose status is good.

        Raises HttpError, ConnectionFailed, and FallBack if the library may do better.
        """
        response = connection.send(request, headers)
        if is_busy(response.status):
            raise _http_error(response)
        # The target of a redirect gets no credentials, but the library may have some.
        is_own = connection.sent is request
        if is_own and response.status in REFUSED_STATUSES and (code := self._refused_code(connection.read(response))):
            raise HttpError(response.status, response.reason, code=code)
        if response.status not in GOOD_STATUSES:
            raise OddStatus(response.status)
        return response

    def verify(self, expected: ExpectedChecksum | None, task: FetchTask, total: int) -> None:
        """Raise ChecksumMismatch if the file at task.target is not what the store sent a checksum for.

        A checksum of a kind that has matched no file yet, but was wrong for several whose content arrived twice, is not
        what it seems to be, and does not count. Raises OSError of the local disk.
        """
        if expected is None:
            return
        mismatch = expected.mismatch(total, task.target, task.progress)
        if mismatch is None:
            self._wrong_checksums[expected.name] = None
            return
        wrong = self._wrong_checksums.setdefault(expected.name, set())
        if wrong is None or not (task.tries and task.tries.has_arrived(digest.of(task.target, task.progress))):
            raise ChecksumMismatch(mismatch)
        is_new = len(wrong) < WRONG_FILES_MIN
        wrong.add(task.file.path)
        if len(wrong) < WRONG_FILES_MIN:
            raise ChecksumMismatch(mismatch)
        if is_new:
            log.warning(
                "%s: %s, as for all files; the store's checksums are wrong, and are ignored", task.file.path, mismatch
            )

    def record_head(self, useful: bool) -> None:
        """Record whether a HEAD brought a checksum. After eight that did not, no more are sent."""
        self._useless_heads = 0 if useful else self._useless_heads + 1
        self.heads_useful = self._useless_heads < 8

    @contextmanager
    def connection(self, origin: Origin | None = None) -> Iterator[Connection]:
        """A connection for the duration of the block, if possible one to this server.

        Any error in the block closes it.
        """
        try:
            idle = self._idle
            at = next((at for at in reversed(range(len(idle))) if idle[at].is_for(origin)), -1)
            connection = idle.pop(at)  # another one if a thread has taken it meanwhile, which does no harm
        except IndexError:
            connection = Connection(self._tls, self._timeouts, self._uses_proxies)
            self._connections.append(connection)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        finally:
            connection.may_be_cut = False
            self._idle.append(connection)


@dataclass(slots=True, eq=False)
class _Segment:
    """The bytes of a target that one stream fetches: from `at`, the next one to arrive, up to `end`."""

    at: int
    end: int
    is_first: bool = False
    cuts: int = 0
    """How often it was requested anew because it arrived too slowly."""
    is_odd: bool = False
    """Whether a response to its request was one that is left to the store's library."""


def _first_segment(response: HttpResponse) -> _Segment:
    return _Segment(0, response.length or 0, is_first=True)


class _FileTransfer(Generic[T]):
    """The transfer of one file, or of a range of it.

    _begin() sets `total`, `checked` and `_file_bytes`, which then stay constant. The threads share the rest. Every
    response must be of the same version as the first one; otherwise the file would be a mix of two versions.
    """

    total: int
    """The bytes to transfer."""
    checked: T
    """The result of `check`."""
    _file_bytes: int
    """The size of the whole file."""
    _request: HttpRequest
    """The request for all segments, until its signature expires. After a redirect, it is for the redirect's target."""

    def __init__(
        self,
        owner: RangeDownloader,
        task: FetchTask,
        fd: int,
        sign: SignRequest,
        check: CheckResponse[T],
        translate: ErrorTranslator,
    ) -> None:
        self._translate = translate
        self._owner, self._task, self._fd, self._sign, self._check = owner, task, fd, sign, check
        self._first = task.byte_range.offset if task.byte_range else 0
        self._digest = task.digest or Digest()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._connections: list[Connection] = []
        self._validators: dict[str, str | None] = {}
        self._expected: ExpectedChecksum | None = None
        self._begun = _BEGUN
        self._is_split = False
        self._has_validator = False

    def run(self) -> None:
        """Fetch the file; if it is large, together with idle threads.

        If the size is known, they request their segments at once, and wait for the head of the first response, which
        determines the version of all segments.
        """
        self._request = self._sign()
        size = self._task.byte_range.size if self._task.byte_range else self._task.file.size
        threads = self._owner.threads
        length = threads.segment_bytes(size)
        if size is not None and size > length and self._owner.splits_at_once:
            self._begun = threading.Event()
            threads.share([partial(self._fetch_first, size, length), *self._segments(length, size, length)])
        else:
            with self._connection() as connection:
                response = self._begin(connection, size, length)
                segment = _first_segment(response)
                if self._is_split:
                    first = partial(self._receive_with_others, connection, segment, response)
                    threads.share([first, *self._segments(length, self.total, threads.segment_bytes(self.total))])
                else:
                    with threads.unsplit(self.total):
                        self._receive(connection, segment, response)
        self._owner.verify(self._expected, self._task, self.total)

    def _segments(self, start: int, end: int, step: int) -> Iterator[Callable[[], None]]:
        return (partial(self._fetch, _Segment(at, min(at + step, end))) for at in range(start, end, step))

    def _fetch(self, segment: _Segment) -> None:
        if not self._begun.is_set() or self._is_split:
            with self._connection() as connection:
                self._receive_with_others(connection, segment)

    def _fetch_first(self, size: int, length: int) -> None:
        with self._connection() as connection, self._registered(connection):
            try:
                response = self._begin(connection, size, length)
            finally:
                self._begun.set()
            self._owner.splits_at_once = self._is_split
            with nullcontext() if self._is_split else self._owner.threads.unsplit(self.total):
                self._receive(connection, _first_segment(response), response)

    def _begin(self, connection: Connection, size: int | None, length: int) -> HttpResponse:
        """Request the file, or its first segment if it is large or of unknown size, and check the response's head."""
        response = self._first_response(connection, size, length)
        self._is_split = self.total > (response.length or 0)
        return response

    def _first_response(self, connection: Connection, size: int | None, segment_length: int) -> HttpResponse:
        wanted, first = self._task.byte_range, self._first
        whole = wanted is None and size is not None and size <= segment_length
        response = self._first_answer(connection, {} if whole else _range(first, first + segment_length - 1))
        length, extent = extent_of(response)
        if extent:
            start, self._file_bytes = extent
            self.total = wanted.size if wanted else self._file_bytes
            if start != first or length != min(segment_length, self.total):
                raise FallBack("a different range than requested")
        elif wanted:
            raise (FallBack if (first, length) == (0, wanted.size) else RangeIgnored)("the whole file")
        else:
            self.total = self._file_bytes = length
            if not whole and (length == segment_length or (size and length != size)):
                raise FallBack("a body that may be the range, or another file")
        self.checked = self._check(self._file_bytes, response.headers)
        self._validators = {name: response.headers.get(name) for name in ("etag", "last-modified")}
        self._has_validator = _has_validator(response.headers)
        if length < self.total:
            if not self._has_validator:
                raise FallBack("no version that lasts")
            if size is not None:  # otherwise it may not fit, and the progress callback ends the fetch in time
                preallocate(self._fd, self.total)  # segments are written out of order; this avoids fragmentation
        if wanted:
            return response  # a checksum would cover the whole file
        self._expected = expected_checksum(response.headers)
        if length < self.total and not self._expected and self._owner.heads_useful:
            self._expected = self._checksum_by_head()
        return response

    def _checksum_by_head(self) -> ExpectedChecksum | None:
        """The checksum of a file that arrives in segments. S3 sends it only with a whole file, so also with a HEAD."""
        for _ in range(2):  # it may be cut because it is silent, as other requests
            with suppress(FallBack, ConnectionFailed), self._connection() as connection:
                connection.may_be_cut = True
                response = connection.send(self._sign("HEAD"), {})
                is_same = response.status in GOOD_STATUSES and response.headers.get("etag") == self._validators["etag"]
                checksum = expected_checksum(response.headers) if is_same else None
                self._owner.record_head(checksum is not None)
                return checksum
        return None

    def _connection(self) -> AbstractContextManager[Connection]:
        return self._owner.connection(self._request.origin)

    @contextmanager
    def _registered(self, connection: Connection) -> Iterator[None]:
        """If one thread fails, the connections of all others are interrupted, and all raise its error."""
        with self._lock:
            self._connections.append(connection)
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - or the first one raised by another thread
            with self._lock:
                self._error = self._error or error
                for other in self._connections:
                    other.interrupt()
            raise self._error from None
        finally:
            with self._lock:
                self._connections.remove(connection)

    def _first_answer(self, connection: Connection, headers: Headers) -> HttpResponse:
        segment = _Segment(0, 0)
        while True:
            connection.may_be_cut = self._task.tries is not None and segment.cuts < CUTS_MAX
            try:
                response = self._owner.begin(connection, self._request, headers)
                self._request = connection.sent
                return response
            except (ConnectionFailed, HttpError) as error:
                self._pause(error, connection, segment)
                self._renew_signature(self._request)  # the remote may have been away for longer than it is valid

    def _receive(self, connection: Connection, segment: _Segment, response: HttpResponse | None = None) -> None:
        """Fetch a segment; after a failure, the rest of it. response: the head of its response, if it has arrived."""
        while True:
            connection.may_be_cut = self._task.tries is not None and segment.cuts < CUTS_MAX
            try:
                if response or (response := self._request_segment(connection, segment)):
                    self._copy(connection, response, segment)
                    if self._task.tries:
                        self._task.tries.answered()
                return
            except (ConnectionFailed, HttpError) as error:
                self._begun.wait()
                if self._error or not (self._is_split or self._has_validator):
                    raise
                if segment.at == segment.end:
                    return
                self._pause(error, connection, segment)
                response = None
            except FallBack as reason:  # of one server among many, perhaps; the library would begin anew
                if self._error or segment.is_first or segment.is_odd or not self._task.tries:
                    raise
                segment.is_odd = True
                connection.close()
                self._task.tries.pause(
                    RemoteBusy(f"{self._task.file.path}: an unexpected response ({reason})"), segment.at
                )

    def _receive_with_others(
        self, connection: Connection, segment: _Segment, response: HttpResponse | None = None
    ) -> None:
        """As `_receive`, while other threads fetch other segments of the file."""
        with self._registered(connection):
            self._receive(connection, segment, response)

    def _pause(self, error: ConnectionFailed | HttpError, connection: Connection, segment: _Segment) -> None:
        """Wait until a request may be repeated. Raises error if it may not be."""
        was_cut = connection.was_cut
        connection.close()
        busy = self._translate(error)
        if self._task.tries is None or not isinstance(busy, RemoteBusy):
            raise error
        if was_cut:
            segment.cuts += 1
            log.warning("%s: arrives too slowly; requesting it again from byte %d", self._task.file.path, segment.at)
        else:
            self._task.tries.pause(busy, segment.at)

    def _copy(self, connection: Connection, response: HttpResponse, segment: _Segment) -> None:
        digest = self._digest.segment(segment.at)
        expected = self._expected and self._expected.segment(segment.at)

        def on_piece(piece: memoryview) -> None:
            if self._error:
                raise ConnectionFailed("another segment has failed")
            digest.update(piece)
            if expected:
                expected.update(piece)
            self._owner.threads.throttle(len(piece))
            with self._lock:
                segment.at += len(piece)
                self._task.progress(len(piece))

        start, began = segment.at, time.monotonic()
        connection.copy(response, self._fd, start, on_piece)
        if self._is_split:
            self._owner.threads.record(segment.at - start, time.monotonic() - began)

    def _request_segment(self, connection: Connection, segment: _Segment) -> HttpResponse | None:
        """Request one segment; None if the file turns out not to arrive in segments.

        The signature was valid for the first segment; if it is refused now, it has expired. So may a URL to which the
        server redirected.
        """
        if self._error:
            raise ConnectionFailed("another segment has failed")
        request, etag = self._request, self._validators.get("etag")
        start, end = self._first + segment.at, self._first + segment.end - 1
        headers = _range(start, end) | ({"If-Match": etag} if etag and _is_strong(etag) else {})
        response = connection.send(request, headers)
        self._begun.wait()
        if not (self._is_split or segment.is_first):
            connection.close()
            return None
        if response.status in REFUSED_STATUSES:
            connection.close()
            response = connection.send(self._renew_signature(request), headers)
            self._request = connection.sent
        if response.status == 412 and not self._task.file.version:
            raise FallBack(MIXED)
        if response.status not in GOOD_STATUSES:
            raise _http_error(response)
        length, extent = extent_of(response)
        changed = any(response.headers.get(name) != pin for name, pin in self._validators.items())
        if changed or (extent[1] if extent else length) != self._file_bytes:
            if not self._task.file.version:
                raise FallBack(MIXED)
            raise HttpError(412, "another version")
        if extent != (start, self._file_bytes) or length != end - start + 1:
            raise FallBack("a different range than requested")
        return response

    def _renew_signature(self, refused: HttpRequest) -> HttpRequest:
        with self._lock:
            if self._request is refused:
                self._request = self._sign()
            return self._request


def _http_error(response: HttpResponse) -> HttpError:
    return HttpError(response.status, response.reason, _seconds(response.headers.get("retry-after", "")))


def _seconds(retry_after: str) -> float:
    """The seconds that a Retry-After header asks for (RFC 9110, 10.2.3); 0 if it cannot be parsed."""
    if retry_after.isdecimal():
        return float(retry_after)
    at_ns = to_ns(retry_after)
    return 0.0 if at_ns is None else at_ns / SECOND_NS - time.time()


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
        raise FallBack("an unreadable range")
    return response.length, (int(found[1]), int(found[3]))


def _is_strong(etag: str) -> bool:
    return etag.startswith('"') and len(etag) > 2  # rclone sends "" for no ETag


def _has_validator(headers: Headers) -> bool:
    """Whether a change of the content would show: by a strong ETag, or a time in the past (RFC 9110, 8.8.2.2)."""
    if _is_strong(headers.get("etag", "")):
        return True
    now_ns, modified_ns = to_ns(headers.get("date")), to_ns(headers.get("last-modified"))
    return now_ns is not None and modified_ns is not None and now_ns - modified_ns > SECOND_NS


def preallocate(fd: int, size: int) -> None:
    """Allocate size bytes on the disk, if the file system can; raises OSError if they do not fit."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV, errno.ESPIPE, errno.EINVAL):
            raise
