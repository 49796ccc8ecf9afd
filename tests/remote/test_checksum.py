"""What a store tells of a file's content, verified: each way of telling, and parts in any order."""

from __future__ import annotations

import hashlib
import random
import threading
from base64 import b64encode
from pathlib import Path

import pytest

from growfs.remote.http import checksum
from growfs.remote.http.checksum import ExpectedChecksum, expected_checksum
from growfs.remote.http.connection import Headers

PART = 1000
DATA = random.Random(6).randbytes(3 * PART + 10)
CHECKED = b"123456789"  # whose CRCs are in every catalogue of them
MD5 = hashlib.md5(CHECKED)
TOLD = {
    "crc32": "cbf43926",
    "crc32c": "e3069283",
    "crc64nvme": "ae8b14860a799888",
    "sha1": hashlib.sha1(CHECKED).hexdigest(),
    "sha256": hashlib.sha256(CHECKED).hexdigest(),
    "md5": MD5.hexdigest(),
}
AES = {"x-amz-server-side-encryption": "AES256"}


def base64(hexadecimal: str) -> str:
    return b64encode(bytes.fromhex(hexadecimal)).decode()


def headers(**told: str) -> Headers:
    """With hyphens for underscores, in small letters."""
    return {name.replace("_", "-").lower(): text for name, text in told.items()}


def aws(name: str, text: str = "", **more: str) -> Headers:
    return headers(**{f"x_amz_checksum_{name}": text or base64(TOLD[name])}, **more)


def verify(told: ExpectedChecksum | None, path: Path, data: bytes, part: int = 4, seed: int = 0) -> str | None:
    """Feed data in parts, in an order of their own, in pieces from a buffer that is written over; then ask."""
    assert told is not None
    path.write_bytes(data)
    starts = list(range(0, len(data), part))
    for start in random.Random(seed).sample(starts, len(starts)):
        taken, buffer = told.part(start), bytearray(3)
        for at in range(start, min(start + part, len(data)), 3):
            piece = data[at : min(at + 3, start + part)]
            buffer[: len(piece)] = piece
            taken.update(memoryview(buffer)[: len(piece)])
    return told.mismatch(len(data), path)


WAYS = {
    **{name: aws(name) for name in ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")},
    "full": aws("crc32c", x_amz_checksum_type="FULL_OBJECT"),
    "a range that is all": aws("crc32c", Content_Range="bytes 0-8/9"),
    "google": headers(x_goog_hash=f"crc32c={base64(TOLD['crc32c'])},md5={base64('00' * 16)}"),
    "google's md5": headers(x_goog_hash=f"md5={base64(TOLD['md5'])}"),
    "google, of a part": headers(x_goog_hash=f"crc32c={base64(TOLD['crc32c'])}", Content_Range="bytes 0-3/9"),
    "google, packed": headers(
        x_goog_hash=f"crc32c={base64(TOLD['crc32c'])}", x_goog_stored_content_encoding="gzip", Content_Encoding="gzip"
    ),
    "web server": headers(Content_MD5=base64(TOLD["md5"])),
    "etag": headers(ETag=f'"{TOLD["md5"]}"', x_amz_server_side_encryption="AES256"),
    "composite, so its etag": headers(
        x_amz_checksum_crc32=base64(TOLD["crc32"]) + "-2", ETag=TOLD["md5"], x_amz_server_side_encryption="AES256"
    ),
    "a crc rather than an md5": aws("crc32", ETag=f'"{"0" * 32}"', x_amz_server_side_encryption="AES256"),
}


@pytest.mark.promise(33)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", [2, 4, 9])
def test_each_way_of_telling(tmp_path: Path, way: str, part: int) -> None:
    for seed in range(3):
        assert verify(expected_checksum(WAYS[way]), tmp_path / "x", CHECKED, part, seed) is None
        wrong = verify(expected_checksum(WAYS[way]), tmp_path / "x", CHECKED[:-1] + b"!", part, seed)
        assert wrong
        assert "than the store sent" in wrong


@pytest.mark.parametrize(
    "told",
    [
        headers(),
        aws("crc32c", x_amz_checksum_type="COMPOSITE"),
        aws("crc32c", Content_Range="bytes 0-3/9"),
        aws("crc32c", Content_Range="what?"),
        aws("crc32c", base64(TOLD["crc32c"]) + "-2"),
        aws("crc32c", base64("00" * 8)),
        aws("crc32c", "no such thing"),
        headers(x_goog_hash=f"crc32c={base64(TOLD['crc32c'])}", x_goog_stored_content_encoding="gzip"),
        headers(Content_MD5=base64(TOLD["md5"]), Content_Range="bytes 0-3/9"),
        headers(ETag=f'"{TOLD["md5"]}"'),
        headers(ETag=f'"{TOLD["md5"]}-2"', x_amz_server_side_encryption="AES256"),
        headers(ETag=f'"{TOLD["md5"]}"', x_amz_server_side_encryption="aws:kms"),
    ],
    ids=str,
)
def test_what_tells_nothing(told: Headers) -> None:
    assert expected_checksum(told) is None


@pytest.mark.parametrize("way", ["crc64nvme", "crc32", "crc32c", "etag"])
def test_what_is_fetched_again_counts(tmp_path: Path, way: str) -> None:
    told = expected_checksum(WAYS[way])
    assert told
    for start in (0, 5):
        told.part(start).update(memoryview(b"wrong"))
    assert verify(told, tmp_path / "x", CHECKED, 5) is None


def test_what_is_missing_shows(tmp_path: Path) -> None:
    for start in (0, 5):
        told = expected_checksum(WAYS["crc32c"])
        assert told
        told.part(start).update(memoryview(CHECKED)[start : start + 4])
        with pytest.raises(ValueError, match="missing"):
            told.mismatch(len(CHECKED), tmp_path / "x")


def test_a_file_without_a_byte(tmp_path: Path) -> None:
    for told, wrong in (("00000000", None), ("00000001", "CRC32C")):
        found = verify(expected_checksum(aws("crc32c", base64(told))), tmp_path / "x", b"")
        assert found == (wrong and f"what came has another {wrong} than the store sent")
    assert (
        verify(expected_checksum(headers(Content_MD5=base64(hashlib.md5().hexdigest()))), tmp_path / "x", b"") is None
    )


def test_a_hash_reads_only_what_it_has_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "BUFFER_BYTES", 4)
    told = expected_checksum(WAYS["etag"])
    assert told
    told.part(0).update(memoryview(CHECKED)[:5])
    (tmp_path / "x").write_bytes(b"xxxxx" + CHECKED[5:])
    assert told.mismatch(len(CHECKED), tmp_path / "x") is None


@pytest.mark.parametrize("name", ["crc32c", "md5"])
def test_parts_side_by_side(tmp_path: Path, name: str) -> None:
    from awscrt.checksums import crc32c

    md5 = hashlib.md5(DATA).hexdigest()
    told = expected_checksum(
        aws("crc32c", base64(f"{crc32c(DATA):08x}")) if name == "crc32c" else headers(Content_MD5=base64(md5))
    )
    assert told

    def feed(start: int) -> None:
        part = told.part(start)
        for at in range(start, min(start + PART, len(DATA)), 10):
            part.update(memoryview(DATA)[at : min(at + 10, start + PART)])

    threads = [threading.Thread(target=feed, args=(start,)) for start in range(0, len(DATA), PART)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (tmp_path / "x").write_bytes(DATA)
    assert told.mismatch(len(DATA), tmp_path / "x") is None
