"""A cache on each kind of file system: it fills, rotates, is resized, its daemon is killed, its disk mounted anew."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from growfs import disk
from tests.disks.file_systems import FileSystem, MakeFileSystem
from tests.harness import Growfs, until

KINDS = ("ext4", "btrfs", "tmpfs", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("xfs", "overlay")))
SIZES = (0, 1, 4095, 4096, 4097, 100_000, 300_001, 1_000_000)
CACHE_BYTES = 6_000_000
METADATA_BYTES_MAX = 24 << 20
"""What the catalog, its log, and the file system itself take beside the files, at most."""


def make_remote(folder: Path) -> dict[str, bytes]:
    """80 files of all SIZES in three folders, of 15 MB."""
    generator = random.Random(1)
    tree = {}
    for number in range(80):
        path = f"class{number % 3}/{number:03}.bin"
        tree[path] = generator.randbytes(SIZES[number % len(SIZES)])
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(tree[path])
    return tree


class Scene:
    """A mount whose cache is on a file system. Each `epoch` checks what is read, and what the disk has."""

    def __init__(self, growfs: Growfs, system: FileSystem, remote: Path) -> None:
        self.growfs = growfs
        self.tree = make_remote(remote)
        self.seen: set[str] = set()
        self._system, self._remote = system, remote
        self._used_before = system.used_bytes
        growfs.cache_dir = system.folder / "cache"

    def mount(self, size: int, *flags: str) -> None:
        self.growfs.mount(self._remote, "--cache-size", size, "--min-free", 0, "--settle", 0, *flags)

    def epoch(self) -> set[str]:
        """List, read and compare everything; the names that were listed."""
        growfs = self.growfs
        listed = growfs.names()
        for path in listed:
            assert (growfs.mountpoint / path).read_bytes() == self.tree[path], path
        for folder in {path.partition("/")[0] for path in self.tree}:
            assert any(path.startswith(f"{folder}/") for path in listed), "a class folder is empty"
        self.seen |= listed
        limit = growfs.status()["cache"]["limit_bytes"]
        assert self.taken("files", "partial") <= limit
        assert self._system.used_bytes - self._used_before <= limit + METADATA_BYTES_MAX
        return listed

    def taken(self, *folders: str) -> int:
        """What files below folders of the cache take on the disk at one moment, as du shows it.

        A walk may meet a file that is evicted during it, and one that takes its place. Two walks in succession both
        meet only what was there between them.
        """
        first, second = ({s.st_ino: s.st_blocks * 512 for s in self._walk(folders)} for _ in range(2))
        return sum(min(bytes, second.get(inode, 0)) for inode, bytes in first.items())

    def _walk(self, folders: tuple[str, ...]) -> Iterator[os.stat_result]:
        return (stat for folder in folders for _, stat in disk.walk_files(self.growfs.cache / folder))

    def rotate(self) -> None:
        """Read epochs, until most of the files were listed."""
        until(lambda: self.epoch() and len(self.seen) > 0.7 * len(self.tree))

    def complete(self) -> None:
        """Return when all is cached, listed and right, and the status says what the disk has."""
        until(lambda: self.growfs.status()["state"] == "complete")
        until(lambda: self.epoch() == set(self.tree))
        assert self.growfs.status()["cache"]["bytes"] == self.taken("files")

    def leave(self) -> None:
        """Unmount, then the cache's file system at once."""
        self.growfs.umount()
        assert "Traceback" not in self.growfs.log()
        self._system.remount()


@pytest.mark.promise(1, 7, 28, 29)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["auto", pytest.param("libfuse", marks=pytest.mark.long)])
def test_a_cache_on_a_file_system(
    make_file_system: MakeFileSystem, growfs: Growfs, tmp_path: Path, kind: str, engine: str
) -> None:
    scene = Scene(growfs, make_file_system(kind, 96 << 20), tmp_path / "remote")
    scene.mount(CACHE_BYTES, "--engine", engine)
    scene.rotate()
    growfs.kill()
    scene.mount(CACHE_BYTES, "--engine", engine, "--no-wait")
    assert growfs.status()["cache"]["files"] > 10, "the crash has lost nothing"
    scene.epoch()
    growfs.run("set", growfs.mountpoint, f"cache-size={CACHE_BYTES // 2}")
    until(lambda: scene.taken("files", "partial") <= CACHE_BYTES // 2)
    scene.epoch()
    growfs.run("set", growfs.mountpoint, "cache-size=40MB")
    scene.complete()
    scene.leave()
    scene.mount(40_000_000, "--engine", engine)
    scene.complete()
    fetched = growfs.status()["fetch"]["files_total"]
    assert fetched == (len(scene.tree) if kind == "tmpfs" else 0), "all is there, but in memory"
    growfs.umount()
