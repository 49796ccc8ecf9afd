"""The messages between the daemon and its workers, and their framing: a length and a pickle, over a socket pair.

Both ends run the same version of growfs as the same user: a worker is the daemon's child, and no other process has the
socket. So unpickling is safe here.
"""

from __future__ import annotations

import math
import pickle
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from growfs.errors import GrowfsError, RemoteError
from growfs.remote.client_choice import ClientChoice
from growfs.remote.interface import Fetched, OpenOther, RemoteFile

HEARTBEAT_S = 20.0
"""How often a worker says that it is alive while nothing arrives: it may compute a file, or list, for minutes."""
REPORT_FILES = 64
"""A worker reports as soon as it has this many files to report."""

LENGTH = struct.Struct(">I")
"""The length of a message in bytes: unsigned, 32 bits, big-endian."""


def pack(message: Any) -> bytes:
    """The bytes of a message, with its length in front."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    """The message, from the bytes after the length. Raises ImportError if code that it names cannot be read."""
    try:
        return pickle.loads(body)
    except OSError as error:  # otherwise it would count as one of the cache's disk
        raise ImportError(str(error)) from error


def send(connection: socket.socket, message: Any) -> None:
    """Send a message. Raises OSError if the other end is closed."""
    connection.sendall(pack(message))


def receive(connection: socket.socket) -> Any:
    """Wait for a message. Raises EOFError or OSError if the other end is closed."""
    return unpack(receive_body(connection))


def receive_body(connection: socket.socket) -> bytes:
    """As `receive`, for `unpack`."""
    (count,) = LENGTH.unpack(_receive_exactly(connection, LENGTH.size))
    return _receive_exactly(connection, count)


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    buffer = bytearray(count)
    view, received = memoryview(buffer), 0
    while received < count:
        more = connection.recv_into(view[received:])
        if more == 0:
            raise EOFError
        received += more
    return bytes(buffer)


class ListRemote(NamedTuple):
    """List the remote and compare it with the catalog.

    The answers are ListingDiff or ServerSilent ..., then Done(number of files).

    extent: how many files to list, if the remote is endless.
    """

    catalog: Path
    listing: int
    extent: int | None = None


COMPUTE_S_MAX = 150.0
"""The CPU time of a computation between two heartbeats. The daemon gives up on a silent worker before (pool.STALL_S).
"""


class Compute(NamedTuple):
    """Call a function, and thus compute what takes long from the catalog.

    It gets a function to call along the way. The answers are StillWorking ..., then Done(its result).
    """

    function: Callable[[Callable[[], None]], Any]


Send = Callable[[Any], None]
"""Sends a message to the daemon."""
Receive = Callable[[], Any]
"""Waits for the next message from the daemon."""


class Serve(NamedTuple):
    """Call a function that exchanges messages with the daemon until the channel is closed. The answer is Failed if it
    fails.
    """

    function: Callable[[Send, Receive], None]


@dataclass(frozen=True, slots=True)
class StillWorking:
    """A heartbeat during a long request."""


class ServerSilent(NamedTuple):
    """From a worker that lists: how long it has been waiting for the next page of the listing.

    why: the error of its last attempt; None during the first one.
    """

    silent_s: float
    why: RemoteError | None = None


class Probe(NamedTuple):
    """Find out whether the remote serves one of these files, tried in order, by writing a byte of it to target.

    The answer is Done(None) as soon as the remote has answered, even if only that a file is gone; otherwise Failed.
    repeats: whether a request is repeated while the remote is busy.
    """

    files: list[RemoteFile]
    target: Path
    repeats: bool


class FetchRequest(NamedTuple):
    """Write a file to target: complete, checked, and with the remote's mtime."""

    id: int
    file: RemoteFile
    target: str
    """A string, because a Path takes 6 us to unpickle."""
    size_max: int
    """In bytes; a larger file fails with SizeExceeded."""
    urgent: bool
    """A reader waits for it: it comes before all files that are not urgent."""
    number: int
    """Its place among files of the same urgency."""
    hosts: tuple[str, ...] = ()
    """Who may have it besides the remote, and is asked before it."""


class FetchFiles(NamedTuple):
    """Fetch these files, in addition to those requested before. The answers are FetchProgress messages."""

    files: list[FetchRequest]
    prioritize: list[int]
    """Ids of files requested earlier that have become urgent."""
    in_background: bool
    """Whether this worker is to have a low priority from now on."""
    is_held: bool = False
    """Whether the remote is away: unfinished files have to wait, keeping their data, and only files that other
    hosts may have are begun."""
    gave_up: str = ""
    """Why the store's library is to make all requests from now on; empty if it is not."""
    open_other: OpenOther | None = None
    """The source of files that others may have; None if there is none."""


class FetchFailed(NamedTuple):
    """A file could not be fetched. found: the remote's version instead. RemoteMissing: it has none."""

    error: GrowfsError
    found: RemoteFile | None = None


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """The progress of a fetching worker since its last report."""

    bytes: int
    """Bytes that arrived, for finished and unfinished files."""
    throttled: int
    """How many requests the store refused because it wants fewer."""
    files: list[tuple[int, Fetched | FetchFailed]]
    """The files that are finished, by id."""
    cpu_s: float
    """The CPU time of the worker since it started."""
    failure: GrowfsError | None = None
    """The error of the last request that is being repeated."""
    sent_at: float = field(default_factory=time.monotonic)
    """On the clock time.monotonic, which is the same in all processes; the daemon may read the report later."""
    other_bytes: int = 0
    """Bytes that arrived for files from the other source."""
    answered: int = 0
    """How many requests to the remote were answered in full."""
    library_files: int = 0
    """How many files the store's library fetched."""
    gave_up: str = ""
    """Why the library now makes all requests of this worker; empty if it does not."""
    latency_s: float = math.inf
    """The least time in which the remote has delivered a file."""
    streams: int = 0
    """How many streams are in use at the moment."""
    client: ClientChoice | None = None
    """The client that this worker uses."""


class Done(NamedTuple):
    """The result of a request."""

    result: Any


class Failed(NamedTuple):
    """A request failed with this error."""

    error: GrowfsError


class SizeExceeded(GrowfsError):
    """A file of unknown size is larger than the space that was reserved for it."""
