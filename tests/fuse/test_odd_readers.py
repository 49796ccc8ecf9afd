"""Readers and remotes that are odd in ways that once did harm."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.support import tmpfs
from tests.fuse.conftest import opened
from tests.fuse.reader import Reader
from tests.fuse.rotating import SIZE, full_cache, local, told
from tests.harness import Growfs, make_tree, until

SCAN = """
import os, sys, threading
kept = []
thread = threading.Thread(target=lambda: kept.append(os.scandir(sys.argv[1])))
thread.start()
thread.join()
print(len(list(kept[0])), flush=True)
sys.stdin.readline()
"""


def test_a_first_read_of_a_directory_may_begin_anywhere(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote")
    growfs.mount(tmp_path / "remote")
    with opened(growfs.mountpoint / "class0") as fd:
        os.lseek(fd, 1, os.SEEK_SET)
        os.listdir(fd)
    assert growfs.names()


def test_the_thread_that_opened_a_directory_may_end_before_it_is_read(growfs: Growfs, tmp_path: Path) -> None:
    full_cache(growfs, tmp_path / "remote")
    command = [sys.executable, "-c", SCAN, str(growfs.mountpoint / "class0")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as scan:
        assert scan.stdout
        scan.stdout.readline()
        assert [reader["pid"] for reader in told(growfs)["readers"]] == [scan.pid]
        scan.communicate("\n")


@pytest.mark.promise(24)
def test_a_group_that_never_fits_holds_nothing_up(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=4, files=3, size=SIZE)
    (tmp_path / "remote/big").mkdir()
    for number in range(12):
        (tmp_path / f"remote/big/{number}.bin").write_bytes(b"x" * SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", 10 * SIZE, "--group", "{parent}", "--no-wait")
    until(lambda: len(local(growfs)) == 9)
    assert (growfs.mountpoint / "big/3.bin").read_bytes() == b"x" * SIZE
    assert len(local(growfs)) == 10


def test_a_disk_that_is_full_to_the_last_byte_does_not_end_the_mount(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=2, files=100, size=SIZE)
    with tmpfs(growfs.cache_dir, "size=8m"):
        growfs.mount(tmp_path / "remote", "--cache-size", 50 * SIZE, "--min-free", "0", "--settle", "0")
        until(lambda: told(growfs)["cache"]["files"] == 50)
        hog = growfs.cache_dir / "hog"
        with hog.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        with Reader(growfs.mountpoint) as reader:
            for _ in range(4):  # the catalog cannot take what this brings about
                for path in sorted(growfs.names())[:5]:
                    with suppress(OSError):
                        reader.read(path)
        hog.unlink()
        generation = told(growfs)["generation"]
        until(lambda: growfs.names() and told(growfs)["generation"] > generation + 1)
        growfs.umount()
