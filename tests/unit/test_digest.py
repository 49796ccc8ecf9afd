"""growfs's own digest: it depends on the content only, not on the order of the parts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from awscrt import checksums

from growfs.cache.recovery import verify_content
from growfs.remote import digest
from growfs.remote.digest import Digest, of

PART = 1000
DATA = random.Random(5).randbytes(4 * PART + 300)

SIZES = [0, 1, PART - 1, PART, PART + 1, 2 * PART, len(DATA)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "BUFFER_BYTES", 300)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "x").write_bytes(DATA)
    return tmp_path / "x"


def feed(digest_: Digest, start: int, end: int, data: bytes = DATA, piece: int = 7) -> None:
    """Feed a part of data in pieces, from a buffer that is reused."""
    part, buffer = digest_.segment(start), bytearray(piece)
    for at in range(start, end, piece):
        count = min(piece, end - at)
        buffer[:count] = data[at : at + count]
        part.update(memoryview(buffer)[:count])


def test_the_digest_is_crc64_nvme(path: Path) -> None:
    reported: list[int] = []
    assert of(path, reported.append) == f"crc64nvme:{checksums.crc64nvme(DATA):016x}"
    assert reported == [0] * 15  # once for each buffer
    path.write_bytes(b"123456789")
    assert of(path) == "crc64nvme:ae8b14860a799888"  # CRC-64/NVME's check value (reveng.sourceforge.io/crc-catalogue)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece", [1, PART, 3 * PART])
def test_a_file_may_come_as_one_part(path: Path, size: int, piece: int) -> None:
    path.write_bytes(DATA[:size])
    digest_ = Digest()
    feed(digest_, 0, size, DATA[:size], piece)
    assert digest_.text() == of(path)


def test_missing_parts_are_an_error() -> None:
    digest_ = Digest()
    feed(digest_, PART, 2 * PART)
    with pytest.raises(ValueError, match="missing"):
        digest_.text()
    feed(digest_, 0, PART - 1)
    with pytest.raises(ValueError, match="missing"):
        digest_.text()
    digest_.reset()
    feed(digest_, 0, len(DATA))
    assert digest_.bytes == len(DATA)
    digest_.text()


def test_verify_content_compares_a_file_with_its_digest(path: Path) -> None:
    stat, text = path.stat(), of(path)
    assert verify_content(path, text) == (stat.st_ino, stat.st_mtime_ns)
    path.write_bytes(DATA[:-1] + b"!")
    assert verify_content(path, text) is None
    path.unlink()
    assert verify_content(path, text) is None
