"""Room for the catalog on a full disk: to evict a file is to write the catalog, which needs room itself."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from growfs import disk

BYTES_MAX = 16 << 20
"""Enough for the rows of a thousand files that are evicted."""
SHARE = 8
"""At most one part in 8 of what the disk has free."""


class Spare:
    """Owns a file that only takes room. It is given up when the disk is full, and made again when there is room.

    lacking_bytes: what it should take, and does not.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = 0
        self.give_up()  # what a crash has left
        self._bytes = self.lacking_bytes = min(BYTES_MAX, disk.free_bytes(path.parent) // SHARE)
        self.make()

    def make(self) -> None:
        """Take the room, unless it is taken already, or there is not so much."""
        if self.lacking_bytes:
            with suppress(OSError):
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                try:
                    os.posix_fallocate(fd, 0, self._bytes)
                    self.lacking_bytes = 0
                except OSError:
                    self._path.unlink(missing_ok=True)
                finally:
                    os.close(fd)

    def give_up(self) -> None:
        """Free the room."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        self.lacking_bytes = self._bytes
