"""inotify(7) on the mount reports what local readers do, and no change that comes from the remote."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse.test_open_files import relist, replace, until_size
from tests.harness import Growfs, make_tree, until

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


@pytest.fixture
def folder(growfs: Growfs, tmp_path: Path) -> Path:
    """A mounted folder of three files, whose remote is listed again every 0.1 s."""
    make_tree(tmp_path / "remote", directories=1, files=3)
    growfs.mount(tmp_path / "remote", "--settle", "0")
    growfs.run("wait", growfs.mountpoint, "--all")
    relist(growfs)
    return growfs.mountpoint / "class0"


@pytest.fixture
def watch(folder: Path) -> Iterator[Watch]:
    """A watch on that folder."""
    watch = Watch()
    watch.add(folder)
    yield watch
    watch.close()


@pytest.mark.promise(12)
def test_inotify_reports_reads(watch: Watch, folder: Path) -> None:
    subprocess.run(["head", "-c", "10", folder / "0000.bin"], check=True, stdout=subprocess.DEVNULL, timeout=30)
    assert watch.events() == [("open", "0000.bin"), ("access", "0000.bin"), ("close", "0000.bin")]
    os.listdir(folder)
    assert watch.events() == [("open", ""), ("access", ""), ("close", "")]


@pytest.mark.promise(12)
def test_inotify_reports_no_arrivals(watch: Watch, folder: Path, growfs: Growfs, tmp_path: Path) -> None:
    (tmp_path / "remote/class0/new.bin").write_bytes(b"new")
    until(lambda: growfs.status()["cache"]["files"] == 4)
    assert (folder / "new.bin").stat().st_size == 3
    assert watch.events() == []


@pytest.mark.promise(12)
def test_inotify_reports_no_replacements(watch: Watch, folder: Path, tmp_path: Path) -> None:
    watch.add(folder / "0000.bin")
    replace(tmp_path / "remote/class0/0000.bin", b"replaced")
    until_size(folder / "0000.bin", len(b"replaced"))
    assert watch.events() == []


@pytest.mark.promise(12)
def test_inotify_reports_no_deletions(watch: Watch, folder: Path, tmp_path: Path) -> None:
    (folder / "0000.bin").stat()
    (tmp_path / "remote/class0/0000.bin").unlink()
    until(lambda: not (folder / "0000.bin").exists())
    assert watch.events() == []


@pytest.mark.promise(12)
def test_inotify_reports_no_evictions(watch: Watch, growfs: Growfs, tmp_path: Path) -> None:
    growfs.run("pause", growfs.mountpoint)
    assert growfs.run("evict", growfs.mountpoint, "*").stdout.startswith("2 files evicted")
    assert watch.events() == []
