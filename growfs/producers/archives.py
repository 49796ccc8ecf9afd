"""What an archive has in it: functions that tell each member's name, and where in the archive its bytes are.

Such a function is given the archive as a binary file that can be read and sought in, and yields its members in any
order; best in that of the archive, because reading on is what is fast. Any file with parts worth a name is an archive:
a volume, for example, of which each slice is a member.
"""

from __future__ import annotations

import struct
import tarfile
import zipfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

CLASS_DIGITS = 5
"""Of a class's number in its folder's name, so that ImageFolder, which sorts by name, gives it the same number."""
CLASS_BYTES_MAX = 200

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_ZIP_HEADER = struct.Struct("<26xHH")
"""Of a member: the bytes of its name, and of what is extra (APPNOTE.TXT, 4.3.7)."""
_ENCRYPTED = 0x1


class Member(NamedTuple):
    """size bytes of an archive, from offset on.

    name: its path in the mount below a folder that is named like the archive; one that begins with '/' is from the
    mount's own root on.
    """

    name: str
    offset: int
    size: int


def tar(source: BinaryIO) -> Iterator[Member]:
    """The regular files of a tar archive. Raises ValueError where it is compressed, or one is sparse."""
    for info in _regular(_opened(source)):
        yield Member(_relative(info.name), info.offset_data, info.size)


def webdataset(source: BinaryIO) -> Iterator[Member]:
    """The samples of a WebDataset shard, as ImageFolder wants them: KEY.jpg of class 3 is /00003/KEY.jpg.

    The class is what KEY.cls holds, a number or a name. Raises ValueError where a sample has none.
    """
    archive = _opened(source)
    label, sample, key = "", list[Member](), ""
    for info in _regular(archive):
        folder, slash, name = _relative(info.name).rpartition("/")
        now, _, extension = name.partition(".")
        if folder + slash + now != key:
            yield from _labelled(label, sample, key)
            label, sample, key = "", [], folder + slash + now
        if extension == "cls":
            content = archive.extractfile(info)
            assert content
            label = content.read(CLASS_BYTES_MAX).decode().strip()
        else:
            sample.append(Member(f"{key}.{extension}", info.offset_data, info.size))
    yield from _labelled(label, sample, key)


def zip_stored(source: BinaryIO) -> Iterator[Member]:
    """The files of a zip archive without compression. Raises ValueError where one is compressed or encrypted."""
    with zipfile.ZipFile(source) as archive:
        infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
            raise ValueError("compressed or encrypted members are no ranges of bytes; make it with zip -0")
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
            raise ValueError(f"compressed with {name}: its members are no ranges of bytes; unpack it to a plain tar")
    source.seek(0)
    return tarfile.open(fileobj=source, mode="r:")


def _regular(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while info := archive.next():
        archive.members.clear()  # type: ignore[attr-defined] # it would keep them all
        if info.issparse():
            raise ValueError("sparse members are no ranges of bytes; make it without --sparse")
        if info.isfile():
            yield info
    archive.fileobj.seek(archive.offset)  # tarfile takes what it cannot read for the end
    if archive.fileobj.read(tarfile.BLOCKSIZE).strip(tarfile.NUL):
        raise ValueError("damaged or cut short")


def _relative(name: str) -> str:
    """As tar(1) extracts it: without a slash at the beginning; and without the './' of `tar -c .`."""
    return name.removeprefix("./").lstrip("/")


def _labelled(label: str, sample: list[Member], key: str) -> Iterator[Member]:
    if sample and not label:
        raise ValueError(f"sample {key} has no .cls, which would tell its class")
    folder = label.zfill(CLASS_DIGITS) if label.isdecimal() else label
    for member in sample:
        yield member._replace(name=f"/{folder}/{member.name}")
