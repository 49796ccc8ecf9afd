"""Fixtures of the tests that use real mounts.

A test of a module in ENGINES_OF runs once with each of its engines, and any other once, with passthrough if that works
here. A test of some engines is marked with `only(engine, ...)`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.blocking_server import BlockingServer, blocking_server
from tests.fuse.reader import Reader
from tests.harness import ENGINES, Growfs, usable_engine

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


SHOW_FILES = ("libfuse", "passthrough")
"""The engines that show cached files as files."""
ENGINES_OF = {
    "test_engines": SHOW_FILES,
    "test_files": SHOW_FILES,
    "test_inotify": SHOW_FILES,
    "test_interrupts": SHOW_FILES,
    "test_kernel_interface": SHOW_FILES,
    "test_killed_daemon": SHOW_FILES,
    "test_lifecycle": SHOW_FILES,
    "test_links": ("links",),
    "test_open_files": ENGINES,
    "test_readdir": SHOW_FILES,
    "test_reading": SHOW_FILES,
    "test_unmount_while_open": SHOW_FILES,
}
"""By module: about what each engine does by itself, as requests of the kernel, reads, open files, and how a mount ends.
"""


@dataclass(frozen=True)
class Library:
    """A mount that the tests of a module share and only read. tree: the content of each file by relative path."""

    path: Path
    tree: dict[str, bytes]
    remote: Path
    growfs: Growfs


def only(*engines: str) -> pytest.MarkDecorator:
    """Mark a test that runs with these engines only."""
    return pytest.mark.parametrize("engine", engines, indirect=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the engines of a test that is not marked with `only`."""
    marks = metafunc.definition.iter_markers("parametrize")
    if "engine" in metafunc.fixturenames and not any("engine" in mark.args[0] for mark in marks):
        name = metafunc.module.__name__.rpartition(".")[2]
        engines = ENGINES_OF.get(name, ["either"])
        metafunc.parametrize("engine", engines, indirect=True, scope="module")


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return usable_engine(str(request.param), tmp_path_factory.getbasetemp())


@pytest.fixture
def growfs(growfs: Growfs, engine: str) -> Growfs:
    """The command of tests.harness, with the engine of this run."""
    growfs.env["GROWFS_ENGINE"] = engine
    return growfs


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """An open descriptor, closed after the block; an error of that close is ignored, as the mount may be gone."""
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        with suppress(OSError):
            os.close(fd)


@contextmanager
def shared(folder: Path, tree: dict[str, bytes], engine: str) -> Iterator[Library]:
    """A mount of these files, all of them cached, for a module-scoped fixture."""
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
    """Files of many sizes and unusual names."""
    generator = random.Random(3)
    sizes = {"empty": 0, "one": 1, "page": 4096, "odd": 12_345, "large": 3_000_017}
    tree = {f"sizes/{name}.bin": generator.randbytes(size) for name, size in sizes.items()}
    tree |= {f"names/{name}": name.encode() for name in ODD_NAMES}
    tree |= {"deep/a/b/c/d/file.txt": b"deep", "at the root.txt": b"root"}
    with shared(tmp_path_factory.mktemp("library"), tree, engine) as library:
        yield library


@pytest.fixture
def server() -> Iterator[BlockingServer]:
    with blocking_server({}) as server:
        yield server


@pytest.fixture
def reader(growfs: Growfs) -> Iterator[Reader]:
    with Reader(growfs.mountpoint) as process:
        yield process


@pytest.fixture
def other(growfs: Growfs) -> Iterator[Reader]:
    with Reader(growfs.mountpoint) as process:
        yield process
