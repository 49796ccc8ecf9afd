"""What `Remote.open` gives: the rest of a file by a plain GET, or by the store's library."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from growfs.errors import RemoteChanged
from growfs.remote.http.connection import ConnectionFailed, FallBack, Headers
from growfs.remote.http.download import HttpError, RangeDownloader, Sign, extent_of
from growfs.remote.protocol import RemoteFile

SKIP_BYTES = 1 << 20
Told = Callable[[BaseException], Exception]
"""The error that says what a client's error means."""


class HttpStream:
    """Owns a connection until it is closed."""

    def __init__(
        self, ranged: RangeDownloader, sign: Sign, start: int, check: Callable[[int, Headers], RemoteFile], told: Told
    ) -> None:
        """check: given the file's size and the headers, says which file it is, or raises.

        Raises Odd where that is left to the library, and what told makes of other errors.
        """
        self._told = told
        self._spend = ranged.threads.throttle
        with ExitStack() as stack:
            self._connection = stack.enter_context(ranged.connection())
            try:
                self._left = self._begin(ranged, sign, start, check)
            except (HttpError, ConnectionFailed) as error:
                raise told(error) from None
            self._stack = stack.pop_all()

    def _begin(
        self, ranged: RangeDownloader, sign: Sign, start: int, check: Callable[[int, Headers], RemoteFile]
    ) -> int:
        asked = {"Range": f"bytes={start}-"} if start else {}
        response = self._response = ranged.begin(self._connection, sign(), asked)
        length, extent = extent_of(response)
        at, total = extent or (0, length)
        if at not in (0, start) or at + length != total:
            raise FallBack("another range than was asked for")
        self.file = check(total, response.headers)
        while at < start:  # of a server that knows no ranges
            at += self._connection.read_on(response, memoryview(bytearray(min(start - at, SKIP_BYTES))), total - at)
        return total - start

    def readinto(self, buffer: memoryview) -> int:
        if not self._left:
            return 0
        try:
            count = self._connection.read_on(self._response, buffer, self._left)
        except ConnectionFailed as error:
            raise self._told(error) from None
        self._left -= count
        self._spend(count)
        return count

    def close(self) -> None:
        if self._left:
            self._connection.drop()
        self._left = 0
        self._stack.close()


class FileStream:
    """A file of a library, or of this machine; whether it is still the same one is looked at as it ends."""

    def __init__(
        self,
        source: Any,
        file: RemoteFile,
        start: int,
        now: Callable[[], RemoteFile],
        throttle: Callable[[int], None],
        told: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """source: has readinto and close. told: in its block a client's errors become growfs's own."""
        self.file = file
        self._source, self._now, self._spend, self._told = source, now, throttle, told
        with told():
            if source.seekable():
                source.seek(start)
            else:
                while start and (skipped := len(source.read(min(start, SKIP_BYTES)))):
                    start -= skipped

    def readinto(self, buffer: memoryview) -> int:
        with self._told():
            count = int(self._source.readinto(buffer) or 0)
        if count == 0 and self._now().version != self.file.version:
            raise RemoteChanged(f"{self.file.path}: has changed while it was read; list again")
        self._spend(count)
        return count

    def close(self) -> None:
        self._source.close()
