"""`RetryingRemote`: a remote that repeats calls which failed because the store was busy."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from growfs.errors import RemoteBusy, RemoteChanged, RemoteDenied, RemoteError, RemoteUnavailable
from growfs.remote.interface import FetchTask, Page, Remote, RemoteFile, RemoteStream
from growfs.remote.retries import DELAY_S_MAX, Retries, Tries

T = TypeVar("T")

log = logging.getLogger(__name__)


class RetryingRemote:
    """Wraps a remote: repeats calls that raise RemoteBusy, by the rules of growfs.remote.retries.

    A listing continues after the last page that arrived. Once begun, it waits for its store as long as necessary, even
    while access is denied: starting over might take hours. A fetch passes its tries down: its segments may be
    repeated individually, and only the rest starts over.

    open_source: opens the remote. Opening it anew rereads the credentials.
    """

    def __init__(self, open_source: Callable[[], Remote], retries: Retries) -> None:
        self._open_source = open_source
        self._remote = open_source()
        self._retries = retries

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        source = self._remote.pages(cursor)

        def next_page() -> Page | None:
            nonlocal source
            try:
                return next(source, None)
            except RemoteUnavailable as error:
                if isinstance(error, RemoteDenied):
                    self._remote = self._open_source()
                source = self._remote.pages(cursor)  # a generator that raised is exhausted
                raise

        page = self._repeat(next_page)
        while page is not None:
            cursor = page.cursor
            yield page
            page = self._repeat(next_page, Tries(self._retries, math.inf), RemoteUnavailable)

    def stat(self, path: str, version: str = "") -> RemoteFile:
        return self._repeat(lambda: self._remote.stat(path, version))

    def still_has(self, file: RemoteFile) -> bool:
        return self._repeat(lambda: self._remote.still_has(file))

    def fetch(self, task: FetchTask) -> RemoteFile:
        tries = Tries(self._retries)
        task = task._replace(tries=tries)

        def attempt() -> RemoteFile:
            task.restart()
            try:
                return self._remote.fetch(task)
            except RemoteChanged:
                self._check_changed(task.file)
                raise

        return self._repeat(attempt, tries)

    def _check_changed(self, file: RemoteFile) -> None:
        """Raise RemoteBusy if the file is as listed, so that only the response was of something else."""
        now = self._remote.stat(file.path, file.version)
        if (now.version, now.size) == (file.version, file.size):
            raise RemoteBusy(
                f"{file.path}: the content differs from the server's description; try again, and look for a proxy in"
                " between"
            )

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        return self._repeat(lambda: self._remote.open(file, start))

    def _repeat(
        self,
        call: Callable[[], T],
        tries: Tries | None = None,
        errors: type[RemoteError] = RemoteBusy,
    ) -> T:
        tries = tries or Tries(self._retries)
        while True:
            try:
                return call()
            except errors as error:
                paused_s = tries.pause_to_restart(error)
                if paused_s < DELAY_S_MAX:  # otherwise it is waited for, and a line for each attempt would fill the log
                    log.warning("%s (tried again after %.1f s)", error, paused_s)
