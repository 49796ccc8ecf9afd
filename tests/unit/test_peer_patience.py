"""How long a draw waits for the next node (--peers) to fetch what it would evict."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from growfs.cache.schema import set_meta
from growfs.rotation.circle import Position
from growfs.scheduler.in_flight import Download, DownloadGroup, Priority
from growfs.scheduler.peers import PATIENCE_S, START, Peers, PeerSettings
from growfs.workers.messages import PeersSeen
from tests.unit.local_cache import LocalCache, file

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


async def test_a_draw_waits_as_long_after_an_earlier_one_got_its_room_elsewhere(
    cache: LocalCache, clock: MockClock
) -> None:
    await cache.list([file(path) for path in PLACES])
    await cache.admit(*PLACES)
    await cache.database.write(lambda writer: set_meta(writer, START, "0.0"))
    settings = PeerSettings(("other",), ("me", 1), "token")
    workers: Any = OneFollower()
    peers = Peers(settings, workers, cache.database, cache.catalog, cache.store, PLACES.__getitem__)
    drawn = Download(cache.node("d/new"), "d/new", "", DownloadGroup(is_drawn=True), Priority.DRAW)
    evicted = [cache.node("d/old").id]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peers.run)
        await wait_all_tasks_blocked()
        assert peers.awaits(evicted)
        peers.note_drawn(drawn)
        assert not peers.status().waiting
        await trio.sleep(PATIENCE_S)
        assert peers.awaits(evicted)
        await trio.sleep(PATIENCE_S)
        assert not peers.awaits(evicted)
        nursery.cancel_scope.cancel()
