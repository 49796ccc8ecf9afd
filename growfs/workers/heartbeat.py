"""The signs of life that a worker sends while it lists, so that the daemon knows whether it is computing or waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from growfs.errors import RemoteError
from growfs.workers.messages import ServerSilent, StillWorking

EVERY_S = 20.0


class ListingHeartbeat:
    """Reports what this process does while it lists, from its own thread.

    It may be computing (the library may read a million names before it returns a page), or waiting for the server or
    the next attempt.
    """

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._page_at = self._tried_at = time.monotonic()
        self._why: RemoteError | None = None
        threading.Thread(target=self._run, args=(send,), daemon=True).start()

    def note_page(self) -> None:
        """Note that a page has arrived."""
        self._page_at = self._tried_at = time.monotonic()
        self._why = None

    def note_failure(self, error: RemoteError) -> None:
        """Note that a page has to be requested again."""
        self._tried_at = time.monotonic()
        self._why = error

    def _run(self, send: Callable[[Any], None]) -> None:
        computed_s = time.process_time()
        while True:
            time.sleep(EVERY_S)
            now, why = time.monotonic(), self._why
            if why is None and time.process_time() - computed_s > 0.005:  # it reads names; waiting takes less CPU time
                send(StillWorking())
            elif now - self._page_at >= EVERY_S and now - self._tried_at < 960.0:  # otherwise it hangs
                send(ServerSilent(now - self._page_at, why))
            computed_s = time.process_time()
