"""growfs's own digest of a local file: the CRC-64/NVME of its content, combined from parts that come in any order.

A digest is a text that begins with the name of its algorithm. Caches that older versions wrote have XXH3 (64 bits)
without a name: of the content, or, for a file larger than 16 MiB, of the XXH3s of its 16 MiB parts, followed by a
hyphen and their number. Such a digest is verified once more, and then replaced.

Every process of growfs imports this module, and few of them compute a digest. So awscrt, which takes 40 ms to import,
is imported on first use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

PART_BYTES = 16 << 20
XXH3_PART_BYTES = 16 << 20
BUFFER_BYTES = 1 << 20  # 4 MiB exceed a core's cache, and take a fifth longer
ALGORITHM = "crc64nvme:"


class Digest:
    """The digest of a file that passes through memory. Several threads may each feed a part."""

    def __init__(self) -> None:
        from awscrt import checksums

        self._extend, self._combine = checksums.crc64nvme, checksums.combine_crc64nvme
        self._parts: dict[int, _Part] = {}

    def part(self, start: int) -> DigestStream:
        """A stream for the bytes from start on, a multiple of PART_BYTES. It replaces an earlier one."""
        number, rest = divmod(start, PART_BYTES)
        if rest:
            raise ValueError(f"no part begins at {start}")
        return DigestStream(self._extend, self._parts, number)

    @property
    def bytes(self) -> int:
        """The number of bytes that came."""
        return sum(part.bytes for part in self._parts.values())

    def text(self) -> str:
        """The digest, when all bytes came. Raises ValueError if a part is missing or not whole."""
        parts = [part for _, part in sorted(self._parts.items())]
        if max(self._parts, default=-1) != len(parts) - 1 or any(part.bytes < PART_BYTES for part in parts[:-1]):
            raise ValueError("a part is missing, or not whole")
        crc = 0
        for part in parts:
            crc = self._combine(crc, part.crc, part.bytes)
        return f"{ALGORITHM}{crc:016x}"


class DigestStream:
    """Takes consecutive bytes, from the beginning of a part on and into those that follow it."""

    def __init__(self, extend: Callable[[memoryview, int], int], parts: dict[int, _Part], number: int) -> None:
        self._extend, self._parts, self._number = extend, parts, number
        self._part = parts[number] = _Part()

    def update(self, piece: memoryview) -> None:
        """Take the bytes that come next; nothing of piece is kept."""
        while piece:
            if self._part.bytes == PART_BYTES:
                self._number += 1
                self._part = self._parts[self._number] = _Part()
            part = self._part
            fits, piece = piece[: PART_BYTES - part.bytes], piece[PART_BYTES - part.bytes :]
            part.crc = self._extend(fits, part.crc)
            part.bytes += len(fits)


class _Part:
    __slots__ = ("bytes", "crc")

    def __init__(self) -> None:
        self.crc = self.bytes = 0


def of(path: Path) -> str:
    """The digest of a file on the disk. Raises OSError."""
    digest = Digest()
    stream = digest.part(0)
    for piece in _pieces(path):
        stream.update(piece)
    return digest.text()


def verify(path: Path, expected: str) -> str | None:
    """The digest of a file on the disk; None where its content is not the one that `expected` was made of.

    It differs from `expected` where that is an XXH3. Raises OSError.
    """
    digest = Digest()
    stream = digest.part(0)
    old = None if expected.startswith(ALGORITHM) else _Xxh3(in_parts="-" in expected)
    for piece in _pieces(path):
        stream.update(piece)
        if old:
            old.update(piece)
    text = digest.text()
    return text if (old.text() if old else text) == expected else None


class _Xxh3:
    """The digest that older versions computed."""

    def __init__(self, in_parts: bool) -> None:
        from awscrt.checksums import XXHash

        self._new = XXHash.new_xxhash3_64
        self._part_bytes = self._left = XXH3_PART_BYTES if in_parts else sys.maxsize
        self._parts = [self._new()]

    def update(self, piece: memoryview) -> None:
        while piece:
            if not self._left:
                self._parts.append(self._new())
                self._left = self._part_bytes
            fits, piece = piece[: self._left], piece[self._left :]
            self._parts[-1].update(bytes(fits))
            self._left -= len(fits)

    def text(self) -> str:
        digests = [part.finalize() for part in self._parts]
        if len(digests) == 1:
            return str(digests[0].hex())
        whole = self._new()
        whole.update(b"".join(digests))
        return f"{whole.finalize().hex()}-{len(digests)}"


def _pieces(path: Path) -> Iterator[memoryview]:
    """The content of a file, in one buffer that is used again and again."""
    with path.open("rb", buffering=0) as file:  # mapped it is twice as fast, but a disk's error would end the process
        size = os.fstat(file.fileno()).st_size  # a buffer is zeroed, which took longer than the rest for a small file
        buffer = memoryview(bytearray(min(size, BUFFER_BYTES) or 1))
        while count := file.readinto(buffer):
            yield buffer[:count]
