"""`expected_checksum`: the checksum that a store sends with a file, verified while the file passes through memory.

The CRCs of segments are computed in any order and then combined. Hashes need the bytes in order: bytes that arrived
out of order are read back from disk (0.7 GB/s for an MD5), so a hash is used only if the store sends no CRC.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from contextlib import suppress

from growfs.paths import StrPath
from growfs.remote import digest
from growfs.remote.digest import CrcSegments
from growfs.remote.http.connection import Headers
from growfs.remote.interface import Progress, ignore_progress

# The sizes in bytes of the checksums that can be verified, cheapest first.
_SIZES = {"crc64nvme": 8, "crc32c": 4, "crc32": 4, "sha256": 32, "sha1": 20, "md5": 16}

_CHECKSUM_HEADERS = {f"x-amz-checksum-{name}" for name in _SIZES} | {
    "content-md5",
    "x-goog-hash",
    "x-amz-server-side-encryption",
    "x-ms-blob-content-md5",
}


def expected_checksum(headers: Headers) -> ExpectedChecksum | None:
    """The checksum of the whole file in the response headers of a GET or HEAD; None if there is none.

    The result is for a single transfer of the file.
    """
    if not headers.keys() & _CHECKSUM_HEADERS:
        return None
    checksums = _google_checksums(headers)
    if md5 := headers.get("x-ms-blob-content-md5"):  # Azure's, for the whole file even in the response to a range
        checksums["md5"] = md5
    if _is_whole_file(headers):  # otherwise it may be the checksum of the range
        checksums.setdefault("md5", headers.get("content-md5", ""))
        if headers.get("x-amz-checksum-type", "FULL_OBJECT") == "FULL_OBJECT":
            checksums |= {name: text for name in _SIZES if (text := headers.get(f"x-amz-checksum-{name}"))}
    for name, size in _SIZES.items():
        with suppress(ValueError):  # S3 appends "-3" to a checksum of the checksums of three parts
            value = b64decode(checksums.get(name, ""), validate=True)
            if len(value) == size:
                return _ExpectedCrc(name, value) if name.startswith("crc") else _ExpectedHash(name, value)
    etag_md5 = _etag_md5(headers)
    return _ExpectedHash("md5", etag_md5) if etag_md5 else None


class _ExpectedCrc(CrcSegments):
    """A CRC that a file must have."""

    def __init__(self, name: str, value: bytes) -> None:
        super().__init__(name)
        self.name, self._value = name, int.from_bytes(value, "big")

    def mismatch(self, total: int, path: StrPath, progress: Progress = ignore_progress) -> str | None:
        """How the file differs from the checksum; None if it does not.

        Called after all segments, `total` bytes together, were fed, and the file is at path. progress: called with 0
        from time to time. Raises ValueError if a segment is missing, and OSError of the local disk.
        """
        crc, end = self.combined()
        if end != total:
            raise ValueError(f"the segment from {end} on is missing")
        return None if crc == self._value else _differs(self.name)


class _ExpectedHash:
    """A hash that a file must have."""

    def __init__(self, name: str, value: bytes) -> None:
        self.name, self._value = name, value
        self._first = _SegmentHash(name)

    def segment(self, start: int) -> _SegmentHash | None:
        """As CrcSegments.segment; None if the bytes before it are missing: it is read back from disk at the end."""
        if start:
            return None
        self._first = _SegmentHash(self.name)
        return self._first

    def mismatch(self, total: int, path: StrPath, progress: Progress = ignore_progress) -> str | None:
        """As _ExpectedCrc.mismatch."""
        first = self._first
        if first.bytes < total:
            buffer = memoryview(bytearray(digest.BUFFER_BYTES))
            with open(path, "rb", buffering=0) as file:
                file.seek(first.bytes)
                while count := file.readinto(buffer):
                    first.update(buffer[:count])
                    progress(0)  # a file of 100 GB takes minutes
        return None if first.state.digest() == self._value else _differs(self.name)


class _SegmentHash:
    def __init__(self, name: str) -> None:
        self.state = hashlib.new(name, usedforsecurity=False)
        self.bytes = 0

    def update(self, piece: memoryview) -> None:
        self.state.update(piece)
        self.bytes += len(piece)


ExpectedChecksum = _ExpectedCrc | _ExpectedHash


def _differs(name: str) -> str:
    return f"the {name.upper()} of the content is not the one that the store sent"


def _is_whole_file(headers: Headers) -> bool:
    """Whether the response has the whole file, even though a range may have been requested."""
    content_range = headers.get("content-range")
    found = re.fullmatch(r"bytes 0-(\d+)/(\d+)", content_range or "")
    return content_range is None or (found is not None and int(found[1]) + 1 == int(found[2]))


def _google_checksums(headers: Headers) -> dict[str, str]:
    """Google's checksums, which cover the whole file even in the response to a range.

    They are of the stored bytes, so they are useless if the server decompresses the file as it sends it
    (https://cloud.google.com/storage/docs/transcoding).
    """
    if headers.get("x-goog-stored-content-encoding", "identity") != headers.get("content-encoding", "identity"):
        return {}
    return dict(re.findall(r"\b(crc32c|md5)=([\w+/=]+)", headers.get("x-goog-hash", "")))


def _etag_md5(headers: Headers) -> bytes:
    """The ETag, if it is an MD5: of an object that S3 encrypts with its own keys and that was uploaded in one piece.

    Not in a directory bucket (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html). Other stores use
    arbitrary ETags.
    """
    etag = headers.get("etag", "").strip('"')
    is_by_s3 = headers.get("x-amz-server-side-encryption") == "AES256"
    in_directory_bucket = headers.get("x-amz-storage-class") == "EXPRESS_ONEZONE"
    is_md5 = is_by_s3 and not in_directory_bucket and re.fullmatch("[0-9a-f]{32}", etag)
    return bytes.fromhex(etag) if is_md5 else b""
