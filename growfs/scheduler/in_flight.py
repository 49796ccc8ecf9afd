"""The files that are being downloaded: how they wait for room (`Claim`), their states, and the table of all.

A pass, readers and an update may all request a file at once. `InFlightTable` holds it once.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from growfs import disk
from growfs.cache.catalog import Catalog, Node
from growfs.cache.database import Database
from growfs.cache.publish import StagedFile
from growfs.cache.room import Reservation
from growfs.cache.schema import Query
from growfs.errors import DiskFull, GrowfsError
from growfs.remote.groups import Grouping, grouping

ATTEMPTS_MAX = 3
"""Workers that may die over one file before the file counts as failed."""
TRIES_MAX = 3
"""How often the remote may be too busy for a file, while serving others, before the file counts as failed."""


class Priority(enum.Enum):
    """For whom a file is fetched. Decides which files may be evicted for it, and which it overtakes."""

    READER = "reader"
    """A reader waits for it: it comes first, and may evict all files except open, pinned and last ones."""
    DUE = "due"
    """A new version, or a frozen file: it may evict the same, except files that a reader holds."""
    DRAW = "draw"
    """A file of the pass: it may only evict delisted files that no reader holds."""


class DownloadState(enum.IntEnum):  # hashed in C; each file takes ten lookups
    """The progress of a download."""

    QUEUED = enum.auto()
    FETCHING = enum.auto()
    FETCHED = enum.auto()
    ADMITTED = enum.auto()
    FAILED = enum.auto()


MOVES = {
    DownloadState.QUEUED: {DownloadState.FETCHING, DownloadState.FAILED},
    DownloadState.FETCHING: {DownloadState.FETCHED, DownloadState.QUEUED, DownloadState.FAILED},
    DownloadState.FETCHED: {DownloadState.ADMITTED, DownloadState.QUEUED, DownloadState.FAILED},
    DownloadState.ADMITTED: set(),
    DownloadState.FAILED: set(),
}


class Place(enum.Enum):
    """The place of a group of downloads on its way to admission."""

    OUTSIDE = "outside"
    """It is admitted once it is fetched."""
    WINDOW = "window"
    """It was drawn, and is admitted after all groups drawn before it."""
    NEXT = "next"
    """It is fetched, and is admitted next."""
    TAKEN = "taken"
    """It is being admitted."""


@dataclass(eq=False, slots=True)
class DownloadGroup:
    """Downloads that are admitted together: a single file, or the files of a group."""

    is_drawn: bool = False
    """Whether a pass has drawn it."""
    ids: tuple[int, ...] = ()
    """The ids of all its files, in flight or already cached; empty for a single file."""
    place: Place = Place.OUTSIDE
    """Its place; AdmissionQueue changes it."""
    passed_at: float | None = None
    """When a group drawn after it was first found to be fetched earlier, in trio's time."""
    awaited_until: float = -math.inf
    """When the last reader that waits for one of its files gives up, in trio's time."""
    error: GrowfsError | None = None
    """The reason why it cannot be admitted: the first of its downloads that failed."""
    downloads: list[Download] = field(default_factory=list)
    fetched: int = 0
    """How many of them are FETCHED."""

    def prioritize(self) -> None:
        """Note that a reader waits for its files."""
        for download in self.downloads:
            download.priority = Priority.READER
            if download.claim:
                download.claim.priority = Priority.READER

    @property
    def is_fetched(self) -> bool:
        """Whether all downloads are fetched, and none is admitted yet."""
        return self.fetched == len(self.downloads)


@dataclass(eq=False, slots=True)
class Claim:
    """Files that get their room together."""

    nodes: Sequence[Node]
    path: str
    """The path of the first file, for messages."""
    priority: Priority
    is_wanted: Callable[[], bool]
    """Whether the files are still to be fetched. May raise Unreadable."""
    is_draw: bool = False
    """Whether they are drawn: --remote-budget and `pause_draws` hold them back."""
    renews: bool = False
    """Whether they are new versions of cached files."""
    group: DownloadGroup | None = None
    """The group in flight that they belong to, if any: they wait for room as long as its readers do."""
    patience_s: float = math.inf
    """The minimum time that it waits before it gives up."""
    least: int = 0
    """The fewest bytes worth a try at the last look, rounded up to blocks: fewer than all if sizes are guesses."""
    waits_since: float | None = None
    """When it first found no room, in trio's time."""

    @property
    def waits_until(self) -> float:
        """When it gives up, in trio's time."""
        if self.waits_since is None:
            return math.inf
        return max(self.waits_since + self.patience_s, self.group.awaited_until if self.group else -math.inf)


@dataclass(eq=False, slots=True)
class Download:
    """One file in flight."""

    node: Node
    path: str
    target: str
    """The path that a worker writes it to."""
    group: DownloadGroup
    priority: Priority
    renews: bool = False
    """Whether the node is a newer version of the resident file with the same id."""
    claim: Claim | None = None
    """What it waits for room with; None if it has room, or has not begun to wait."""
    reserved: Reservation | None = None
    """The room that it has; None while it waits for room."""
    size_max: int = 0
    """In bytes. A worker gives up if the file turns out to be larger."""
    disk_full: DiskFull | None = None
    """The latest error from a full disk."""
    state: DownloadState = DownloadState.QUEUED
    number: int = field(default_factory=itertools.count().__next__)
    """The order in which downloads were started."""
    sent_at: float = -math.inf
    """When a worker got it, in trio's time."""
    attempts_left: int = ATTEMPTS_MAX
    tries_left: int = TRIES_MAX
    staged: StagedFile | None = None
    """The file that the worker wrote, once it is fetched."""
    error: GrowfsError | None = None
    finished: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.group.downloads.append(self)

    @property
    def urgent(self) -> bool:
        """Whether a reader waits for it."""
        return self.priority is Priority.READER

    @property
    def lacks_room(self) -> bool:
        """Whether no worker can get it yet, because nothing is reserved for it."""
        return self.reserved is None and self.state is DownloadState.QUEUED

    def discard(self) -> None:
        """Give back the room that it has, and delete its fetched data."""
        if self.reserved:
            self.reserved.release()
            self.reserved = None
        if self.staged:
            with contextlib.suppress(OSError):
                disk.unlink("DRAFT_FAILED", self.staged.file)
            self.staged = None

    def start_over(self) -> None:
        """Queue it again, without its room."""
        self.discard()
        self.move(DownloadState.QUEUED)

    def move(self, state: DownloadState) -> None:
        """Change state; a transition that is not in MOVES is a bug."""
        if state not in MOVES[self.state]:
            raise AssertionError(f"{self.path}: {self.state.name} to {state.name}")
        self.group.fetched += (state is DownloadState.FETCHED) - (self.state is DownloadState.FETCHED)
        self.state = state


class InFlightTable:
    """Owns the downloads in flight, by node id: each file at most once.

    group: the value of --group; None if every file is alone. staging: the folder that workers write to.
    """

    def __init__(self, database: Database, catalog: Catalog, group: str | None, staging: Path) -> None:
        self._db = database
        self._catalog = catalog
        self.group = group
        self._staging = staging
        self._downloads: dict[int, Download] = {}

    def __len__(self) -> int:
        return len(self._downloads)

    def get(self, id: int) -> Download | None:
        """The file's download, if it is in flight."""
        return self._downloads.get(id)

    def is_known(self, id: int) -> bool:
        """Whether the catalog has a file."""
        return self._catalog.node(id) is not None

    def without_room(self) -> list[Download]:
        """The downloads for which nothing is reserved yet."""
        return [download for download in self._downloads.values() if download.lacks_room]

    def stranded(self) -> list[Download]:
        """When the fetcher begins to run: the downloads whose task or worker an error has ended halfway, among others
        that are to be admitted.
        """
        return [download for download in self._downloads.values() if download.state is not DownloadState.QUEUED]

    def waiting(self) -> list[Download]:
        """The downloads that have no worker and no reader waiting, and are not being admitted."""
        return [
            download
            for download in self._downloads.values()
            if download.state in (DownloadState.QUEUED, DownloadState.FETCHED)
            and not (download.urgent or download.group.place is Place.TAKEN)
        ]

    def written_bytes(self) -> int:
        """Bytes that the files in flight take on the disk so far."""
        written = 0
        for download in self._downloads.values():
            with contextlib.suppress(OSError):
                written += disk.allocated(os.stat(download.target))
        return written

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being fetched: all downloads in flight wait for room."""
        return all(download.lacks_room for download in self._downloads.values())

    @property
    def has_drawn(self) -> bool:
        """Whether anything in flight was drawn."""
        return any(download.group.is_drawn for download in self._downloads.values())

    def start(
        self, nodes: Iterable[Node], group: DownloadGroup, priority: Priority, renews: bool = False
    ) -> list[Download]:
        """Put files in flight together. Raises Unreadable; then none of them is."""
        downloads = {
            node.id: Download(node, self._catalog.path(node), f"{self._staging}/{node.id}", group, priority, renews)
            for node in nodes
        }
        self._downloads.update(downloads)
        return list(downloads.values())

    async def start_miss(self, node: Node, size_max: int) -> list[Download]:
        """Put a file in flight that a reader waits for, and those of its group that are neither cached nor in flight.

        size_max: the most bytes that a file may have.
        """
        members = await self.members(node, size_max)
        ids = tuple(member.id for member in members) if len(members) > 1 else ()
        current = [self._catalog.node(member.id) for member in members]
        missing = [node for node in current if node and node.seq is None and node.id not in self._downloads]
        return self.start(missing, DownloadGroup(ids=ids), Priority.READER)

    async def members(self, node: Node, bytes_max: int) -> list[Node]:
        """The files of a file's group, including itself; the file alone if the group needs more than bytes_max.

        Searches on a thread: they may be in any of a million directories.
        """
        if self.group is None:
            return [node]
        return await self._db.query_in_thread(partial(_members, grouping(self.group), node, bytes_max))

    def finish(self, download: Download) -> None:
        """Remove a download that was admitted or failed, and wake the tasks waiting for it."""
        del self._downloads[download.node.id]
        download.finished.set()


def _members(group: Grouping, node: Node, bytes_max: int, ask: Query) -> list[Node]:
    path_of = Catalog.paths_by(ask)
    path = path_of(node)
    key = group.key(path)
    members = [file for file in Catalog.files_in(ask, group.surroundings(path)) if group.key(path_of(file)) == key]
    fits = sum(disk.allocation(member.size or 0) for member in members) <= bytes_max
    return members if fits else [node]
