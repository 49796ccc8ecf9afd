"""Counts opens that bypass the daemon, with inotify(7), if it is available and may watch that much."""

from __future__ import annotations

import errno
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from growfs.errors import Unreadable

log = logging.getLogger(__name__)

NOWHERE = (-1, -1)
EVENTS_EVERY_S = 0.2
"""How often events are read, at most: the kernel keeps 16,384 of them (fs.inotify.max_queued_events)."""
WARN_EVERY_S = 60.0
EVENTS_MAX = 32
"""Events counted in one step, which takes a millisecond or two."""


class OpenCounter:
    """Owns the watches, one for each directory of a tree. is_counting: False if opens cannot be observed.

    opened: called with the number of the tree, the id of the directory, and the name of each file that is opened.
    changed: the same for each file that is written to or deleted.
    """

    def __init__(
        self,
        opened: Callable[[int, int, str], None],
        changed: Callable[[int, int, str], None] | None = None,
        sees_opens: bool = True,
    ) -> None:
        """sees_opens: False if the trees have symbolic links, since inotify(7) reports opens at a file's real place."""
        self._opened = opened
        self._changed = changed
        self._watched: dict[int, tuple[int, int]] = {}
        self._directories: set[tuple[int, int]] = set()
        self._pending: deque[Any] = deque()
        self._warned_at = -math.inf
        self._inotify: Any = None
        self._flags: Any = None
        self.is_counting = sees_opens
        if not sees_opens:
            return
        try:
            from inotify_simple import INotify, flags

            self._inotify, self._flags = INotify(), flags
        except (ImportError, OSError) as error:
            self._give_up(error)

    def watch(self, number: int, folders: Mapping[int, Path]) -> None:
        """Watch the directories of a tree, given by their ids; takes some microseconds each. Works on any thread."""
        if not self.is_counting:
            return
        flags = self._flags
        try:
            mask = flags.OPEN | flags.ONLYDIR
            if self._changed:
                mask |= flags.MODIFY | flags.CLOSE_WRITE | flags.DELETE | flags.MOVED_FROM
            for id, folder in folders.items():
                with suppress(FileNotFoundError):  # its last file was removed meanwhile
                    self._watched[self._inotify.add_watch(folder, mask)] = number, id
                    self._directories.add((number, id))
        except OSError as error:
            self._give_up(error)

    def is_watched(self, number: int, id: int) -> bool:
        """Whether a directory of a tree is watched."""
        return (number, id) in self._directories

    async def run(self) -> None:
        """Count until cancelled."""
        while self._inotify is not None:
            await trio.lowlevel.wait_readable(self._inotify.fileno())
            self._pending.extend(self._inotify.read(timeout=0))
            while self._pending:
                for _ in range(min(EVENTS_MAX, len(self._pending))):
                    self._count(self._pending.popleft())
                await trio.lowlevel.checkpoint()  # readers may wait for an answer
            await trio.sleep(EVENTS_EVERY_S)
        await trio.sleep_forever()

    def count_now(self) -> None:
        """Count opens up to now: the kernel queues the event before the open returns."""
        if self._inotify is not None:
            self._pending.extend(self._inotify.read(timeout=0))
            while self._pending:
                self._count(self._pending.popleft())

    def _count(self, event: Any) -> None:
        flags = self._flags
        if event.mask & flags.Q_OVERFLOW:
            if trio.current_time() > self._warned_at + WARN_EVERY_S:
                self._warned_at = trio.current_time()
                log.warning("some opens were not counted: more files are opened than inotify(7) can report")
        elif event.mask & flags.IGNORED:
            self._directories.discard(self._watched.pop(event.wd, NOWHERE))
        elif not event.mask & flags.ISDIR and (watched := self._watched.get(event.wd)):
            with suppress(Unreadable):  # the disk of the cache fails, so the file cannot be looked up
                if event.mask & flags.OPEN:
                    self._opened(*watched, event.name)
                elif self._changed:
                    self._changed(*watched, event.name)

    def close(self) -> None:
        """End all watches."""
        if self._inotify is not None:
            self._inotify.close()

    def _give_up(self, error: Exception) -> None:
        """Stop counting. Nothing is closed, since another thread may be waiting for events."""
        self.is_counting = False
        self._watched.clear()
        limit = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EMFILE)
        remedy = "; raise fs.inotify.max_user_watches or max_user_instances (sysctl)" if limit else ""
        log.warning("opens are not counted, so all listed files count as read: %s%s", error, remedy)
