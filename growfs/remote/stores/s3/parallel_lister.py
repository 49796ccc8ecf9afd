"""`ParallelLister`: threads that read the ranges of a KeyRanges in parallel, and return the names as pages."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator

from growfs.errors import GrowfsError, RemoteBusy
from growfs.remote.http.connection import Connection
from growfs.remote.interface import Page, RemoteFile, Skipped
from growfs.remote.stores.s3.key_ranges import ActiveRange, KeyRange, KeyRanges, UnorderedListing
from growfs.remote.stores.s3.listing import KeyPage

REQUESTS_SLOW_MIN = 4  # the limit at first; slow responses alone never reduce it below this
PAGES_MAX = 64  # ready or in flight

log = logging.getLogger(__name__)


class ConcurrencyLimit:
    """How many requests may be in flight: more while that helps, fewer when the server is busy.

    A response that takes twice as long as the fastest one was queued, in this process or at the server.
    """

    def __init__(self) -> None:
        self._limit = float(REQUESTS_SLOW_MIN)
        self._fastest_s = float("inf")
        self._was_busy = False

    @property
    def limit(self) -> int:
        return int(self._limit)

    def record_page(self, duration_s: float) -> None:
        """Note that a full page arrived."""
        self._fastest_s = min(self._fastest_s, duration_s)
        if duration_s <= 2 * self._fastest_s:
            self._limit = min(32, self._limit + (1 / self._limit if self._was_busy else 1))
        elif self._limit > REQUESTS_SLOW_MIN:
            self._limit -= 1

    def record_busy(self, in_flight: int) -> bool:
        """Note that the server refused one of these requests. Returns whether fewer at a time are worth a try."""
        self._limit = max(1.0, min(self._limit, in_flight) / 2)
        self._was_busy = True
        return in_flight > 1


class ParallelLister:
    """Reads all key ranges to their ends. Each thread keeps one connection, and reads one range at a time.

    list_keys: requests the first page of a range. `_changed` guards all state. The cursor of a page includes the pages
    that are ready but not yet returned.
    """

    def __init__(
        self,
        ranges: KeyRanges,
        concurrency: ConcurrencyLimit,
        connect: Callable[[], Connection],
        list_keys: Callable[[Connection, KeyRange], KeyPage],
    ) -> None:
        self._ranges, self._concurrency, self._connect, self._list_keys = ranges, concurrency, connect, list_keys
        self._changed = threading.Condition()
        self._ready: deque[tuple[KeyRange, list[RemoteFile], list[Skipped]]] = deque()
        self._connections: list[Connection] = []  # one for each thread
        self._in_flight = 0
        self._failed: BaseException | None = None
        self._ended = False

    def pages(self) -> Iterator[Page]:
        """Each page as soon as it is ready. An error of list_keys is raised after the pages that were in flight."""
        try:
            with self._changed:
                self._spawn()
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._ready or (self._is_over and not self._in_flight))
                    if not self._ready:
                        break
                    _, files, skipped = self._ready.popleft()
                    cursor = self._ranges.cursor(key_range for key_range, *_ in self._ready)
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
    def _is_over(self) -> bool:
        return self._ended or self._failed is not None or self._ranges.done

    def _spawn(self) -> None:
        """Start threads while a range can be read and no thread is free."""
        while len(self._connections) == self._in_flight and (active := self._assign()):
            connection = self._connect()
            try:
                threading.Thread(target=self._read_ranges, args=(connection, active), daemon=True).start()
            except RuntimeError:  # the system allows no more threads
                self._in_flight -= 1
                self._ranges.release(active)
                if not self._connections:
                    raise
                return
            self._connections.append(connection)

    def _assign(self) -> ActiveRange | None:
        if self._is_over or self._in_flight >= self._concurrency.limit:
            return None
        if self._in_flight + len(self._ready) >= PAGES_MAX:
            return None
        active = self._ranges.assign()
        self._in_flight += active is not None
        return active

    def _read_ranges(self, connection: Connection, active: ActiveRange | None) -> None:
        try:
            while active is not None:
                began = time.monotonic()
                try:
                    page = self._list_keys(connection, active.range)
                except RemoteBusy as error:
                    self._on_busy(active, error)
                except GrowfsError:
                    if active.token is not None or not active.after or not self._on_refusal(active):
                        raise
                else:
                    self._record(active, page, time.monotonic() - began)
                active = self._next()
        except BaseException as error:  # noqa: BLE001 - raised by `pages`
            with self._changed:
                self._in_flight -= 1
                self._failed = self._failed or error
        finally:
            connection.close()
            with self._changed:
                self._connections.remove(connection)
                self._changed.notify_all()

    def _on_busy(self, active: ActiveRange, error: RemoteBusy) -> None:
        with self._changed:
            self._ranges.release(active)
            if not self._concurrency.record_busy(self._in_flight):
                self._failed = self._failed or error

    def _on_refusal(self, active: ActiveRange) -> bool:
        """Handle a refusal: some servers refuse to start at a guessed name. Any other error will recur without one.

        Returns whether the listing continues.
        """
        with self._changed:
            if self._ranges.serial:
                return not self._ranges.has(active)
            self._switch_to_serial()
            return True

    def _switch_to_serial(self) -> None:
        log.info("the server cannot list in order from an arbitrary name: its pages are read one by one")
        self._ranges.switch_to_serial(key_range for key_range, *_ in self._ready)
        self._ready.clear()

    def _record(self, active: ActiveRange, page: KeyPage, duration_s: float) -> None:
        names = [file.path for file in page.files]
        with self._changed:
            key_range = None
            try:
                key_range = self._ranges.record_page(active, names, page.token, page.more)
            except UnorderedListing:
                self._switch_to_serial()
            if page.more:
                self._concurrency.record_page(duration_s)
            if key_range is not None:
                count = len(names) if key_range.until is None else bisect_right(names, key_range.until)
                self._ready.append((key_range, *page.without_skipped(count)))

    def _next(self) -> ActiveRange | None:
        """The next range to read; None at the end. Called when a request has ended."""
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()
            while not self._is_over:
                if active := self._assign():
                    self._spawn()
                    return active
                self._changed.wait()
            return None
