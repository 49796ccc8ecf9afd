"""What a peer is: something that a training program could read a bucket with. Each is described by one small class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tools.benchmarks.cgroup import Cgroup

BUCKET = "bucket"
"""The one bucket of the server. Its folder `shards` has tar files; the other formats lie beside it (data.py)."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A bucket behind a link. plain: the same files as a folder of the local disk. bucket: its name."""

    endpoint: str
    plain: Path
    shards: int = 0
    bucket: str = BUCKET


@dataclass(frozen=True, slots=True)
class Room:
    """Where a peer works. folder: empty, its own. cache_bytes: what its cache may take. group: counts its daemons."""

    folder: Path
    cache_bytes: int
    group: Cgroup


class Peer(ABC):
    """One way to read a bucket.

    name: in the tables. about: what it is, in a few words. documents: where its flags for reads come from.
    has_cache: whether it has a cache whose size can be limited; without one, the size of the cache does not matter.
    fills_by_itself: whether it downloads without being read. source: the one of trainer.py that reads with it.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    documents: ClassVar[str]
    source: ClassVar[str] = "files"
    has_cache: ClassVar[bool] = True
    fills_by_itself: ClassVar[bool] = False
    note: ClassVar[str] = ""

    @abstractmethod
    def version(self) -> str:
        """The version that runs here."""

    @abstractmethod
    def flags(self) -> str:
        """The flags or parameters that it runs with, those that every run has."""

    @abstractmethod
    def unavailable(self) -> str | None:
        """Why it cannot run on this machine, or None where it can."""

    @abstractmethod
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> AbstractContextManager[dict[str, Any]]:
        """Start it, and stop it at the block's end. Yields what trainer.py needs to know: `folder`, where it mounts."""
