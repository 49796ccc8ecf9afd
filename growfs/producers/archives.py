"""Index functions: each yields the members of an archive, with their names and the positions of their bytes.

An index function gets the archive as a seekable binary file and yields its members in any order. Archive order is the
fastest, because the file is then read sequentially. Any file with parts that deserve names is an archive: a volume, for
example, with each slice as a member.
"""

from __future__ import annotations

import struct
import tarfile
import zipfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_ZIP_HEADER = struct.Struct("<26xHH")
"""The lengths of a member's name and of its extra field (APPNOTE.TXT, 4.3.7)."""


class Member(NamedTuple):
    """`size` bytes of an archive, from `offset` on.

    name: its path in the mount, below a folder named like the archive. A name that begins with '/' is below the root
    of the mount.
    """

    name: str
    offset: int
    size: int


def tar(source: BinaryIO) -> Iterator[Member]:
    """The regular files of a tar archive. Raises ValueError if the archive is compressed or a member is sparse."""
    for info in _regular(_opened(source)):
        yield Member(_relative(info.name), info.offset_data, info.size)


def webdataset(source: BinaryIO) -> Iterator[Member]:
    """The samples of a WebDataset shard in the layout of ImageFolder: KEY.jpg of class 3 is /00003/KEY.jpg.

    KEY.cls holds the class, a number or a name. Members without a key or an extension (README, ._a.jpg) belong to no
    sample, as for the webdataset package, and are left out. Raises ValueError if a sample has no class.
    """
    archive = _opened(source)
    label, sample, key = "", list[Member](), ""
    for info in _regular(archive):
        folder, slash, name = _relative(info.name).rpartition("/")
        now, _, extension = name.partition(".")
        if not (now and extension):
            continue
        if folder + slash + now != key:
            yield from _labelled(label, sample, key)
            label, sample, key = "", [], folder + slash + now
        if extension == "cls":
            content = archive.extractfile(info)
            assert content
            label = content.read(200).decode().strip()
        else:
            sample.append(Member(f"{key}.{extension}", info.offset_data, info.size))
    yield from _labelled(label, sample, key)


def zip_stored(source: BinaryIO) -> Iterator[Member]:
    """The files of an uncompressed zip archive. Raises ValueError if a member is compressed or encrypted."""
    with zipfile.ZipFile(source) as archive:
        infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 0x1:  # encrypted
            raise ValueError("compressed or encrypted members are not byte ranges; create it with zip -0")
    for info in infos:
        if not info.is_dir():
            source.seek(info.header_offset)
            header = source.read(_ZIP_HEADER.size)
            if len(header) < _ZIP_HEADER.size:
                raise ValueError("cut short")
            start = info.header_offset + _ZIP_HEADER.size + sum(_ZIP_HEADER.unpack(header))
            yield Member(_relative(info.filename), start, info.file_size)


def _opened(source: BinaryIO) -> tarfile.TarFile:
    head = source.read(8)
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise ValueError(f"compressed with {name}: its members are not byte ranges; decompress it to a plain tar")
    source.seek(0)
    return tarfile.open(fileobj=source, mode="r:")


def _regular(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while info := archive.next():
        archive.members.clear()  # type: ignore[attr-defined] # otherwise it would keep all members
        if info.issparse():
            raise ValueError("sparse members are not byte ranges; create it without --sparse")
        if info.isfile():
            yield info
    archive.fileobj.seek(archive.offset)  # tarfile mistakes a block that it cannot read for the end
    if archive.fileobj.read(tarfile.BLOCKSIZE).strip(tarfile.NUL):
        raise ValueError("damaged or cut short")


def _relative(name: str) -> str:
    """The name as tar(1) extracts it, without a leading slash; and without the './' of `tar -c .`."""
    return name.removeprefix("./").lstrip("/")


def _labelled(label: str, sample: list[Member], key: str) -> Iterator[Member]:
    if sample and not label:
        raise ValueError(f"sample {key} has no .cls file, so its class is unknown")
    # Of equal length, so that ImageFolder, which sorts names, numbers classes alike.
    folder = label.zfill(5) if label.isdecimal() else label
    for member in sample:
        yield member._replace(name=f"/{folder}/{member.name}")
