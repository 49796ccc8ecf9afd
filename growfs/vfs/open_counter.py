"""Counts opens that bypass the daemon, if the kernel reports them and may watch that much."""

from __future__ import annotations

import errno
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import trio

from growfs.errors import Unreadable
from growfs.vfs.file_events import (
    CLOSE_WRITE,
    DELETE,
    GONE,
    IS_DIRECTORY,
    MODIFY,
    MOVED_FROM,
    MOVED_TO,
    OPEN,
    OVERFLOW,
    FileEvent,
    FileEvents,
    file_events,
)

log = logging.getLogger(__name__)

NOWHERE = (-1, -1)

Opened = Callable[[int, int, str, int], None]
Changed = Callable[[int, int, str], None]


class OpenCounter:
    """Owns the watches, one for each directory of a tree. is_counting: False if opens cannot be observed.

    opened: called with the number of the tree, the id of the directory, and the name of each file that is opened, and
    the id of the process (UNKNOWN if the kernel does not report it). changed: called with the first three for each file
    that may have been written to, replaced or deleted.
    """

    def __init__(
        self,
        opened: Opened,
        changed: Changed | None = None,
        sees_opens: bool = True,
        processes_in: Path | None = None,
    ) -> None:
        """sees_opens: False if the trees have symbolic links, since opens are reported at a file's real place.

        processes_in: the folder of the trees, if processes matter.
        """
        self._opened = opened
        self._changed = changed
        self._watched: dict[int, tuple[int, int]] = {}
        self._directories: set[tuple[int, int]] = set()
        self._pending: deque[FileEvent] = deque()
        self._warned_at = -math.inf
        self._events: FileEvents | None = None
        self.is_counting = sees_opens
        if not sees_opens:
            return
        try:
            self._events = file_events(processes_in)
        except (ImportError, OSError) as error:
            self._give_up(error)

    def watch(self, number: int, folders: Mapping[int, Path]) -> None:
        """Watch the directories of a tree, given by their ids; takes some microseconds each. Works on any thread."""
        if not self.is_counting or self._events is None:
            return
        mask = OPEN | (MODIFY | CLOSE_WRITE | DELETE | MOVED_FROM | MOVED_TO if self._changed else 0)
        try:
            for id, folder in folders.items():
                with suppress(FileNotFoundError):  # its last file was removed meanwhile
                    watch = self._events.watch(folder, mask)
                    self._directories.discard(self._watched.get(watch, NOWHERE))  # it belonged to an earlier tree
                    self._watched[watch] = number, id
                    self._directories.add((number, id))
        except OSError as error:
            self._give_up(error)

    def is_watched(self, number: int, id: int) -> bool:
        """Whether a directory of a tree is watched."""
        return (number, id) in self._directories

    async def run(self) -> None:
        """Count until cancelled."""
        while self._events is not None:
            await trio.lowlevel.wait_readable(self._events.fileno())
            self._pending.extend(self._events.read())
            while self._pending:
                for _ in range(min(32, len(self._pending))):  # which takes a millisecond or two
                    self._count(self._pending.popleft())
                await trio.lowlevel.checkpoint()  # readers may wait for an answer
            await trio.sleep(0.2)  # inotify keeps 16,384 events until then (fs.inotify.max_queued_events)
        await trio.sleep_forever()

    def count_now(self) -> None:
        """Count opens up to now: the kernel queues the event before the open returns."""
        if self._events is not None:
            self._pending.extend(self._events.read())
            while self._pending:
                self._count(self._pending.popleft())

    def _count(self, event: FileEvent) -> None:
        if event.mask & OVERFLOW:
            if trio.current_time() > self._warned_at + 60.0:
                self._warned_at = trio.current_time()
                log.warning("some opens were not counted: more files are opened than inotify(7) can report")
        elif event.mask & GONE:
            self._directories.discard(self._watched.pop(event.watch, NOWHERE))
        elif not event.mask & IS_DIRECTORY and (watched := self._watched.get(event.watch)):
            # The disk of the cache fails, so the file cannot be looked up; or it is not of the remote, as its name is
            # not UTF-8.
            with suppress(Unreadable, UnicodeEncodeError):
                if event.mask & OPEN:
                    self._opened(*watched, event.name, event.pid)
                if event.mask & ~OPEN and self._changed:
                    self._changed(*watched, event.name)

    def close(self) -> None:
        """End all watches."""
        if self._events is not None:
            self._events.close()

    def _give_up(self, error: Exception) -> None:
        """Stop counting. Nothing is closed, since another thread may be waiting for events."""
        self.is_counting = False
        self._watched.clear()
        limit = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EMFILE)
        limits = "fs.fanotify.max_user_marks, or fs.inotify.max_user_watches and max_user_instances (sysctl)"
        remedy = f"; raise {limits}" if limit else ""
        log.warning("opens are not counted, so all listed files count as read: %s%s", error, remedy)
