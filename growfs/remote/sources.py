"""Files of a remote as Python's own binary files, for code that wants to read and seek in one."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, cast

from growfs.remote.fsspec_remote import FsspecRemote

READ_BYTES = 4 << 20
"""Of a request: reading on over a few MB is as fast as a new one where the answer takes 30 ms."""
BUFFER_BYTES = 64 << 10


def open_source(store: FsspecRemote, path: str) -> BinaryIO:
    """The file at path. What reading raises is GrowfsErrors."""
    with store.told(path), store.alone:
        stream = store.open(path, block_size=READ_BYTES, cache_type="readahead")
    return cast(BinaryIO, io.BufferedReader(_Source(store, path, stream), BUFFER_BYTES))


class _Source(io.RawIOBase):
    def __init__(self, store: FsspecRemote, path: str, stream: Any) -> None:
        self._store, self._path, self._stream = store, path, stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._store.told(self._path), self._store.alone:
            return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def readinto(self, buffer: Any) -> int:
        with self._store.told(self._path), self._store.alone:
            data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
