"""`Ranged`: files by plain GETs, a large one in parts that arrive side by side.

Owns the connections of a process and what a server may answer; s3.py, http.py and fsspec_remote.py say what is asked
for and which version that is. Whatever is odd (a proxy, a redirect, an answer without a length, a certificate that is
not trusted, a refusal) is left to the store's library, whose own answer then counts.
"""

from __future__ import annotations

import errno
import os
import re
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Generic, TypeVar
from urllib.request import getproxies, proxy_bypass

from growfs.remote import digest as digests
from growfs.remote.digest import Digest
from growfs.remote.http.checksum import Expected, expected
from growfs.remote.http.connection import (
    Connection,
    ConnectionFailed,
    FallBack,
    Headers,
    HttpRequest,
    HttpResponse,
    close_all,
)
from growfs.remote.http.threads import TransferThreads
from growfs.remote.protocol import FetchTask

USELESS_HEADS_MAX = 8
FALLBACKS_MAX = 3  # files in a row that had to be left to the library, until no more are tried
GOOD = (200, 206)
BUSY = (408, 425, 429, 500, 502, 503, 504)
REFUSED = (400, 401, 403)  # what stores answer to a signature that has expired
NOT_THERE = (404, 410, 416)  # 416: of a file without a byte

T = TypeVar("T")
Sign = Callable[..., HttpRequest]
"""A request for the file, signed anew: by GET, or by the method that is given. May raise Odd."""
Check = Callable[[int, Headers], T]
"""Given a file's bytes and the headers of its GET before the body is read; may raise Odd, and what is to be raised."""


class HttpError(Exception):
    """The server answered with an HTTP status that is an error; remote.errors.translate knows what it means."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ChecksumMismatch(Exception):
    """What came is not what the store says that it has."""


class RangeDownloader:
    """Fetches files, in any thread. `usable` is False once that has proved to be of no use with this server."""

    def __init__(self, threads: TransferThreads, tls: Callable[[], ssl.SSLContext]) -> None:
        self.usable = True
        self.threads = threads
        self._tls = tls
        self.heads_useful = True  # more than a GET of a part does
        self.is_proxied = cache(_is_proxied)  # reading the environment is slow for a small file
        self._odd = self._heads_in_vain = 0
        self._connections: list[Connection] = []
        self._idle: list[Connection] = []
        weakref.finalize(self, close_all, self._connections)

    def fetch(self, task: FetchTask, sign: Sign, check: Check[T]) -> tuple[int, T] | None:
        """Write the file, or the range of it, to task.target. Returns (bytes written, what check returned).

        Returns None where the store's library has to do it; task.progress was not called then. task.digest takes every
        byte. sign is called again when a signature has expired. sign and task.progress are called from any thread,
        progress from one at a time. check gets the size of the whole file, even if only a range is written.
        Raises HttpError, Damaged, ConnectionFailed, what check and progress raise, and OSError of the local disk.
        """
        with task.target.open("wb", buffering=0) as out:
            fetch = _FileTransfer(self, task, out.fileno(), sign, check)
            try:
                with self.connection() as connection:
                    response = fetch.begin(connection)
                    fetch.run(connection, response)
            except FallBack as odd:
                self._odd += odd.counts
                self.usable = self._odd < FALLBACKS_MAX
                if fetch.told:
                    raise ConnectionFailed(f"an answer that makes no sense: {odd}") from odd
                return None
        self._odd = 0
        return fetch.total, fetch.checked

    def begin(self, connection: Connection, request: HttpRequest, headers: Headers) -> HttpResponse:
        """The head of a file's first answer. Raises Answered, Unreached, and Odd where the library may do better."""
        scheme, host = request.origin
        if scheme not in ("http", "https") or self.is_proxied(scheme, host):
            raise FallBack("no web server, or one behind a proxy")
        response = connection.ask(request, headers)
        if response.status in BUSY:
            raise HttpError(response.status, response.reason)
        if response.status not in GOOD:
            raise FallBack(f"status {response.status}", counts=response.status not in NOT_THERE)
        return response

    def record_head(self, told: bool) -> None:
        """Whether a HEAD told what was asked for; a store whose answers never do is not asked for ever."""
        self._heads_in_vain = 0 if told else self._heads_in_vain + 1
        self.heads_useful = self._heads_in_vain < USELESS_HEADS_MAX

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for the time of the block, which any error closes."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = Connection(self._tls)
            self._connections.append(connection)
        try:
            yield connection
        except BaseException:
            connection.drop()
            raise
        finally:
            self._idle.append(connection)


class _FileTransfer(Generic[T]):
    """One file, or part of one, on its way. begin() sets `total` (bytes that are asked for), `_file_bytes` (of all of
    it) and `checked`, which stay; the threads share the rest.

    Every answer has to be of the version of the first one, else the file would be a mix.
    """

    total: int
    checked: T
    _file_bytes: int

    def __init__(self, owner: RangeDownloader, task: FetchTask, fd: int, sign: Sign, check: Check[T]) -> None:
        self.told = False
        self._first = task.byte_range.offset if task.byte_range else 0
        self._owner, self._task, self._fd, self._sign, self._check = owner, task, fd, sign, check
        self._digest = task.digest or Digest()
        self._sharing = threading.Lock()
        self._error: BaseException | None = None
        self._pins: dict[str, str | None] = {}
        self._starts: Iterator[int] = iter(())
        self._expected: Expected | None = None
        self._connections: list[Connection] = []

    def begin(self, connection: Connection) -> HttpResponse:
        """Ask for the file or, if it is large or of unknown size, for its first part; the answer's head is checked."""
        self._request = self._sign()
        part, first, size = self._task.byte_range, self._first, self._task.file.size
        whole = part is None and size is not None and size <= digests.PART_BYTES
        most = min(digests.PART_BYTES, part.size) if part else digests.PART_BYTES
        response = self._owner.begin(connection, self._request, {} if whole else _range(first, first + most - 1))
        length, extent = extent_of(response)
        if extent:
            start, self._file_bytes = extent
            self.total = part.size if part else self._file_bytes
            if start != first or length != min(digests.PART_BYTES, self.total):
                raise FallBack("another range than was asked for")
        elif part:
            raise FallBack("the whole file")
        else:
            self.total = self._file_bytes = length
            if not whole and (length == digests.PART_BYTES or (size and length != size)):
                raise FallBack("that may be the part, or another file")
        self.checked = self._check(self._file_bytes, response.headers)
        self._pins = {name: response.headers.get(name) for name in ("etag", "last-modified")}
        if length < self.total:
            if not _tells_versions(response.headers):
                raise FallBack("no version that lasts")
            if part or size is not None:  # else there may be no room for it, which progress tells in time
                preallocate(self._fd, self.total)  # parts are written out of order, and shall lie together
            self._starts = iter(range(first + digests.PART_BYTES, first + self.total, digests.PART_BYTES))
        if part:
            return response  # what is told of content is told of the whole
        self._expected = expected(response.headers)
        if length < self.total and not self._expected and self._owner.heads_useful:
            self._expected = self._told_of_the_whole()
        return response

    def _told_of_the_whole(self) -> Expected | None:
        """The checksum of a file that comes in parts: S3 tells it with the whole only, so in the answer to a HEAD."""
        told = None
        with suppress(FallBack, ConnectionFailed), self._owner.connection() as connection:
            response = connection.ask(self._sign("HEAD"), {})
            if response.status in GOOD and response.headers.get("etag") == self._pins["etag"]:
                told = expected(response.headers)
        self._owner.record_head(told is not None)
        return told

    def run(self, connection: Connection, response: HttpResponse) -> None:
        """Read response, which begins the file, and all other parts, with what streams are free."""
        in_parts = self.total > (response.length or 0)
        helped = self._owner.threads.helping(self._help) if in_parts else nullcontext()
        with helped, self._used(connection):
            self._copy(connection, response, self._first)
            while (start := self._next()) is not None:
                self._fetch_part(connection, start)
        if self._error:
            raise self._error
        if self._expected and (mismatch := self._expected.mismatch(self.total, self._task.target)):
            raise ChecksumMismatch(mismatch)

    def _help(self) -> bool:
        """Read one part; False where there is none left."""
        if (start := self._next()) is None:
            return False
        with self._owner.connection() as connection, self._used(connection):
            self._fetch_part(connection, start)
        return True

    @contextmanager
    def _used(self, connection: Connection) -> Iterator[None]:
        """Where one thread fails, no other waits for what is of no use any more; the first error is what counts."""
        with self._sharing:
            self._connections.append(connection)
        try:
            yield
        except BaseException as error:  # noqa: BLE001 raised by `run`
            with self._sharing:
                self._error = self._error or error
                self._starts = iter(())
                for used in self._connections:
                    used.interrupt()
        finally:
            with self._sharing:
                self._connections.remove(connection)

    def _copy(self, connection: Connection, response: HttpResponse, start: int) -> None:
        at = start - self._first
        digest = self._digest.part(at)
        expected = self._expected and self._expected.part(at)

        def told(piece: memoryview) -> None:
            if self._error:
                raise ConnectionFailed("another part has failed")
            digest.update(piece)
            if expected:
                expected.update(piece)
            self._owner.threads.throttle(len(piece))
            with self._sharing:
                self.told = True
                self._task.progress(len(piece))

        connection.copy(response, self._fd, at, told)

    def _fetch_part(self, connection: Connection, start: int) -> None:
        response = self._part(connection, start, min(start + digests.PART_BYTES, self._first + self.total) - 1)
        self._copy(connection, response, start)

    def _next(self) -> int | None:
        with self._sharing:
            return next(self._starts, None)

    def _part(self, connection: Connection, start: int, end: int) -> HttpResponse:
        """The answer to one part. The signature was good for the first one: if it is refused now, it has expired."""
        etag = self._pins["etag"]
        headers = _range(start, end) | ({"If-Match": etag} if etag and _is_strong(etag) else {})
        request = self._request
        response = connection.ask(request, headers)
        if response.status in REFUSED:
            connection.drop()
            response = connection.ask(self._sign_anew(request), headers)
        if response.status not in GOOD:
            raise HttpError(response.status, response.reason)
        length, extent = extent_of(response)
        changed = any(response.headers.get(name) != pin for name, pin in self._pins.items())
        if changed or (extent[1] if extent else length) != self._file_bytes:
            raise HttpError(412, "another version")
        if extent != (start, self._file_bytes) or length != end - start + 1:
            raise FallBack("another range than was asked for")
        return response

    def _sign_anew(self, refused: HttpRequest) -> HttpRequest:
        with self._sharing:
            if self._request is refused:
                self._request = self._sign()
            return self._request


def _range(start: int, end: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-{end}"}


def extent_of(response: HttpResponse) -> tuple[int, tuple[int, int] | None]:
    """(bytes of the body, (where it begins in the file, bytes of the file)); None where the body is the whole file.

    By Content-Range and not by the status: `rclone serve s3` sends a range with 200.
    """
    if response.length is None:
        raise FallBack("no length")
    told = response.headers.get("content-range")
    if told is None and response.status == 200:
        return response.length, None
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", told or "")
    if not found or int(found[2]) - int(found[1]) + 1 != response.length:
        raise FallBack("a range that cannot be read")
    return response.length, (int(found[1]), int(found[3]))


def _is_strong(etag: str) -> bool:
    return etag.startswith('"') and len(etag) > 2  # rclone sends "" for none


def _tells_versions(headers: Headers) -> bool:
    """Whether another content would show: a strong ETag, or a time that is no longer now (RFC 9110, 8.8.2.2)."""
    if _is_strong(headers.get("etag", "")):
        return True
    with suppress(KeyError, ValueError):  # for want of one, or as it is no date
        age = parsedate_to_datetime(headers["date"]) - parsedate_to_datetime(headers["last-modified"])
        return age > timedelta(seconds=1)
    return False


def _is_proxied(scheme: str, host: str) -> bool:
    proxies = getproxies()
    return (scheme in proxies or "all" in proxies) and not proxy_bypass(host)


def preallocate(fd: int, size: int) -> None:
    """Take room on the disk for size bytes, where the file system knows how; raises OSError where there is none."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV, errno.ESPIPE, errno.EINVAL):
            raise
