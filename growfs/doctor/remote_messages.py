"""The messages to and from the process that tries the remote, besides those of `check`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from growfs.errors import GrowfsError
from growfs.remote.interface import RemoteSpec


@dataclass(frozen=True, slots=True)
class RemoteToTry:
    """What to try. folder: an empty one, for the files that are fetched. room: bytes that these may take.

    list_s, download_s: how long to measure. bytes_per_s: the limit on downloads; 0 for none.
    """

    spec: RemoteSpec
    folder: Path
    room: int
    list_s: float
    download_s: float
    bytes_per_s: int


@dataclass(frozen=True, slots=True)
class Phase:
    """What begins now. limit_s: it may take so long, beyond the time in which a server has to answer."""

    name: str
    limit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Busy:
    """A request failed, and is repeated."""

    error: GrowfsError


@dataclass(frozen=True, slots=True)
class Finished:
    """The last message."""
