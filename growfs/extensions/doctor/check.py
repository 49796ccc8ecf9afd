"""`Check`: one line of the doctor; the results of measurements; the messages of the process that tries a remote."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from growfs.errors import GrowfsError
from growfs.remote.groups import Suggestion
from growfs.remote.interface import RemoteSpec

SCRATCH = ".growfs-doctor-"
"""Prefix of the names of folders that exist only for seconds."""
START_S = 30.0
"""Importing a store's library may take this long on a busy machine, and so may the first byte: connections, imports,
or a producer's first file."""


class Level(enum.Enum):
    """The severity. FAILURE: a mount would fail."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Check:
    """A finding, as text. remedy: what to do about it; empty if nothing need be done."""

    level: Level
    name: str
    text: str
    remedy: str = ""

    @classmethod
    def failed(cls, name: str, error: GrowfsError) -> Check:
        """A mount would end with this error. The remedy follows its first semicolon outside of brackets."""
        text, _, remedy = re.sub(r"; (?![^(]*\))", "\0", str(error), count=1).partition("\0")
        return cls(Level.FAILURE, name, text, remedy)


def ok(name: str, text: str) -> Check:
    """A check that found nothing wrong."""
    return Check(Level.OK, name, text)


def warning(name: str, text: str, remedy: str) -> Check:
    """A check that found a problem with which a mount works, though not well."""
    return Check(Level.WARNING, name, text, remedy)


def attempt(name: str, check: Callable[[], object], text: str = "") -> Check:
    """Check something that raises GrowfsError if it is wrong. text: what to report if it is not, unless it returns a
    Check.
    """
    try:
        found = check()
    except GrowfsError as error:
        return Check.failed(name, error)
    return found if isinstance(found, Check) else ok(name, text)


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of the cache. room: bytes available to a cache. write, read: bytes per second; 0 if not measured."""

    room: int
    write: float = 0.0
    read: float = 0.0


@dataclass(frozen=True, slots=True)
class Listing:
    """The result of listing for `s` seconds. whole: whether that was everything. first_s: until the first files.

    files_unsized: those with unknown sizes. bytes: total size of the others.
    """

    files: int
    files_unsized: int
    bytes: int
    smallest: int
    s: float
    first_s: float
    whole: bool
    missing_group: Suggestion | None = None


@dataclass(frozen=True, slots=True)
class MeasuredDownload:
    """The result of fetching for `s` seconds. first_s: until the first file was complete; None if none was.

    processes: how many a mount will use for this. One was measured.
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


# Messages to and from the process that tries the remote, in addition to those above. It also sends the GrowfsError of a
# request that is repeated, and None at the end.


@dataclass(frozen=True, slots=True)
class RemoteToTry:
    """What to try. folder: an empty one, for the fetched files. room: bytes that these may take.

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
    """The phase that begins now. limit_s: how long it may take, in addition to the time that a server has to answer."""

    name: str
    limit_s: float = 0.0
