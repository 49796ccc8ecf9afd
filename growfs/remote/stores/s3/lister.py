"""`Walkers`: the threads that read the intervals of a Keyspace side by side, and hand out what they find as pages."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from growfs.errors import GrowfsError, RemoteBusy
from growfs.remote.http.connection import Connection
from growfs.remote.protocol import Page, RemoteFile, Skipped
from growfs.remote.stores.s3.key_ranges import ActiveRange, KeyRange, KeyRanges, UnorderedListing

REQUESTS_MAX = 32  # under way
REQUESTS_FEW = 4  # not fewer because answers take longer
SLOWER_MAX = 2.0  # how much longer than the fastest an answer may take while more requests at once help
PAGES_MAX = 64  # that nobody has taken yet, with those that are being asked for

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyPage:
    """A part of a listing: names in the server's order, what the server tells of each, how to go on, and whether to."""

    names: Sequence[str]
    metadata: Sequence[Any]
    token: str | None
    more: bool


class ConcurrencyLimit:
    """How many requests may be under way: more as long as that helps, fewer where the server is busy.

    An answer that takes twice as long as the fastest one waited for others, here or there.
    """

    def __init__(self) -> None:
        self._limit = 1.0
        self._fastest_s = float("inf")
        self._refused = False

    @property
    def limit(self) -> int:
        return int(self._limit)

    def answered(self, took_s: float) -> None:
        """A full page came."""
        self._fastest_s = min(self._fastest_s, took_s)
        if took_s <= SLOWER_MAX * self._fastest_s:
            self._limit = min(REQUESTS_MAX, self._limit + (1 / self._limit if self._refused else 1))
        elif self._limit > REQUESTS_FEW:
            self._limit -= 1

    def refused(self) -> bool:
        """The server is busy; returns whether fewer requests are left to try."""
        fewer = self._limit >= 2
        self._limit = max(1.0, self._limit / 2)
        self._refused = True
        return fewer


class ParallelLister:
    """Reads a keyspace to its end. Each thread keeps a connection, and has one interval at a time.

    ask: the names of a span, as many as come at once. make: the files and the names to skip, of some facts.
    `_changed` guards all else. A page that is ready is left in the cursor of those before it.
    """

    def __init__(
        self,
        ranges: KeyRanges,
        width: ConcurrencyLimit,
        connect: Callable[[], Connection],
        ask: Callable[[Connection, KeyRange], KeyPage],
        make: Callable[[Sequence[Any]], tuple[list[RemoteFile], list[Skipped]]],
    ) -> None:
        self._ranges, self._width, self._connect, self._ask, self._make = ranges, width, connect, ask, make
        self._changed = threading.Condition()
        self._ready: deque[tuple[KeyRange, list[RemoteFile], list[Skipped]]] = deque()
        self._connections: list[Connection] = []  # of each thread
        self._asking = 0
        self._failed: BaseException | None = None
        self._ended = False

    def pages(self) -> Iterator[Page]:
        """Each page as soon as it is there; what ask raises comes after the pages that were under way meanwhile."""
        try:
            with self._changed:
                self._spawn()
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._ready or (self._over and not self._asking))
                    if not self._ready:
                        break
                    _, files, skipped = self._ready.popleft()
                    cursor = self._ranges.cursor(span for span, *_ in self._ready)
                    self._changed.notify_all()
                yield Page(files, skipped, cursor)
            if self._failed:
                raise self._failed
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
                for connection in self._connections:
                    connection.interrupt()

    @property
    def _over(self) -> bool:
        return self._ended or self._failed is not None or self._ranges.done

    def _spawn(self) -> None:
        """Threads for what may be asked and nobody is free to ask."""
        while len(self._connections) == self._asking and (interval := self._take()):
            connection = self._connect()
            try:
                threading.Thread(target=self._walk, args=(connection, interval), daemon=True).start()
            except RuntimeError:  # there may be no more of them
                self._asking -= 1
                self._ranges.release(interval)
                if not self._connections:
                    raise
                return
            self._connections.append(connection)

    def _take(self) -> ActiveRange | None:
        if self._over or self._asking >= self._width.limit or self._asking + len(self._ready) >= PAGES_MAX:
            return None
        interval = self._ranges.take()
        self._asking += interval is not None
        return interval

    def _walk(self, connection: Connection, interval: ActiveRange | None) -> None:
        try:
            while interval is not None:
                began = time.monotonic()
                try:
                    answer = self._ask(connection, interval.span)
                except RemoteBusy as error:
                    self._back_off(interval, error)
                except GrowfsError:
                    if interval.token is not None or not interval.after:
                        raise
                    self._refused()
                else:
                    self._take_in(interval, answer, time.monotonic() - began)
                interval = self._next()
        except BaseException as error:  # noqa: BLE001 raised by the thread that hears of it
            with self._changed:
                self._asking -= 1
                self._failed = self._failed or error
        finally:
            connection.close()
            with self._changed:
                self._connections.remove(connection)
                self._changed.notify_all()

    def _back_off(self, interval: ActiveRange, error: RemoteBusy) -> None:
        with self._changed:
            self._asking -= 1
            self._ranges.release(interval)
            if not self._width.refused():
                self._failed = self._failed or error
            self._changed.notify_all()

    def _refused(self) -> None:
        """A server may not like a name to begin after that was guessed; other errors come again without one."""
        with self._changed:
            self._switch_to_serial()
            self._asking -= 1
            self._changed.notify_all()

    def _switch_to_serial(self) -> None:
        log.info("the server cannot be asked for names in order from any one on: its pages are read one by one")
        self._ranges.switch_to_serial(span for span, *_ in self._ready)
        self._ready.clear()

    def _take_in(self, interval: ActiveRange, answer: KeyPage, took_s: float) -> None:
        with self._changed:
            span = None
            try:
                span = self._ranges.found(interval, answer.names, answer.token, answer.more)
            except UnorderedListing:
                self._switch_to_serial()
            if answer.more:
                self._width.answered(took_s)
            if span is not None:
                count = len(answer.names) if span.until is None else bisect_right(answer.names, span.until)
                self._ready.append((span, *self._make(answer.metadata[:count])))
            self._asking -= 1
            self._changed.notify_all()

    def _next(self) -> ActiveRange | None:
        with self._changed:
            while not self._over:
                if interval := self._take():
                    self._spawn()
                    return interval
                self._changed.wait()
            return None
