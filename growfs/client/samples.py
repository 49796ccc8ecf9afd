"""The samples of a whole pass, for one data loader over all of its parts: see `growfs.samples`.

Any number of processes divide the files without talking to each other: each takes every n-th file of the pass, counted
on from part to part. So no process has more than one file more than another, at any part: one that a loader lets wait,
because its batches are ready, has already read what the others wait for.

A file is read when its sample is asked for. So what a loader reads ahead are samples, and a part has been read when the
next one is waited for.
"""

from __future__ import annotations

import fnmatch
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Generic, TypeVar

from growfs.client.epochs import begun, check, describe, epoch, pass_number
from growfs.errors import UsageError
from growfs.paths import absolute_path

T = TypeVar("T")


class Samples(Iterator[T], Generic[T]):
    """What `read` returns for each file of a share. With `state_dict` and `load_state_dict`, as StatefulDataLoader
    calls them, another iterator goes on where this one is.
    """

    def __init__(
        self, path: Path, read: Callable[[Path], T], number: int | None, share: tuple[int, int], include: str
    ) -> None:
        self._path = absolute_path(path).resolve()
        self._read = read
        self._share = share
        self._include = include
        if not 0 <= share[0] < share[1]:
            raise UsageError(f"share={share}: pass (i, n) with 0 <= i < n")
        self._number = pass_number(self._path, number)
        self._part, self._index = 1, -1  # the index of the next file in its part; -1: the share's first one
        self._catalog: Mapping[str, Any] | None = None
        self._files = self._run()

    def __next__(self) -> T:
        return self._read(next(self._files))

    def _run(self) -> Iterator[Path]:
        own, of = self._share
        if not self._number:
            for folder in epoch(self._path, None, 1, None):
                yield from map(Path, self._listed(folder)[own::of])
            return
        if self._catalog is not None:
            check(self._path, self._number, self._catalog)
        while self._part <= (pass_ := describe(self._path, self._number))["parts"]:
            self._catalog = pass_["catalog"]
            counts = pass_["part_files"][: self._part]
            if self._index < 0:
                self._index = (own - sum(counts[:-1])) % of
            if self._index < counts[-1]:  # otherwise the others may have read the part, and it may be gone
                with closing(epoch(self._path, self._number, self._part, None)) as folders:
                    files = self._listed(next(folders))
                    while self._index < len(files):
                        self._index += of
                        yield Path(files[self._index - of])
            self._part, self._index = self._part + 1, -1

    def _listed(self, folder: Path) -> list[str]:
        """The files that a folder lists, in an order that is the same on all machines."""
        start = len(f"{folder}/")
        files = sorted(os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
        files = [file for file in files if fnmatch.fnmatchcase(file[start:], self._include)]
        random.Random("/".join(folder.parts[-2:])).shuffle(files)
        return files

    def state_dict(self) -> dict[str, Any]:
        """Where the share continues, as a dict for JSON."""
        return {"number": self._number, "part": self._part, "index": self._index, "catalog": self._catalog}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there; the next iterator of this process, with the pass after that."""
        self._number, self._part, self._index = state["number"], state["part"], state["index"]
        self._catalog = state["catalog"]
        begun[self._path] = self._number
        self._files = self._run()
