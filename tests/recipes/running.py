"""Runs the recipes of tools/recipes as a user does, each in a process of its own over a real mount.

A recipe prints a line on each epoch. A thread reads them, so a test may look at all of them, or take one after another.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.forkserver import Process
from tests.frameworks.harness import ENV, FORKS
from tests.harness import Growfs, until

RECIPES = Path(__file__).parents[2] / "tools/recipes"
LINE = re.compile(r"epoch (\d+): (\d+) files, (\d+) samples, [\d.]+ samples/s(?:, )?(.*)")
ENDLESS = 1_000_000
EPOCH_S_MAX = 60.0
ONLY_GROWTH = "--settle", "1h", "--rotation", "never"
"""Options of a mount whose listing changes only when its cache grows."""
NOT_FORKED = {
    "hf_datasets.py",
    "yolo_relist.py",
    "dali_readers.py",
    "tf_tfrecord.py",
    "tf_input_fn.py",
    "keras_dataframe.py",
}
"""Recipes whose imports read environment variables that they set themselves, and those of TensorFlow: one that was
forked, and is stopped now and then, hung once in a while."""


class Epoch:
    """The line of a recipe on an epoch. about: what follows the figures that all recipes print."""

    def __init__(self, line: str) -> None:
        found = LINE.fullmatch(line.rstrip())
        assert found, line
        self.number, self.files, self.samples = (int(figure) for figure in found.groups()[:3])
        self.about = found[4]

    def count(self, words: str) -> int:
        """The number before these words."""
        found = re.search(rf"(\d+) {words}\b", self.about)
        assert found, self.about
        return int(found[1])


class Recipe:
    """A running recipe. lines: its output so far. epochs: those that it has printed so far."""

    def __init__(self, process: Process | subprocess.Popen[str], errors: Path) -> None:
        self.lines: list[str] = []
        self.epochs: list[Epoch] = []
        self._process, self._errors = process, errors
        self._taken = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("epoch "):
                self.epochs.append(Epoch(line))
            self.lines.append(line)

    def until(self, condition: Callable[[Epoch], object]) -> Epoch:
        """The next epoch that meets the condition, after the one that the last call has returned."""

        def found() -> Epoch | None:
            while self._taken < len(self.epochs):
                self._taken += 1
                if condition(epoch := self.epochs[self._taken - 1]):
                    return epoch
            if self._process.poll() is not None and not self._thread.is_alive():
                pytest.fail(f"it ended: {self._errors.read_text()}")
            return None

        epoch = until(found, EPOCH_S_MAX)
        assert isinstance(epoch, Epoch)
        return epoch

    def until_files(self, files: int) -> Epoch:
        """The next epoch that reads so many files."""
        return self.until(lambda epoch: epoch.files == files)

    def skip(self) -> None:
        """Leave out the epochs so far, and the one that has begun and is printed later."""
        self._taken = len(self.epochs) + 1

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the process during the block."""
        self._process.send_signal(signal.SIGSTOP)
        yield
        self._process.send_signal(signal.SIGCONT)

    def finish(self) -> None:
        """Wait until the recipe ends, with exit status 0."""
        assert self._process.wait(EPOCH_S_MAX) == 0, self._errors.read_text()
        self._thread.join()

    def stop(self) -> None:
        """Kill the recipe and the workers that it started."""
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._thread.join()
        assert self._process.stdout
        self._process.stdout.close()


@contextmanager
def running(
    name: str,
    growfs: Growfs,
    *arguments: object,
    epochs: int = ENDLESS,
    env: Mapping[str, object] = MappingProxyType({}),
    unmounts: bool = True,
) -> Iterator[Recipe]:
    """Run a recipe over the mount, and end it with the block. env: more variables of its environment.

    unmounts: the mount ends, too.
    """
    words = [RECIPES / name, growfs.mountpoint, "--epochs", epochs, *arguments]
    variables = {key: value for key, value in ENV.items() if not key.startswith(("AWS_", "GROWFS_"))}
    variables |= {key: str(value) for key, value in env.items()}
    errors = growfs.mountpoint.parent / f"{name}.stderr"
    process: Process | subprocess.Popen[str]
    with errors.open("w") as stderr:
        if name in NOT_FORKED:
            process = subprocess.Popen(
                [sys.executable, *map(str, words)],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd="/",
                text=True,
                start_new_session=True,
            )
        else:
            process = FORKS.start(words, variables, stdout=subprocess.PIPE, stderr=stderr, cwd="/", new_session=True)
    recipe = Recipe(process, errors)
    try:
        yield recipe
    finally:
        recipe.stop()
        until(lambda: not unmounts or growfs.run("umount", growfs.mountpoint, check=False).returncode == 0)


def after_growth(growfs: Growfs, recipe: Recipe, steps: list[int], each: int) -> dict[int, Epoch]:
    """Grow the cache in steps, each to that many files of `each` bytes; returns an epoch of each, by its files."""
    found = {}
    for files in steps:
        growfs.resize(files, each)
        found[files] = recipe.until_files(files)
    assert misses(growfs) == 0
    return found


def misses(growfs: Growfs) -> int:
    """How many opens waited for a fetch."""
    return int(growfs.status()["miss"]["files_total"])
