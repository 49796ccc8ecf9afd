"""Fixtures of the tests of folders that growfs keeps filled."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISLNK

import pytest

from growfs.daemon.launch import stop
from growfs.errors import GrowfsError
from tests.generation_readers import Readers
from tests.harness import Growfs


class Fill(Growfs):
    """The command, with a folder that it keeps filled in the place of a mountpoint."""

    def fill(self, url: object, *flags: object, check: bool = True) -> str:
        """Fill with a cache of 1 GB, unless flags say otherwise; returns what the command prints."""
        size = [] if "--cache-size" in flags else ["--cache-size", "1GB"]
        more = (*size, "--min-free", "0MB", *flags)
        done = self.run("fill", url, self.mountpoint, "--cache-dir", self.cache_dir, *more, check=check)
        return done.stdout + done.stderr

    @property
    def current(self) -> Path:
        """The current generation, by its own name."""
        return (self.mountpoint / "current").resolve()

    @property
    def generations(self) -> list[int]:
        """The numbers of the generations that are there."""
        return sorted(int(name.name) for name in (self.mountpoint / "generations").iterdir() if name.name.isdigit())

    def used_bytes(self) -> int:
        """What the files of the cache and of all generations take on the disk, each counted once. Links are on another
        disk.
        """
        folders = (self.cache / "files", self.mountpoint / "generations")
        roots = itertools.chain.from_iterable(map(os.walk, folders))
        found = stats(os.path.join(root, name) for root, _, names in roots for name in names)
        again = stats(found)  # those that were there when the last one was found
        there = [stat for path, stat in again.items() if stat.st_ino == found[path].st_ino]
        return sum({stat.st_ino: stat.st_blocks * 512 for stat in there if not S_ISLNK(stat.st_mode)}.values())


def stats(paths: Iterable[str]) -> dict[str, os.stat_result]:
    """The files at these paths, without those that are evicted, or whose generation has ended."""
    found = {}
    for path in paths:
        with suppress(FileNotFoundError):
            found[path] = os.lstat(path)
    return found


@pytest.fixture
def growfs(tmp_path: Path) -> Iterator[Fill]:
    """The command. After the test its daemon is stopped, and its log is checked for tracebacks."""
    command = Fill(tmp_path)
    yield command
    with suppress(GrowfsError):
        stop(command.mountpoint)
    if not command.tolerate_log:
        assert "Traceback" not in command.log()


@pytest.fixture(params=["hard", "symbolic"])
def links(request: pytest.FixtureRequest, growfs: Fill) -> Iterator[str]:
    """How cached files are linked: "symbolic" where the cache is on another file system than the folder."""
    if request.param == "hard":
        yield "hard"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        growfs.cache_dir = Path(elsewhere)
        yield "symbolic"
        with suppress(GrowfsError):
            stop(growfs.mountpoint)
        assert "Traceback" not in growfs.log()


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    """Processes that read generations."""
    with Readers() as readers:
        yield readers
