"""The access patterns of the simulation over a folder, with `growfs.next_generation`: no listed file is lost.

Processes are real. What the patterns know of a mount is turned into what such a program does over a folder: it asks for
the next generation where its next epoch begins, and then lists and opens native files.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from growfs.rotation.rules import EVERYWHERE
from tests.extensions.fill.conftest import Fill
from tests.fuse.mounted_world import FILE_BYTES, MountedWorld
from tests.generation_readers import Reader, Readers
from tests.harness import until
from tests.simulation.patterns import PATTERNS
from tests.simulation.world import catalog

OPENS = 50
IN_EVERY_RUN = "hyper-parameter search: a new process every few minutes"
ONE_GENERATION = ("a notebook looks at a batch before it lists the validation set",)
"""Their processes ask once: what they list later must be the same."""
LIST_FOR_OTHERS = (
    "find > list, then training from the list",
    "training from a fixed list, beside a re-lister",
    "Keras lists twice while the cache fills",
)
"""Another process opens what one has listed, or several must list the same: nothing new begins meanwhile."""
POLLS = ("a script that polls until there is enough",)
"""Their processes ask each time they list, although they have opened nothing since."""
ALL_RUNS = [
    name if name == IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.long)
    for name, pattern in PATTERNS.items()
    if not pattern.opens_unlisted
]
MANY: dict[str, Any] = {"files": catalog(1000)}
"""It waits for 150 files."""


class FolderReader:
    """A process with the interface of SimReader. It asks for the next generation as soon as it lists again."""

    def __init__(self, world: FilledWorld) -> None:
        self._world = world
        self._process = world.readers.new()
        self._listed: set[int] | None = None
        self._opens = 0
        self._validation: tuple[Reader, set[str]] | None = None

    def list(self, directory: int) -> list[int]:
        """The files of a directory of its generation. What it lists only once, another process holds for it."""
        if directory in PATTERNS[self._world.name].listed_once:
            process, paths = self._validation = self._validation or (self._world.readers.new(), set())
            if not paths:
                process.next_generation(self._world.growfs.mountpoint)
            paths.update(f"c{directory}/{name}" for name in process.list(f"c{directory}"))
            return [self._world.ids[path] for path in paths if path.startswith(f"c{directory}/")]
        is_epoch = self._listed is not None and directory in self._listed and (self._opens or self._world.name in POLLS)
        if self._listed is None or (is_epoch and self._world.name not in ONE_GENERATION):
            self._process.next_generation(self._world.growfs.mountpoint)
            self._listed, self._opens = set(), 0
        self._listed.add(directory)
        if directory == EVERYWHERE:
            return [self._world.ids[name] for name in self._process.names()]
        ids = [self._world.ids[f"c{directory}/{name}"] for name in self._process.list(f"c{directory}")]
        self._world.shown.update(ids)
        return ids

    def open(self, id: int, keep: bool = False) -> float:
        """Open a file, read it, and keep it open: it must be there."""
        assert keep
        path = self._world.files[id].path
        if self._listed is None:  # given a list by another process
            self._process.next_generation(self._world.growfs.mountpoint)
            self._listed = set()
        assert self._holder(path).open(path) == FILE_BYTES
        self._opens += 1
        return 0.0

    def _holder(self, path: str) -> Reader:
        return self._validation[0] if self._validation and path in self._validation[1] else self._process

    def close(self, id: int) -> None:
        """Close it."""
        path = self._world.files[id].path
        self._holder(path).close(path)

    def exit(self) -> None:
        """End the process."""
        self._process.end()
        if self._validation:
            self._validation[0].end()


class FilledWorld(MountedWorld):
    """A World over a folder."""

    growfs: Fill

    def __init__(self, growfs: Fill, readers: Readers, name: str) -> None:
        pattern = PATTERNS[name]
        grows = pattern.grows and name not in LIST_FOR_OTHERS
        super().__init__(growfs, OPENS, grows, **(MANY if name in POLLS else pattern.options()))
        self.readers, self.name = readers, name

    def fill_folder(self, remote: Path, filled: float) -> None:
        """Write the files, and fill the cache to this fraction."""
        content = random.Random(1).randbytes(FILE_BYTES)
        for file in self.files:
            (remote / file.path).parent.mkdir(parents=True, exist_ok=True)
            (remote / file.path).write_bytes(content)
        settle = "60s" if self.name in LIST_FOR_OTHERS else "0.1s"
        rate = "400kB/s" if self.name in POLLS else "0"
        flags = ("--settle", settle, "--bandwidth", rate)
        self.growfs.fill(remote, "--cache-size", self.capacity * FILE_BYTES, *flags)
        until(lambda: self.growfs.status()["cache"]["files"] >= int(filled * self.capacity))
        assert set(os.listdir(self.growfs.current)) == {f"c{directory}" for directory in self.directories}
        self._began = time.monotonic()

    def reader(self) -> FolderReader:  # type: ignore[override]
        """A new process."""
        return FolderReader(self)


@pytest.mark.promise(44)
@pytest.mark.parametrize("name", ALL_RUNS)
def test_no_listed_file_is_lost(name: str, growfs: Fill, readers: Readers, tmp_path: Path) -> None:
    pattern = PATTERNS[name]
    world = FilledWorld(growfs, readers, name)
    world.fill_folder(tmp_path / "remote", pattern.filled)
    world.run(*pattern.processes(world))
    assert growfs.used_bytes() <= growfs.status()["cache"]["limit_bytes"]
