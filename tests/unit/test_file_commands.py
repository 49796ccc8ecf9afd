"""The commands that fetch files: how long they wait for one, and what they report meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from growfs.cache.catalog import Node
from growfs.daemon.commands import PROGRESS_S
from growfs.errors import RemoteBusy, TimedOut
from growfs.scheduler.outage import Outage
from tests.unit.local_cache import Fetch, LocalCache, answers, file, file_commands


async def fetch_all(cache: LocalCache, fetch: Fetch, outage: Outage | None = None) -> list[dict[str, Any]]:
    return [dict(progress) async for progress in file_commands(cache, fetch, outage).fetch(["**"])]


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_file_that_takes_longer_than_a_reader_waits_is_awaited_unless_the_remote_is_away(
    cache: LocalCache, is_away: bool
) -> None:
    await cache.list([file("a/1")])
    outage, tries = Outage(answers), list[str]()
    outage.why = RemoteBusy("cannot reach the server") if is_away else None

    async def fetch(node: Node, path: str, patience_s: float) -> None:
        tries.append(path)
        if len(tries) < 3:
            raise TimedOut(f"{path}: not fetched within 1 s")
        await cache.admit(path)

    *_, result = await fetch_all(cache, fetch, outage)
    assert (result["fetched"], result["failed"]) == ((0, 1) if is_away else (1, 0))
    assert result["error"] == ("a/1: not fetched within 1 s" if is_away else None)


async def test_progress_is_reported_while_a_file_takes_long(cache: LocalCache, clock: trio.testing.MockClock) -> None:
    """A client gives up on a daemon that reports nothing for ten minutes."""
    await cache.list([file("a/1")])

    async def fetch(node: Node, path: str, patience_s: float) -> None:
        await trio.sleep(3.5 * PROGRESS_S)
        await cache.admit(path)

    *meanwhile, last = await fetch_all(cache, fetch)
    assert len(meanwhile) >= 4, "one before it waits"
    assert ({each["fetched"] for each in meanwhile}, last["fetched"]) == ({0}, 1)


async def test_the_last_report_of_a_refetch_counts_the_files_fetched_while_it_was_sent(
    cache: LocalCache, clock: trio.testing.MockClock
) -> None:
    await cache.list([file("a/1"), file("a/2")])
    await cache.admit("a/1", "a/2")
    ids = [cache.node(path).id for path in ("a/1", "a/2")]
    for id in ids:
        located = cache.store.located(id)
        assert located
        located.path.chmod(0o600)
        located.path.write_bytes(b"damaged")

    async def fetch(node: Node, path: str, patience_s: float) -> None:
        await trio.sleep(int(path[-1]))
        await cache.admit(path)

    last: dict[str, Any] = {}
    async for progress in file_commands(cache, fetch).refetch(ids):
        last = progress
        await trio.sleep(5)
    assert (last["fetched"], last["ids"]) == (2, ids)
