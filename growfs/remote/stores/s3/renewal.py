"""`Renewal`: when a process looks for credentials anew, because the store refuses those that it has."""

from __future__ import annotations

import math
import time

from growfs.errors import CredentialsRefused, RemoteDenied

PAUSE_S, PAUSE_S_MAX = 30.0, 3600.0
"""How long to wait between two renewals; doubled each time until a refused request is served with new credentials.
There is no wait if the last ones were served, and are now refused themselves."""


class Renewal:
    """Owns when credentials were renewed, and when requests were served with them. Times are monotonic."""

    def __init__(self) -> None:
        self._at = self._served_at = -math.inf
        self._pause_s = PAUSE_S

    def note_served(self, at: float, was_refused: bool = False) -> None:
        """Note that a request made at this time was served. was_refused: with the credentials before."""
        self._served_at = max(self._served_at, at)
        if was_refused:
            self._pause_s = PAUSE_S

    def was_served_after(self, at: float) -> bool:
        """Whether a request made after this time was served."""
        return self._served_at > at

    def is_due(self, since: float, refusal: RemoteDenied) -> bool:
        """Whether to renew the credentials, with which a request made at `since` was refused."""
        have_expired = isinstance(refusal, CredentialsRefused) and self._served_at > self._at
        pause_s = 0.0 if have_expired else self._pause_s
        return not self.was_done_after(since) and time.monotonic() > self._at + pause_s

    def note(self) -> None:
        """Note that they were renewed now."""
        self._at = time.monotonic()
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def was_done_after(self, at: float) -> bool:
        """Whether they were renewed after this time."""
        return self._at >= at
