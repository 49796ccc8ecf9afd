"""The streams of `Remote.open`: `HttpStream` reads the rest of a file by a plain GET, `FileStream` a file object."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from growfs.errors import RemoteChanged
from growfs.remote.digest import BUFFER_BYTES
from growfs.remote.http.connection import ConnectionFailed, FallBack, Headers
from growfs.remote.http.download import ErrorTranslator, HttpError, RangeDownloader, SignRequest, extent_of
from growfs.remote.interface import RemoteFile


class HttpStream:
    """Owns a connection until it is closed."""

    def __init__(
        self,
        downloader: RangeDownloader,
        sign: SignRequest,
        start: int,
        check: Callable[[int, Headers], RemoteFile],
        translate: ErrorTranslator,
    ) -> None:
        """check: given the size of the file and the headers, returns the file, or raises.

        Raises FallBack if the store's library has to read the file, and other errors as translated.
        """
        self._translate = translate
        self._throttle = downloader.threads.throttle
        with ExitStack() as stack:
            self._connection = stack.enter_context(downloader.connection())
            try:
                self._left = self._begin(downloader, sign, start, check)
            except (HttpError, ConnectionFailed) as error:
                raise translate(error) from None
            self._stack = stack.pop_all()

    def _begin(
        self,
        downloader: RangeDownloader,
        sign: SignRequest,
        start: int,
        check: Callable[[int, Headers], RemoteFile],
    ) -> int:
        headers = {"Range": f"bytes={start}-"} if start else {}
        response = self._response = downloader.begin(self._connection, sign(), headers)
        length, extent = extent_of(response)
        position, total = extent or (0, length)
        if position not in (0, start) or position + length != total:
            raise FallBack("a different range than requested")
        self.file = check(total, response.headers)
        while position < start:  # the server ignored the range
            skipped = memoryview(bytearray(min(start - position, BUFFER_BYTES)))
            position += self._connection.read_some(response, skipped, total - position)
        return total - start

    def readinto(self, buffer: memoryview) -> int:
        if not self._left:
            return 0
        try:
            count = self._connection.read_some(self._response, buffer, self._left)
        except ConnectionFailed as error:
            raise self._translate(error) from None
        self._left -= count
        self._throttle(count)
        return count

    def close(self) -> None:
        if self._left:
            self._connection.close()
        self._left = 0
        self._stack.close()


class FileStream:
    """Reads a file object of a library, or a local file. After the last byte, it checks that the file is unchanged."""

    def __init__(
        self,
        source: Any,
        file: RemoteFile,
        start: int,
        stat: Callable[[], RemoteFile],
        throttle: Callable[[int], None],
        translating: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """source: has readinto and close. stat: returns the file in its current state. translating: a block that turns
        a client's errors into growfs's own.
        """
        self.file = file
        self._left = -1 if file.size is None else file.size - start
        self._source, self._stat, self._throttle, self._translating = source, stat, throttle, translating
        with translating():
            try:
                source.seek(start)
            except ValueError:  # it cannot seek
                while start and (skipped := len(source.read(min(start, BUFFER_BYTES)))):
                    start -= skipped

    def readinto(self, buffer: memoryview) -> int:
        with self._translating():
            count = int(self._source.readinto(buffer) or 0)
        self._left -= count
        if (count == 0) != (self._left == 0) and self._stat().version != self.file.version:
            raise RemoteChanged(f"{self.file.path}: has changed while it was read; list again")
        self._throttle(count)
        return count

    def close(self) -> None:
        self._source.close()
