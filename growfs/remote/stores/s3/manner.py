"""`MannerChoice`: the manner of requesting objects in which a store sends them as it lists them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from growfs.errors import RemoteBusy
from growfs.remote.http.connection import ConnectionFailed

log = logging.getLogger(__name__)


class Manner(NamedTuple):
    """How objects are requested."""

    has_checksums: bool = True
    """With `x-amz-checksum-mode`, which some stores refuse."""
    accepts: str = "identity"
    """The encoding. Some stores decompress objects that are stored compressed, unless that is gzip."""


class MannerChoice:
    """Owns the current manner. Several threads may use it."""

    def __init__(self) -> None:
        self.current = Manner()
        self._lock = threading.Lock()
        self._tries = 0

    def has_changed(self, used: Manner, is_good: Callable[[Manner], bool]) -> bool:
        """Whether objects are requested in another manner from now on, after an unusual response to one in `used`.

        is_good: requests an object in a manner, and returns whether it is sent as it was listed. May raise
        ConnectionFailed and RemoteBusy, which say nothing about the manner.
        """
        with self._lock:
            if self.current == used and self._tries < 3:
                self._tries += 1
                others = [Manner(sums, accepts) for accepts in ("identity", "gzip") for sums in (True, False)]
                with suppress(ConnectionFailed, RemoteBusy):
                    found = next(filter(is_good, (used, *others)), used)
                    if found != used and not is_good(used):  # otherwise one of several servers differs
                        checksums = "" if found.has_checksums else ", and no checksums"
                        log.warning("objects are requested with encoding %s%s from now on", found.accepts, checksums)
                        self.current = found
            return self.current != used
