"""The files that are being downloaded: their needs and states, the table of all, the order of admission.

The difficulties, and their solutions:

1. A pass, readers and an update may all request a file at once. `InFlightTable` holds it once.
2. Workers finish in any order, and the set of cached files must not depend on it. Drawn groups wait in a window, in the
   order drawn (`AdmissionQueue`). A file that a reader waits for leaves the window.
3. A group may be moved for several reasons at the same time: its store is busy, it arrives, a reader opens it while it
   is being admitted. One field says where it is (`DownloadGroup.place`), and a move that does not apply does nothing.
4. The size of a file may be unknown until it is fetched. `SizeEstimate` guesses, and learns.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import math
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from growfs import disk
from growfs.cache.catalog import UNKNOWN_SIZE, Catalog, Node
from growfs.cache.database import Database
from growfs.cache.publish import StagedFile
from growfs.cache.room import Reservation
from growfs.cache.schema import Query
from growfs.cache.store import Store
from growfs.errors import DiskFull, GrowfsError
from growfs.remote.groups import Grouping, grouping
from growfs.scheduler.outage import Failure

ATTEMPTS_MAX = 3
"""Workers that may die over one file before the file counts as failed."""
TRIES_MAX = 3
"""How often the remote may be too busy for a file, while serving others, before the file counts as failed."""
RATE_WINDOW_S = 5.0
RATE_STEP_S = 0.1
"""Bytes that arrive within this time are counted together, so that few counts are kept at any rate."""


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

    @property
    def is_fetched(self) -> bool:
        """Whether all downloads are fetched, and none is admitted yet."""
        return self.fetched == len(self.downloads)


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
    reserved: Reservation | None = None
    """The room that it holds; None while it waits for room."""
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

    def hold(self, reserved: Reservation, need: int | None) -> None:
        """Own a reservation for a file that needs `need` bytes; None: it may use all reserved bytes."""
        self.reserved = reserved
        self.size_max = reserved.bytes if need is None else min(need, reserved.bytes)

    def discard(self) -> None:
        """Give back the room that it holds, and delete its fetched data."""
        if self.reserved:
            self.reserved.release()
            self.reserved = None
        if self.staged:
            with contextlib.suppress(OSError):
                disk.unlink("DRAFT_FAILED", self.staged.file)
            self.staged = None

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
        states = (DownloadState.QUEUED, DownloadState.FETCHED)
        all = self._downloads.values()
        return [it for it in all if it.state in states and not it.urgent and it.group.place is not Place.TAKEN]

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


@dataclass(slots=True)
class Counters:
    """Counts of downloads since the daemon started."""

    files: int = 0
    bytes: int = 0
    """Bytes received from the remote."""
    other_files: int = 0
    """Files that came from the other source instead."""
    other_bytes: int = 0
    """Bytes received from there."""
    failed: int = 0
    failures: dict[int, Failure] = field(default_factory=dict)
    """The latest failure of each file that is not cached, by node id."""
    recent: deque[tuple[float, int]] = field(default_factory=deque)
    """(start time, bytes received) for each step of the last seconds."""

    def add_failure(self, id: int, error: GrowfsError) -> bool:
        """Count a failed file. Returns whether this failure differs from its last one."""
        self.failed += 1
        before = self.failures.pop(id, None)
        self.failures[id] = Failure(error)
        if len(self.failures) > 1000:  # the oldest is forgotten
            del self.failures[next(iter(self.failures))]
        return before is None or str(before.error) != str(error)

    def add_bytes(self, count: int) -> None:
        """Count bytes that the remote has just sent."""
        self.bytes += count
        self._note_recent(count)

    def add_other_bytes(self, count: int) -> None:
        """Count bytes that the other source has just sent."""
        self.other_bytes += count
        self._note_recent(count)

    def _note_recent(self, count: int) -> None:
        now = trio.current_time()
        if self.recent and now - self.recent[-1][0] < RATE_STEP_S:
            since, before = self.recent.pop()
            self.recent.append((since, before + count))
        else:
            self._forget_before(now - RATE_WINDOW_S)
            self.recent.append((now, count))

    def bytes_per_s(self) -> float:
        """The rate over the last few seconds, or since the first bytes came."""
        now = trio.current_time()
        self._forget_before(now - RATE_WINDOW_S)
        recent = sum(count for _, count in self.recent)
        has_just_begun = self.recent and recent == self.bytes + self.other_bytes
        return recent / (max(1.0, now - self.recent[0][0]) if has_just_begun else RATE_WINDOW_S)

    def _forget_before(self, time: float) -> None:
        while self.recent and self.recent[0][0] < time:
            self.recent.popleft()


RETRY_SIZE, RETRY_SHARE = 32 << 20, 32
"""A file that exceeded its estimate reserves at least this many bytes, or this fraction (1/32) of the cache, whichever
is less. Doubling alone, after a first file of 5 kB, fetched a file of 9 MB twelve times."""


class SizeEstimate:
    """Estimates unknown sizes: the largest file so far, plus a quarter.

    An estimate that is too small costs a second fetch; one that is too large makes others wait for space. So if it does
    not fit, less is worth a try, but more than the file is known to exceed. The files of a group share the room.
    varies: a file's size the last time is not binding (the file is computed).
    """

    def __init__(self, store: Store, varies: bool = False) -> None:
        # For a file that is computed, much is reserved: to compute it twice costs more than to make others wait.
        self.bytes = (1 << 30) if varies else UNKNOWN_SIZE
        self._store = store
        self._varies = varies
        self._largest = 0
        self._exceeded: dict[int, int] = {}
        if varies and (largest := store.largest_resident()) is not None:
            self._learn(largest)

    def is_guess(self, node: Node) -> bool:
        """Whether the size of a file is not known."""
        return node.size is None or self._varies

    def need(self, node: Node) -> int:
        """Bytes to reserve for a file."""
        exceeded = self._exceeded.get(node.id)
        estimate = self.bytes if self.is_guess(node) else 0
        retry = max(2 * exceeded, self._retry_size) if exceeded else 0
        size = max(estimate, node.size or 0, retry)
        return min(size, self._store.room.max_file_bytes) if estimate or retry else size

    def most(self, nodes: Sequence[Node]) -> int:
        """Bytes to reserve for files that are fetched together: guesses alone never exceed the cache."""
        return sum(self.divide(nodes, self._store.room.max_file_bytes))

    def least(self, nodes: Sequence[Node]) -> int:
        """The fewest bytes that are worth a try if `most` does not fit."""
        return sum(self.divide(nodes, sum(map(self._known, nodes)) + self._retry_size))

    def divide(self, nodes: Sequence[Node], bytes: int) -> list[int]:
        """Divide bytes among files: each gets its known need, plus an equal part of the rest, up to the guess. The sum
        of the known needs may exceed `bytes`.
        """
        known = list(map(self._known, nodes))
        guesses = sum(map(self.is_guess, nodes))
        if not (guesses or self._exceeded):  # as for most files
            return known
        guesses = guesses or len(nodes)
        part = max(disk.BLOCK, (bytes - sum(known)) // guesses // disk.BLOCK * disk.BLOCK)
        return [min(disk.allocation(self.need(node)), size + part) for node, size in zip(nodes, known, strict=True)]

    def _known(self, node: Node) -> int:
        """Bytes on disk that a file is known to need; some more for one that turned out larger than expected."""
        exceeded = self._exceeded.get(node.id, 0)
        if not (exceeded or self.is_guess(node)):
            return disk.allocation(node.size or 0)
        return disk.allocation(min(max(node.size or 0, 5 * exceeded // 4), self.need(node)))

    def arrived(self, node: Node, size: int) -> None:
        """Note that a file has turned out to have this size."""
        self._exceeded.pop(node.id, None)
        self._learn(size)

    def _learn(self, size: int) -> None:
        self._largest = max(self._largest, size)
        self.bytes = self._largest + self._largest // 4

    def exceeded(self, node: Node, bytes: int) -> None:
        """Note that a file is larger than `bytes`."""
        self._exceeded[node.id] = bytes
        self.bytes = max(self.bytes, 2 * bytes)

    @property
    def _retry_size(self) -> int:
        return min(RETRY_SIZE, self._store.room.max_file_bytes // RETRY_SHARE)


BATCH_MAX = 256
"""Files admitted in one transaction."""
LATE_S = 5.0
"""How long a drawn group that is not fetched holds back later ones, from when one of them is fetched."""


class AdmissionQueue:
    """Owns the order in which fetched files are admitted, whatever the order in which workers finish them.

    A reorder window: drawn groups are admitted in the order drawn, so the result does not depend on the number of
    workers. A group that a reader waits for, or that was not drawn, does not wait in the window.

    Invariant: a group is in `_window` if its place is WINDOW, in `_next` if it is NEXT, and otherwise in neither.
    """

    def __init__(self) -> None:
        self._window: deque[DownloadGroup] = deque()
        self._next: deque[DownloadGroup] = deque()

    def __len__(self) -> int:
        return len(self._window)

    def append(self, group: DownloadGroup) -> None:
        """Admit a drawn group after all groups already in the window."""
        group.place = Place.WINDOW
        self._window.append(group)

    def release(self, group: DownloadGroup) -> None:
        """Let groups drawn after this one stop waiting for it; it is admitted once it is fetched."""
        if group.place is Place.WINDOW:
            self._window.remove(group)
            group.place = Place.OUTSIDE

    def release_late(self, now: float) -> list[DownloadGroup]:
        """Release the groups that others passed LATE_S ago or earlier; returns them."""
        window = list(self._window)
        while window and not window[-1].is_fetched:
            window.pop()
        late = []
        for group in window:
            if not group.is_fetched:
                group.passed_at = group.passed_at or now
                if now > group.passed_at + LATE_S:
                    late.append(group)
                    self.release(group)
        return late

    def give_back(self, group: DownloadGroup) -> None:
        """Note that a group that was taken is not admitted now; it will be once it is fetched again."""
        if group.place is Place.TAKEN:
            group.place = Place.OUTSIDE

    def prioritize(self, group: DownloadGroup) -> None:
        """Admit a group next if it is fetched completely, and a reader waits for it or it is outside the window."""
        if not group.is_fetched:
            return
        if any(download.urgent for download in group.downloads):
            self.release(group)
        if group.place is Place.OUTSIDE:
            group.place = Place.NEXT
            self._next.append(group)

    def next_batch(self) -> list[Download]:
        """The next downloads to admit, in order: prioritized groups, then the head of the window."""
        batch: list[Download] = []
        while self._next and len(batch) < BATCH_MAX:
            self._take(self._next.popleft(), batch)
        while self._window and len(batch) < BATCH_MAX:
            head = self._window[0]
            if not head.is_fetched and any(download.state < DownloadState.ADMITTED for download in head.downloads):
                break
            self._take(self._window.popleft(), batch)
        return batch

    @staticmethod
    def _take(group: DownloadGroup, batch: list[Download]) -> None:
        group.place = Place.TAKEN if group.is_fetched else Place.OUTSIDE  # otherwise it failed meanwhile
        if group.is_fetched:
            batch.extend(group.downloads)
