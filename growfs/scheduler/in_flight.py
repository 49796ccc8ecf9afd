"""The files that are being downloaded: the states of one, the moves between them, and the table of all."""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from growfs import disk
from growfs.cache.catalog import UNKNOWN_SIZE, Catalog, Node
from growfs.cache.database import Database
from growfs.cache.publish import StagedFile
from growfs.cache.schema import Query
from growfs.errors import DiskFull, GrowfsError
from growfs.remote.names import extension
from growfs.rotation.pass_order import group_of
from growfs.scheduler.outage import Failure

ATTEMPTS_MAX = 3
"""Workers that may die over one file before it counts as failed."""
TRIES_MAX = 3
"""How often the remote may be too busy for a file, while it serves others, before the file counts as failed."""
RATE_WINDOW_S = 5.0
RATE_STEP_S = 0.1
"""Bytes that arrive within this time are counted together, so that few counts are kept at any rate."""
FAILURES_MAX = 1000
"""Failures that are remembered, to tell whether they are over."""


class DownloadState(enum.Enum):
    """How far a download is."""

    QUEUED = "queued"
    FETCHING = "fetching"
    FETCHED = "fetched"
    ADMITTED = "admitted"
    FAILED = "failed"


MOVES = {
    DownloadState.QUEUED: {DownloadState.FETCHING, DownloadState.FAILED},
    DownloadState.FETCHING: {DownloadState.FETCHED, DownloadState.QUEUED, DownloadState.FAILED},
    DownloadState.FETCHED: {DownloadState.ADMITTED, DownloadState.QUEUED, DownloadState.FAILED},
    DownloadState.ADMITTED: set(),
    DownloadState.FAILED: set(),
}


@dataclass(eq=False, slots=True)
class DownloadGroup:
    """Downloads that are admitted together: one file, or those of a group. drawn: admitted in the order drawn.

    ids: of all files of the group, in flight or cached already; empty for a single file. on_finished: called with each
    download that was admitted or failed.
    """

    drawn: bool = False
    ids: tuple[int, ...] = ()
    on_finished: Callable[[Download], None] | None = None
    downloads: list[Download] = field(default_factory=list)

    @property
    def is_fetched(self) -> bool:
        """Whether all downloads are fetched, and none is admitted yet."""
        return all(download.state is DownloadState.FETCHED for download in self.downloads)

    @property
    def is_finished(self) -> bool:
        """Whether every download was admitted or failed."""
        return all(download.state in (DownloadState.FAILED, DownloadState.ADMITTED) for download in self.downloads)

    @property
    def error(self) -> GrowfsError | None:
        """Why the group cannot be admitted."""
        return next((download.error for download in self.downloads if download.error), None)


@dataclass(eq=False, slots=True)
class Download:
    """One file in flight.

    target: where a worker writes it. need: bytes to reserve. reserved: bytes of the quota that it holds; None before.
    urgent: a reader waits for it. renews: the node is a newer version of the resident file with the same id.
    no_space_since: since when it waits for space, in trio's time. disk_full, disk_full_since: the error that a full
    disk gave, and since when. staged: what the worker wrote, once it is fetched. number: the order in which downloads
    were started. sent_at: when a worker got it.
    """

    node: Node
    path: str
    target: Path
    need: int
    group: DownloadGroup
    reserved: int | None = None
    urgent: bool = False
    renews: bool = False
    no_space_since: float | None = None
    disk_full: DiskFull | None = None
    disk_full_since: float = 0.0
    state: DownloadState = DownloadState.QUEUED
    number: int = field(default_factory=itertools.count().__next__)
    sent_at: float = 0.0
    attempts_left: int = ATTEMPTS_MAX
    tries_left: int = TRIES_MAX
    staged: StagedFile | None = None
    error: GrowfsError | None = None
    finished: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.group.downloads.append(self)

    def move(self, state: DownloadState) -> None:
        """Change state; a move that is not in MOVES is a bug."""
        if state not in MOVES[self.state]:
            raise AssertionError(f"{self.path}: {self.state} to {state}")
        self.state = state


class InFlightTable:
    """Owns the downloads in flight, by node id: each file at most once.

    staging: the folder that workers write to. sizes: what to reserve for a file.
    """

    def __init__(self, catalog: Catalog, groups: Groups, staging: Path, sizes: SizeEstimate) -> None:
        self.sizes = sizes
        self._catalog = catalog
        self._groups = groups
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

    def start(self, node: Node, group: DownloadGroup, need: int) -> Download:
        """Put a file in flight. need: bytes to reserve."""
        target = self._staging / str(node.id)
        download = self._downloads[node.id] = Download(node, self._catalog.path(node), target, need, group)
        return download

    async def start_miss(self, node: Node, size_max: int) -> list[Download]:
        """Put a file in flight for which a reader waits, with those of its group that are neither cached nor in flight.

        size_max: bytes that any file may have.
        """
        members = await self._groups.members(node, size_max)
        group = DownloadGroup(ids=tuple(member.id for member in members) if len(members) > 1 else ())
        started = []
        for id in [member.id for member in members]:
            member = self._catalog.node(id)  # as it is by now
            if member and member.seq is None and id not in self._downloads:
                download = self.start(member, group, self.sizes.need(member, size_max))
                download.urgent = True
                started.append(download)
        return started

    def finish(self, download: Download) -> None:
        """Remove a download that was admitted or failed, and wake the tasks that wait for it."""
        del self._downloads[download.node.id]
        download.finished.set()
        if download.group.on_finished:
            download.group.on_finished(download)


@dataclass(slots=True)
class Counters:
    """Downloads since the daemon started.

    bytes: from the remote; peer_files, peer_bytes: what other nodes sent instead. failures: the latest of them, by node
    id, of files that are not cached. recent: (since when, bytes received) for each step of the last seconds.
    """

    files: int = 0
    bytes: int = 0
    peer_files: int = 0
    peer_bytes: int = 0
    failed: int = 0
    failures: dict[int, Failure] = field(default_factory=dict)
    recent: deque[tuple[float, int]] = field(default_factory=deque)

    def add_failure(self, id: int, error: GrowfsError) -> bool:
        """Count a file that failed. Returns whether it has not failed in the same way the last time."""
        self.failed += 1
        before = self.failures.pop(id, None)
        self.failures[id] = Failure(error)
        if len(self.failures) > FAILURES_MAX:
            del self.failures[next(iter(self.failures))]
        return before is None or str(before.error) != str(error)

    def add_bytes(self, count: int) -> None:
        """Count bytes that the remote has just sent."""
        self.bytes += count
        self._note_recent(count)

    def add_peer_bytes(self, count: int) -> None:
        """Count bytes that another node has just sent."""
        self.peer_bytes += count
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
        """The rate over the last few seconds."""
        self._forget_before(trio.current_time() - RATE_WINDOW_S)
        return sum(count for _, count in self.recent) / RATE_WINDOW_S

    def _forget_before(self, time: float) -> None:
        while self.recent and self.recent[0][0] < time:
            self.recent.popleft()


PRODUCED_SIZE = 1 << 30
"""Bytes reserved for the first file of a producer. Running a producer twice costs more than making others wait."""
RETRY_SIZE, RETRY_SHARE = 32 << 20, 32
"""A file that exceeded its estimate reserves at least this many bytes, or this fraction (1/32) of the cache, whichever
is less. Doubling alone, after a first file of 5 kB, fetched a file of 9 MB twelve times."""


class SizeEstimate:
    """Estimates unknown sizes: the largest file so far, and a quarter more.

    An estimate that is too small costs a second fetch; one that is too large makes others wait for space. So where it
    does not fit, less is worth a try, but more than the file is known to exceed.
    varies: the size that a file had the last time does not bind (it is produced).
    """

    def __init__(self, varies: bool = False) -> None:
        self.bytes = PRODUCED_SIZE if varies else UNKNOWN_SIZE
        self._varies = varies
        self._largest = 0
        self._exceeded: dict[int, int] = {}

    def is_guess(self, node: Node) -> bool:
        """Whether the size of a file is not known."""
        return node.size is None or self._varies

    def need(self, node: Node, size_max: int) -> int:
        """Bytes to reserve for a file. size_max: bytes that any file may have."""
        if not self.is_guess(node):
            return node.size or 0
        return min(max(self.bytes, node.size or 0, 2 * self._exceeded.get(node.id, 0)), size_max)

    def least(self, node: Node, size_max: int) -> int:
        """The fewest bytes that are worth a try, where `need` does not fit. size_max: as in `need`."""
        if not self.is_guess(node):
            return node.size or 0
        usual = max(min(RETRY_SIZE, size_max // RETRY_SHARE), node.size or 0)
        return min(max(usual, 5 * self._exceeded.get(node.id, 0) // 4), self.need(node, size_max))

    def learn(self, size: int) -> None:
        """Note that a file had this size."""
        self._largest = max(self._largest, size)
        self.bytes = self._largest + self._largest // 4

    def exceeded(self, node: Node, bytes: int, size_max: int) -> int:
        """Note that a file is larger than `bytes`; returns how many to reserve next. size_max: as in `need`."""
        self._exceeded[node.id] = bytes
        twice = 2 * bytes
        self.bytes = max(self.bytes, twice)
        return min(max(twice, min(RETRY_SIZE, size_max // RETRY_SHARE)), size_max)


class Groups:
    """Finds the members of a group. template: its fields are those of `group_of`; None: every file is alone."""

    def __init__(self, database: Database, template: str | None) -> None:
        self._db = database
        self._template = template

    async def members(self, node: Node, bytes_max: int) -> list[Node]:
        """The files of a file's group, itself included; the file alone where the group needs more than bytes_max.

        A thread looks: they may be in any of a million directories.
        """
        if self._template is None:
            return [node]
        return await self._db.query_in_thread(partial(_members, self._template, node, bytes_max))


def _members(template: str, node: Node, bytes_max: int, ask: Query) -> list[Node]:
    bare = node.name.removesuffix(f".{extension(node.name)}")
    within_folder = "{stem}" in template or "{parent}" in template
    by_name = "{stem}" in template or "{name}" in template
    path_of = Catalog.paths_by(ask)
    group = group_of(template, path_of(node))
    found = Catalog.files_with_prefix(ask, bare if by_name else "", node.parent if within_folder else None)
    members = [other for other in found if group_of(template, path_of(other)) == group]
    fits = sum(disk.allocation(member.size or 0) for member in members) <= bytes_max
    return members if fits else [node]


BATCH_MAX = 256
"""Files admitted in one transaction."""


class AdmissionQueue:
    """Owns the window of drawn groups. A group that a reader waits for, or that was not drawn, does not wait in it."""

    def __init__(self) -> None:
        self._window: deque[DownloadGroup] = deque()
        self._prioritized: deque[DownloadGroup] = deque()

    def __len__(self) -> int:
        return len(self._window)

    def append(self, group: DownloadGroup) -> None:
        """Admit a drawn group after all that are in the window already."""
        self._window.append(group)

    def release(self, group: DownloadGroup) -> None:
        """Have those that were drawn after the group wait for it no longer; it is admitted once it is fetched."""
        if group.drawn:
            group.drawn = False
            self._window.remove(group)

    def prioritize(self, group: DownloadGroup) -> None:
        """Admit a group next if it is fetched completely, and is urgent or was not drawn."""
        if group.is_fetched and (not group.drawn or any(download.urgent for download in group.downloads)):
            self._prioritized.append(group)

    def next_batch(self) -> list[Download]:
        """The next downloads to admit, in order: prioritized groups, then the head of the window."""
        batch: list[Download] = []
        while self._prioritized and len(batch) < BATCH_MAX:
            group = self._prioritized.popleft()
            if group.is_fetched:  # else it was admitted from the window meanwhile
                if group in self._window:
                    self._window.remove(group)
                batch.extend(group.downloads)
        while self._window and len(batch) < BATCH_MAX:
            head = self._window[0]
            if head.is_fetched:
                batch.extend(head.downloads)
            elif not head.is_finished:
                break
            self._window.popleft()
        return batch
