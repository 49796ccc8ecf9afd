"""A disk that refuses more: what is kept for the catalog, and quotas that statvfs(2) does not report.

Evicting a file writes to the catalog, which needs space on a full disk. `Spare` keeps that space, and `Database` gives
it up when a write is refused. The quota of a user is invisible to statvfs(2); `HiddenQuota` learns it from what the
disk refuses. `Room` counts with both. What happens to a refused file is decided in one place, which is
`Fetcher._handle_full_disk`.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

import trio

from growfs import btrfs, disk
from growfs.errors import DiskFull

SPARE_BYTES_MAX = 16 << 20
"""Room for the rows of a thousand evicted files, which is taken from no more than an eighth of the free space."""
QUOTA_RETRY_S = 60.0
"""Pause before a quota is probed again after another refusal, unless a reader waits."""


class Spare:
    """Owns a file that only reserves space: evicting a file writes to the catalog, which needs space on a full disk.

    The space is given up when the disk is full, and reserved again once it has room. In a btrfs quota group it is left
    free from the start, as `leave_free`: what is deleted there counts until the next commit. lacking_bytes: how much of
    the space is not reserved.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = 0
        limit = btrfs.limit_bytes(path.parent)
        self._is_left_free = limit is not None
        self.give_up()  # the one that a crash has left
        # In a btrfs quota group, a commit must always make room. Until then, btrfs reserves 200 to 400 KiB of metadata
        # for each file that is written.
        of_disk = min(SPARE_BYTES_MAX, disk.free_bytes(path.parent) // 8)
        self._bytes = self.lacking_bytes = of_disk if limit is None else min(64 << 20, limit // 4)
        self.make()

    def make(self) -> None:
        """Reserve the space, unless it is reserved already or the disk does not have that much."""
        if self.lacking_bytes and not self._is_left_free and _allocate(self._path, self._bytes):
            self.lacking_bytes = 0

    def leave_free(self) -> None:
        """Reserve no space from now on, so that it stays free. If a quota is used up to the last block, even changing a
        page of a mapped file is refused, and btrfs then ends the process with SIGBUS.
        """
        self._is_left_free = True
        self.give_up()

    def has_room_for(self, bytes: int) -> bool:
        """Whether the disk, and its quota, has room for this many more bytes, in addition to lacking_bytes."""
        path = self._path.parent / "partial" / "room"
        has_room = _allocate(path, bytes + self.lacking_bytes)
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return has_room

    def give_up(self) -> None:
        """Free the reserved space."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        self.lacking_bytes = self._bytes


def _allocate(path: Path, bytes: int) -> bool:
    """Create a file that takes this many bytes on disk; False if the disk refuses."""
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(fd, 0, bytes)
            return True
        except OSError:
            path.unlink(missing_ok=True)
        finally:
            os.close(fd)
    return False


class HiddenQuota:
    """Owns what is known of a quota that statvfs(2) does not report.

    bytes: what it allows the cache, as far as probed; None until it refuses more.
    """

    def __init__(self, spare: Spare) -> None:
        self.bytes: int | None = None
        self._spare = spare
        self._retry_at = self._refused_at = -math.inf
        self._refused: DiskFull | None = None

    def note_refusal(self, error: DiskFull, since: float) -> bool:
        """Note that the disk refused a file; False if an earlier refusal has made room since the file was begun.

        since: when it was begun, in trio's time.
        """
        is_news = since > self._refused_at
        if is_news:
            self._refused_at, self._refused = trio.current_time(), error
        return is_news

    def learn(self, written_bytes: int) -> None:
        """Note that it is used up. written_bytes: what the cache has written of its files.

        One part in 32 of that is given up, or SPARE_BYTES_MAX: the catalog grows. The space that the spare file had, or
        should have had, is also left free.
        """
        margin = min(SPARE_BYTES_MAX, written_bytes // 32) + self._spare.lacking_bytes
        self.bytes = written_bytes - min(margin, written_bytes // 2)
        self._spare.leave_free()

    def overdraft(self, used_bytes: int) -> DiskFull | None:
        """The error for files in flight that would take space that it leaves to the catalog: they began before it was
        found. None if there is enough. used_bytes: of the cache.
        """
        return self._refused if self.bytes is not None and used_bytes > self.bytes else None

    async def probe(self, need: int, used_bytes: int, at_once: bool) -> bool:
        """Find out whether it now has room for `need` bytes more than used_bytes; returns whether it does.

        at_once: even if it has just refused.
        """
        if self.bytes is None or not (at_once or trio.current_time() >= self._retry_at):
            return False
        more = max(need, min(self.bytes // 100, 64 << 20))
        if not await trio.to_thread.run_sync(self._spare.has_room_for, more):
            self._retry_at = trio.current_time() + QUOTA_RETRY_S
            return False
        self.bytes = used_bytes + more
        return True
