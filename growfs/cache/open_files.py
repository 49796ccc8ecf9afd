"""Descriptors of the cached files that are open, or were a short time ago.

An evicted or replaced file stays on the disk until its last close: it is an orphan, and its bytes count. A resident
file stays open after its last close, because a reader of many small files reopens each in every epoch.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import resource
from dataclasses import dataclass

from growfs.cache.recovery import Identity
from growfs.errors import TooManyOpen
from growfs.signal import Signal

IDLE_MAX = 16_384
"""Files kept open for the next reader; each pins 1 to 2 KB of kernel memory."""
IDLE_CANDIDATES = 16
"""Idle files to choose from when one has to be closed."""


@dataclass(slots=True)
class OpenFile:
    """A cached file that readers hold open; one descriptor serves them all."""

    id: int
    fd: int
    size: int
    """The size of its content."""
    mtime_ns: int | None
    admitted: Identity
    """Of the file at its admission. A link to the file does not change it."""
    opens: int = 1
    orphan_bytes: int | None = None
    """Bytes that it takes on the disk although it is evicted or replaced; None while it is resident."""

    def is_as_admitted(self) -> bool:
        """Whether the file is unchanged since its admission."""
        stat = os.fstat(self.fd)
        return Identity.of(stat) == self.admitted and stat.st_size == self.size

    def is_mapped(self) -> bool:
        """Whether another process holds the cached file, as a mapping through passthrough does after the close.

        The kernel grants a write lease only if no other process holds the file (fcntl(2), F_SETLEASE). On file systems
        without leases, the answer is no.
        """
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False


class OpenFiles:
    """Owns the descriptors of cached files.

    `descriptor_opened` (node id) notifies of each file that the daemon opens. `descriptor_closed` (node id) notifies of
    each one that it closes, and of the descriptor of an orphan that is only mapped: by then the file may have been
    fetched again and opened with another descriptor.

    A file is open (readers hold it), idle (resident, and kept for the next reader), or an orphan that is only mapped.
    orphan_bytes: bytes that all orphans take on the disk.
    """

    def __init__(self) -> None:
        self.orphan_bytes = 0
        self.descriptor_opened = Signal[[int]]()
        self.descriptor_closed = Signal[[int]]()
        self._files: dict[int, OpenFile] = {}
        self._idle: dict[int, OpenFile] = {}
        self._mapped: dict[int, OpenFile] = {}
        self._limit = limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._idle_max = min(IDLE_MAX, limit // 2)
        # 256 are for the rest of the daemon: workers, the database, the open files of .growfs/.
        self._descriptors_max = max(limit // 2, limit - 256)

    def __contains__(self, id: object) -> bool:
        """Whether a reader has a file open or mapped."""
        idle = self._idle.get(id) if isinstance(id, int) else None
        return id in self._files or (idle is not None and idle.is_mapped())

    @property
    def warning(self) -> str | None:
        """What the user can do if only few files can be open at a time."""
        if self._descriptors_max >= 1024:  # enough for a loader with several workers
            return None
        return (
            f"readers can have {self._descriptors_max} files open at a time, because the daemon may open {self._limit}"
            " (ulimit -n); raise the hard limit, and mount again"
        )

    @property
    def ids(self) -> set[int]:
        """The node ids of the files that readers have open; others may be mapped."""
        return set(self._files)

    def get(self, id: int) -> OpenFile | None:
        """The file with that node id, if a reader has it open."""
        return self._files.get(id)

    def should_preopen(self, id: int) -> bool:
        """Whether to open a file before its reader does: it is not open, and no idle file has to be closed for it."""
        is_open = id in self._idle or id in self._files
        return not is_open and len(self._idle) < self._idle_max and self._descriptors < self._descriptors_max

    @property
    def _descriptors(self) -> int:
        return len(self._files) + len(self._idle) + len(self._mapped)

    def reuse(self, id: int) -> OpenFile | None:
        """Open a file again that is open or idle; None for any other."""
        if opened := self._files.get(id):
            opened.opens += 1
            return opened
        if (opened := self._idle.pop(id, None)) is None:
            return None
        if not opened.is_as_admitted():
            self._close_descriptor(opened)
            return None
        opened.opens = 1
        self._files[id] = opened
        return opened

    def open(self, id: int, path: str, size: int, mtime_ns: int | None, admitted: Identity) -> OpenFile | None:
        """Open a cached file that is not open; None if it is gone, or may not be the one that was admitted.

        Raises TooManyOpen.
        """
        looks = range(0, len(self._idle), IDLE_CANDIDATES)
        if self._descriptors >= self._descriptors_max and not any(self._close_idle() for _ in looks):
            in_use = self._descriptors
            raise TooManyOpen(f"{in_use} files are open or mapped; raise the limit (ulimit -n) and mount again")
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        opened = OpenFile(id, fd, size, mtime_ns, admitted)
        if not opened.is_as_admitted():
            os.close(fd)
            return None
        self._files[id] = opened
        self.descriptor_opened.notify(id)
        return opened

    def close(self, id: int) -> int:
        """Close once; returns the bytes that this freed."""
        opened = self._files[id]
        opened.opens -= 1
        if opened.opens:
            return 0
        del self._files[id]
        if opened.orphan_bytes is not None:
            self.descriptor_closed.notify(id)
            return self._release(opened)
        self._idle[id] = opened
        while len(self._idle) > self._idle_max and self._close_idle():
            pass
        return 0

    def orphan(self, id: int, bytes: int) -> bool:
        """Note that a file of this many bytes is no longer resident; False if no reader has it open or mapped."""
        idle = self._idle.pop(id, None)
        opened = idle or self._files.get(id)
        if opened is None or opened.orphan_bytes is not None:  # a copy fetched after the orphan has no descriptor
            return False
        opened.orphan_bytes = bytes
        self.orphan_bytes += bytes
        if idle is None:
            return True
        self.descriptor_closed.notify(id)
        return self._release(idle) == 0

    def collect_orphans(self) -> int:
        """Close orphans that are no longer mapped; returns the bytes that this freed."""
        if not self._mapped:
            return 0
        mapped, self._mapped = self._mapped, {}
        return sum(self._release(orphan) for orphan in mapped.values())

    def _release(self, orphan: OpenFile) -> int:
        """Close an orphan that no reader has open, unless it is mapped; returns the bytes that this freed."""
        if orphan.is_mapped():
            self._mapped[orphan.fd] = orphan
            return 0
        assert orphan.orphan_bytes is not None
        os.close(orphan.fd)
        self.orphan_bytes -= orphan.orphan_bytes
        return orphan.orphan_bytes

    def _close_idle(self) -> bool:
        """Close one of the longest idle files; False if all candidates are mapped: next time it tries others."""
        return any(map(self.close_if_idle, list(itertools.islice(self._idle, IDLE_CANDIDATES))))

    def close_if_idle(self, id: int) -> bool:
        """Close a file that is only kept for the next reader, unless it is mapped; returns whether it did.

        Without its descriptor, a mapping could not be noticed when the file is evicted. Any other file is closed before
        it is removed: the last close of a removed file frees its blocks, which takes 25 us for each MiB in memory.
        """
        idle = self._idle.pop(id, None)
        if closes := idle is not None and not idle.is_mapped():
            self._close_descriptor(idle)
        elif idle:
            self._idle[id] = idle
        return closes

    def _close_descriptor(self, opened: OpenFile) -> None:
        os.close(opened.fd)
        self.descriptor_closed.notify(opened.id)
