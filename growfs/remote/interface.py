"""The interface of a remote: any place that files come from.

The docstrings of `Remote` are the contract, and tests/remote/test_contract.py holds every remote to it. All calls
block, so they are made in worker processes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from growfs.remote.digest import Digest
from growfs.remote.retries import Tries
from growfs.remote.user_functions import Function

Progress = Callable[[int], None]
"""A progress callback. It gets the number of bytes that arrived since its last call; an error that it raises ends the
fetch."""


@dataclass(frozen=True, slots=True)
class Producer:
    """The user's function that makes local files: each from a remote file, or from a number alone."""

    function: Function
    rename: str | None
    """A template for the local names."""
    timeout_s: float
    """For one file; 0 for no limit."""
    memory_bytes: int
    """What the function's process may use."""
    retries: int
    """After the first try."""
    seed: int | None = None
    """Given if files are made from numbers, 0 to `count` - 1."""
    count: int | None = None
    """None if there is no end."""


@dataclass(frozen=True, slots=True)
class RemoteSpec:
    """All that is needed to open a remote, in any process. It may hold secrets: never log or print one."""

    url: str
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    endpoint_url: str | None = None
    anon: bool = False
    client: str = "auto"
    """Which client is to read the store: `auto`, `growfs` or `library`."""
    manifest: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    members: Function | None = None
    """Finds the members of an archive, if members are to be the files."""
    cache: Path | None = None
    """The cache folder, which keeps the indexes of archives."""
    producer: Producer | None = None
    peer_token: str | None = field(default=None, repr=False)
    """What other nodes demand, if files come from them too."""

    @property
    def is_endless(self) -> bool:
        """Whether the remote has no last file: a listing returns as many files as it is asked for."""
        return self.producer is not None and self.producer.seed is not None and self.producer.count is None


class RemoteFile(NamedTuple):
    """One file of the remote."""

    path: str
    """Relative to the remote's root, '/' between components, safe to use below a local folder (see names.py)."""
    size: int | None
    """In bytes; None if the remote gives it only when the file is read."""
    mtime_ns: int | None
    """Nanoseconds since the epoch; None if the remote does not give it."""
    version: str
    """An opaque text that differs whenever the content does (an ETag, else mtime and size); empty if the remote gives
    nothing of the kind."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`size` bytes of a file, at least one, from `offset` on."""

    offset: int
    size: int


def ignore_progress(count: int) -> None:
    """A progress callback for callers that need none."""


@dataclass(frozen=True, slots=True)
class FetchTask:
    """What `Remote.fetch` is to do: write `file`, or one range of it, to the local path `target`."""

    file: RemoteFile
    target: Path
    progress: Progress = ignore_progress
    digest: Digest | None = None
    """Takes the bytes that pass through this process. If its `bytes` are fewer than the file's, some bytes took another
    way, and the digest is of no use."""
    byte_range: ByteRange | None = None
    """Write only these bytes."""
    restart: Callable[[], None] = lambda: None
    """Called before the transfer begins, and begins anew: what was written until then does not count."""
    tries: Tries | None = None
    """Says whether a request of it is repeated; without it none is."""


class Fetched(NamedTuple):
    """A file that was written to the local disk."""

    file: RemoteFile
    size: int
    """In bytes."""
    digest: str
    """As growfs.remote.digest makes it."""
    from_peer: bool = False
    """Another node sent it, and the remote was not asked."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A name in the listing that cannot be a local file.

    reason: one of few, so that names can be counted by it. unread: the path is a container that could not be read, so
    the names of the files in it are not known.
    """

    reason: str
    path: str
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing, in no particular order. A path comes once per listing.

    cursor: opaque; `pages(cursor)` continues after this page.
    """

    files: list[RemoteFile]
    skipped: list[Skipped]
    cursor: Any


class RemoteStream(Protocol):
    """The content of a remote file from some offset on, read in order. file: as the remote has it, with its size."""

    file: RemoteFile

    def readinto(self, buffer: memoryview) -> int:
        """Read the next bytes and return how many, at least one; 0 at the end. Raises as `Remote.fetch` does."""
        ...

    def close(self) -> None:
        """Free the connection or the file behind it."""
        ...


class Remote(Protocol):
    """Any place that files come from. All methods raise a RemoteError, never an error of a client library."""

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        """List every file below the root, one bounded page at a time, as the remote returns them.

        A root that does not exist raises RemoteMissing; an empty one yields no files.
        """
        ...

    def stat(self, path: str, version: str = "") -> RemoteFile:
        """The file as the remote has it now. version: the one that was listed, if it is known."""
        ...

    def fetch(self, task: FetchTask) -> RemoteFile:
        """Write the file to task.target, which is created or truncated, and return the file that was read.

        The returned RemoteFile describes the whole file, even if only a range of it was written.

        Raises RemoteChanged if the remote's version is not `file.version` (where both are known), before, during or
        after the transfer. After an error, the caller removes the target.
        """
        ...

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        """The content of file from byte `start` on, which is at most its size.

        Raises RemoteChanged as `fetch` does. `growfs.remote.file.open_seekable` makes a seekable file of it.
        """
        ...


class RemoteWrapper:
    """A base for remotes that list files in their own way, and leave all else to another remote."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def stat(self, path: str, version: str = "") -> RemoteFile:
        return self._remote.stat(path, version)

    def fetch(self, task: FetchTask) -> RemoteFile:
        return self._remote.fetch(task)

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        return self._remote.open(file, start)
