"""One file on its way: its states, the moves between them, why it may not come, and the counts over all of them."""

from __future__ import annotations

import enum
import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from growfs.cache.catalog import UNKNOWN_SIZE, Node
from growfs.cache.publish import StagedFile
from growfs.errors import GrowfsError, NoRoom, TooLarge

LIVES = 3
"""Workers that may die over one file before it counts as failed."""
AGAIN_SIZE, AGAIN_SHARE = 32 << 20, 32
"""Bytes, and one part in so many of the cache, whichever is less: what a file reserves at least that took more than was
guessed. Doubling alone, after a first file of 5 kB, made one of 9 MB twelve times."""
RATE_WINDOW_S = 5.0


class DownloadState(enum.Enum):
    """Where a flight is."""

    QUEUED = "queued"
    FETCHING = "fetching"
    FETCHED = "fetched"
    ADMITTED = "admitted"
    FAILED = "failed"


MOVES = {
    DownloadState.QUEUED: {DownloadState.FETCHING, DownloadState.FAILED},
    DownloadState.FETCHING: {DownloadState.FETCHED, DownloadState.QUEUED, DownloadState.FAILED},
    DownloadState.FETCHED: {DownloadState.ADMITTED, DownloadState.FAILED},
    DownloadState.ADMITTED: set(),
    DownloadState.FAILED: set(),
}


@dataclass(eq=False, slots=True)
class DownloadGroup:
    """Flights that land as one: a single file's, or those of a group. drawn: they land in their turn.

    ids: of all files that leave as one with them, in flight or here already; empty for a single file.
    """

    drawn: bool = False
    ids: tuple[int, ...] = ()
    downloads: list[Download] = field(default_factory=list)

    @property
    def has_landed(self) -> bool:
        """Whether all are fetched, and none is admitted yet."""
        return all(download.state is DownloadState.FETCHED for download in self.downloads)

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return all(download.state in (DownloadState.FAILED, DownloadState.ADMITTED) for download in self.downloads)

    @property
    def error(self) -> GrowfsError | None:
        """Why it does not land."""
        return next((download.error for download in self.downloads if download.error), None)


@dataclass(eq=False, slots=True)
class Download:
    """One file on its way.

    target: where it is written. need: bytes to reserve. reserved: bytes of the quota that it has, None before.
    urgent: a reader waits for it. renews: the node is a newer version of the resident file with the same id.
    roomless_at: since when it waits for room, in trio's time.
    """

    node: Node
    path: str
    target: Path
    need: int
    unit: DownloadGroup
    reserved: int | None = None
    urgent: bool = False
    renews: bool = False
    roomless_at: float | None = None
    state: DownloadState = DownloadState.QUEUED
    lives: int = LIVES
    draft: StagedFile | None = None
    error: GrowfsError | None = None
    settled: trio.Event = field(default_factory=trio.Event)
    tell: Callable[[Download], None] | None = None

    def __post_init__(self) -> None:
        self.unit.downloads.append(self)

    def move(self, state: DownloadState) -> None:
        """Change state; a move that is not in MOVES is a bug."""
        if state not in MOVES[self.state]:
            raise AssertionError(f"{self.path}: {self.state} to {state}")
        self.state = state


class SizeEstimate:
    """How many bytes to reserve for a file of unknown size: what the largest took, once there is one, and a quarter.

    Too little costs a second fetch, too much keeps others waiting for room.
    """

    def __init__(self, bytes: int = UNKNOWN_SIZE) -> None:
        self.bytes = bytes
        self._largest = 0

    def learn(self, size: int) -> None:
        """A file had that size."""
        self._largest = max(self._largest, size)
        self.bytes = self._largest + self._largest // 4

    def was_too_little(self, bytes: int, largest: int) -> int:
        """A file has more than that; returns what it is to reserve next. largest: that any file may have here."""
        twice = 2 * bytes
        self.bytes = max(self.bytes, twice)
        return min(max(twice, min(AGAIN_SIZE, largest // AGAIN_SHARE)), largest)


@dataclass(slots=True)
class Counters:
    """Since the daemon started."""

    files: int = 0
    bytes: int = 0
    failed: int = 0
    last_error: str | None = None
    recent: deque[tuple[float, int]] = field(default_factory=deque)

    def add_bytes(self, count: int) -> None:
        """Note bytes that have just come in."""
        self.bytes += count
        self.recent.append((trio.current_time(), count))

    def bytes_per_s(self) -> float:
        """The rate over the last few seconds."""
        now = trio.current_time()
        while self.recent and self.recent[0][0] < now - RATE_WINDOW_S:
            self.recent.popleft()
        return sum(count for _, count in self.recent) / RATE_WINDOW_S


def too_large(path: str) -> TooLarge:
    """What is said of a file that alone would not fit."""
    return TooLarge(f"{path}: larger than the whole cache may be; raise --cache-size")


def no_room(path: str, size: int) -> NoRoom:
    """What is said of a file for which nothing may be evicted."""
    return NoRoom(
        f"{path}: no room for {size} bytes; all that is cached is open, pinned or its directory's last file;"
        " raise --cache-size"
    )


class TimedOut(GrowfsError):
    """A miss waited for as long as it may."""

    errno = errno.ETIMEDOUT


BATCH_MAX = 256


class AdmissionQueue:
    """Owns the window: units that were drawn and wait for those before them. One that somebody waits for does not."""

    def __init__(self) -> None:
        self._window: deque[DownloadGroup] = deque()
        self._first: deque[DownloadGroup] = deque()

    def __len__(self) -> int:
        return len(self._window)

    def expect(self, unit: DownloadGroup) -> None:
        """A unit is drawn: it lands after all that are expected already."""
        self._window.append(unit)

    def hurry(self, unit: DownloadGroup) -> None:
        """Have a unit land as soon as all of it is fetched; that may be now."""
        if unit.has_landed and (not unit.drawn or any(download.urgent for download in unit.downloads)):
            self._first.append(unit)

    def ready(self) -> list[Download]:
        """The next flights to admit, in order: those that wait for no turn, then the head of the window."""
        batch: list[Download] = []
        while self._first and len(batch) < BATCH_MAX:
            unit = self._first.popleft()
            if unit.has_landed:  # else it landed in its turn meanwhile
                if unit in self._window:
                    self._window.remove(unit)
                batch.extend(unit.downloads)
        while self._window and len(batch) < BATCH_MAX:
            head = self._window[0]
            if head.has_landed:
                batch.extend(head.downloads)
            elif not head.is_over:
                break
            self._window.popleft()
        return batch
