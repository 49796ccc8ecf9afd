"""What a remote is: the interface that every place files come from is reached by.

The comments here are the contract; `tests/remote/test_contract.py` holds each remote to it.
Everything here is blocking and is called in worker processes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from growfs.remote.digest import Digest
from growfs.remote.functions import Function

Progress = Callable[[int], None]
"""Called with the number of bytes that were added to the target since the last call. What it raises ends the fetch."""


@dataclass(frozen=True, slots=True)
class Producer:
    """The user's own function, which makes a local file: of a remote one, or (by itself) of a number.

    rename: a template of the local names. timeout_s: for one file; 0 for any. memory_bytes: that its process may take.
    retries: after the first try. seed: where it makes samples of nothing, of numbers from 0 to `count`; count: None for
    no end.
    """

    function: Function
    rename: str | None
    timeout_s: float
    memory_bytes: int
    retries: int
    seed: int | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class RemoteSpec:
    """All that is needed to open a remote, in any process. May hold secrets: never log or print one.

    members: finds the members of an archive, which are the files then. cache: the folder of the cache, which keeps what
    was found.
    """

    url: str
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    endpoint_url: str | None = None
    anon: bool = False
    manifest: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    members: Function | None = None
    cache: Path | None = None
    producer: Producer | None = None

    @property
    def is_endless(self) -> bool:
        """Whether there are always more files than are listed: as many as a listing is asked for."""
        return self.producer is not None and self.producer.seed is not None and self.producer.count is None


class FastPickle:
    """A dataclass with slots of which many travel between processes: as its constructor's arguments it is pickled in a
    fifth of the time.
    """

    __slots__: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), tuple([getattr(self, name) for name in self.__slots__])


@dataclass(frozen=True, slots=True)
class RemoteFile(FastPickle):
    """One file of the remote.

    path: relative to the remote's root, '/' between components, safe to use below a local folder
        (names.py says what that means).
    size: bytes; None where the remote does not tell before the file is read.
    mtime_ns: nanoseconds since the epoch; None where the remote does not tell.
    version: an opaque text that differs whenever the content does (an ETag, else mtime and size);
        empty where the remote gives nothing to go by.
    """

    path: str
    size: int | None
    mtime_ns: int | None
    version: str


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`size` bytes of a file, at least one, from `offset` on."""

    offset: int
    size: int


def ignore_progress(count: int) -> None:
    """A progress callback for callers that need none."""


@dataclass(frozen=True, slots=True)
class FetchTask:
    """What `Remote.fetch` is to do: write `file`, or one range of it, to the local path `target`.

    digest: takes the bytes that pass through this process; where its `bytes` are fewer than the file's, some bytes
        took another way, and the digest is of no use.
    byte_range: only these bytes are written.
    """

    file: RemoteFile
    target: Path
    progress: Progress = ignore_progress
    digest: Digest | None = None
    byte_range: ByteRange | None = None


@dataclass(frozen=True, slots=True)
class Fetched(FastPickle):
    """A file that was written to the local disk. size: bytes. digest: growfs.remote.digest's."""

    file: RemoteFile
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A name that the remote lists and that cannot be a local file; reason is short and countable.

    unread: what is skipped is all that is in it, of names that are not known.
    """

    reason: str
    path: str
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing, in no particular order; a path comes once per listing.

    cursor: opaque; `pages(cursor)` goes on after this page.
    """

    files: list[RemoteFile]
    skipped: list[Skipped]
    cursor: Any


class RemoteStream(Protocol):
    """What follows a place in a file of a remote, read in order. file: as the remote has it, its size known."""

    file: RemoteFile

    def readinto(self, buffer: memoryview) -> int:
        """Read on, as many bytes as come at once; 0 at the end. Raises as `Remote.fetch` does."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Remote(Protocol):
    """Any place that files come from. All methods raise a RemoteError, never the client library's own."""

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        """List every file below the root, a bounded page at a time, as the remote hands them out.

        A root that does not exist raises RemoteMissing; an empty one yields no files.
        """
        ...

    def stat(self, path: str, version: str = "") -> RemoteFile:
        """The file as the remote has it now. version: of what was listed by that path, where that is known."""
        ...

    def fetch(self, task: FetchTask) -> RemoteFile:
        """Write the file to task.target, which is created or truncated, and return the file that was read.

        The returned RemoteFile describes the whole file, even if only a range of it was written.

        Raises RemoteChanged when the remote's version is not `file.version` (where both are known), before, during or
        after the transfer. After an error, the caller removes the target.
        """
        ...

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        """The content of file from byte `start` on, which is not behind its end, to be read as it is needed.

        Raises RemoteChanged as `fetch` does. `seekable.reading` makes a file of it that can be read from anywhere.
        """
        ...


class Listing:
    """What lists the files of a remote in its own way, and leaves the rest to it."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def stat(self, path: str, version: str = "") -> RemoteFile:
        return self._remote.stat(path, version)

    def fetch(self, task: FetchTask) -> RemoteFile:
        return self._remote.fetch(task)

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        return self._remote.open(file, start)
