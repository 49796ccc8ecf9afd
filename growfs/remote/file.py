"""`reading`: a file of a remote as Python's files are, to be read from anywhere in it.

Read in order it is one request. A short way forward is read over, any other place is asked for anew; a connection that
breaks goes on at the same place.
"""

from __future__ import annotations

import io
import os
from contextlib import suppress

from growfs.errors import GrowfsError, RemoteBusy, RemoteChanged
from growfs.remote.protocol import Remote, RemoteFile, RemoteStream

BUFFER_BYTES = 1 << 17  # as for producers.compressed.COPY_BYTES: so much is read in one go, and nothing is copied twice
SKIP_BYTES_MAX = 1 << 20
"""Read over rather than asked for anew."""
BREAKS_MAX = 5
"""Connections in a row that may break before a byte came."""


def open_seekable(remote: Remote, file: RemoteFile) -> io.BufferedReader[SeekableStream]:
    """Open a file of remote. Raises a RemoteError, also from what is read later."""
    return io.BufferedReader(SeekableStream(remote, file), BUFFER_BYTES)


class SeekableStream(io.RawIOBase):
    """Owns the request under way and the place in the file. Every answer is of the version of the first one."""

    def __init__(self, remote: Remote, file: RemoteFile) -> None:
        self.error: GrowfsError | None = None
        self.name = file.path
        self._remote = remote
        self._at = self._opened_at = 0
        self._opened: RemoteStream | None = remote.open(file)
        self.file = self._opened.file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence == os.SEEK_END and self.file.size is None:
            raise io.UnsupportedOperation(f"{self.name}: where it ends is not known before it is read")
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.file.size or 0}[whence]
        if at < 0:
            raise OSError(22, "Invalid argument")
        self._at = at
        return at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        if not view or (self.file.size is not None and self._at >= self.file.size):
            return 0
        try:
            count = self._read(view)
        except GrowfsError as error:
            self.error = error  # the one who reads may catch it, and tell another
            raise
        self._at += count
        self._opened_at = self._at
        return count

    def _read(self, view: memoryview) -> int:
        for last in range(BREAKS_MAX):
            try:
                count = self._here().readinto(view)
                if not count and self.file.size is not None:
                    raise RemoteBusy(f"{self.name}: cut short at {self._at} of {self.file.size} bytes; try again")
                return count
            except RemoteBusy:
                self._drop()
                if last == BREAKS_MAX - 1:
                    raise
        raise AssertionError

    def _here(self) -> RemoteStream:
        """What is open, at the place to read from."""
        way = self._at - self._opened_at
        if self._opened and not 0 <= way <= SKIP_BYTES_MAX:
            self._drop()
        if self._opened is None:
            self._opened, self._opened_at = self._remote.open(self.file, self._at), self._at
            if self._opened.file.size != self.file.size:
                raise RemoteChanged(f"{self.name}: is no longer the version that was opened; list again")
            return self._opened
        while way := self._at - self._opened_at:
            count = self._opened.readinto(memoryview(bytearray(way)))
            if not count:
                raise RemoteBusy(f"{self.name}: cut short at {self._opened_at} of {self.file.size} bytes; try again")
            self._opened_at += count
        return self._opened

    def _drop(self) -> None:
        if opened := self._opened:
            self._opened = None
            with suppress(Exception):  # it is of no more use
                opened.close()

    def close(self) -> None:
        self._drop()
        super().close()
