"""The messages between the daemon and its workers, and their framing: a length and a pickle, over a socket pair.

Both ends run the same version of growfs as the same user: a worker is the daemon's child, and nobody else has the
socket. So unpickling is safe here.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from growfs.errors import GrowfsError, RemoteError
from growfs.remote.interface import Fetched, RemoteFile

if TYPE_CHECKING:  # they are imported where they are unpickled: a worker that lists does without
    from growfs.rotation.circle import Position
    from growfs.rotation.pass_order import Pass
    from growfs.rotation.rules import TurnoverInput

REPORT_FILES = 64
"""A worker reports as soon as it has this many files to report."""

LENGTH = struct.Struct(">I")
"""The length of a message in bytes: unsigned, 32 bits, big-endian."""


def pack(message: Any) -> bytes:
    """The bytes of a message, with its length in front."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    """The message, from the bytes after the length."""
    return pickle.loads(body)


def send(connection: socket.socket, message: Any) -> None:
    """Raises OSError if the other end is closed."""
    connection.sendall(pack(message))


def receive(connection: socket.socket) -> Any:
    """Wait for a message. Raises EOFError or OSError if the other end is closed."""
    (count,) = LENGTH.unpack(_receive_exactly(connection, LENGTH.size))
    return unpack(_receive_exactly(connection, count))


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    buffer = bytearray(count)
    view, received = memoryview(buffer), 0
    while received < count:
        more = connection.recv_into(view[received:])
        if more == 0:
            raise EOFError
        received += more
    return bytes(buffer)


@dataclass(frozen=True, slots=True)
class ListRemote:
    """List the remote and compare it with the catalog.

    The answers are ListingDiff or ServerSilent ..., then Done(number of files).

    extent: how many files to list, if the remote has no end.
    """

    catalog: Path
    listing: int
    extent: int | None = None


@dataclass(frozen=True, slots=True)
class MakeOrder:
    """Write the ids of the files that a pass has still to draw to target, as 64-bit integers in draw order.

    First the frozen ones, then the seeds, then the rest. The answers are StillWorking ..., then Done(Order), without
    these ids.
    """

    catalog: Path
    pass_: Pass
    target: Path


@dataclass(frozen=True, slots=True)
class StillWorking:
    """A heartbeat during a long request."""


@dataclass(frozen=True, slots=True)
class ServerSilent:
    """From a worker that lists: it has waited for the next page of the listing for so long.

    why: the error of its last try; None if the first one goes on.
    """

    silent_s: float
    why: RemoteError | None = None


@dataclass(frozen=True, slots=True)
class PlanTurnover:
    """Plan what generation `number` lists. The answer is Done(GenerationPlan)."""

    catalog: Path
    number: int
    input: TurnoverInput


@dataclass(frozen=True, slots=True)
class Probe:
    """Find out whether the remote serves one of these files, in order, by a byte of it, which is written to target.

    The answer is Done(None) as soon as the remote has answered, even that a file is gone; else Failed. repeats: whether
    a request is repeated while the remote is busy.
    """

    files: list[RemoteFile]
    target: Path
    repeats: bool


class FetchRequest(NamedTuple):
    """Write a file to target, checked, complete, and with the remote's mtime."""

    id: int
    file: RemoteFile
    target: Path
    size_max: int
    """In bytes; a larger file fails with SizeExceeded."""
    urgent: bool
    """A reader waits for it: it comes before all files that are not urgent."""
    number: int
    """Its place among those that are as urgent."""
    peers: tuple[str, ...] = ()
    """HOST:PORT of the nodes that may have it, which are asked before the remote."""


@dataclass(frozen=True, slots=True)
class FetchFiles:
    """Fetch these files, in addition to those requested before. The answers are FetchProgress messages."""

    files: list[FetchRequest]
    prioritize: list[int]
    """Ids of files requested before that have become urgent."""
    in_background: bool
    """This worker is to have the lowest priority from now on."""
    is_held: bool = False
    """The remote is away: what has begun is to wait, with what has arrived, and only what other nodes may have is to
    begin."""
    gave_up: str = ""
    """Why the store's library is to make all requests from now on; empty: it is not."""


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A file could not be fetched. found: what the remote has in its place. RemoteMissing: the remote has nothing."""

    error: GrowfsError
    found: RemoteFile | None = None


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """What a fetching worker did since its last report."""

    bytes: int
    """That arrived, for finished and unfinished files."""
    throttled: int
    """How many requests the store refused because it wants fewer."""
    files: list[tuple[int, Fetched | FetchFailed]]
    """The files that are finished, by id."""
    cpu_s: float
    """The CPU time of the worker since it started."""
    failure: GrowfsError | None = None
    """Why the last request failed that is repeated."""
    sent_at: float = field(default_factory=time.monotonic)
    """By time.monotonic, which is the same in all processes; the daemon may read the report later."""
    peer_bytes: int = 0
    """That arrived, of files that come from peers."""
    answered: int = 0
    """How many requests of the remote came in full."""
    library_files: int = 0
    """How many files the store's library fetched."""
    gave_up: str = ""
    """Why the library makes all requests of this worker by now; empty: it does not."""


@dataclass(frozen=True, slots=True)
class ServePeers:
    """Serve cached files to other nodes at an address, until the channel is closed. node: the name of this node.

    token: what peers have to send. bytes_per_s: the most that they get together; 0: no limit. Failed where it cannot.
    """

    address: tuple[str, int]
    token: str = field(repr=False)
    bytes_per_s: float
    node: str


@dataclass(frozen=True, slots=True)
class Announce:
    """To the worker that serves peers: where this node is (None before it has begun), and who the nodes are.

    peers: HOST:PORT, or dns://NAME or dns://NAME:PORT, each. The answer is PeersSeen.
    """

    position: Position | None
    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeersSeen:
    """What the worker that serves peers knows of the nodes, by address."""

    own: str | None
    """The address that is this node's."""
    positions: dict[str, Position | None]
    """Where the others are; None for one that has not begun."""
    failed: dict[str, str]
    """Why others do not answer."""
    peers: tuple[str, ...]
    """The addresses of all nodes."""


@dataclass(frozen=True, slots=True)
class OpenCached:
    """From the worker that serves peers: hold the file at this path open. The answer is CachedOpened."""

    request: int
    path: str


@dataclass(frozen=True, slots=True)
class CloseCached:
    """From the worker that serves peers: it has sent the file, or a part of it. bytes: how much."""

    id: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A cached file, which is held open. local: where it is. digest: as growfs.remote.digest makes it."""

    id: int
    local: Path
    file: RemoteFile
    digest: str


@dataclass(frozen=True, slots=True)
class CachedOpened:
    """The answer to OpenCached. cached: None where it is not cached."""

    request: int
    cached: ServedFile | None


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a request."""

    result: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """A request failed with this error."""

    error: GrowfsError


class SizeExceeded(GrowfsError):
    """A file of unknown size is larger than the space that was reserved for it."""
