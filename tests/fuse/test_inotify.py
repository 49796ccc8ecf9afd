"""inotify(7) on the mount reports what local readers do, and no change that comes from the remote."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.fuse.test_open_files import replace, until_size
from tests.harness import Growfs, make_tree, until

ALL_EVENTS = 0xFFF
NAMES = {0x1: "access", 0x10: "close", 0x20: "open"}
"""The events that readers cause (sys/inotify.h)."""


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
            _, mask, _, length = struct.unpack_from("iIII", data)
            kind = mask & ~0x4000_0000  # IN_ISDIR
            found.append((NAMES.get(kind, hex(kind)), data[16 : 16 + length].rstrip(b"\0").decode()))
            data = data[16 + length :]
        return found

    def close(self) -> None:
        os.close(self._fd)


@pytest.mark.promise(12)
def test_inotify_reports_reads_and_no_changes(growfs: Growfs, tmp_path: Path) -> None:
    remote, folder = tmp_path / "remote/class0", growfs.mountpoint / "class0"
    tree = make_tree(tmp_path / "remote", directories=1, files=4)
    growfs.mount(tmp_path / "remote", "--wait-files", len(tree))
    growfs.run("set", growfs.mountpoint, "settle=0", "refresh=0.1")
    with closing(Watch()) as watch:
        for path in (folder, folder / "0001.bin"):
            watch.add(path)
        subprocess.run(["head", "-c", "10", folder / "0000.bin"], check=True, stdout=subprocess.DEVNULL, timeout=30)
        assert watch.events() == [(event, "0000.bin") for event in ("open", "access", "close")]
        os.listdir(folder)
        assert watch.events() == [("open", ""), ("access", ""), ("close", "")]
        (remote / "new.bin").write_bytes(b"new")
        growfs.until_cached(len(tree) + 1)
        until_size(folder / "new.bin", 3)
        replace(remote / "0001.bin", b"replaced")
        until_size(folder / "0001.bin", len(b"replaced"))
        assert (folder / "0002.bin").exists()
        (remote / "0002.bin").unlink()
        until(lambda: not (folder / "0002.bin").exists())
        assert growfs.run("evict", growfs.mountpoint, "0003.bin").stdout.startswith("1 file evicted")
        assert watch.events() == []
