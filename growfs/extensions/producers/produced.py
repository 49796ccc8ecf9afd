"""`Producer`: the maker of files with the user's function, and the two kinds of remotes that it opens.

`ProducedRemote`: files that the function makes from the files of another remote. `SampledRemote`: files that it makes
from just a number.
"""

from __future__ import annotations

import itertools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Any

from growfs.errors import RemoteError, RemoteMissing, UsageError
from growfs.remote.interface import FetchTask, Page, Remote, RemoteFile, RemoteSpec, RemoteStream, Skipped
from growfs.remote.names import reason_to_skip, template_fields
from growfs.remote.rate_limits import SharedLimits
from growfs.remote.user_functions import Function

if TYPE_CHECKING:  # it is slow to import, and every command knows the options of a producer
    from growfs.extensions.producers.pool import ProducerPool


@dataclass(frozen=True, slots=True)
class Producer:
    """The user's function that makes local files: each from a remote file, or from just a number."""

    function: Function
    rename: str | None
    """A template for the local names."""
    timeout_s: float
    """In seconds, for one file; 0 for no limit."""
    memory_bytes: int
    """The memory limit of the function's process."""
    retries: int
    """Additional attempts after the first one."""
    seed: int | None = None
    """Given if files are made from numbers, 0 to `count` - 1."""
    count: int | None = None
    """None if unlimited."""

    def open(self, open_source: Callable[[], Remote], spec: RemoteSpec, limits: SharedLimits | None) -> Remote:
        pool = self._pool(spec, limits)
        if self.seed is None:
            return ProducedRemote(open_source(), self, pool)
        return SampledRemote(self, pool, spec.extent)

    def check(self, spec: RemoteSpec) -> bool:
        return self._pool(spec).check()

    def _pool(self, spec: RemoteSpec, limits: SharedLimits | None = None) -> ProducerPool:
        from growfs.extensions.producers.pool import ProducerPool

        return ProducerPool(spec, self, limits)


class _ProducerRemote(ABC):
    """The common part of both: a file is made as a whole when it is fetched."""

    _pool: ProducerPool

    @abstractmethod
    def _source(self, file: RemoteFile) -> RemoteFile | int:
        """The source of the file: a remote file, or a number."""

    def fetch(self, task: FetchTask) -> RemoteFile:
        file = task.file
        if task.byte_range:
            raise RemoteError(f"{file.path}: is made by a producer, and can only be fetched as a whole")
        mtime_ns = self._pool.produce(file.path, self._source(file), task.target, task.progress)
        return RemoteFile(file.path, os.stat(task.target).st_size, mtime_ns or file.mtime_ns, file.version)

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        raise RemoteError(f"{file.path}: is made by a producer, and can only be fetched")


class ProducedRemote(_ProducerRemote):
    """The files of a remote under their new names. Their sizes are unknown until they are made.

    A file's version names the remote file that it is made from, so any process can make it.
    """

    def __init__(self, remote: Remote, producer: Producer, pool: ProducerPool) -> None:
        self._remote, self._pool = remote, pool
        self._rename = producer.rename

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        """If the template gives several files the same name, the first of them gets it."""
        names: set[int] = set()  # the names of this listing, as 64-bit hashes
        for page in self._remote.pages(cursor):
            files, skipped = [], list(page.skipped)
            for source in page.files:
                file = self._produced_file(source)
                if reason := reason_to_skip(file.path) if self._rename else None:
                    skipped.append(Skipped(reason, file.path))
                elif self._rename and (key := hash(file.path)) in names:
                    skipped.append(Skipped("--rename gives another file the same name", source.path))
                else:
                    names.update([key] if self._rename else [])
                    files.append(file)
            yield Page(files, skipped, page.cursor)

    def stat(self, path: str, version: str = "") -> RemoteFile:
        """version: the listed one; without it, only a file that keeps its name can be found."""
        if not version and self._rename:
            raise RemoteMissing(f"{path}: its source is not known; list again")
        source = self._source(RemoteFile(path, None, None, version)).path if version else path
        return self._produced_file(self._remote.stat(source))

    def still_has(self, file: RemoteFile) -> bool:
        return self._remote.still_has(self._source(file))

    def _source(self, file: RemoteFile) -> RemoteFile:
        version, size, path = file.version.split("\n", 2)
        return RemoteFile(path or file.path, int(size) if size else None, file.mtime_ns, version)

    def _produced_file(self, source: RemoteFile) -> RemoteFile:
        path = source.path
        if self._rename:
            path = self._rename.format(**template_fields(path)).lstrip("/")
        size = "" if source.size is None else source.size
        version = "\n".join([source.version, str(size), "" if path == source.path else source.path])
        return RemoteFile(path, None, source.mtime_ns, version)


class SampledRemote(_ProducerRemote):
    """One file for each number from 0 on. The cursor of a page is the next number. extent: as in RemoteSpec."""

    def __init__(self, producer: Producer, pool: ProducerPool, extent: int | None) -> None:
        self._pool, self._seed, self._count = pool, producer.seed, producer.count
        self._listed = producer.count or extent or 0
        self._template = producer.rename or "{index:08d}"
        pieces = list(Formatter().parse(self._template))
        self._pattern = "".join(re.escape(text) + (r"(\d+)" if name else "") for text, name, _, _ in pieces)
        reason = reason_to_skip(self._file(0).path)
        if reason or any(self._parse(self._file(number).path) != number for number in (1, 1_234_567_890)):
            raise UsageError(
                f"--rename {self._template}: does not produce usable names:"
                f" {reason or 'their numbers cannot be read back'}"
            )

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        """List all samples; if there is no end, as many as `extent`."""
        numbers = iter(range(cursor or 0, self._listed))
        while page := list(itertools.islice(numbers, 1000)):
            yield Page([self._file(number) for number in page], [], page[-1] + 1)

    def stat(self, path: str, version: str = "") -> RemoteFile:
        return self._file(self._number(path))

    def still_has(self, file: RemoteFile) -> bool:
        """Never: all numbers are listed."""
        return False

    def _source(self, file: RemoteFile) -> int:
        return self._number(file.path)

    def _file(self, number: int) -> RemoteFile:
        return RemoteFile(self._template.format(index=number), None, None, f"{self._seed}-{number}")

    def _number(self, path: str) -> int:
        number = self._parse(path)
        if number < 0 or (self._count is not None and number >= self._count):
            raise RemoteMissing(f"{path}: no number produces this name")
        return number

    def _parse(self, path: str) -> int:
        """The number whose file has that path; -1 if there is none."""
        found = re.fullmatch(self._pattern, path)
        number = int(found[1]) if found else -1
        return number if number >= 0 and self._file(number).path == path else -1
