"""New versions of resident files: each is shown until its successor is whole, and then gives its place to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import trio

from growfs.catalog import Catalog
from growfs.fetcher import Fetcher
from growfs.pulse import Pulse
from growfs.refresh import Refresher

PARALLEL = 2


class Renewals:
    """Owns which new versions are on their way. What fails, the next listing finds again.

    is_paused: whether nothing is to be fetched now. resumed: pulses when that, or the catalog, has changed.
    """

    def __init__(
        self,
        catalog: Catalog,
        fetcher: Fetcher,
        refresher: Refresher,
        is_paused: Callable[[], bool],
        resumed: Pulse[[]],
    ) -> None:
        self._catalog = catalog
        self._fetcher = fetcher
        self._refresher = refresher
        self._is_paused = is_paused
        self._resumed = resumed

    async def run(self) -> None:
        """Fetch what the refresher found, unless population is paused."""
        async with trio.open_nursery() as nursery:
            for _ in range(PARALLEL):
                nursery.start_soon(self._renew)

    async def _renew(self) -> None:
        renewals = self._refresher.renewals
        while True:
            while renewals and not self._is_paused():
                id, file = renewals.popitem()
                node = self._catalog.node(id)
                if node:
                    successor = replace(node, size=file.size, mtime_ns=file.mtime_ns, version=file.version)
                    self._refresher.renewing.add(id)
                    await self._fetcher.renew(successor)
                    self._refresher.renewing.discard(id)
            await self._resumed.wait()
