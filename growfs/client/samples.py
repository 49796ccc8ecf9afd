"""The samples of a whole pass, for one data loader over all of its parts: see `growfs.samples`.

Processes divide the files without talking to each other: each takes every n-th file of the pass, counted on from part
to part. With shares of each part, one process would get more and more files than another. A loader would then let it
wait, with its batches full, while the other waits for the part that it has not finished.

A file is read when its sample is asked for. So a loader reads ahead samples, not names, and each process has read its
share of a part before it waits for the next one.
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
from growfs.errors import GrowfsError, UsageError
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
        self._done = 0  # files of the pass, if all shares have got as far as this one
        self._catalog: Mapping[str, Any] | None = None
        self._files = self._run()

    def __next__(self) -> T:
        file = next(self._files)
        try:
            return self._read(file)
        except StopIteration as error:  # would end the pass in silence
            raise RuntimeError(f"{file}: reading it raised StopIteration") from error

    def _run(self) -> Iterator[Path]:
        if not self._number:
            for folder in epoch(self._path, None, 1, None):
                yield from map(Path, self._listed(folder)[self._share[0] :: self._share[1]])
            return
        if self._catalog is not None:
            check(self._path, self._number, self._catalog)
        own, of = self._share
        resumed = self._done
        pass_, part, before = describe(self._path, self._number), 0, 0
        while part < pass_["parts"]:
            part, count = part + 1, pass_["part_files"][part]
            first = (own - before) % of
            # Without a file in it, the share does not open a part: the others may have read it, and it may be gone.
            if first < count and before + count > resumed:
                with closing(epoch(self._path, self._number, part, None)) as folders:
                    files = self._listed(next(folders))
                    pass_ = describe(self._path, self._number)  # until the pass began, this followed the remote
                    self._catalog = pass_["catalog"]
                    for index in range(first, len(files), of):
                        number = before + index
                        if number < resumed:  # it was read before, but not here: the part waits for it
                            os.close(os.open(files[index], os.O_RDONLY | os.O_CLOEXEC))
                            continue
                        self._done = number - own + of
                        yield Path(files[index])
            before += pass_["part_files"][part - 1]

    def _listed(self, folder: Path) -> list[str]:
        """The files that a folder lists, in an order that is the same on all machines."""

        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):  # of a subfolder that the remote has lost meanwhile
                raise GrowfsError(f"{folder}: cannot be listed: {error.strerror}; see growfs status {self._path}")

        start = len(f"{folder}/")
        walked = os.walk(folder, onerror=fail)
        files = sorted(os.path.join(parent, name) for parent, _, names in walked for name in names)
        files = [file for file in files if fnmatch.fnmatchcase(file[start:], self._include)]
        random.Random("/".join(folder.parts[-2:])).shuffle(files)
        return files

    def state_dict(self) -> dict[str, Any]:
        """How many files of which pass were read, by all shares together if they have got as far, as a dict for JSON.
        So another number of shares can continue.
        """
        return {"number": self._number, "done": self._done, "catalog": self._catalog}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after these files; the next iterator of this process, with the pass after that."""
        self._number, self._done, self._catalog = state["number"], state["done"], state["catalog"]
        begun[self._path] = self._number
        self._files = self._run()
