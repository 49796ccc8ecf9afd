"""Every way in which Linux lets a program read a file returns the remote's bytes: maps, pipes, many readers."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import subprocess
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fuse.conftest import Library, opened

LARGE = "sizes/large.bin"
NOBODY = 65534


@pytest.fixture
def large(library: Library) -> Iterator[int]:
    with opened(library.path / LARGE) as fd:
        yield fd


@pytest.mark.promise(13)
@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_COPY])
def test_a_mapping_has_the_content_and_a_private_one_can_be_written(library: Library, large: int, access: int) -> None:
    content = library.tree[LARGE]
    with mmap.mmap(large, 0, access=access) as mapped:
        assert mapped[1_234_567:1_334_567] == content[1_234_567:1_334_567]
        assert mapped[:] == content
        if access == mmap.ACCESS_COPY:
            mapped[5000:5007] = b"private"
            assert mapped[:] == content[:5000] + b"private" + content[5007:]
    assert (library.path / LARGE).read_bytes() == content


@pytest.mark.promise(4)
def test_a_shared_mapping_cannot_be_written(large: int) -> None:
    with pytest.raises(PermissionError):
        mmap.mmap(large, 0, access=mmap.ACCESS_WRITE)


def test_direct_reads_of_every_block(library: Library) -> None:
    content, block = library.tree[LARGE], 64 << 10
    try:
        os.close(os.open(library.growfs.cache / "files" / LARGE, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        pytest.skip(f"the cache's file system has no O_DIRECT: {error}")
    parts = []
    with opened(library.path / LARGE, os.O_RDONLY | os.O_DIRECT) as fd, mmap.mmap(-1, block) as buffer:
        while size := os.readv(fd, [buffer]):  # an anonymous mapping is aligned, as O_DIRECT requires
            parts.append(buffer[:size])
    assert b"".join(parts) == content


def read_unaligned(path: Path) -> bytes | int:
    """Read 1000 bytes at offset 1 with O_DIRECT; returns them, or the errno."""
    try:
        with opened(path, os.O_RDONLY | os.O_DIRECT) as fd:
            return os.pread(fd, 1000, 1)
    except OSError as error:
        return error.errno or 0


@pytest.mark.promise(10)
def test_an_unaligned_direct_read(library: Library, engine: str) -> None:
    cached = read_unaligned(library.growfs.cache / "files" / LARGE)
    expected = cached if engine == "passthrough" else library.tree[LARGE][1:1001]
    assert read_unaligned(library.path / LARGE) == expected


@pytest.mark.promise(13)
def test_splice_into_a_pipe(library: Library, large: int) -> None:
    reading, writing = os.pipe()
    parts = []
    while os.splice(large, writing, 1 << 16):
        parts.append(os.read(reading, 1 << 16))
    os.close(reading)
    os.close(writing)
    assert b"".join(parts) == library.tree[LARGE]


@pytest.mark.promise(10)
def test_advice_and_readahead_change_no_byte(library: Library, large: int) -> None:
    for advice in ("NORMAL", "SEQUENTIAL", "RANDOM", "NOREUSE", "WILLNEED", "DONTNEED"):
        os.posix_fadvise(large, 0, 0, getattr(os, f"POSIX_FADV_{advice}"))
        assert os.pread(large, 4_000_000, 0) == library.tree[LARGE], advice
    assert ctypes.CDLL(None).readahead(large, ctypes.c_int64(4096), ctypes.c_size_t(1 << 20)) == 0
    assert os.pread(large, 4_000_000, 0) == library.tree[LARGE]


def test_a_file_is_data_without_a_hole(library: Library, large: int) -> None:
    end = len(library.tree[LARGE])
    assert os.lseek(large, 100, os.SEEK_DATA) == 100
    assert os.lseek(large, 100, os.SEEK_HOLE) == end
    assert os.lseek(large, -10, os.SEEK_END) == end - 10
    assert os.read(large, 100) == library.tree[LARGE][-10:]
    with pytest.raises(OSError, match=r".") as refused:
        os.lseek(large, end, os.SEEK_DATA)
    assert refused.value.errno == errno.ENXIO


def test_many_threads_read_one_file(library: Library) -> None:
    content = library.tree[LARGE]

    def differences(seed: int) -> int:
        generator, wrong = random.Random(seed), 0
        for _ in range(20):
            offset, size = generator.randrange(len(content)), generator.randrange(1, 300_000)
            with opened(library.path / LARGE) as fd:
                wrong += os.pread(fd, size, offset) != content[offset : offset + size]
        return wrong

    with ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(differences, range(32))) == 0


@pytest.mark.promise(4)
def test_access_rights_of_root(library: Library) -> None:
    modes = (os.F_OK, os.R_OK, os.W_OK, os.X_OK)
    assert [os.access(library.path / LARGE, mode) for mode in modes] == [True, True, False, False]
    assert [os.access(library.path / "sizes", mode) for mode in modes] == [True, True, False, True]


@pytest.mark.promise(4)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run the tests as root")
def test_access_rights_of_another_user(library: Library) -> None:
    """The working directory is inherited: another user may not be able to enter it by its full path."""
    script = "for op in -e -r -w -x; do test $op large.bin && echo large.bin $op; test $op . && echo . $op; done"
    tested = subprocess.run(
        ["sh", "-c", f"{script}; cat large.bin >&2"],
        cwd=library.path / "sizes",
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        check=True,
        capture_output=True,
        timeout=30,
    )
    assert tested.stdout.decode().splitlines() == ["large.bin -e", ". -e", "large.bin -r", ". -r", ". -x"]
    assert tested.stderr == library.tree[LARGE]


@pytest.mark.promise(13)
def test_no_extended_attributes(library: Library) -> None:
    for path in (library.path / LARGE, library.path / "sizes"):
        with pytest.raises(OSError, match=os.strerror(errno.ENOTSUP)):
            os.getxattr(path, "user.note")
        with pytest.raises(OSError, match=os.strerror(errno.ENOTSUP)):
            os.listxattr(path)


@pytest.mark.promise(13)
def test_no_device_controls(library: Library, large: int) -> None:
    get_flags = 0x80086601  # FS_IOC_GETFLAGS (linux/fs.h), as lsattr(1) uses
    for request in (termios.TCGETS, get_flags, 0x1234):
        with pytest.raises(OSError, match=r".") as refused:
            fcntl.ioctl(large, request, bytes(64))
        assert refused.value.errno == errno.ENOTTY
    assert not os.isatty(large)


@pytest.mark.promise(13)
def test_locks_of_both_kinds(library: Library, large: int) -> None:
    with (library.path / LARGE).open("rb") as other:
        fcntl.flock(large, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(large, fcntl.LOCK_UN)
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.lockf(large, fcntl.LOCK_SH | fcntl.LOCK_NB, 100, 1000)
    fcntl.lockf(large, fcntl.LOCK_UN, 100, 1000)
    with pytest.raises(OSError, match=r".") as refused:  # it needs a file that is open for writing (fcntl(2))
        fcntl.lockf(large, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert refused.value.errno == errno.EBADF


def test_fsync_of_read_only_files_succeeds(library: Library, large: int) -> None:
    os.fsync(large)
    with opened(library.path) as folder:
        os.fsync(folder)
