"""What is in flight: each file at most once, misses before all else, admitted in the order in which they were drawn.

Workers finish in any order; a window holds drawn flights back until those before them have
landed, so the order of admission does not depend on how many workers there are. A miss does not wait for the window.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from growfs import disk
from growfs.cache.catalog import UNKNOWN_SIZE, Catalog, Node
from growfs.cache.publish import StagedFile
from growfs.cache.store import Store
from growfs.errors import GrowfsError, NoRoom, RemoteBusy, RemoteError, RemoteMissing
from growfs.events import Signal
from growfs.remote.digest import PART_BYTES
from growfs.remote.protocol import Fetched, RemoteFile
from growfs.rotation.eviction import Evictor
from growfs.scheduler.dispatcher import Dispatcher
from growfs.scheduler.in_flight import (
    LIVES,
    AdmissionQueue,
    Counters,
    Download,
    DownloadGroup,
    DownloadState,
    SizeEstimate,
    TimedOut,
    no_room,
    too_large,
)
from growfs.scheduler.order import Groups
from growfs.workers.messages import FetchFailed, SizeExceeded

log = logging.getLogger(__name__)

MADE_SIZE = 1 << 30
"""Bytes that the first file that is made reserves: to make it twice costs more than to keep others waiting."""
WINDOW_FILES = 1024
"""Drawn units in flight or waiting for an earlier one."""
WINDOW_PARTS = 4
"""Their bytes, in parts of files for each stream; but as many units as there are streams may be larger."""
ROOM_POLL_S = 0.5
"""How often a miss without room looks again: others may have freed the disk meanwhile."""


class Fetcher:
    """Owns the flights. `moved` pulses whenever one lands or fails.

    guess: of unknown sizes. sizes_vary: the size that a file had the last time
    tells nothing for sure.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        partial: Path,
        dispatcher: Dispatcher,
        miss_timeout_s: float,
        replace: Callable[[Node, RemoteFile | None], Awaitable[None]],
        evictor: Evictor,
        groups: Groups,
        sizes_vary: bool = False,
    ) -> None:
        self.miss_timeout_s = miss_timeout_s
        self.counters = Counters()
        self.moved = Signal[[]]()
        self._catalog = catalog
        self._store = store
        self._partial = partial
        self._dispatcher = dispatcher
        self._replace = replace
        self._evictor = evictor
        self._groups = groups
        self._sizes_vary = sizes_vary
        self._downloads: dict[int, Download] = {}
        self._admission_queue = AdmissionQueue()
        self.guess = SizeEstimate(MADE_SIZE if sizes_vary else UNKNOWN_SIZE)
        self._unreserved: deque[Download] = deque()
        self._unreserved_came = Signal[[]]()
        self._roomless: list[Download] = []
        self._roomless_came = Signal[[]]()
        self._landed = trio.Event()
        dispatcher.received.connect(self.counters.add_bytes)

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._dispatcher.run, self._became, self._worker_lost)
            for task in (self._admit, self._reserve_room, self._retry_roomless):
                nursery.start_soon(task)

    # What others ask for.

    @property
    def window_full(self) -> bool:
        """Whether a draw has to wait."""
        bytes = self._store.reserved_bytes
        streams = self._dispatcher.streams
        return len(self._admission_queue) >= WINDOW_FILES or (
            len(self._admission_queue) >= streams and bytes >= WINDOW_PARTS * streams * PART_BYTES
        )

    @property
    def in_flight(self) -> int:
        """Files on their way."""
        return len(self._downloads)

    def figures(self) -> dict[str, float | None]:
        """What was fetched since the daemon started, and how fast, as `fetch` in status.json has it."""
        return {
            "files_total": self.counters.files,
            "bytes_total": self.counters.bytes,
            "bytes_per_s": self.counters.bytes_per_s(),
            "failed": self.counters.failed,
            "streams": self._dispatcher.streams,
            "limit_bytes_per_s": self._dispatcher.bytes_per_s or None,
        }

    def need(self, node: Node) -> int:
        """Bytes to reserve for a file."""
        if node.size is None or self._sizes_vary:
            return min(max(self.guess.bytes, node.size or 0), self._store.max_file_bytes)
        return node.size

    def download(self, id: int) -> Download | None:
        """The file's flight, if it is on its way."""
        return self._downloads.get(id)

    def draw(self, nodes: dict[Node, int], ids: tuple[int, ...], settled: Callable[[Download], None]) -> None:
        """Fetch what is drawn as one, in its turn. nodes: each with the bytes that are reserved for it.

        ids: as Unit has them. settled is told of each that landed or failed.
        """
        unit = DownloadGroup(drawn=True, ids=ids)
        self._admission_queue.expect(unit)
        for node, reserved in nodes.items():
            self._push(self._depart(node, unit, reserved=reserved, tell=settled))

    def _depart(self, node: Node, unit: DownloadGroup, **state: Any) -> Download:
        target = self._partial / str(node.id)
        need = self.need(node)
        need = min(need, state.get("reserved", need))  # what is guessed may have grown since
        download = self._downloads[node.id] = Download(node, self._catalog.path(node), target, need, unit, **state)
        return download

    async def renew(self, node: Node) -> None:
        """Fetch a newer version of a resident file, which then takes its place; returns when it has, or failed.

        node: the resident file's, with the new version's size, time and version.
        """
        while earlier := self._downloads.get(node.id):
            await earlier.settled.wait()
        download = self._depart(node, DownloadGroup(), renews=True)
        self._push(download)
        await download.settled.wait()

    async def ensure(self, node: Node, path: str) -> None:
        """Return when the file is resident, fetching it before all that nobody waits for.

        Raises GrowfsError with the errno that a reader should get, after miss_timeout_s at the latest.
        """
        if self.need(node) > self._store.max_file_bytes:
            raise too_large(path)
        download = self._downloads.get(node.id)
        if download is None:
            download = self._miss(node)
        elif not download.urgent:
            self._hurry(download.unit)
        with trio.move_on_after(self.miss_timeout_s):
            await download.settled.wait()
        if not download.settled.is_set():
            if download.roomless_at is not None:
                raise no_room(path, download.need)
            raise TimedOut(f"{path}: not here after {self.miss_timeout_s:g} s; raise --miss-timeout")
        if download.error:
            raise download.error

    def _miss(self, node: Node) -> Download:
        members = self._groups.members(node, self._store.max_file_bytes)
        unit = DownloadGroup(ids=tuple(member.id for member in members) if len(members) > 1 else ())
        for member in members:
            if member.seq is None and member.id not in self._downloads:
                self._push(self._depart(member, unit, urgent=True))
        return self._downloads[node.id]

    def _hurry(self, unit: DownloadGroup) -> None:
        for download in unit.downloads:
            download.urgent = True
            self._dispatcher.hurry(download)
        self._land(unit)

    # Room, and what became of it.

    def _push(self, download: Download) -> None:
        if download.reserved is None:
            self._unreserved.append(download)
            self._unreserved_came.notify()
        else:
            self._dispatcher.take(download)

    async def _reserve_room(self) -> None:
        while True:
            while not self._unreserved:
                await self._unreserved_came.wait()
            download = self._unreserved.popleft()
            if download.state is DownloadState.QUEUED and await self._reserve(download):
                self._dispatcher.take(download)

    async def _reserve(self, download: Download) -> bool:
        """Have room for a flight; one that gets none now waits for it, and keeps no other waiting."""
        download.reserved = await self._evictor.reserve_by_eviction(download.need)
        if download.state is not DownloadState.QUEUED:  # it failed with another of its group meanwhile
            self._unreserve(download)
            return False
        if download.reserved is not None:
            download.roomless_at = None
            return True
        download.roomless_at = download.roomless_at or trio.current_time()
        if trio.current_time() - download.roomless_at >= self.miss_timeout_s:
            self._fail(download, no_room(download.path, download.need))
        else:
            self._roomless.append(download)
            self._roomless_came.notify()
        return False

    async def _retry_roomless(self) -> None:
        while True:
            while not self._roomless:
                await self._roomless_came.wait()
            with trio.move_on_after(ROOM_POLL_S):
                await self._store.space_freed.wait()
            roomless, self._roomless = self._roomless, []
            for download in roomless:
                if download.state is DownloadState.QUEUED:
                    self._push(download)

    async def _became(self, download: Download, became: Fetched | FetchFailed) -> None:
        if isinstance(became, FetchFailed):
            await self._not_fetched(download, became)
            return
        assert download.reserved is not None
        self.guess.learn(became.size)
        download.reserved = self._store.adjust_reservation(download.reserved, became.size)
        download.draft = StagedFile(
            download.node, download.path, download.target, became, download.reserved, download.renews, download.unit.ids
        )
        download.move(DownloadState.FETCHED)
        if error := download.unit.error:
            self._fail(download, error)
        else:
            self._land(download.unit)

    async def _not_fetched(self, download: Download, lost: FetchFailed) -> None:
        error = lost.error
        if isinstance(error, SizeExceeded) and download.need < self._store.max_file_bytes:
            self._unreserve(download)
            download.need = self.guess.was_too_little(download.need, self._store.max_file_bytes)
            download.move(DownloadState.QUEUED)
            self._push(download)
            return
        if lost.found or isinstance(error, RemoteMissing):
            await self._replace(download.node, lost.found)
        self._fail(download, too_large(download.path) if isinstance(error, SizeExceeded) else error)

    def _unreserve(self, download: Download) -> None:
        if download.reserved is not None:
            self._store.unreserve(download.reserved)
            download.reserved = None

    # Landing.

    def _land(self, unit: DownloadGroup) -> None:
        self._admission_queue.hurry(unit)
        self._landed.set()

    async def _admit(self) -> None:
        while True:
            await self._landed.wait()
            batch = self._admission_queue.ready()
            self.moved.notify()
            if not batch:
                self._landed = trio.Event()
                continue
            failure: GrowfsError | None = None
            try:
                admitted = await self._store.admit(
                    [download.draft for download in batch if download.draft], self._catalog.pass_number
                )
            except (OSError, sqlite3.Error) as error:
                failure = NoRoom(f"the cache directory refuses to be written ({error}); look at its disk")
                admitted = set()
            for download in batch:
                download.reserved = None  # the store has settled that
                if download.node.id in admitted:
                    download.move(DownloadState.ADMITTED)
                    self.counters.files += 1
                    self._settle(download)
            for download in batch:
                if download.state is DownloadState.FETCHED:  # else another of its group failed, and it with that
                    self._fail(
                        download, failure or RemoteError(f"{download.path}: the remote has another version by now")
                    )

    def _worker_lost(self, download: Download) -> None:
        with contextlib.suppress(OSError):  # the next one writes over it
            disk.unlink("DRAFT_LOST", download.target)
        download.lives -= 1
        if download.lives == 0:
            self._fail(
                download, RemoteBusy(f"{download.path}: {LIVES} worker processes died or hung over it; see the log")
            )
            return
        log.warning("%s: its worker died or hung; another takes over", download.path)
        download.move(DownloadState.QUEUED)
        self._dispatcher.take(download, first=True)

    def _fail(self, download: Download, error: GrowfsError) -> None:
        self._unreserve(download)
        if download.draft:
            with contextlib.suppress(OSError):
                disk.unlink("DRAFT_FAILED", download.draft.file)
        download.error = error
        download.move(DownloadState.FAILED)
        self.counters.failed += 1
        self.counters.last_error = str(error)
        log.warning("not fetched: %s", error)
        self._settle(download)
        for other in download.unit.downloads:
            if other.state in (DownloadState.QUEUED, DownloadState.FETCHED):
                self._fail(other, error)
        self._landed.set()

    def _settle(self, download: Download) -> None:
        del self._downloads[download.node.id]
        download.settled.set()
        if download.tell:
            download.tell(download)
        self.moved.notify()
