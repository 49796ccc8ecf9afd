"""`expected`: what a store tells of a file's content, to be verified while the file passes through memory.

A CRC is computed of each part, in any order, and combined. Hashes want the bytes in order: what did not pass in order
is read from the disk once more, for an MD5 at 0.7 GB/s, so they count only where the store tells no CRC.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from growfs.remote.http.connection import Headers

BUFFER_BYTES = 1 << 20

# What can be verified, the cheapest first, and its size in bytes.
_SIZES = {"crc64nvme": 8, "crc32c": 4, "crc32": 4, "sha256": 32, "sha1": 20, "md5": 16}

_TELLING = {f"x-amz-checksum-{name}" for name in _SIZES} | {
    "content-md5",
    "x-goog-hash",
    "x-amz-server-side-encryption",
}


def expected(headers: Headers) -> Expected | None:
    """What the headers of an answer, to a GET or a HEAD, tell of the whole file; None where that is nothing.

    What is given back takes in one file, once.
    """
    if not headers.keys() & _TELLING:
        return None
    told = _google(headers)
    if _is_whole(headers):  # else it may be the part's
        told.setdefault("md5", headers.get("content-md5", ""))
        if headers.get("x-amz-checksum-type", "FULL_OBJECT") == "FULL_OBJECT":
            told |= {name: text for name in _SIZES if (text := headers.get(f"x-amz-checksum-{name}"))}
    for name, size in _SIZES.items():
        with suppress(ValueError):  # S3 hangs "-3" on what was made of the checksums of three parts
            value = b64decode(told.get(name, ""), validate=True)
            if len(value) == size:
                return _Crc(name, value) if name.startswith("crc") else _Hash(name, value)
    md5 = _etag_md5(headers)
    return _Hash("md5", md5) if md5 else None


class Part(ABC):
    """Takes a part's bytes, in order."""

    @abstractmethod
    def update(self, piece: memoryview) -> None:
        """Take the bytes that come next; nothing of piece is kept."""


class Expected(ABC):
    """What a file has to be like. Several threads may feed a part each."""

    @abstractmethod
    def part(self, start: int) -> Part:
        """Takes the bytes from start on, up to the next part's; what came from there before counts no more."""

    @abstractmethod
    def mismatch(self, total: int, path: Path) -> str | None:
        """Once `total` bytes, the whole file, came and lie at path too: how they differ from what the store tells.

        Raises ValueError where parts are missing, and OSError of the local disk.
        """


class _Crc(Expected):
    def __init__(self, name: str, told: bytes) -> None:
        from awscrt import checksums  # takes 40 ms

        self._name, self._told = name, int.from_bytes(told, "big")
        self._extend, self._combine = getattr(checksums, name), getattr(checksums, f"combine_{name}")
        self._parts: dict[int, _CrcPart] = {}

    def part(self, start: int) -> _CrcPart:
        part = self._parts[start] = _CrcPart(self._extend)
        return part

    def mismatch(self, total: int, path: Path) -> str | None:
        crc = end = 0
        for start, part in sorted(self._parts.items()):
            if start != end:
                break
            crc, end = self._combine(crc, part.crc, part.bytes), end + part.bytes
        if end != total:
            raise ValueError(f"the part from {end} on is missing")
        return None if crc == self._told else _differs(self._name)


class _CrcPart(Part):
    def __init__(self, extend: Callable[[memoryview, int], int]) -> None:
        self._extend = extend
        self.crc = self.bytes = 0

    def update(self, piece: memoryview) -> None:
        self.crc = self._extend(piece, self.crc)
        self.bytes += len(piece)


class _Hash(Expected):
    def __init__(self, name: str, told: bytes) -> None:
        self._name, self._told = name, told
        self._first = _HashPart(name)

    def part(self, start: int) -> Part:
        if start:
            return _Unheard()
        self._first = _HashPart(self._name)
        return self._first

    def mismatch(self, total: int, path: Path) -> str | None:
        first = self._first
        if first.bytes < total:
            buffer = memoryview(bytearray(BUFFER_BYTES))
            with path.open("rb", buffering=0) as file:
                file.seek(first.bytes)
                while count := file.readinto(buffer):
                    first.update(buffer[:count])
        return None if first.state.digest() == self._told else _differs(self._name)


class _HashPart(Part):
    def __init__(self, name: str) -> None:
        self.state = hashlib.new(name, usedforsecurity=False)
        self.bytes = 0

    def update(self, piece: memoryview) -> None:
        self.state.update(piece)
        self.bytes += len(piece)


class _Unheard(Part):
    def update(self, piece: memoryview) -> None:
        """It comes too early, and will be read from the disk."""


def _differs(name: str) -> str:
    return f"what came has another {name.upper()} than the store tells"


def _is_whole(headers: Headers) -> bool:
    """Whether the answer is all of the file, though a range may have been asked for."""
    told = headers.get("content-range")
    found = re.fullmatch(r"bytes 0-(\d+)/(\d+)", told or "")
    return told is None or (found is not None and int(found[1]) + 1 == int(found[2]))


def _google(headers: Headers) -> dict[str, str]:
    """Of the whole file also where a part is sent, but as it is stored, which is not as it is sent where it unpacks it
    (https://cloud.google.com/storage/docs/transcoding).
    """
    if headers.get("x-goog-stored-content-encoding", "identity") != headers.get("content-encoding", "identity"):
        return {}
    return dict(re.findall(r"\b(crc32c|md5)=([\w+/=]+)", headers.get("x-goog-hash", "")))


def _etag_md5(headers: Headers) -> bytes:
    """The ETag as MD5: where S3 alone encrypted the object, if it was put in one piece; else nothing.

    (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html); other stores put anything there.
    """
    etag = headers.get("etag", "").strip('"')
    is_md5 = headers.get("x-amz-server-side-encryption") == "AES256" and re.fullmatch("[0-9a-f]{32}", etag)
    return bytes.fromhex(etag) if is_md5 else b""
