"""The service that syncs the cached files, so that they count even after a power loss."""

from __future__ import annotations

import logging

import trio

from growfs.cache.database import DISK_ERRORS
from growfs.cache.store import Store

log = logging.getLogger(__name__)

EVERY_S = 30.0


class Durability:
    """Owns nothing: the store knows which files are durable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self) -> None:
        """Sync repeatedly until cancelled."""
        while True:
            await trio.sleep(EVERY_S)
            try:
                await self._store.make_durable()
            except DISK_ERRORS as error:
                log.warning("the cached files could not be synced to the disk, trying again: %s", error)
