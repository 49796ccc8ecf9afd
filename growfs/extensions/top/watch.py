"""The state of mounts for `growfs top`: their status, polled by a thread for each, and its course in the last minutes.

The daemon only answers `status` for it. Opens per file and directories are read from the cache's database, and events
from its log; opens reach the database some seconds later.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from growfs.cache.cache_folder import DATABASE, read_only
from growfs.cache.schema import DirectoryPaths, query_of
from growfs.daemon.control_client import status_of
from growfs.daemon.running import find_living, running
from growfs.daemon.status_text import files, generation_text, state_text
from growfs.errors import GrowfsError
from growfs.status_and_metrics import MountStatus

POLL_S = 1.0
SAMPLES_MAX = 600
EVENTS_MAX = 200


@dataclass(frozen=True, slots=True)
class Rates:
    """Activity between two statuses, per second."""

    fetched: float
    """Bytes from the remote."""
    opens: float
    opened: float = 0.0
    """Bytes: the sizes of the opened files. The history does not have them."""


IDLE = Rates(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""

    at: float
    """Seconds since 1970."""
    level: str
    """As in the log."""
    text: str


@dataclass(frozen=True, slots=True)
class DirectoryShare:
    """The files of one directory: how many exist, are cached, and of these delisted; the opens of the cached ones."""

    path: str
    files: int
    cached: int
    delisted: int
    opens: int


@dataclass(frozen=True, slots=True)
class Survey:
    """The figures from the database."""

    opens: dict[int, int] = field(default_factory=dict)
    """How many cached files were opened how often."""
    directories: tuple[DirectoryShare, ...] = ()
    """Largest first."""
    generations: tuple[tuple[int, float], ...] = ()
    """(number, start in seconds since 1970) of those that are kept."""


@dataclass
class Watch:
    """One mount. Its threads replace the fields, each as a whole."""

    mountpoint: Path
    status: MountStatus | None = None
    """The last status; None before the first."""
    taken_at: float = 0.0
    """When that was taken, in seconds since 1970."""
    trouble: str | None = None
    """Why there is currently none."""
    rates: deque[Rates] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    """One for each POLL_S since this program started, oldest first."""
    earlier: tuple[Rates, ...] = ()
    """Those before, from the history of the cache."""
    survey: Survey = field(default_factory=Survey)
    seen: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    """Events that the status has shown since this program started."""
    logged: list[Event] = field(default_factory=list)
    since: float = field(default_factory=time.time)
    """When this program began to watch."""

    def start(self) -> None:
        """Begin to poll, until the program ends."""
        for run in (self._poll, self._survey):
            threading.Thread(target=run, name=f"{run.__name__} {self.mountpoint}", daemon=True).start()

    @property
    def events(self) -> list[Event]:
        """Events from the log and from the status, oldest first."""
        earlier = [
            Event(began, "NEWS", f"generation {number} begins")
            for number, began in self.survey.generations
            if began < self.since
        ]
        return sorted((*earlier, *self.logged, *list(self.seen)), key=lambda event: event.at)[-EVENTS_MAX:]

    def _poll(self) -> None:
        before = 0.0
        while True:
            try:
                cache = find_living(self.mountpoint).cache
                status, now = status_of(cache, answer_s=5.0), time.monotonic()
            except GrowfsError as error:
                if not self.trouble:
                    self.seen.append(Event(time.time(), "ERROR", str(error)))
                self.trouble = str(error)
            else:
                if self.status and self.status.pid == status.pid:
                    self.rates.append(rates(self.status, status, now - before))
                else:
                    self.rates.clear()  # its counters started over
                    with suppress(sqlite3.Error):  # it cannot be read now, and is no more than a part of the graphs
                        self.earlier = earlier(cache / DATABASE, time.time())
                before = now
                self.seen.extend(changes(self.status, status))
                self.logged = list(logged(cache / "log"))
                self.status, self.taken_at, self.trouble = status, time.time(), None
            time.sleep(POLL_S)

    def _survey(self) -> None:
        pause_s = POLL_S
        while True:
            time.sleep(pause_s)
            if self.status and not self.trouble:
                began = time.monotonic()
                with suppress(sqlite3.Error, KeyError):  # it is being written, or was just removed: try next time
                    self.survey = survey(Path(self.status.cache_dir) / DATABASE)
                pause_s = max(5.0, 10 * (time.monotonic() - began))  # queries take a tenth of the time at most


def find_new(mountpoint: Path | None, watches: list[Watch]) -> None:
    """Watch the mount, or all new ones of this machine. Raises GrowfsError if there is none.

    A mount that has ended may come back, and is kept.
    """
    for mount in [find_living(mountpoint)] if mountpoint else running():
        if all(watch.mountpoint != mount.mountpoint for watch in watches):
            watches.append(Watch(mount.mountpoint))
            watches[-1].start()
    if not watches:
        raise GrowfsError("no growfs mounts on this machine; mount one: growfs mount URL MOUNTPOINT")


def rates(before: MountStatus, now: MountStatus, s: float) -> Rates:
    """The rates between two statuses of the same daemon."""
    fetched = now.fetch.bytes_total - before.fetch.bytes_total
    return Rates(
        fetched / s, (now.opens.total - before.opens.total) / s, (now.opens.bytes_total - before.opens.bytes_total) / s
    )


def earlier(database: Path, now: float) -> tuple[Rates, ...]:
    """The rates of the last SAMPLES_MAX * POLL_S until now, one for each POLL_S, from the history of a cache.

    now: in seconds since 1970. Rows are 2 s apart while something changes. So if two are further apart, the changes
    happened in the last 2 s before the second row.
    """
    with closing(read_only(database)) as connection:
        rows = connection.execute(
            "SELECT at, fetched_bytes, opens FROM history WHERE at >= ? ORDER BY uptime_s",
            (now - SAMPLES_MAX * POLL_S,),
        ).fetchall()
    found: list[Rates] = []
    for (start, *before), (end, *after) in pairwise(rows):
        active = max(1, round(min(end - start, 2) / POLL_S))
        fetched, opens = (max(0, b - a) / (active * POLL_S) for a, b in zip(before, after, strict=True))
        found += [IDLE] * (round((end - start) / POLL_S) - active) + [Rates(fetched, opens)] * active
    return (*found, *[IDLE] * round((now - rows[-1][0]) / POLL_S)) if rows else ()


def changes(before: MountStatus | None, now: MountStatus) -> Iterator[Event]:
    """The events that two consecutive statuses reveal, and that are in no log."""
    if before is None:
        return
    at = time.time()
    if before.generation != now.generation:
        yield Event(at, "NEWS", f"{generation_text(now)}: {files(now.listed.files)} listed")
    if before.state != now.state:
        yield Event(at, "NEWS", state_text(now, with_eta=False))
    known, current = ({reader.pid: reader.command for reader in each.readers} for each in (before, now))
    for pid in current.keys() - known.keys():
        yield Event(at, "NEWS", f"{current[pid]} {pid} started reading")
    for pid in known.keys() - current.keys():
        yield Event(at, "NEWS", f"{known[pid]} {pid} stopped reading")


def logged(path: Path) -> Iterator[Event]:
    """The last events of a log. Lines without a time are output of workers, and are left out."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (64 << 10)))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return
    for line in lines[-EVENTS_MAX:]:
        if found := re.fullmatch(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) ([A-Z]+) (.*)", line):
            with suppress(ValueError, OverflowError):  # no such time: a program printed it
                at = time.mktime(time.strptime(found[1], "%Y-%m-%d %H:%M:%S"))
                yield Event(at + int(found[2]) / 1000, found[3], found[4])


def survey(database: Path) -> Survey:
    """The figures about files from the database of a cache. Takes some seconds for some million files."""
    with closing(read_only(database)) as connection:
        opens: dict[int, int] = dict(
            connection.execute(
                "SELECT u.opens, count(*) FROM resident r JOIN usage u USING (id) WHERE r.suffix IS NOT NULL GROUP BY 1"
            )
        )
        largest = connection.execute(
            "SELECT n.parent, count(*) AS files, count(r.id), sum(r.delisted IS NOT NULL), sum(coalesce(u.opens, 0))"
            " FROM node n LEFT JOIN resident r ON r.id = n.id AND r.suffix IS NOT NULL LEFT JOIN usage u ON u.id = r.id"
            " WHERE n.is_dir = 0 GROUP BY 1 ORDER BY files DESC LIMIT ?",
            (1000,),  # the largest
        )
        paths, ask = DirectoryPaths(), query_of(connection)
        directories = tuple(DirectoryShare(paths.of(ask, parent), *counts) for parent, *counts in largest)
        generations = connection.execute("SELECT number, began FROM generation ORDER BY 1 DESC LIMIT ?", (EVENTS_MAX,))
        return Survey(opens, directories, tuple(generations))
