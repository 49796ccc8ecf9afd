"""The messages between the daemon and the worker that serves its peers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from growfs.remote.interface import RemoteFile
from growfs.rotation.circle import Position


class Token(str):
    """A secret that all nodes send. Messages with it may be logged."""

    def __repr__(self) -> str:
        return "Token(...)"


class Announce(NamedTuple):
    """To the worker that serves peers: this node's position (None before it has begun), and the nodes' addresses.

    peers: each is HOST:PORT, dns://NAME or dns://NAME:PORT. The answer is PeersSeen.
    """

    position: Position | None
    peers: tuple[str, ...]


class PeersSeen(NamedTuple):
    """The nodes known to the worker that serves peers, by address."""

    own: str | None
    """The address of this node."""
    positions: dict[str, Position | None]
    """The positions of the other nodes; None for one that has not begun."""
    failed: dict[str, str]
    """Why other nodes do not answer."""
    peers: tuple[str, ...]
    """The addresses of all nodes."""


class OpenCached(NamedTuple):
    """From the worker that serves peers: hold the file at this path open. The answer is CachedOpened."""

    request: int
    path: str


class CloseCached(NamedTuple):
    """From the worker that serves peers: it has sent the file, or a part of it. bytes: number sent."""

    id: int
    bytes: int


class ServedFile(NamedTuple):
    """A cached file that is held open. local: its path. digest: in the form of growfs.remote.digest."""

    id: int
    local: Path
    file: RemoteFile
    digest: str


class CachedOpened(NamedTuple):
    """The answer to OpenCached. cached: None if the file is not cached."""

    request: int
    cached: ServedFile | None
