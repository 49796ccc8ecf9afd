"""The interface of a remote: any place that files come from.

The docstrings of `Remote` are the contract, and tests/remote/test_contract.py tests every remote against it. All calls
block, so they are made only in worker processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from growfs.paths import StrPath
from growfs.remote.digest import Digest
from growfs.remote.rate_limits import SharedLimits
from growfs.remote.retries import Tries
from growfs.remote.user_functions import Function

Progress = Callable[[int], None]
"""A progress callback. It gets the number of bytes that have arrived since its last call; an error that it raises ends
the fetch."""


START_S_MAX = 120.0
"""A maker's process may take this long to start: imports of the user's module may take long on a busy machine."""


class Traits(NamedTuple):
    """What the rest of growfs has to know of the files of a remote. The defaults: they are as a store has them."""

    is_computed: bool = False
    """Each worker computes one file at a time, as a whole. Its size may be another each time."""
    has_store: bool = True
    """Whether it reads a store."""
    is_endless: bool = False
    """Whether it has no last file: a listing returns as many files as requested."""
    keeps_names: bool = True
    """Whether files have the same names as in the store."""


@dataclass(frozen=True, slots=True)
class RemoteSpec:
    """The parameters for opening a remote, in any process. It may hold secrets: never log or print one."""

    url: str
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    endpoint_url: str | None = None
    anon: bool = False
    client: str = "auto"
    """The client to read the store with: `auto`, `growfs` or `library`."""
    layers: tuple[Layer, ...] = ()
    """What changes the files of the store, from the store on."""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    cache: Path | None = None
    """The cache folder, where a layer may keep what it has read."""
    maker: Maker | None = None
    """Makes the files, if they are not those of the store."""
    traits: Traits = Traits()
    """Those of the files that it lists."""
    extent: int | None = None
    """How many files to list, if the remote is endless."""
    identity: tuple[object, ...] = ()
    """What distinguishes remotes at the same URL. It is a part of the names of caches, so it never changes."""


class RemoteFile(NamedTuple):
    """One file of the remote."""

    path: str
    """Relative to the remote's root, '/' between components, safe to use below a local folder (see names.py)."""
    size: int | None
    """In bytes; None if the remote only reports it when the file is read."""
    mtime_ns: int | None
    """Nanoseconds since the epoch; None if the remote does not give it."""
    version: str
    """An opaque text that differs whenever the content does (an ETag, otherwise mtime and size); empty if the remote
    provides none of these."""


class ByteRange(NamedTuple):
    """`size` bytes of a file, at least one, from `offset` on."""

    offset: int
    size: int


def ignore_progress(count: int) -> None:
    """A progress callback for callers that need none."""


class FetchTask(NamedTuple):
    """A task for `Remote.fetch`: write `file`, or one range of it, to the local path `target`."""

    file: RemoteFile
    target: StrPath
    progress: Progress = ignore_progress
    digest: Digest | None = None
    """Gets the bytes that pass through this process. If its `bytes` are fewer than the file's, some bytes took another
    path, and the digest is useless."""
    byte_range: ByteRange | None = None
    """Write only these bytes."""
    restart: Callable[[], None] = lambda: None
    """Called before the transfer begins and whenever it starts over: bytes written until then do not count."""
    tries: Tries | None = None
    """Decides whether a failed request is repeated; without it, none is."""


class Fetched(NamedTuple):
    """A file that was written to the local disk."""

    size: int
    """In bytes."""
    mtime_ns: int | None
    """The time of the last modification, if the remote tells."""
    digest: str
    """In the form of growfs.remote.digest."""
    from_other: bool = False
    """Whether it came from the other source, without asking the remote."""


class Skipped(NamedTuple):
    """A name in the listing that cannot be a local file.

    reason: from a small set, so that names can be counted by it. unread: the path is a container that could not be
    read, so the names of its files are unknown.
    """

    reason: str
    path: str
    unread: bool = False


class Page(NamedTuple):
    """A part of a listing, in no particular order. A path appears once per listing.

    cursor: opaque; `pages(cursor)` continues after this page.
    """

    files: list[RemoteFile]
    skipped: list[Skipped]
    cursor: Any


class RemoteStream(Protocol):
    """The content of a remote file from some offset on, read in order. file: as on the remote, with its size."""

    file: RemoteFile

    def readinto(self, buffer: memoryview) -> int:
        """Read the next bytes and return their number, at least one; 0 at the end. Raises like `Remote.fetch`."""
        ...

    def close(self) -> None:
        """Release the underlying connection or file."""
        ...


class Remote(Protocol):
    """Any place that files come from. All methods raise a RemoteError, never an error of a client library."""

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        """List every file below the root, one bounded page at a time, as returned by the remote.

        A root that does not exist raises RemoteMissing; an empty one yields no files.
        """
        ...

    def stat(self, path: str, version: str = "") -> RemoteFile:
        """The file's current state on the remote. version: the listed one, if known."""
        ...

    def still_has(self, file: RemoteFile) -> bool:
        """Whether the remote has a file, in any version, that its listing no longer has. The store is asked by name.

        False if the store refuses to say: some refuse access to every name that does not exist.
        """
        ...

    def fetch(self, task: FetchTask) -> RemoteFile:
        """Write the file to task.target, which is created or truncated, and return the file that was read.

        The returned RemoteFile describes the whole file, even if only a range of it was written.

        Raises RemoteChanged if the remote's version is not `file.version` (if both are known), before, during or after
        the transfer. After an error, the caller removes the target.
        """
        ...

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        """The content of file from byte `start` on, which is at most its size.

        Raises RemoteChanged like `fetch`. `growfs.remote.file.open_seekable` turns it into a seekable file.
        """
        ...


class Maker(Protocol):
    """Makes the files of a mount, from those of a store or from nothing. Every process that opens a remote has one."""

    @property
    def function(self) -> Function:
        """The user's function that it calls."""
        ...

    def open(self, open_source: Callable[[], Remote], spec: RemoteSpec, limits: SharedLimits | None) -> Remote:
        """The remote that has the made files. open_source: opens the one with their sources."""
        ...

    def check(self, spec: RemoteSpec) -> bool:
        """Whether the kernel confines the writes of the function. Raises UsageError if it cannot be imported."""
        ...


class Layer(ABC):
    """Changes which files a remote lists. It is sent to the workers, so its module imports what it needs only there."""

    @abstractmethod
    def open(self, open_source: Callable[[RemoteSpec], Remote], spec: RemoteSpec) -> Remote:
        """The remote at spec, as it changes it. open_source: opens the one that it changes, at the same or another URL.

        Raises as `growfs.remote.open_remote`.
        """

    def check(self) -> None:  # noqa: B027 - most need none
        """Raise UsageError if a worker could not open it."""

    def container(self, version: str) -> str:
        """The path of the container that a file is in, by the version of the file; empty if it is in none."""
        return ""


class OtherFetcher(Protocol):
    """What a worker fetches files with from another source."""

    def fetch(self, task: FetchTask, hosts: Sequence[str]) -> RemoteFile | None:
        """Write the file to task.target from the first of these hosts that has it; None if none has.

        In that case, task.progress may have been called, and task.digest has bytes that do not count. Raises OSError of
        the local disk, and errors of task.progress.
        """
        ...


OpenOther = Callable[[Any], OtherFetcher]
"""Creates that of a worker, given its TransferThreads. It is sent to the workers."""


class OtherSource:
    """Where files come from besides the remote, such as other nodes. This one has none."""

    open: OpenOther | None = None

    def hosts(self, path: str) -> tuple[str, ...]:
        """Who may have a file, the most likely first."""
        return ()

    def awaits(self, ids: Iterable[int]) -> bool:
        """Whether a draw has to wait before it evicts these files, because others may still fetch one of them here."""
        return False

    async def locate(self) -> float | None:
        """The place at which the passes of this node begin, once that is decided (see Pass); None if that is the same
        everywhere.
        """
        return None

    async def find_owned(self) -> Callable[[str], bool] | None:
        """What decides whether this node fetches a file for the others, by its path; None if it fetches all. A worker
        may call it.
        """
        return None


NO_OTHER = OtherSource()


class RemoteWrapper:
    """A base for remotes that list files in their own way, and leave everything else to another remote."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def stat(self, path: str, version: str = "") -> RemoteFile:
        return self._remote.stat(path, version)

    def still_has(self, file: RemoteFile) -> bool:
        return self._remote.still_has(file)

    def fetch(self, task: FetchTask) -> RemoteFile:
        return self._remote.fetch(task)

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        return self._remote.open(file, start)
