"""What the daemon and its workers say to each other, and how: a length and a pickle, over a socket pair.

Both ends are growfs, of one version and one user: a worker is the daemon's child, and nobody else has the socket.
"""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growfs.errors import GrowfsError
from growfs.remote.protocol import FastPickle, Fetched, RemoteFile
from growfs.rotation.draw_order import Pass
from growfs.rotation.turnover import TurnoverInput

REPORT_FILES = 64
"""As soon as a worker has fetched so many, it tells of them."""

length = struct.Struct(">I")
"""Of a message, in bytes: unsigned, 32 bits, most significant byte first."""


class Closed(Exception):
    """The other side is gone."""


def pack(message: Any) -> bytes:
    """A message as bytes for the stream."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return length.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    """The message that follows the length."""
    return pickle.loads(body)


def send(to: socket.socket, message: Any) -> None:
    """Raises OSError when the other side is gone."""
    to.sendall(pack(message))


def receive(source: socket.socket) -> Any:
    """Wait for a message; raises Closed when the other side is gone."""
    (count,) = length.unpack(_exactly(source, length.size))
    return unpack(_exactly(source, count))


def _exactly(source: socket.socket, count: int) -> bytes:
    buffer = bytearray(count)
    view, got = memoryview(buffer), 0
    while got < count:
        received = source.recv_into(view[got:])
        if received == 0:
            raise Closed
        got += received
    return bytes(buffer)


@dataclass(frozen=True, slots=True)
class ListRemote:
    """List the remote, and say what differs from the catalog. Answers: Listed ..., then Done(files listed).

    extent: how many files, of a remote that has no end.
    """

    catalog: Path
    listing: int
    extent: int | None = None


@dataclass(frozen=True, slots=True)
class MakeOrder:
    """Write the ids of the files that a pass has still to draw, as 64-bit integers.

    Answers: AtWork ..., then Done(Made).
    """

    catalog: Path
    asked: Pass
    target: Path


@dataclass(frozen=True, slots=True)
class StillWorking:
    """What takes long goes on."""


@dataclass(frozen=True, slots=True)
class OrderReady:
    """An order in a file: how many ids of frozen files are in it, and then of seeds. files, bytes: of the share."""

    frozen: int
    seeds: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PlanTurnover:
    """Say what generation `number` lists. Answers: Done(Next)."""

    catalog: Path
    number: int
    asked: TurnoverInput


@dataclass(frozen=True, slots=True)
class FetchRequest(FastPickle):
    """A file to be written to target, whole, checked, and with the remote's mtime.

    size_max: bytes; more than that is TooMuch. urgent: a reader waits for it.
    """

    id: int
    file: RemoteFile
    target: Path
    size_max: int
    urgent: bool


@dataclass(frozen=True, slots=True)
class FetchFiles:
    """Fetch these files, beside those that were asked for before. Answers: Came, as things come about.

    hurry: the ids of those of before for which a reader waits by now.
    """

    files: list[FetchRequest]
    hurry: list[int]


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A file that does not come. found: what the remote has in its place; RemoteMissing says that there is nothing."""

    error: GrowfsError
    found: RemoteFile | None = None


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """What a worker that fetches has to tell since the last time: what became of files, by id.

    bytes: written, of files that are through and of those that are not. refusals: how often the store was busy.
    """

    bytes: int
    refusals: int
    files: list[tuple[int, Fetched | FetchFailed]]


@dataclass(frozen=True, slots=True)
class Done:
    """The request's result."""

    result: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """Why there is no result."""

    error: GrowfsError


class SizeExceeded(GrowfsError):
    """A file of unknown size is larger than the room that was reserved for it."""
