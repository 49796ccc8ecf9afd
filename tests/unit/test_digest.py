"""growfs's own digest: it depends on the content only, not on the order of the parts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from awscrt import checksums

from growfs.remote import digest
from growfs.remote.digest import Digest, of

PART = 1000
DATA = random.Random(5).randbytes(4 * PART + 300)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "BUFFER_BYTES", 300)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "x").write_bytes(DATA)
    return tmp_path / "x"


def feed(digest_: Digest, start: int, end: int) -> None:
    """Feed a part of DATA in pieces, from a buffer that is reused."""
    part, buffer = digest_.segment(start), bytearray(7)
    for at in range(start, end, len(buffer)):
        count = min(len(buffer), end - at)
        buffer[:count] = DATA[at : at + count]
        part.update(memoryview(buffer)[:count])


def test_the_digest_is_crc64_nvme(path: Path) -> None:
    reported: list[int] = []
    assert of(path, reported.append) == f"crc64nvme:{checksums.crc64nvme(DATA):016x}"
    assert reported == [0] * 15  # once for each buffer
    path.write_bytes(b"123456789")
    assert of(path) == "crc64nvme:ae8b14860a799888"  # CRC-64/NVME's check value (reveng.sourceforge.io/crc-catalogue)


def test_missing_parts_are_an_error(path: Path) -> None:
    digest_ = Digest()
    feed(digest_, PART, 2 * PART)
    with pytest.raises(ValueError, match="missing"):
        digest_.text()
    feed(digest_, 0, PART - 1)
    with pytest.raises(ValueError, match="missing"):
        digest_.text()
    digest_.reset()
    feed(digest_, 0, len(DATA))
    assert (digest_.bytes, digest_.text()) == (len(DATA), of(path))
