"""What a node answers to another one that asks for a cached file, and how long its draws wait for it (--peers)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from growfs.cache.schema import set_meta
from growfs.errors import TooManyOpen
from growfs.extensions.peers.messages import CachedOpened, OpenCached, PeersSeen, Token
from growfs.extensions.peers.peers import PATIENCE_S, START, Peers
from growfs.rotation.circle import Position
from growfs.scheduler.in_flight import Download
from growfs.scheduler.outage import Outage
from growfs.scheduler.prefetcher import Drawer
from growfs.scheduler.readiness import PrefetchState, StartCondition
from tests.unit.local_cache import LocalCache, answers, file

PLACES = {"d/old": 0.8, "d/new": 0.9}


class OneWorker:
    """A pool whose only worker sends one message. Counts the workers, and keeps what is sent to them."""

    def __init__(self, message: OpenCached | PeersSeen) -> None:
        self.workers = 0
        self.sent: list[Any] = []
        self._left = [message]

    def spawn(self) -> OneWorker:
        self.workers += 1
        return self

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def receive(self) -> OpenCached | PeersSeen:
        if not self._left:
            await trio.sleep_forever()
        return self._left.pop()

    async def aclose(self) -> None:
        pass


def peers_of(cache: LocalCache, pool: OneWorker) -> Peers:
    """This node and another one."""
    workers: Any = pool
    token, place = Token("token"), PLACES.__getitem__
    return Peers(("other",), ("me", 1), token, 0, workers, cache.database, cache.catalog, cache.store, place)


async def test_a_node_with_too_many_open_files_refuses_one_file_and_goes_on(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise TooManyOpen("16384 files are open")

    await cache.list([file("d/old")])
    await cache.admit("d/old")
    monkeypatch.setattr(cache.store, "open", refuse)
    pool = OneWorker(OpenCached(1, "d/old"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peers_of(cache, pool).run)
        await wait_all_tasks_blocked()
        assert CachedOpened(1, None) in pool.sent
        assert pool.workers == 1
        nursery.cancel_scope.cancel()


class NothingInFlight:
    """A fetcher to which a drawer may give files. Its own end does not matter here."""

    window_full = False

    def __init__(self) -> None:
        self.downloads: dict[int, Download] = {}

    def draw(self, *_: object) -> None:
        pass


def connected_drawer(cache: LocalCache, peers: Peers) -> Drawer:
    """A drawer, connected as a daemon does, in a round that draws deferred files."""
    outage = Outage(answers)
    state = PrefetchState(StartCondition(no_wait=True), lambda: False, lambda: False, outage)
    state.begin_order()
    fetcher: Any = NothingInFlight()
    drawer = Drawer(cache.catalog, cache.store, fetcher, cache.space, cache.sizes, state, outage)
    drawer._has_deferred = True
    drawer.end_round()
    drawer.found_room.connect(peers.note_room)
    drawer.drawn.connect(peers.note_drawn)
    return drawer


async def test_a_draw_waits_as_long_after_an_earlier_one_got_its_room_elsewhere(
    cache: LocalCache, clock: MockClock
) -> None:
    """For a node behind this one, which is close enough to still draw d/old from it."""
    await cache.list([file(path) for path in PLACES])
    await cache.admit("d/old")
    await cache.database.write(lambda writer: set_meta(writer, START, "0.9"))
    seen = PeersSeen("me", {"other": Position(0.0, 0.7, 1.0)}, {}, ("me", "other"))
    peers = peers_of(cache, OneWorker(seen))
    drawer = connected_drawer(cache, peers)
    evicted = [cache.node("d/old").id]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peers.run)
        await wait_all_tasks_blocked()
        assert peers.awaits(evicted)
        assert await drawer.draw([cache.node("d/new").id])
        assert not peers.status().waiting
        await trio.sleep(PATIENCE_S)
        assert peers.awaits(evicted)
        await trio.sleep(PATIENCE_S)
        assert not peers.awaits(evicted)
        nursery.cancel_scope.cancel()
