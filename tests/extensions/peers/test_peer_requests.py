"""What a node answers to another one that asks for a cached file (--peers)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from growfs.errors import TooManyOpen
from growfs.extensions.peers.messages import CachedOpened, OpenCached, Token
from growfs.extensions.peers.peers import Peers
from tests.unit.local_cache import LocalCache, file


class OneRequest:
    """A pool whose only worker asks for the file d/1. Counts the workers, and keeps what is sent to them."""

    def __init__(self) -> None:
        self.workers = 0
        self.sent: list[Any] = []

    def spawn(self) -> OneRequest:
        self.workers += 1
        return self

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def receive(self) -> OpenCached:
        if any(isinstance(message, CachedOpened) for message in self.sent):
            await trio.sleep_forever()
        return OpenCached(1, "d/1")

    async def aclose(self) -> None:
        pass


async def test_a_node_with_too_many_open_files_refuses_one_file_and_goes_on(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise TooManyOpen("16384 files are open")

    await cache.list([file("d/1")])
    await cache.admit("d/1")
    monkeypatch.setattr(cache.store, "open", refuse)
    pool: Any = OneRequest()
    peers = Peers(
        ("other",), ("me", 1), Token("token"), 0, pool, cache.database, cache.catalog, cache.store, lambda path: 0.0
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peers.run)
        await wait_all_tasks_blocked()
        assert CachedOpened(1, None) in pool.sent
        assert pool.workers == 1
        nursery.cancel_scope.cancel()
