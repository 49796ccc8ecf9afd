"""growfs's own digest of a local file: the CRC-64/NVME of its content, combined from segments that arrive in any order.

A digest is a text that begins with the name of its algorithm.

Every process of growfs imports this module, but few compute a digest. So awscrt, which takes 40 ms to import, is
imported on first use.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from functools import cache

from growfs.paths import StrPath

BUFFER_BYTES = 1 << 20  # 4 MiB exceed a core's cache, which takes a fifth longer


class CrcSegments:
    """A CRC of a file that passes through memory in segments, in any order. Several threads may each feed one."""

    def __init__(self, name: str) -> None:
        """name: 'crc64nvme', 'crc32c' or 'crc32'."""
        self._extend, self._combine = _functions(name)
        self._segments: dict[int, CrcSegment] = {}

    def segment(self, start: int) -> CrcSegment:
        """A new segment, for the bytes from start to the next one. It replaces an earlier one with the same start."""
        segment = self._segments[start] = CrcSegment(self._extend)
        return segment

    def combined(self) -> tuple[int, int]:
        """The CRC of all segments, and their total bytes. Raises ValueError if a segment in between is missing."""
        crc = end = 0
        for start, segment in sorted(self._segments.items()):
            if start != end:
                raise ValueError(f"the bytes from {end} to {start} are missing")
            crc, end = self._combine(crc, segment.crc, segment.bytes), end + segment.bytes
        return crc, end


@cache
def _functions(name: str) -> tuple[Callable[[memoryview, int], int], Callable[[int, int, int], int]]:
    from awscrt import checksums

    return getattr(checksums, name), getattr(checksums, f"combine_{name}")


class CrcSegment:
    """Takes consecutive bytes."""

    def __init__(self, extend: Callable[[memoryview, int], int]) -> None:
        self._extend = extend
        self.crc = self.bytes = 0

    def update(self, piece: memoryview) -> None:
        """Feed the next bytes; does not keep any of piece."""
        self.crc = self._extend(piece, self.crc)
        self.bytes += len(piece)


class Digest(CrcSegments):
    """The digest of a file that passes through memory."""

    def __init__(self) -> None:
        super().__init__("crc64nvme")

    def reset(self) -> None:
        """Forget all bytes: the transfer starts over, perhaps with other segments."""
        self._segments.clear()

    @property
    def bytes(self) -> int:
        """The number of bytes that were fed."""
        return sum(segment.bytes for segment in self._segments.values())

    def text(self) -> str:
        """The digest, once all bytes were fed. Raises ValueError if some are missing."""
        return f"crc64nvme:{self.combined()[0]:016x}"


def of(path: StrPath, progress: Callable[[int], None] = lambda _: None, flags: int = 0) -> str:
    """The digest of a file on disk. progress: called with 0 from time to time. flags: additional ones for open(2).

    Raises OSError.
    """
    digest = Digest()
    stream = digest.segment(0)
    # Mapping the file would be twice as fast, but an error of the disk would end the process.
    with open(path, "rb", buffering=0, opener=lambda name, mode: os.open(name, mode | flags)) as file:
        size = os.fstat(file.fileno()).st_size  # zeroing a full buffer took longer than the rest for a small file
        is_aligned = flags & os.O_DIRECT
        buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES) if is_aligned else bytearray(min(size, BUFFER_BYTES) or 1))
        while count := file.readinto(buffer):
            stream.update(buffer[:count])
            progress(0)
    return digest.text()
