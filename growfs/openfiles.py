"""The cached files that readers hold open, and what those of them cost that are no longer resident.

A file that was evicted or replaced stays on the disk until its last close: it is an orphan, and its bytes count.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from growfs.catalog import Node


@dataclass(slots=True)
class OpenFile:
    """A cached file that readers hold open; one descriptor serves them all.

    size: of its content. orphan_bytes: what it takes on the disk although it is evicted or replaced.
    """

    node: Node
    fd: int
    size: int
    opens: int = 1
    orphan_bytes: int = 0


class OpenFiles:
    """Owns the descriptors. orphan_bytes: over all orphans."""

    def __init__(self) -> None:
        self.orphan_bytes = 0
        self._files: dict[int, OpenFile] = {}

    def __contains__(self, id: int) -> bool:
        return id in self._files

    def get(self, id: int) -> OpenFile | None:
        """The open file with that node id."""
        return self._files.get(id)

    def open(self, node: Node, path: str, admitted: tuple[int, int]) -> OpenFile | None:
        """Open a cached file that is not open; None where it is gone, or perhaps not the one that was admitted.

        admitted: that one's inode number and change time, in ns.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        stat = os.fstat(fd)
        if (stat.st_ino, stat.st_ctime_ns) != admitted or stat.st_size != node.size:
            os.close(fd)
            return None
        opened = self._files[node.id] = OpenFile(node, fd, stat.st_size)
        return opened

    def close(self, id: int) -> int:
        """Close once; returns the bytes that this freed."""
        opened = self._files[id]
        opened.opens -= 1
        if opened.opens:
            return 0
        del self._files[id]
        os.close(opened.fd)
        self.orphan_bytes -= opened.orphan_bytes
        return opened.orphan_bytes

    def orphan(self, id: int, bytes: int) -> bool:
        """Note that a file with those bytes is no longer resident; False where nobody has it open."""
        opened = self._files.get(id)
        if opened is None or opened.orphan_bytes:  # a later copy of an orphan is on nobody's descriptor
            return False
        opened.orphan_bytes = bytes
        self.orphan_bytes += bytes
        return True
