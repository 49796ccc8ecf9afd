"""growfs's own digest of a local file: XXH3 (64 bits), of which the parts may come in any order.

A file of at most PART_BYTES has the XXH3 of its content. A larger one has the XXH3 of its parts' XXH3s, one after the
other, and their number behind a hyphen, as S3 writes the ETag of a multipart upload: so a digest's text tells how it
was made, and the plain ones of large files in older caches can still be compared.
"""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

PART_BYTES = 16 << 20
BUFFER_BYTES = 1 << 20  # 4 MiB no longer lie in a core's cache, and take a fifth longer


class Digest:
    """The digest of a file on its way through memory, of which several threads may feed a part each."""

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}

    def part(self, start: int) -> Stretch:
        """Takes the bytes from start on, a multiple of PART_BYTES; what came for that part before counts no more."""
        number, into = divmod(start, PART_BYTES)
        if into:
            raise ValueError(f"no part begins at {start}")
        return Stretch(self._parts, number)

    @property
    def bytes(self) -> int:
        """How many came."""
        return sum(PART_BYTES - part.left for part in self._parts.values())

    def hexdigest(self) -> str:
        """The digest, once all bytes are in. Raises ValueError where it can be seen that some are missing."""
        parts = [part for _, part in sorted(self._parts.items())]
        if max(self._parts, default=-1) != len(parts) - 1 or any(part.left for part in parts[:-1]):
            raise ValueError("a part is missing, or not whole")
        if len(parts) > 1:
            return f"{xxhash.xxh3_64_hexdigest(b''.join(part.state.digest() for part in parts))}-{len(parts)}"
        return parts[0].state.hexdigest() if parts else xxhash.xxh3_64_hexdigest(b"")


class Stretch:
    """Takes bytes that follow each other, of a part and of those behind it."""

    def __init__(self, parts: dict[int, _Part], number: int) -> None:
        self._parts, self._number = parts, number
        self._part = parts[number] = _Part()

    def update(self, piece: memoryview) -> None:
        """Take the bytes that come next."""
        while piece:
            if not self._part.left:
                self._number += 1
                self._part = self._parts[self._number] = _Part()
            now, piece = piece[: self._part.left], piece[self._part.left :]
            self._part.state.update(now)
            self._part.left -= len(now)


class _Part:
    __slots__ = ("left", "state")

    def __init__(self) -> None:
        self.left = PART_BYTES
        self.state = xxhash.xxh3_64()


def of(path: Path, like: str = "") -> str:
    """The digest of a file on the disk; made in the way that `like` was, where that is given. Raises OSError."""
    digest, plain = Digest(), xxhash.xxh3_64()
    is_plain = like and "-" not in like
    update = plain.update if is_plain else digest.part(0).update
    with path.open("rb", buffering=0) as file:  # mapped it is twice as fast, but a disk's error would end the process
        size = os.fstat(file.fileno()).st_size  # a buffer is zeroed, which took longer than the rest for a small file
        buffer = memoryview(bytearray(min(size, BUFFER_BYTES) or 1))
        while count := file.readinto(buffer):
            update(buffer[:count])
    return plain.hexdigest() if is_plain else digest.hexdigest()
