"""The ready-made functions that find the members of archives."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from growfs.producers import Member, tar, webdataset, zip_stored
from tests.archives import by_tarfile, samples, tar_of

LONG = "folder/" + "x" * 120 + "/ä ü.jpg"
CONTENT = {"a.jpg": b"a" * 700, "empty": b"", LONG: b"long", "./b/c": b"c" * 5000, "/rooted": b"r"}


def read(find: Callable[[BinaryIO], Iterator[Member]], archive: bytes) -> dict[str, bytes]:
    """Each member's bytes, by name."""
    return {name: archive[offset : offset + size] for name, offset, size in find(io.BytesIO(archive))}


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_the_members_of_a_tar_are_found(kind: int) -> None:
    archive = tar_of(CONTENT, kind)
    expected = {name.removeprefix("./").lstrip("/"): data for name, data in by_tarfile(archive).items()}
    assert read(tar, archive) == expected
    assert len(expected) == len(CONTENT)


def test_only_the_files_of_a_tar_are_members() -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as writer:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.REGTYPE):
            info = tarfile.TarInfo(f"of type {kind.decode()}")
            info.type, info.linkname = kind, "there"
            writer.addfile(info)
    assert [member.name for member in tar(io.BytesIO(archive.getvalue()))] == ["of type 0"]


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (gzip.compress(tar_of(CONTENT)), "compressed with gzip"),
        (tar_of(CONTENT)[:1000], "unexpected end of data"),
        (tar_of(CONTENT)[:1600], "damaged or cut short"),
        (tar_of(CONTENT).replace(b"empty", b"emptY"), "damaged or cut short"),  # a header whose checksum differs
        (b"no archive at all" * 100, "invalid header"),
        (b"", "empty file"),
    ],
)
def test_an_archive_that_is_no_plain_tar_is_refused(archive: bytes, message: str) -> None:
    with pytest.raises((ValueError, tarfile.ReadError), match=message):
        list(tar(io.BytesIO(archive)))


def test_a_sparse_tar_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x" * 4096)
    subprocess.run(["tar", "--sparse", "-cf", tmp_path / "it.tar", "-C", tmp_path, "holes"], check=True)
    with pytest.raises(ValueError, match="sparse"):
        list(tar(io.BytesIO((tmp_path / "it.tar").read_bytes())))


def test_the_members_of_a_webdataset_shard_are_named_by_class() -> None:
    without_sample = {"README": b"text", "._a.jpg": b"of macOS", ".DS_Store": b"", "__meta__": b""}
    content = (
        samples(1)
        | without_sample
        | {"deep/key.one.seg.png": b"seg", "deep/key.cls": b" cat\n", "deep/key.jpg": b"jpg"}
    )
    members = read(webdataset, tar_of(content))
    expected = {
        f"/{int(content[name[:7] + '.cls']):05}/{name}": data
        for name, data in samples(1).items()
        if name.endswith(".bin")
    }
    assert members == expected | {"/cat/deep/key.one.seg.png": b"seg", "/cat/deep/key.jpg": b"jpg"}


def test_a_sample_without_a_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sample 2 has no \.cls"):
        list(webdataset(io.BytesIO(tar_of({"1.cls": b"1", "1.jpg": b"", "2.jpg": b"", "3.cls": b"3"}))))


def zip_of(kind: int) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", kind) as writer:
        writer.writestr("d/", b"")
        for name, data in CONTENT.items():
            writer.writestr(name, data)
    return archive.getvalue()


def test_only_stored_zip_members_can_be_read() -> None:
    expected = {name.removeprefix("./").lstrip("/"): data for name, data in CONTENT.items()}
    assert read(zip_stored, zip_of(zipfile.ZIP_STORED)) == expected
    with pytest.raises(ValueError, match="zip -0"):
        read(zip_stored, zip_of(zipfile.ZIP_DEFLATED))
