"""The checksums that stores send: each form is verified, with parts fed in any order."""

from __future__ import annotations

import hashlib
import random
from base64 import b64encode
from pathlib import Path

import pytest

from growfs.remote import digest
from growfs.remote.http.checksum import ExpectedChecksum, expected_checksum
from growfs.remote.http.connection import Headers
from growfs.remote.http.download import ChecksumMismatch, RangeDownloader
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import FetchTask, RemoteFile
from growfs.remote.retries import Retries, Tries

CHECKED = b"123456789"  # the check value of every catalogue of CRCs
MD5 = hashlib.md5(CHECKED)
CHECKSUMS = {
    "crc32": "cbf43926",
    "crc32c": "e3069283",
    "crc64nvme": "ae8b14860a799888",
    "sha1": hashlib.sha1(CHECKED).hexdigest(),
    "sha256": hashlib.sha256(CHECKED).hexdigest(),
    "md5": MD5.hexdigest(),
}


def base64(hexadecimal: str) -> str:
    return b64encode(bytes.fromhex(hexadecimal)).decode()


def headers(**values: str) -> Headers:
    """Headers by argument name, in lower case and with hyphens for underscores."""
    return {name.replace("_", "-").lower(): text for name, text in values.items()}


def aws(name: str, text: str = "", **more: str) -> Headers:
    return headers(**{f"x_amz_checksum_{name}": text or base64(CHECKSUMS[name])}, **more)


def feed(expected: ExpectedChecksum, start: int, data: bytes, step: int = 100) -> None:
    """Feed a part, in pieces from a buffer that is reused."""
    part, buffer = expected.segment(start), bytearray(step)
    for at in range(0, len(data), step):
        piece = data[at : at + step]
        buffer[: len(piece)] = piece
        if part:
            part.update(memoryview(buffer)[: len(piece)])


def mismatch(expected: ExpectedChecksum | None, path: Path, data: bytes, part: int = 4, seed: int = 0) -> str | None:
    """Feed data in parts in random order; then compare."""
    assert expected is not None
    path.write_bytes(data)
    starts = list(range(0, len(data), part))
    for start in random.Random(seed).sample(starts, len(starts)):
        feed(expected, start, data[start : start + part], 3)
    return expected.mismatch(len(data), path)


FORMS = {
    **{name: aws(name) for name in ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")},
    "full": aws("crc32c", x_amz_checksum_type="FULL_OBJECT"),
    "range of the whole file": aws("crc32c", Content_Range="bytes 0-8/9"),
    "google": headers(x_goog_hash=f"crc32c={base64(CHECKSUMS['crc32c'])},md5={base64('00' * 16)}"),
    "google's md5": headers(x_goog_hash=f"md5={base64(CHECKSUMS['md5'])}"),
    "google, range": headers(x_goog_hash=f"crc32c={base64(CHECKSUMS['crc32c'])}", Content_Range="bytes 0-3/9"),
    "google, compressed": headers(
        x_goog_hash=f"crc32c={base64(CHECKSUMS['crc32c'])}",
        x_goog_stored_content_encoding="gzip",
        Content_Encoding="gzip",
    ),
    "web server": headers(Content_MD5=base64(CHECKSUMS["md5"])),
    "etag": headers(ETag=f'"{CHECKSUMS["md5"]}"', x_amz_server_side_encryption="AES256"),
    "etag of a composite checksum": headers(
        x_amz_checksum_crc32=base64(CHECKSUMS["crc32"]) + "-2",
        ETag=CHECKSUMS["md5"],
        x_amz_server_side_encryption="AES256",
    ),
    "crc preferred to an md5": aws("crc32", ETag=f'"{"0" * 32}"', x_amz_server_side_encryption="AES256"),
}


@pytest.mark.promise(33)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("part", [2, 4, 9])
def test_each_form_of_checksum_is_verified(tmp_path: Path, form: str, part: int) -> None:
    for seed in range(3):
        assert mismatch(expected_checksum(FORMS[form]), tmp_path / "x", CHECKED, part, seed) is None
        wrong = mismatch(expected_checksum(FORMS[form]), tmp_path / "x", CHECKED[:-1] + b"!", part, seed)
        assert wrong
        assert "is not the one that the store sent" in wrong


@pytest.mark.parametrize(
    "sent",
    [
        headers(),
        aws("crc32c", x_amz_checksum_type="COMPOSITE"),
        aws("crc32c", Content_Range="bytes 0-3/9"),
        aws("crc32c", Content_Range="what?"),
        aws("crc32c", base64(CHECKSUMS["crc32c"]) + "-2"),
        aws("crc32c", base64("00" * 8)),
        aws("crc32c", "no such thing"),
        headers(x_goog_hash=f"crc32c={base64(CHECKSUMS['crc32c'])}", x_goog_stored_content_encoding="gzip"),
        headers(Content_MD5=base64(CHECKSUMS["md5"]), Content_Range="bytes 0-3/9"),
        headers(Content_MD5="no such thing"),
        headers(ETag=f'"{CHECKSUMS["md5"]}"'),
        headers(ETag=f'"{CHECKSUMS["md5"]}-2"', x_amz_server_side_encryption="AES256"),
        headers(ETag=f'"{CHECKSUMS["md5"]}"', x_amz_server_side_encryption="aws:kms"),
        headers(
            ETag=f'"{CHECKSUMS["md5"]}"',
            x_amz_server_side_encryption="AES256",
            x_amz_storage_class="EXPRESS_ONEZONE",
        ),
    ],
    ids=str,
)
def test_headers_without_a_usable_checksum_are_ignored(sent: Headers) -> None:
    assert expected_checksum(sent) is None


@pytest.mark.parametrize("form", ["crc64nvme", "crc32", "crc32c", "etag"])
def test_a_part_that_is_fetched_again_replaces_the_earlier_one(tmp_path: Path, form: str) -> None:
    expected = expected_checksum(FORMS[form])
    assert expected
    for start in (0, 5):
        feed(expected, start, b"wrong")
    assert mismatch(expected, tmp_path / "x", CHECKED, 5) is None


def test_missing_bytes_are_an_error(tmp_path: Path) -> None:
    for start in (0, 5):
        expected = expected_checksum(FORMS["crc32c"])
        assert expected
        feed(expected, start, CHECKED[start : start + 4])
        with pytest.raises(ValueError, match="missing"):
            expected.mismatch(len(CHECKED), tmp_path / "x")


def test_an_empty_file_is_verified(tmp_path: Path) -> None:
    for value, wrong in (("00000000", None), ("00000001", "CRC32C")):
        found = mismatch(expected_checksum(aws("crc32c", base64(value))), tmp_path / "x", b"")
        assert found == (wrong and f"the {wrong} of the content is not the one that the store sent")
    assert (
        mismatch(expected_checksum(headers(Content_MD5=base64(hashlib.md5().hexdigest()))), tmp_path / "x", b"") is None
    )


def test_a_hash_reads_from_the_file_only_the_bytes_it_was_not_fed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "BUFFER_BYTES", 4)
    expected = expected_checksum(FORMS["etag"])
    assert expected
    feed(expected, 0, CHECKED[:5])
    (tmp_path / "x").write_bytes(b"xxxxx" + CHECKED[5:])
    assert expected.mismatch(len(CHECKED), tmp_path / "x") is None


def test_reading_a_file_back_counts_as_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its hash, and once more for growfs's own digest if the hash is wrong."""
    monkeypatch.setattr(digest, "BUFFER_BYTES", 4)
    downloader, reported, path = RangeDownloader(TransferThreads()), list[int](), tmp_path / "x"
    task = FetchTask(RemoteFile("x", None, None, ""), path, reported.append, tries=Tries(Retries()))
    path.write_bytes(b"987654321")
    with pytest.raises(ChecksumMismatch):
        downloader.verify(expected_checksum(FORMS["etag"]), task, len(CHECKED))
    assert reported == [0] * (3 + 3)
    path.write_bytes(CHECKED)
    downloader.verify(expected_checksum(FORMS["etag"]), task, len(CHECKED))
    assert reported == [0] * (3 + 3 + 3)
