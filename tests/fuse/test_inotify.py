"""inotify(7) on the mount reports what local readers do, and no change that comes from the remote."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse.conftest import Library, shared
from tests.fuse.test_open_files import replace, until_size
from tests.harness import until

ALL_EVENTS = 0xFFF
NAMES = {0x1: "access", 0x10: "close", 0x20: "open"}
"""The events that readers cause (sys/inotify.h)."""
IS_DIR = 0x4000_0000
HEADER = "iIII"


class Watch:
    """An inotify watch on files and folders."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK)
        assert self._fd >= 0

    def add(self, path: Path) -> None:
        assert self._libc.inotify_add_watch(self._fd, os.fsencode(path), ALL_EVENTS) >= 0

    def events(self) -> list[tuple[str, str]]:
        """The events since the last call: (event, name in the folder; empty for the watched path itself)."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return []
        found = []
        while data:
            _, mask, _, length = struct.unpack_from(HEADER, data)
            data = data[struct.calcsize(HEADER) :]
            kind = mask & ~IS_DIR
            found.append((NAMES.get(kind, hex(kind)), data[:length].rstrip(b"\0").decode()))
            data = data[length:]
        return found

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[Library]:
    """A mount of a folder of files, whose remote is listed again every 0.1 s. Each test changes a file of its own."""
    tree = {f"class0/{name}.bin": b"x" * 10_000 for name in ("read", "replaced", "deleted", "evicted", "kept")}
    with shared(tmp_path_factory.mktemp("inotify"), tree, engine) as mounted:
        mounted.growfs.run("set", mounted.path, "settle=0", "refresh=0.1")
        yield mounted


@pytest.fixture
def folder(mounted: Library) -> Path:
    """The mounted folder."""
    return mounted.path / "class0"


@pytest.fixture
def watch(folder: Path) -> Iterator[Watch]:
    """A watch on that folder."""
    watch = Watch()
    watch.add(folder)
    yield watch
    watch.close()


@pytest.mark.promise(12)
def test_inotify_reports_reads(watch: Watch, folder: Path) -> None:
    subprocess.run(["head", "-c", "10", folder / "read.bin"], check=True, stdout=subprocess.DEVNULL, timeout=30)
    assert watch.events() == [("open", "read.bin"), ("access", "read.bin"), ("close", "read.bin")]
    os.listdir(folder)
    assert watch.events() == [("open", ""), ("access", ""), ("close", "")]


@pytest.mark.promise(12)
def test_inotify_reports_no_arrivals(watch: Watch, folder: Path, mounted: Library) -> None:
    files = mounted.growfs.status()["cache"]["files"]
    (mounted.remote / "class0/new.bin").write_bytes(b"new")
    until(lambda: mounted.growfs.status()["cache"]["files"] == files + 1)
    assert (folder / "new.bin").stat().st_size == 3
    assert watch.events() == []


@pytest.mark.promise(12)
def test_inotify_reports_no_replacements(watch: Watch, folder: Path, mounted: Library) -> None:
    watch.add(folder / "replaced.bin")
    replace(mounted.remote / "class0/replaced.bin", b"replaced")
    until_size(folder / "replaced.bin", len(b"replaced"))
    assert watch.events() == []


@pytest.mark.promise(12)
def test_inotify_reports_no_deletions(watch: Watch, folder: Path, mounted: Library) -> None:
    (folder / "deleted.bin").stat()
    (mounted.remote / "class0/deleted.bin").unlink()
    until(lambda: not (folder / "deleted.bin").exists())
    assert watch.events() == []


@pytest.mark.promise(12)
def test_inotify_reports_no_evictions(watch: Watch, mounted: Library) -> None:
    output = mounted.growfs.run("evict", mounted.path, "evicted.bin").stdout
    assert output.startswith("1 file evicted")
    assert watch.events() == []
