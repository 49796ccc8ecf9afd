"""The cached files that readers hold open or opened lately, and what those of them cost that are no longer resident.

A file that was evicted or replaced stays on the disk until its last close: it is an orphan, and its bytes count. One
that is resident still stays open for its next reader: a reader of many small files comes back to each in every epoch.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from growfs.pulse import Pulse

IDLE_MAX = 16_384
"""Files that are kept open for the next reader; each pins 1 to 2 KB of kernel memory."""


@dataclass(slots=True)
class OpenFile:
    """A cached file that readers hold open; one descriptor serves them all.

    size: of its content. admitted: inode number and change time (ns) of what was admitted. orphan_bytes: what it takes
    on the disk although it is evicted or replaced.
    """

    id: int
    fd: int
    size: int
    mtime_ns: int | None
    admitted: tuple[int, int]
    opens: int = 1
    orphan_bytes: int = 0

    def is_as_admitted(self) -> bool:
        """Whether nobody has written to it since."""
        stat = os.fstat(self.fd)
        return (stat.st_ino, stat.st_ctime_ns) == self.admitted and stat.st_size == self.size


class OpenFiles:
    """Owns the descriptors. orphan_bytes: over all orphans. `dropped` tells of each whose descriptor is closed."""

    def __init__(self) -> None:
        self.orphan_bytes = 0
        self.dropped = Pulse[[int]]()
        self._files: dict[int, OpenFile] = {}
        self._idle: dict[int, OpenFile] = {}
        self._idle_max = min(IDLE_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    def __contains__(self, id: int) -> bool:
        return id in self._files

    def get(self, id: int) -> OpenFile | None:
        """The file with that node id, if a reader has it open."""
        return self._files.get(id)

    def wants(self, id: int) -> bool:
        """Whether a file may be opened ahead of its reader: it is not open, and no other would have to go for it."""
        return len(self._idle) < self._idle_max and id not in self._idle and id not in self._files

    def again(self, id: int) -> OpenFile | None:
        """Open a file once more that is open, or was lately."""
        if opened := self._files.get(id):
            opened.opens += 1
            return opened
        if (opened := self._idle.pop(id, None)) is None:
            return None
        if not opened.is_as_admitted():
            self._drop(opened)
            return None
        opened.opens = 1
        self._files[id] = opened
        return opened

    def open(self, id: int, path: str, size: int, mtime_ns: int | None, admitted: tuple[int, int]) -> OpenFile | None:
        """Open a cached file that is not open; None where it is gone, or perhaps not the one that was admitted."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        opened = OpenFile(id, fd, size, mtime_ns, admitted)
        if not opened.is_as_admitted():
            os.close(fd)
            return None
        self._files[id] = opened
        return opened

    def close(self, id: int) -> int:
        """Close once; returns the bytes that this freed."""
        opened = self._files[id]
        opened.opens -= 1
        if opened.opens:
            return 0
        del self._files[id]
        if opened.orphan_bytes:
            self._drop(opened)
            self.orphan_bytes -= opened.orphan_bytes
            return opened.orphan_bytes
        self._idle[id] = opened
        if len(self._idle) > self._idle_max:
            self._drop(self._idle.pop(next(iter(self._idle))))
        return 0

    def orphan(self, id: int, bytes: int) -> bool:
        """Note that a file with those bytes is no longer resident; False where nobody has it open."""
        if idle := self._idle.pop(id, None):
            self._drop(idle)
        opened = self._files.get(id)
        if opened is None or opened.orphan_bytes:  # a later copy of an orphan is on nobody's descriptor
            return False
        opened.orphan_bytes = bytes
        self.orphan_bytes += bytes
        return True

    def _drop(self, opened: OpenFile) -> None:
        os.close(opened.fd)
        self.dropped(opened.id)
