"""`RetryingRemote`: a remote that repeats calls which failed because the store was busy."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from growfs.errors import RemoteBusy, RemoteChanged
from growfs.remote.interface import FetchTask, Page, Remote, RemoteFile, RemoteStream

TRIES_MAX = 5
DELAY_S_MIN = 0.2
DELAY_S_MAX = 10.0

T = TypeVar("T")

log = logging.getLogger(__name__)


class RetryingRemote:
    """Wraps a remote: a call that raises RemoteBusy is repeated after a growing delay. Other errors pass at once.

    A listing continues after the last page that arrived, and its tries are counted anew from there.
    """

    def __init__(
        self,
        remote: Remote,
        on_busy: Callable[[RemoteBusy], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """on_busy: called with the error before each repeated call."""
        self._remote = remote
        self._on_busy = on_busy
        self._sleep = sleep

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        source = self._remote.pages(cursor)

        def next_page() -> Page | None:
            nonlocal source
            try:
                return next(source, None)
            except RemoteBusy:
                source = self._remote.pages(cursor)  # a generator that raised is exhausted
                raise

        while (page := self._try(next_page)) is not None:
            cursor = page.cursor
            yield page

    def stat(self, path: str, version: str = "") -> RemoteFile:
        return self._try(lambda: self._remote.stat(path, version))

    def fetch(self, task: FetchTask) -> RemoteFile:
        reported = 0  # over all tries, so that progress never counts a byte twice

        def attempt() -> RemoteFile:
            written = 0
            if task.digest:
                task.digest.reset()

            def forward(delta: int) -> None:
                nonlocal reported, written
                written += delta
                new, reported = max(0, written - reported), max(reported, written)
                task.progress(new)  # 0 too: the callback may want to end the fetch

            try:
                return self._remote.fetch(replace(task, progress=forward))
            except RemoteChanged:
                self._check_changed(task.file)
                raise

        return self._try(attempt)

    def _check_changed(self, file: RemoteFile) -> None:
        """Raise RemoteBusy if the file is as it was listed, so that only the response was of something else."""
        now = self._remote.stat(file.path, file.version)
        if (now.version, now.size) == (file.version, file.size):
            raise RemoteBusy(
                f"{file.path}: what came is not what the server says it has; try again, and look for a proxy in between"
            )

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        return self._try(lambda: self._remote.open(file, start))

    def _try(self, call: Callable[[], T]) -> T:
        for number in range(1, TRIES_MAX):
            try:
                return call()
            except RemoteBusy as error:
                delay_s = min(DELAY_S_MIN * 2 ** (number - 1), DELAY_S_MAX) + random.uniform(0, DELAY_S_MIN)
                log.warning("%s (try %d of %d, next in %.1f s)", error, number, TRIES_MAX, delay_s)
                self._on_busy(error)
            self._sleep(delay_s)
        return call()
