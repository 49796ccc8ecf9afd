"""`Check`: one line of the doctor; what was measured on the way; the messages of the process that tries a remote."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from growfs.errors import GrowfsError
from growfs.remote.interface import RemoteSpec

SCRATCH = ".growfs-doctor-"
"""How the names of folders begin that exist for seconds only."""


class Level(enum.Enum):
    """How bad it is. FAILURE: a mount would fail."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Check:
    """What was found, in words. remedy: what to do about it; empty where nothing need be done."""

    level: Level
    name: str
    text: str
    remedy: str = ""

    @classmethod
    def failed(cls, name: str, error: GrowfsError) -> Check:
        """A mount would end with this error. What to do follows its first semicolon outside of brackets."""
        text, _, remedy = re.sub(r"; (?![^(]*\))", "\0", str(error), count=1).partition("\0")
        return cls(Level.FAILURE, name, text, remedy)


def ok(name: str, text: str) -> Check:
    """A check that found nothing wrong."""
    return Check(Level.OK, name, text)


def warning(name: str, text: str, remedy: str) -> Check:
    """A check that found what a mount can do with, though not well."""
    return Check(Level.WARNING, name, text, remedy)


def attempt(name: str, check: Callable[[], object], text: str) -> Check:
    """A check of something that raises GrowfsError if it is wrong. text: what to say if it is not."""
    try:
        check()
    except GrowfsError as error:
        return Check.failed(name, error)
    return ok(name, text)


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of the cache. room: bytes that a cache may take. write, read: bytes per second; 0: not measured."""

    room: int
    write: float = 0.0
    read: float = 0.0


@dataclass(frozen=True, slots=True)
class Listing:
    """What a listing brought in `s` seconds. whole: that was all. first_s: until the first files.

    files_unsized: of these, the sizes are not known. bytes: of the others.
    """

    files: int
    files_unsized: int
    bytes: int
    smallest: int
    s: float
    first_s: float
    whole: bool


@dataclass(frozen=True, slots=True)
class MeasuredDownload:
    """What was fetched in `s` seconds. first_s: until the first file was complete; None: none was.

    processes: how many a mount will have do this. One was measured.
    """

    files: int
    bytes: int
    s: float
    first_s: float | None
    processes: int = 1

    @property
    def bytes_per_s(self) -> float:
        """The rate to expect of all processes together."""
        return self.processes * self.bytes / self.s if self.s else 0.0


# Messages to and from the process that tries the remote, besides those above. It also sends the GrowfsError of a
# request that is repeated, and None at the end.


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
