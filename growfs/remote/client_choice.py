"""Which client reads the files of a store: growfs itself, or the store's library (s3fs, gcsfs, ...).

A store chooses it when it is opened, from the URL, the options and the environment alone (`StoreRemote.choose_client`).
So the daemon and all workers choose the same one. `LibraryUse` is for what shows later: a server that gives responses
which only the library understands.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

OWN = "growfs"
LEFT_MAX = 10
"""Requests in a row that only the library could make; after that it makes all."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientChoice:
    """Which client it is."""

    library: str
    """The package of the library; empty if there is none."""
    uses_library: bool
    reason: str
    """Why, in words."""

    @property
    def name(self) -> str:
        """`growfs`, or the package of the library."""
        return self.library if self.uses_library else OWN


@dataclass(slots=True)
class LibraryUse:
    """What one process leaves to the store's library. For any thread."""

    files: int = 0
    """Files that the library has fetched."""
    gave_up: str = ""
    """Why all requests are left to the library from now on; empty: they are not."""
    in_a_row: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note_own(self) -> None:
        """Note that growfs has made a request itself."""
        self.in_a_row = 0

    def note(self, why: str, files: int = 0) -> None:
        """Note that the library has made a request. why: what keeps growfs from it; empty if that does not count.

        Only a request that succeeds is noted: what fails by the library, too, is no reason to use it.
        """
        with self._lock:
            self.files += files
            self.in_a_row += bool(why)
            if why and self.in_a_row >= LEFT_MAX and not self.gave_up:
                self.gave_up = why
                log.warning("the store's library makes all requests from now on, which is slower: %s", why)
