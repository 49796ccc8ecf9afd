"""Directory streams and path look-up: thousands of entries, seeking, deep trees, long names."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fuse.conftest import Library, opened, shared

MANY = 500
DEEP = "/".join(f"level{number}" for number in range(150))
LONG = "/".join(["x" * 250] * 14)

libc = ctypes.CDLL(None, use_errno=True)


class Entry(ctypes.Structure):
    """struct dirent of 64-bit Linux (readdir(3))."""

    _fields_ = (
        ("d_ino", ctypes.c_uint64),
        ("d_off", ctypes.c_int64),
        ("d_reclen", ctypes.c_uint16),
        ("d_type", ctypes.c_uint8),
        ("d_name", ctypes.c_char * 256),
    )


libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.POINTER(Entry)
libc.telldir.restype = ctypes.c_long


class Stream:
    """A directory stream, with what os.scandir does not have: telldir(3), seekdir(3), rewinddir(3)."""

    def __init__(self, folder: Path) -> None:
        stream = libc.opendir(os.fsencode(folder))
        assert stream
        self._stream = ctypes.c_void_p(stream)

    def close(self) -> None:
        libc.closedir(self._stream)

    def next(self) -> str | None:
        """The next name; None at the end."""
        entry = libc.readdir(self._stream)
        return os.fsdecode(entry.contents.d_name) if entry else None

    def rest(self) -> list[str]:
        return list(iter(self.next, None))

    def tell(self) -> int:
        return int(libc.telldir(self._stream))

    def seek(self, position: int) -> None:
        libc.seekdir(self._stream, ctypes.c_long(position))

    def rewind(self) -> None:
        libc.rewinddir(self._stream)


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[Library]:
    """A directory of hundreds of files, each with its name as content, and two paths: a deep one and a long one."""
    tree = {f"many/{number:05}": b"%05d" % number for number in range(MANY)}
    tree |= {f"{DEEP}/deep.bin": b"deep", f"{LONG}/long.bin": b"long"}
    with shared(tmp_path_factory.mktemp("forest"), tree, engine) as forest:
        yield forest


@pytest.fixture
def stream(forest: Library) -> Iterator[Stream]:
    with closing(Stream(forest.path / "many")) as stream:
        yield stream


def test_a_walk_finds_each_file_once(forest: Library) -> None:
    found = [f"{root}/{name}" for root, _, names in os.walk(forest.path) for name in names]
    assert sorted(found) == sorted(f"{forest.path}/{path}" for path in forest.tree)
    for path in (f"{DEEP}/deep.bin", f"{LONG}/long.bin"):
        assert (forest.path / path).read_bytes() == forest.tree[path]


@pytest.mark.promise(13)
def test_seekdir_to_any_saved_position_continues_as_before_and_rewinddir_begins_anew(stream: Stream) -> None:
    positions, names = [stream.tell()], []
    while name := stream.next():
        names.append(name)
        positions.append(stream.tell())
    assert sorted({*names} - {".", ".."}) == [f"{number:05}" for number in range(MANY)]
    for number in (5, 0, len(names) - 1, 2, len(names), 300, 299, 450):
        stream.seek(positions[number])
        assert stream.rest() == names[number:]
    stream.rewind()
    assert stream.rest() == names


def test_two_streams_do_not_disturb_each_other(stream: Stream, forest: Library) -> None:
    with closing(Stream(forest.path / "many")) as other:
        first = [stream.next() for _ in range(250)]
        assert [other.next() for _ in range(250)] == first
        assert stream.rest() == other.rest()


@pytest.mark.parametrize("buffer_size", [280, 1 << 20])
def test_getdents_returns_whole_entries_for_any_buffer_size(forest: Library, buffer_size: int) -> None:
    buffer = ctypes.create_string_buffer(buffer_size)
    names = []
    with opened(forest.path / "many") as fd:
        while (size := libc.getdents64(fd, buffer, ctypes.c_size_t(buffer_size))) > 0:
            at = 0
            while at < size:
                (length,) = struct.unpack_from("H", buffer, at + 16)
                names.append(buffer.raw[at + 19 : at + length].partition(b"\0")[0])
                at += length
    assert size == 0
    assert sorted({*names} - {b".", b".."}) == [b"%05d" % number for number in range(MANY)]
    assert len(names) == len({*names})


def test_a_first_readdir_may_begin_at_any_offset(forest: Library) -> None:
    with opened(forest.path / "many") as fd:
        os.lseek(fd, 1, os.SEEK_SET)
        os.listdir(fd)
    assert len(os.listdir(forest.path / "many")) == MANY


def test_directory_entries_agree_with_stat(forest: Library) -> None:
    with os.scandir(forest.path / "many") as entries:
        for entry in entries:
            found = os.stat(entry)
            assert (entry.inode(), entry.is_file(), found.st_size) == (found.st_ino, True, 5)
    with os.scandir(forest.path) as entries:
        assert {entry.name for entry in entries if entry.is_dir()} == {"many", "level0", "x" * 250}


def test_a_deep_tree_can_be_walked_one_directory_at_a_time(forest: Library) -> None:
    """As fts(3) does, so that a path may be longer than PATH_MAX."""
    with opened(forest.path) as folder:

        def go(name: str) -> None:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
            os.dup2(below, folder)
            os.close(below)

        for name in DEEP.split("/"):
            go(name)
        assert os.listdir(folder) == ["deep.bin"]
        for _ in DEEP.split("/"):
            go("..")
        assert os.fstat(folder).st_ino == forest.path.stat().st_ino


@pytest.mark.promise(13)
@pytest.mark.parametrize("folder", ["", "many", ".growfs"])
def test_a_name_over_255_bytes_gives_enametoolong(forest: Library, folder: str) -> None:
    with opened(forest.path / folder) as fd:  # so that the path itself is not too long
        for name in ("x" * 256, "é" * 128, "x" * 4000):
            with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)):
                os.stat(name, dir_fd=fd)
            with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)):
                os.open(name, os.O_RDONLY, dir_fd=fd)
