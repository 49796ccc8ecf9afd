"""`LocalRemote`: a local folder, or one on a network mount, as a remote.

Symbolic links to files inside the folder are followed; links that lead out of it are neither listed nor read.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from growfs.errors import RemoteBusy, RemoteError, RemoteMissing, RemoteUnavailable
from growfs.remote.digest import BUFFER_BYTES
from growfs.remote.http.stream import FileStream
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import FetchTask, RemoteFile, RemoteSpec, RemoteStream, Skipped
from growfs.remote.metadata import fitting
from growfs.remote.stores.base import Entry, StoreRemote

NO_PERMISSION = "permission denied"


class LocalRemote(StoreRemote):
    """The files below a folder. `base` is the real path of the folder."""

    name = "file"
    schemes = ("file", "local")
    login = "check who may read it"

    def __init__(self, spec: RemoteSpec, threads: TransferThreads | None = None) -> None:
        super().__init__(spec, threads)
        self.base = os.path.realpath(os.path.expanduser(spec.url.partition("://")[2] or spec.url))

    @property
    def _is_thread_safe(self) -> bool:
        return True

    def as_file(self, path: str = "", **options: Any) -> Any:
        return open(os.path.join(self.base, path) if path else self.base, "rb")

    def stat(self, path: str, version: str = "") -> RemoteFile:
        with self.translating(path):
            return _file(path, os.stat(self._resolved(path)))

    def fetch(self, task: FetchTask) -> RemoteFile:
        file, wanted = task.file, task.byte_range
        size = wanted.size if wanted else file.size
        most, written = wanted.size if wanted else sys.maxsize, 0
        update_digest = task.digest.segment(0).update if task.digest else None
        buffer = memoryview(bytearray(BUFFER_BYTES if size is None else max(1, min(size, BUFFER_BYTES))))
        with self._threads.unsplit(size), open(task.target, "wb") as out:
            with closing(self.open(file, wanted.offset if wanted else 0)) as source:
                while count := source.readinto(buffer[: most - written]):
                    out.write(buffer[:count])
                    if update_digest:
                        update_digest(buffer[:count])
                    written += count
                    task.progress(count)
            if wanted:
                self._check_length(file.path, wanted, written)
            return self._verified(source.file, source.file, None if wanted else written)

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        path = file.path
        with self.translating(path):
            source = os.open(self._resolved(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

        def stat_now() -> RemoteFile:
            with self.translating(path):
                return _file(path, os.fstat(source))

        try:
            now = self._verified(file, stat_now())
        except BaseException:
            os.close(source)
            raise
        translating = partial(self.translating, path)
        return FileStream(io.FileIO(source), now, start, stat_now, self._threads.throttle, translating)

    @contextmanager
    def translating(self, path: str = "") -> Iterator[None]:
        """If all of the folder is missing or fails, not just the path, a network mount may be gone, or its server."""
        try:
            with super().translating(path):
                yield
        except RemoteUnavailable:
            raise
        except RemoteError as error:
            if path and (self._is_empty() or (isinstance(error, RemoteMissing) and self._has_file(path))):
                where = self.safe_url()
                raise RemoteBusy(
                    f"{where}: the folder is empty, missing or not readable; check whether it is mounted"
                ) from None
            raise

    def _is_empty(self) -> bool:
        try:
            with os.scandir(self.base) as entries:
                return next(entries, None) is None
        except OSError:
            return True

    def _has_file(self, path: str) -> bool:
        """Whether a file that was missing is there now: if so, the folder was gone meanwhile."""
        real = os.path.realpath(os.path.join(self.base, path))
        return self._is_below(real) and os.path.isfile(real)

    def _list_folder(self, folder: str) -> list[Entry]:
        here = os.path.join(self.base, folder)
        try:
            entries = list(os.scandir(here))
        except PermissionError:
            if folder:
                return [Skipped(NO_PERMISSION, folder)]
            raise
        except NotADirectoryError:
            raise RemoteError(f"{self.safe_url(folder)}: is a file; use the URL of its folder") from None
        found: list[Entry] = []
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    found.append(path)
                elif reason := self._reason_to_skip_entry(entry):
                    found.append(Skipped(reason, path))
                else:
                    found.append(_file(path, entry.stat()))
            except FileNotFoundError:
                continue  # it was removed since scandir
            except PermissionError:  # the folder may be listed, but not entered
                found.append(Skipped(NO_PERMISSION, path))
        return found

    def _reason_to_skip_entry(self, entry: os.DirEntry[str]) -> str | None:
        if entry.is_symlink():
            real = os.path.realpath(entry.path)
            if not self._is_below(real):
                return "link that leads outside"
            if not os.path.exists(real):
                return "dangling link"
            if os.path.isdir(real):
                return "link to a folder"
        return None if entry.is_file() else "not a regular file"

    def _is_below(self, real: str) -> bool:
        return real.startswith(self.base.rstrip("/") + "/")

    def _resolved(self, path: str) -> str:
        real = os.path.realpath(os.path.join(self.base, path))
        if not self._is_below(real):
            raise RemoteMissing(f"{self.safe_url(path)}: leads outside the remote")
        return real


def _file(path: str, found: os.stat_result) -> RemoteFile:
    if not stat.S_ISREG(found.st_mode):
        raise IsADirectoryError(path)
    return RemoteFile(path, found.st_size, fitting(found.st_mtime_ns), f"{found.st_mtime_ns}-{found.st_size}")
