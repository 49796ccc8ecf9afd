"""How long a draw waits for the next node (--peers) to fetch what it would evict."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from growfs.cache.schema import set_meta
from growfs.extensions.peers.messages import PeersSeen, Token
from growfs.extensions.peers.peers import PATIENCE_S, START, Peers
from growfs.rotation.circle import Position
from growfs.scheduler.in_flight import Download
from growfs.scheduler.outage import Outage
from growfs.scheduler.prefetcher import Drawer
from growfs.scheduler.readiness import PrefetchState, StartCondition
from tests.unit.local_cache import LocalCache, answers, file

PLACES = {"d/old": 0.8, "d/new": 0.9}


class OneFollower:
    """A pool whose only worker has seen a node behind this one, close enough to still draw d/old from it."""

    def __init__(self) -> None:
        self._is_new = True

    def spawn(self) -> OneFollower:
        return self

    async def send(self, message: Any) -> None:
        pass

    async def receive(self) -> PeersSeen:
        if not self._is_new:
            await trio.sleep_forever()
        self._is_new = False
        return PeersSeen("me", {"other": Position(0.0, 0.7, 1.0)}, {}, ("me", "other"))

    async def aclose(self) -> None:
        pass


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
    await cache.list([file(path) for path in PLACES])
    await cache.admit("d/old")
    await cache.database.write(lambda writer: set_meta(writer, START, "0.9"))
    workers: Any = OneFollower()
    place, token = PLACES.__getitem__, Token("token")
    peers = Peers(("other",), ("me", 1), token, 0, workers, cache.database, cache.catalog, cache.store, place)
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
