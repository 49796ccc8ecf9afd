"""Fixtures of the tests that go through the kernel.

All of them run once with each engine, which promise the same. A test of one alone says so with `only(engine)`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fuse.gated import Gated
from tests.fuse.reader import Reader
from tests.harness import Growfs
from tests.servers import serving

ODD_NAMES = [
    "plain.bin",
    "ünï çødé 中文.bin",
    "emoji 🎉.bin",
    " space in front",
    "dot at the end.",
    "quote'\".bin",
    "back\\slash",
    "#hash %41 ?query",
    "*[a-z]",
    "-rf",
    ".hidden",
    "a,b;c",
    "two\nlines",
    "x" * 255,
]


@dataclass(frozen=True)
class Library:
    """A mount that all tests of a module share, and only read. tree: its content by relative path."""

    path: Path
    tree: dict[str, bytes]
    remote: Path
    growfs: Growfs


def only(engine: str) -> pytest.MarkDecorator:
    """For a test of what one engine alone does."""
    return pytest.mark.parametrize("engine", [engine], indirect=True)


@pytest.fixture
def growfs(growfs: Growfs, engine: str) -> Growfs:
    """The command, as everywhere, mounting with one engine and then with the other."""
    growfs.env["GROWFS_ENGINE"] = engine
    return growfs


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A descriptor, for as long as the block lasts; a close that fails with the mount is not looked at."""
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        with suppress(OSError):
            os.close(fd)


@contextmanager
def shared(folder: Path, tree: dict[str, bytes], engine: str) -> Iterator[Library]:
    """A mount of these files, all of them local, for a fixture of a module."""
    remote = folder / "remote"
    for number, (path, content) in enumerate(tree.items()):
        (remote / path).parent.mkdir(parents=True, exist_ok=True)
        (remote / path).write_bytes(content)
        os.utime(remote / path, ns=(0, 1_600_000_000_123_456_000 + number * 10**9))
    command = Growfs(folder)
    command.env["GROWFS_ENGINE"] = engine
    command.mount(remote)
    command.run("wait", command.mountpoint, "--all")
    yield Library(command.mountpoint, tree, remote, command)
    command.umount()
    assert "Traceback" not in command.log()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[Library]:
    """Files of all sizes and names."""
    generator = random.Random(3)
    sizes = {"empty": 0, "one": 1, "page": 4096, "odd": 12_345, "large": 3_000_017}
    tree = {f"sizes/{name}.bin": generator.randbytes(size) for name, size in sizes.items()}
    tree |= {f"names/{name}": name.encode() for name in ODD_NAMES}
    tree |= {"deep/a/b/c/d/file.txt": b"deep", "at the root.txt": b"root"}
    with shared(tmp_path_factory.mktemp("library"), tree, engine) as library:
        yield library


@pytest.fixture
def gated() -> Iterator[Gated]:
    """An empty web server whose answers the test can hold back."""
    remote = Gated()
    with serving(remote.handler) as url:
        remote.url = url
        yield remote
        remote.let_go()


@pytest.fixture
def reader(growfs: Growfs) -> Iterator[Reader]:
    """A process that reads the mount."""
    with Reader(growfs.mountpoint) as process:
        yield process


@pytest.fixture
def other(growfs: Growfs) -> Iterator[Reader]:
    """Another one."""
    with Reader(growfs.mountpoint) as process:
        yield process
