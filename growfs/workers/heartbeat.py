"""The signs of life that a worker sends while it lists, so that the daemon knows whether it computes or waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from growfs.workers.messages import ServerSilent, StillWorking

EVERY_S = 20.0
COMPUTED_S_MIN = 0.005
"""Reading a page of names takes more CPU, waiting for a server less."""
SILENCE_S_MAX = 960.0
"""How long a server is waited for; all tries of one page take less, with timeouts that double."""


class ListingHeartbeat:
    """Sends what this process does while it lists, from a thread of its own.

    It may compute, as the library may read a million names before it returns a page, or wait for the server.
    heard_at: when the last page arrived, by time.monotonic.
    """

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.heard_at = time.monotonic()
        threading.Thread(target=self._run, args=(send,), daemon=True).start()

    def _run(self, send: Callable[[Any], None]) -> None:
        computed_s = time.process_time()
        while True:
            time.sleep(EVERY_S)
            silent_s = time.monotonic() - self.heard_at
            if time.process_time() - computed_s > COMPUTED_S_MIN:
                send(StillWorking())
            elif EVERY_S <= silent_s < SILENCE_S_MAX:
                send(ServerSilent(silent_s))
            computed_s = time.process_time()
