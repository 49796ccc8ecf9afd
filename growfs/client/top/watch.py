"""What `growfs top` knows of mounts: their status, polled by a thread for each, and what it was over the last minutes.

The daemon answers `status` and nothing else for it. Opens per file and directories come from the cache's database,
read-only, and the events from its log; opens are in the database some seconds later.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from growfs.cache.cache_folder import DATABASE
from growfs.cache.schema import DirectoryPaths, query_of, read_only
from growfs.daemon.control_client import status_of
from growfs.daemon.running import Running, find_living, running
from growfs.daemon.status_text import files, state_text
from growfs.errors import GrowfsError
from growfs.status import MountStatus

POLL_S = 1.0
ANSWER_S = 5.0
"""A daemon that has not answered for so long is shown as one that does not."""
SURVEY_SHARE = 0.1
"""Queries of the database may take this share of the time, and come every SURVEY_S at most."""
SURVEY_S = 5.0
SAMPLES_MAX = 600
LOG_BYTES = 64 << 10
EVENTS_MAX = 200
DIRECTORIES_MAX = 1000
"""The largest are shown."""
LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) ([A-Z]+) (.*)")


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters at one time, in seconds of the monotonic clock. opened: the sum of the sizes of opened files."""

    at: float
    fetched: int
    opened: int
    opens: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, at a time in seconds since 1970. level: as in the log."""

    at: float
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class DirectoryShare:
    """The files of one directory: how many there are, are cached, and of these delisted; the opens of the cached."""

    path: str
    files: int
    cached: int
    delisted: int
    opens: int


@dataclass(frozen=True, slots=True)
class Survey:
    """What the database says.

    opens: how many cached files were opened how often. directories: the largest first. generations: (number, when it
    began, in seconds since 1970), of those that are kept.
    """

    opens: dict[int, int] = field(default_factory=dict)
    directories: tuple[DirectoryShare, ...] = ()
    generations: tuple[tuple[int, float], ...] = ()


class Watch:
    """One mount. A thread of its own replaces the attributes, each as a whole, and calls `changed` then.

    status: the last one, None before the first. taken_at: when it was taken, in seconds since 1970. trouble: why there
    is none at the moment. samples: the oldest first.
    """

    def __init__(self, mountpoint: Path, changed: Callable[[], None]) -> None:
        self.mountpoint = mountpoint
        self.status: MountStatus | None = None
        self.taken_at = 0.0
        self.trouble: str | None = None
        self.samples: deque[Counts] = deque(maxlen=SAMPLES_MAX)
        self.survey = Survey()
        self._seen: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._logged: list[Event] = []
        self._since = time.time()
        self._changed = changed
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to poll."""
        for run, name in ((self._poll, "poll"), (self._look, "survey")):
            threading.Thread(target=run, name=f"{name} {self.mountpoint}", daemon=True).start()

    def stop(self) -> None:
        """Poll no more."""
        self._ended.set()

    @property
    def events(self) -> list[Event]:
        """What was logged, and what the status showed since this program runs; the oldest first."""
        earlier = [
            Event(began, "NEWS", f"generation {number} begins")
            for number, began in self.survey.generations
            if began < self._since
        ]
        return sorted((*earlier, *self._logged, *list(self._seen)), key=lambda event: event.at)[-EVENTS_MAX:]

    def poll(self) -> None:
        """Take a status. Raises GrowfsError if there is no mount, or it does not answer."""
        cache = find_living(self.mountpoint).cache
        status = status_of(cache, ANSWER_S)
        if self.status and self.status.pid != status.pid:
            self.samples.clear()  # its counters began anew
        self._seen.extend(changes(self.status, status))
        fetch, opens = status.fetch, status.opens
        self.samples.append(Counts(time.monotonic(), fetch.bytes_total, opens.bytes_total, opens.total))
        self._logged = list(logged(cache / "log"))
        self.status, self.taken_at, self.trouble = status, time.time(), None

    def _poll(self) -> None:
        while not self._ended.is_set():
            try:
                self.poll()
            except GrowfsError as error:
                if not self.trouble:
                    self._seen.append(Event(time.time(), "ERROR", str(error)))
                self.trouble = str(error)
            self._changed()
            self._ended.wait(POLL_S)

    def _look(self) -> None:
        pause_s = POLL_S
        while not self._ended.wait(pause_s):
            if self.status and not self.trouble:
                began = time.monotonic()
                try:
                    self.survey = survey(Path(self.status.cache_dir) / DATABASE)
                    self._changed()
                except (sqlite3.Error, KeyError):
                    pass  # it is being written, or just removed: the next time
                pause_s = max(SURVEY_S, (time.monotonic() - began) / SURVEY_SHARE)


def changes(before: MountStatus | None, now: MountStatus) -> Iterator[Event]:
    """The events that two statuses in a row tell of, and that no log has."""
    if before is None:
        return
    at = time.time()
    if before.generation != now.generation:
        yield Event(at, "NEWS", f"generation {now.generation}: {files(now.listed.files)} listed")
    if before.state != now.state:
        yield Event(at, "NEWS", state_text(now, with_eta=False))
    known = {reader.pid: reader.command for reader in before.readers}
    current = {reader.pid: reader.command for reader in now.readers}
    for pid, command in current.items():
        if pid not in known:
            yield Event(at, "NEWS", f"{command} {pid} reads")
    for pid, command in known.items():
        if pid not in current:
            yield Event(at, "NEWS", f"{command} {pid} reads no more")


def logged(path: Path) -> Iterator[Event]:
    """The last events of a log. Lines without a time are what workers printed, and are left out."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return
    for line in lines[-EVENTS_MAX:]:
        if found := LINE.fullmatch(line):
            at = time.mktime(time.strptime(found[1], "%Y-%m-%d %H:%M:%S"))
            yield Event(at + int(found[2]) / 1000, found[3], found[4])


def survey(database: Path) -> Survey:
    """What the database of a cache says of its files. It takes a second for some million files."""
    connection = read_only(database)
    try:
        opens: dict[int, int] = dict(
            connection.execute(
                "SELECT u.opens, count(*) FROM resident r JOIN usage u USING (id) WHERE r.suffix IS NOT NULL GROUP BY 1"
            )
        )
        cached = {
            parent: figures
            for parent, *figures in connection.execute(
                "SELECT r.parent, count(*), sum(r.delisted IS NOT NULL), sum(u.opens) FROM resident r"
                " JOIN usage u USING (id) WHERE r.suffix IS NOT NULL GROUP BY 1"
            )
        }
        paths, ask = DirectoryPaths(), query_of(connection)
        largest = connection.execute(
            "SELECT parent, count(*) FROM node WHERE is_dir = 0 GROUP BY 1 ORDER BY 2 DESC LIMIT ?", (DIRECTORIES_MAX,)
        )
        directories = [
            DirectoryShare(paths.of(ask, parent), files, *cached.get(parent, (0, 0, 0))) for parent, files in largest
        ]
        generations = connection.execute("SELECT number, began FROM generation ORDER BY 1 DESC LIMIT ?", (EVENTS_MAX,))
        return Survey(opens, tuple(directories), tuple(generations))
    finally:
        connection.close()


class Watches:
    """The mounts that are watched: one, or all of this machine. `changed` is called by their threads."""

    def __init__(self, mountpoint: Path | None, changed: Callable[[], None]) -> None:
        """mountpoint: None for all. Raises GrowfsError if it is none of growfs', or there is none at all."""
        self._all = mountpoint is None
        self._changed = changed
        self._watches: dict[Path, Watch] = {}
        if mountpoint:
            self._add(find_living(mountpoint))
        else:
            self.find_more()
            if not self._watches:
                raise GrowfsError("growfs is mounted nowhere on this machine; growfs mount mounts a remote")

    def __iter__(self) -> Iterator[Watch]:
        return iter(list(self._watches.values()))

    def __len__(self) -> int:
        return len(self._watches)

    def find_more(self) -> None:
        """Watch the mounts that are new, unless one was named. One that has ended may come back, and stays."""
        if self._all:
            for mount in running():
                self._add(mount)

    def _add(self, mount: Running) -> None:
        if mount.mountpoint not in self._watches:
            self._watches[mount.mountpoint] = Watch(mount.mountpoint, self._changed)
            self._watches[mount.mountpoint].start()

    def stop(self) -> None:
        """Poll no more."""
        for watch in self:
            watch.stop()
