"""inotify(7) on the mount reports what local readers do, and no change that comes from the remote."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from inotify_simple import INotify, flags

from tests.fuse.test_open_files import replace, until_size
from tests.harness import Growfs, make_tree, until

NAMES = {0x1: "access", 0x10: "close", 0x20: "open"}
"""The events that readers cause (sys/inotify.h)."""


def events(watch: INotify) -> list[tuple[str, str]]:
    """The events since the last call: (event, name in the folder; empty for the watched path itself)."""
    found = [(event.mask & ~flags.ISDIR, event.name) for event in watch.read(timeout=0)]
    return [(NAMES.get(kind, hex(kind)), name) for kind, name in found]


@pytest.mark.promise(12)
def test_inotify_reports_reads_and_no_changes(growfs: Growfs, tmp_path: Path) -> None:
    remote, folder = tmp_path / "remote/class0", growfs.mountpoint / "class0"
    tree = make_tree(tmp_path / "remote", directories=1, files=4)
    growfs.mount(tmp_path / "remote", "--wait-files", len(tree))
    growfs.run("set", growfs.mountpoint, "settle=0", "refresh=0.1")
    with INotify() as watch:
        for path in (folder, folder / "0001.bin"):
            watch.add_watch(path, 0xFFF)  # all events
        subprocess.run(["head", "-c", "10", folder / "0000.bin"], check=True, stdout=subprocess.DEVNULL, timeout=30)
        assert events(watch) == [(event, "0000.bin") for event in ("open", "access", "close")]
        os.listdir(folder)
        assert events(watch) == [("open", ""), ("access", ""), ("close", "")]
        (remote / "new.bin").write_bytes(b"new")
        growfs.until_cached(len(tree) + 1)
        until_size(folder / "new.bin", 3)
        replace(remote / "0001.bin", b"replaced")
        until_size(folder / "0001.bin", len(b"replaced"))
        assert (folder / "0002.bin").exists()
        (remote / "0002.bin").unlink()
        until(lambda: not (folder / "0002.bin").exists())
        assert growfs.run("evict", growfs.mountpoint, "0003.bin").stdout.startswith("1 file evicted")
        assert events(watch) == []
