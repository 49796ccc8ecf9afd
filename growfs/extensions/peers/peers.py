"""The other nodes (`--peers`): their addresses, which of them may have a file, and what they get of this node's cache.

The nodes may change at any time; listed, held and cached files stay as they are.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.schema import id_at, set_meta
from growfs.cache.store import Store
from growfs.errors import GrowfsError, TooManyOpen
from growfs.extensions.peers.client import PeerClient
from growfs.extensions.peers.messages import (
    Announce,
    CachedOpened,
    CloseCached,
    OpenCached,
    PeersSeen,
    ServedFile,
    Token,
)
from growfs.extensions.peers.server import serve
from growfs.remote.interface import OtherSource, RemoteFile
from growfs.remote.names import join_address
from growfs.rotation.circle import (
    Owner,
    Position,
    awaits,
    distance,
    first_place,
    follower,
    hosts,
    is_own,
)
from growfs.rotation.pass_order import Order
from growfs.scheduler.in_flight import Download
from growfs.signal import Signal
from growfs.status_and_metrics import PeersStatus
from growfs.workers.messages import Failed, Serve
from growfs.workers.pool import Channel, WorkerLost, WorkerPool

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long a draw waits before evicting files that the next node may still draw; then no draw waits for as long."""
START = "peer_start"
"""The key in the table `meta` of the place where the passes of this node begin."""


class Peers(OtherSource):
    """Owns the known state of the other nodes, the position of this one, and the worker that serves them.

    sources: the addresses of the nodes, each as HOST:PORT, dns://NAME or dns://NAME:PORT. address: (host, port) at
    which this node serves. token: demanded by all nodes. bytes_per_s: limit for all peers together; 0 for none.
    place: of a path, as Pass.place. owner: decides which node fetches a file from the remote, if all nodes fetch the
    same files at about the same time; None if they follow one another around the circle.
    """

    def __init__(
        self,
        sources: tuple[str, ...],
        address: tuple[str, int],
        token: Token,
        bytes_per_s: float,
        workers: WorkerPool,
        database: Database,
        catalog: Catalog,
        store: Store,
        place: Callable[[str], float],
        owner: Owner | None = None,
    ) -> None:
        self.sources = sources
        self.open = partial(PeerClient, token)
        self._address, self._token, self._bytes_per_s = address, token, bytes_per_s
        self._workers = workers
        self._database = database
        self._catalog = catalog
        self._store = store
        self._place = place
        self._owner = owner
        self._node = uuid.uuid4().hex
        self._head: float | None = None
        self._out_of_order = BitMap64()
        self._channel: Channel | None = None
        self._sending = trio.Lock()
        self._set_seen(PeersSeen(None, {}, {}, sources))
        self._others: dict[str, Position] = {}
        self._follower: Position | None = None
        self._looked = Signal[[]]()
        self._due = trio.Event()
        self._waits: tuple[float, float] | None = None  # since when a draw waits, and the next node's position then
        self._evicts_until = -math.inf
        self._is_serving = False
        self._sent_bytes = 0
        start = None if owner else database.meta(START)  # of a mount whose nodes follow one another
        self._start = None if start is None else float(start)

    def status(self) -> PeersStatus:
        """The peers section of the status."""
        return PeersStatus(
            nodes=len(self._names()),
            address=join_address(*self._address),
            serving=self._is_serving,
            answering=len(self._seen.positions),
            waiting=self._waits is not None,
            sent_bytes_total=self._sent_bytes,
        )

    def set_sources(self, sources: tuple[str, ...]) -> None:
        """Change the other nodes."""
        self.sources = sources
        self._due.set()

    async def run(self) -> None:
        """Serve, and track the other nodes' positions, until cancelled."""
        failure = ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._announce)
            while True:
                try:
                    await self._run_worker()
                except (GrowfsError, WorkerLost) as error:
                    if str(error) != failure:
                        log.warning("the other nodes are not served: %s; trying again", error)
                    failure = str(error)
                await trio.sleep(1.0)

    async def locate(self) -> float:
        """See OtherSource."""
        if self._start is not None:
            return self._start
        await self._look()
        names, own = sorted(self._names()), self._own_name()
        final_span = min(1.0, self._store.room.limit_bytes / max(1, self._catalog.bytes))
        start = first_place(names.index(own), len(names), final_span, list(self._others.values()))
        await self._database.write_with_retry(lambda writer: set_meta(writer, START, str(start)))
        self._start = start
        with trio.move_on_after(1.0):
            while None in self._seen.positions.values():  # they are also starting; wait for their positions
                self._due.set()
                await trio.sleep(0.1)
        return start

    async def find_owned(self) -> Callable[[str], bool] | None:
        """See OtherSource."""
        if self._owner is None:
            return None
        await self._look()
        return partial(is_own, self._owner, self._answering, self._own_name())

    async def _look(self) -> None:
        """Return once the other nodes were asked for their positions, or after 5 s: the first draw waits for that."""
        with trio.move_on_after(5.0):
            while not self._is_serving:
                await self._looked.wait()

    def _set_seen(self, seen: PeersSeen) -> None:
        self._seen = seen
        self._answering = tuple(sorted({*seen.positions, self._own_name()}))
        """The addresses of the nodes that answer, and of this one, in the same order on all nodes."""

    # Files that the others have, or are about to draw.

    def hosts(self, path: str) -> tuple[str, ...]:
        """See OtherSource. Each is HOST:PORT."""
        if self._owner:
            owner = self._owner(path, self._answering)
            return () if owner == self._own_name() else (owner,)
        own = self._position()
        if own is None or not self._others:
            return ()
        return tuple(hosts(self._place(path), own.head, self._others))

    def awaits(self, ids: Iterable[int]) -> bool:
        """See OtherSource. The next node may still draw one of them.

        A draw waits for PATIENCE_S at most; after that, no draw waits for a while.
        """
        now, own, behind = trio.current_time(), self._position(), self._follower
        if (
            own is None
            or behind is None
            or now < self._evicts_until
            or not any(
                awaits(behind, self._place(self._catalog.path(node)), own)
                for id in ids
                if (node := self._catalog.node(id))
            )
        ):
            self._waits = None
            return False
        since, head = self._waits = self._waits or (now, behind.head)
        if now - since < PATIENCE_S:
            return True
        # Longer if the next node has drawn nothing meanwhile.
        self._evicts_until = now + (PATIENCE_S if behind.head != head else 300.0)
        self._waits = None
        return False

    def note_room(self) -> None:
        """Note that a draw has its room, maybe without an eviction: the next one may wait as long again."""
        self._waits = None

    def note_drawn(self, download: Download) -> None:
        """Note that a file that was drawn in order is cached."""
        place = self._place(download.path)
        comes_next = self._head is None or distance(self._head, place) < 0.5  # otherwise it failed before, and was late
        if comes_next and download.node.id not in self._out_of_order:
            self._head = place

    def note_order(self, order: Order) -> None:
        """Note which files are drawn out of order, and where the other nodes begin."""
        self._out_of_order = order.frozen_ids | order.seed_ids
        if self._head is None and order.rest and (node := self._catalog.node(abs(order.rest[0]))):
            self._head = self._place(self._catalog.path(node))

    def _position(self) -> Position | None:
        """The position of this node."""
        start, head = self._start, self._head
        if start is None:
            return None
        span = min(1.0, self._store.resident_files / max(1, self._catalog.files))
        return Position(start, start if head is None else head, span)

    def _own_name(self) -> str:
        """The address by which the other nodes know this one."""
        return self._seen.own or join_address(*self._address)

    def _names(self) -> set[str]:
        """The addresses of all nodes, including this one."""
        return {*self._seen.peers, self._own_name()}

    # The worker.

    async def _run_worker(self) -> None:
        opened = Counter[int]()
        channel = self._workers.spawn()
        try:
            await channel.send(Serve(partial(serve, self._address, self._token, self._bytes_per_s, self._node)))
            self._channel = channel
            self._due.set()
            while True:
                await self._handle(await channel.receive(), opened)
        finally:
            self._channel, self._is_serving = None, False
            self._set_seen(PeersSeen(None, {}, {}, self._seen.peers))
            self._others, self._follower = {}, None
            for id, count in opened.items():
                for _ in range(count):
                    self._store.close_file(id)
            with trio.CancelScope(shield=True):
                await channel.aclose()

    async def _announce(self) -> None:
        while True:
            self._due = trio.Event()
            with suppress(WorkerLost):  # the receiver of messages notices it
                await self._send(Announce(self._position(), self.sources))
            with trio.move_on_after(0.5):  # it asks the other nodes for their positions
                await self._due.wait()

    async def _handle(self, message: Any, opened: Counter[int]) -> None:
        if isinstance(message, Failed):
            raise message.error
        if isinstance(message, PeersSeen):
            self._note_seen(message)
        elif isinstance(message, CloseCached):
            opened -= Counter([message.id])  # which leaves out files that are not open any more
            self._sent_bytes += message.bytes
            self._store.close_file(message.id)
        else:
            assert isinstance(message, OpenCached)
            cached = self._open(message.path)
            if cached:
                opened[cached.id] += 1
            await self._send(CachedOpened(message.request, cached))

    async def _send(self, message: Any) -> None:
        async with self._sending:
            if self._channel:
                await self._channel.send(message)

    def _note_seen(self, seen: PeersSeen) -> None:
        for peer, reason in seen.failed.items():
            if peer not in self._seen.failed:
                log.warning("the node %s does not answer: %s", peer, reason)
        for peer in seen.positions:
            if peer in self._seen.failed:
                log.info("the node %s answers again", peer)
        self._set_seen(seen)
        self._is_serving = True
        self._others = {peer: position for peer, position in seen.positions.items() if position}
        own = self._position()
        self._follower = own and follower(own, list(self._others.values()))
        self._looked.notify()
        if self._waits:
            self._store.room.freed.notify()  # the files that a draw waits for may have been sent

    def _open(self, path: str) -> ServedFile | None:
        """Hold a cached file open; None if that is not possible: the other node reads the remote then."""
        id = id_at(self._database.rows, path)
        node = self._catalog.node(id) if id else None
        try:
            if node is None or node.is_dir or self._store.open(node.id) is None:
                return None
        except TooManyOpen:
            return None
        located = self._store.located(node.id)
        if located is None:
            self._store.close_file(node.id)
            return None
        self._store.open_files.descriptor_opened.notify(node.id)  # the worker opens it, each time
        file = RemoteFile(path, node.size, node.mtime_ns, node.version)
        return ServedFile(node.id, located.path, file, located.digest)
