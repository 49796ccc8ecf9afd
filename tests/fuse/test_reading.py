"""Every way in which Linux lets a program read a file returns the remote's bytes: maps, pipes, many readers."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse.conftest import Library, opened

LARGE = "sizes/large.bin"
NOBODY = 65534

CROWD = """
import random, sys
from concurrent.futures import ThreadPoolExecutor

mounted, remote, seed = sys.argv[1:]
content = open(remote, "rb").read()

def differences(number):
    generator = random.Random(f"{seed} {number}")
    wrong = 0
    for _ in range(20):
        offset, size = generator.randrange(len(content)), generator.randrange(1, 300_000)
        with open(mounted, "rb") as file:
            file.seek(offset)
            wrong += file.read(size) != content[offset : offset + size]
    return wrong

with ThreadPoolExecutor(8) as threads:
    print(sum(threads.map(differences, range(8))))
"""

FORKED = """
import os, sys

file = open(sys.argv[1], "rb", buffering=0)
first = file.read(1000)
ours, theirs = os.pipe()
if os.fork() == 0:
    os.write(theirs, file.read(1000))
    os._exit(0)
second = os.read(ours, 1000)
os.wait()
sys.stdout.buffer.write(first + second + file.read(1000))
"""


@pytest.fixture
def large(library: Library) -> Iterator[int]:
    """A descriptor of a file of three megabytes."""
    with opened(library.path / LARGE) as fd:
        yield fd


@pytest.mark.promise(13)
@pytest.mark.parametrize("kind", ["MAP_SHARED", "MAP_PRIVATE"])
def test_a_mapping_has_the_content(library: Library, large: int, kind: str) -> None:
    content = library.tree[LARGE]
    with mmap.mmap(large, 0, flags=getattr(mmap, kind), prot=mmap.PROT_READ) as mapped:
        assert mapped[1_234_567:1_334_567] == content[1_234_567:1_334_567]
        assert mapped[:] == content


@pytest.mark.promise(13)
def test_a_private_mapping_can_be_written_and_stays_private(library: Library, large: int) -> None:
    content = library.tree[LARGE]
    with mmap.mmap(large, 0, access=mmap.ACCESS_COPY) as mapped:
        mapped[5000:5007] = b"private"
        assert mapped[:] == content[:5000] + b"private" + content[5007:]
    assert (library.path / LARGE).read_bytes() == content


@pytest.mark.promise(4)
def test_a_shared_mapping_cannot_be_written(large: int) -> None:
    with pytest.raises(PermissionError):
        mmap.mmap(large, 0, access=mmap.ACCESS_WRITE)


def test_the_last_page_of_a_mapping_ends_in_zeros(library: Library) -> None:
    content = library.tree["sizes/odd.bin"]
    pages = -(-len(content) // mmap.PAGESIZE) * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    with opened(library.path / "sizes/odd.bin") as fd:
        at = libc.mmap(None, ctypes.c_size_t(pages), mmap.PROT_READ, mmap.MAP_SHARED, fd, ctypes.c_long(0))
    assert ctypes.string_at(at, pages) == content + bytes(pages - len(content))
    assert libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(pages)) == 0


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


@pytest.mark.promise(13)
def test_copy_file_range_to_another_file_system_gives_exdev(large: int, tmp_path: Path) -> None:
    """As between any two file systems (copy_file_range(2)): programs then fall back to read and write."""
    with (tmp_path / "copy").open("wb") as target, pytest.raises(OSError, match=r".") as refused:
        os.copy_file_range(large, target.fileno(), 1000)
    assert refused.value.errno == errno.EXDEV


def test_preadv_fills_several_buffers(library: Library, large: int) -> None:
    buffers = [bytearray(1000), bytearray(1), bytearray(200_000)]
    assert os.preadv(large, buffers, 777) == 201_001
    assert b"".join(buffers) == library.tree[LARGE][777:201_778]


@pytest.mark.promise(10)
@pytest.mark.parametrize("advice", ["NORMAL", "SEQUENTIAL", "RANDOM", "NOREUSE", "WILLNEED", "DONTNEED"])
def test_advice_changes_no_byte(library: Library, large: int, advice: str) -> None:
    os.posix_fadvise(large, 0, 0, getattr(os, f"POSIX_FADV_{advice}"))
    assert os.pread(large, 4_000_000, 0) == library.tree[LARGE]


@pytest.mark.promise(10)
def test_readahead(library: Library, large: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.readahead(large, ctypes.c_int64(4096), ctypes.c_size_t(1 << 20)) == 0
    assert os.pread(large, 1 << 20, 4096) == library.tree[LARGE][4096 : 4096 + (1 << 20)]


def test_a_file_is_data_without_a_hole(library: Library, large: int) -> None:
    end = len(library.tree[LARGE])
    assert os.lseek(large, 100, os.SEEK_DATA) == 100
    assert os.lseek(large, 100, os.SEEK_HOLE) == end
    assert os.lseek(large, -10, os.SEEK_END) == end - 10
    assert os.read(large, 100) == library.tree[LARGE][-10:]
    with pytest.raises(OSError, match=r".") as refused:
        os.lseek(large, end, os.SEEK_DATA)
    assert refused.value.errno == errno.ENXIO


def test_many_processes_and_threads_read_one_file(library: Library) -> None:
    crowd = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", CROWD, library.path / LARGE, library.remote / LARGE, str(seed)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(4)
    ]
    assert [process.communicate(timeout=60)[0] for process in crowd] == ["0\n"] * 4


def test_a_fork_shares_the_open_file(library: Library) -> None:
    command = [sys.executable, "-S", "-c", FORKED, str(library.path / LARGE)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=30)
    assert done.stdout == library.tree[LARGE][:3000]


def test_another_program_inherits_the_open_file(library: Library, large: int) -> None:
    os.lseek(large, 1000, os.SEEK_SET)
    done = subprocess.run(["head", "-c", "1000"], stdin=large, check=True, capture_output=True, timeout=30)
    assert done.stdout == library.tree[LARGE][1000:2000]


def test_an_open_file_can_be_opened_by_its_descriptor(library: Library, large: int) -> None:
    command = ["cat", f"/proc/self/fd/{large}"]
    done = subprocess.run(command, pass_fds=[large], check=True, capture_output=True, timeout=30)
    assert done.stdout == library.tree[LARGE]


def test_fstat_agrees_with_stat(library: Library, large: int) -> None:
    found, named = os.fstat(large), (library.path / LARGE).stat()
    assert (found.st_size, found.st_ino, found.st_mtime_ns) == (named.st_size, named.st_ino, named.st_mtime_ns)
    assert found.st_blocks * 512 >= found.st_size == len(library.tree[LARGE])


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
@pytest.mark.parametrize("path", [LARGE, "sizes"])
def test_no_extended_attributes(library: Library, path: str) -> None:
    for call in (lambda: os.getxattr(library.path / path, "user.note"), lambda: os.listxattr(library.path / path)):
        with pytest.raises(OSError, match=r".") as refused:
            call()
        assert refused.value.errno == errno.ENOTSUP


@pytest.mark.promise(13)
def test_no_device_controls(library: Library, large: int) -> None:
    get_flags = 0x80086601  # FS_IOC_GETFLAGS (linux/fs.h), as lsattr(1) uses
    for request in (termios.TCGETS, get_flags, 0x1234):
        with pytest.raises(OSError, match=r".") as refused:
            fcntl.ioctl(large, request, bytes(64))
        assert refused.value.errno == errno.ENOTTY
    assert not os.isatty(large)


@pytest.mark.promise(13)
def test_locks_hold_between_readers(library: Library, large: int) -> None:
    with (library.path / LARGE).open("rb") as other:
        fcntl.flock(large, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(large, fcntl.LOCK_UN)
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)


@pytest.mark.promise(13)
def test_record_locks(large: int) -> None:
    fcntl.lockf(large, fcntl.LOCK_SH | fcntl.LOCK_NB, 100, 1000)
    fcntl.lockf(large, fcntl.LOCK_UN, 100, 1000)
    with pytest.raises(OSError, match=r".") as refused:  # it needs a file that is open for writing (fcntl(2))
        fcntl.lockf(large, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert refused.value.errno == errno.EBADF


def test_fsync_of_read_only_files_succeeds(library: Library, large: int) -> None:
    os.fsync(large)
    with opened(library.path) as folder:
        os.fsync(folder)
