"""Which client reads the files of a store: growfs itself, or the store's library (s3fs, gcsfs, ...).

A store chooses it when it is opened, from the URL, the options and the environment alone (`StoreRemote.choose_client`),
so all workers choose the same one. `LibraryUse` is for later findings: a server that gives responses which only the
library understands.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

OWN = "growfs"
LEFT_MAX = 10
"""Consecutive requests that only the library could make; after that, the library makes all."""

log = logging.getLogger(__name__)


class ClientChoice(NamedTuple):
    """The client that was chosen."""

    library: str
    """The package of the library; empty if there is none."""
    uses_library: bool
    reason: str
    """The reason, as text."""

    @property
    def name(self) -> str:
        """`growfs`, or the package of the library."""
        return self.library if self.uses_library else OWN

    def after(self, gave_up: str) -> ClientChoice:
        """The client after growfs gave up to make requests, if there is a reason (gave_up)."""
        return (
            self._replace(uses_library=True, reason=f"growfs could not request the last {LEFT_MAX} files: {gave_up}")
            if gave_up
            else self
        )


@dataclass(slots=True)
class LibraryUse:
    """The requests that one process leaves to the store's library. Thread-safe."""

    files: int = 0
    """Files that the library has fetched."""
    gave_up: str = ""
    """Why all requests are left to the library from now on; empty if they are not."""
    in_a_row: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def give_up(self, why: str) -> None:
        """Leave all requests to the library, if there is a reason (why)."""
        self.gave_up = self.gave_up or why

    def note_own(self) -> None:
        """Note that growfs has made a request itself."""
        self.in_a_row = 0

    def note(self, why: str, files: int = 0) -> None:
        """Note that the library has made a request. why: why growfs could not make it; empty if that does not count.

        Only successful requests are noted: if the library fails as well, there is no reason to use it.
        """
        with self._lock:
            self.files += files
            self.in_a_row += bool(why)
            if why and self.in_a_row >= LEFT_MAX and not self.gave_up:
                self.gave_up = why
                log.warning("the store's library makes all requests from now on, which is slower: %s", why)
