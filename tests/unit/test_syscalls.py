"""System calls that some builds of Python have no wrapper for."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from growfs import syscalls
from growfs.errors import GrowfsError


@pytest.fixture(params=["wrappers", "numbers"], autouse=True)
def wrappers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without Python's wrappers."""
    if request.param == "numbers":
        for name in ("pidfd_open", "memfd_create", "RWF_NOWAIT"):
            monkeypatch.delattr(os, name)


def test_a_pidfd_is_readable_when_the_process_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        fd = syscalls.pidfd_open(process.pid)
        assert not os.get_inheritable(fd)
        assert not select.select([fd], [], [], 0)[0]
        process.kill()
        assert select.select([fd], [], [], 30)[0]
        os.close(fd)
    with pytest.raises(ProcessLookupError):
        syscalls.pidfd_open(process.pid)


def test_a_file_in_memory() -> None:
    fd = syscalls.memfd_create("test")
    assert not os.get_inheritable(fd)
    os.write(fd, b"content")
    assert os.pread(fd, 100, 0) == b"content"
    assert "memfd:test" in os.readlink(f"/proc/self/fd/{fd}")
    os.close(fd)


def test_what_is_in_the_page_cache_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    buffer = bytearray(8)
    with (tmp_path / "file").open("rb") as file:
        assert syscalls.read_page_cache(file.fileno(), memoryview(buffer)[:4], 3) == 4
        assert buffer == b"3456\0\0\0\0"
        assert syscalls.read_page_cache(file.fileno(), memoryview(buffer), 8) == 2
        assert syscalls.read_page_cache(file.fileno(), memoryview(buffer)[:0], 0) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        syscalls.read_page_cache(-1, memoryview(buffer), 0)


def test_a_kernel_without_pidfds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    syscalls.check_kernel()

    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(syscalls, "pidfd_open", refuse)
    with pytest.raises(GrowfsError, match="Function not implemented; growfs needs Linux"):
        syscalls.check_kernel()
