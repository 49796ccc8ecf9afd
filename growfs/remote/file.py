"""`open_seekable`: a remote file as a Python file object, readable from any position.

Reading in order takes one request. A short distance ahead is read and discarded; any other position takes a new
request. After a broken connection, reading continues at the same position.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from contextlib import suppress

from growfs.errors import GrowfsError, RemoteBusy, RemoteChanged
from growfs.remote.interface import Remote, RemoteFile, RemoteStream

BUFFER_BYTES = 1 << 17  # same as producers.compressed.COPY_BYTES, so nothing is copied twice
BREAKS_MAX = 5
"""How many consecutive connections may break before any byte arrives."""
BREAKING_S_MAX = 150.0
"""How long BUFFER_BYTES may be waited for if connections break meanwhile: each may deliver a byte before. As long as it
takes that BREAKS_MAX connections fall silent."""


def open_seekable(
    remote: Remote, file: RemoteFile, on_bytes: Callable[[], object] = lambda: None
) -> io.BufferedReader[SeekableStream]:
    """Open a file of remote. Opening it and reading it raise RemoteErrors. on_bytes: called when some have arrived."""
    return io.BufferedReader(SeekableStream(remote, remote.open(file), on_bytes), BUFFER_BYTES)


class SeekableStream(io.RawIOBase):
    """Owns the open stream and the position. All streams are of the same version as the first one.

    first: at its beginning. error: the last RemoteError raised by a read; the code that reads may catch it and raise
    another.
    """

    def __init__(self, remote: Remote, first: RemoteStream, on_bytes: Callable[[], object]) -> None:
        self.error: GrowfsError | None = None
        self.name = first.file.path
        self._remote = remote
        self._on_bytes = on_bytes
        self._buffer_s, self._buffer_bytes = 0.0, 0  # waited and arrived, of the next BUFFER_BYTES
        self._position = self._stream_position = 0
        self._stream: RemoteStream | None = first
        self.file = first.file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence == os.SEEK_END and self.file.size is None:
            raise io.UnsupportedOperation(f"{self.name}: its end is not known before it is read")
        position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.file.size or 0}[whence]
        if position < 0:
            raise OSError(22, "Invalid argument")
        self._position = position
        return position

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        if not view or (self.file.size is not None and self._position >= self.file.size):
            return 0
        try:
            count = self._read(view)
        except GrowfsError as error:
            self.error = error
            raise
        self._position += count
        self._stream_position = self._position
        return count

    def _read(self, view: memoryview) -> int:
        for attempt in range(BREAKS_MAX):
            began = time.monotonic()
            try:
                count = self._stream_here().readinto(view)
                if not count and self.file.size is not None:
                    raise RemoteBusy(f"{self.name}: cut short at {self._position} of {self.file.size} bytes; try again")
            except RemoteBusy:
                self._close_stream()
                self._buffer_s += time.monotonic() - began
                if attempt == BREAKS_MAX - 1 or self._buffer_s >= BREAKING_S_MAX:
                    raise
            else:
                self._note_arrival(count, time.monotonic() - began)
                return count
        raise AssertionError

    def _note_arrival(self, count: int, seconds: float) -> None:
        self._buffer_s += seconds
        self._buffer_bytes += count
        if self._buffer_bytes >= BUFFER_BYTES:
            self._buffer_s, self._buffer_bytes = 0.0, 0
        self._on_bytes()

    def _stream_here(self) -> RemoteStream:
        """A stream at the current position."""
        distance = self._position - self._stream_position
        # A short distance ahead is read and discarded. A longer one takes a new request.
        if self._stream and not 0 <= distance <= 1 << 20:
            self._close_stream()
        if self._stream is None:
            self._stream, self._stream_position = self._remote.open(self.file, self._position), self._position
            if self._stream.file.size != self.file.size:
                raise RemoteChanged(f"{self.name}: is no longer the version that was opened; list again")
            return self._stream
        while distance := self._position - self._stream_position:
            count = self._stream.readinto(memoryview(bytearray(distance)))
            if not count:
                position, size = self._stream_position, self.file.size
                raise RemoteBusy(f"{self.name}: cut short at {position} of {size} bytes; try again")
            self._stream_position += count
        return self._stream

    def _close_stream(self) -> None:
        if stream := self._stream:
            self._stream = None
            with suppress(Exception):  # it is no longer useful
                stream.close()

    def close(self) -> None:
        self._close_stream()
        super().close()
