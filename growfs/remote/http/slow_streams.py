"""`SlowStreams`: finds the few connections that are far slower than the others, and cuts them.

A connection may fall silent, or drop to a byte a second, through no fault of its file: because of a lost packet, a
server's bad disk, or a router that forgot it. Another connection fetches the rest at once
(https://research.google/pubs/pub40801/). If many are slow, the link or the store is slow, and more requests would make
it even slower; so only few are cut at a time.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from growfs.remote.http.connection import Connection

WINDOW_S = 3.0
"""Connections are compared by the bytes they received in this time."""


class StreamSample(NamedTuple):
    """One connection's activity in a window. bytes: received; waited_s: how long it waited for them."""

    bytes: int
    waited_s: float
    may_be_cut: bool = True
    """Whether its request can be repeated if it is slow."""
    head_waited_s: float = 0.0
    """How long it has been waiting for the head of its response; 0 if the body is arriving."""

    def is_held_up(self, usual_head_s: float) -> bool:
        """Whether it was waiting the whole time, and its response should have begun. usual_head_s: see `slow_ones`."""
        # Otherwise it was held up locally, by the disk or a limit. A response is late if it takes twice as long as
        # most: a store's first byte may take seconds, and more requests would not make it faster.
        return self.waited_s >= 0.8 * WINDOW_S and not 0 < self.head_waited_s < 2 * usual_head_s


def slow_ones(samples: Sequence[StreamSample], usual_head_s: float) -> list[int]:
    """The numbers of the samples that are slow and should be cut: one in four, but at least one.

    If all are silent, or the only one is, one is cut, to see whether another request is answered. usual_head_s: how
    long it usually takes until a response begins; 0 if that is not known.
    """
    total = sum(sample.bytes for sample in samples)
    mean = total / max(1, len(samples)) or (math.inf if usual_head_s else 0.0)
    slow = [
        number
        for number, sample in enumerate(samples)
        if sample.may_be_cut and sample.is_held_up(usual_head_s) and sample.bytes * 16 < mean
    ]
    most = max(1, len(samples) // 4) if total else 1
    return sorted(slow, key=lambda number: samples[number].bytes)[:most]


class SlowStreams:
    """Watches the connections of a process, from `start` until it is garbage-collected.

    connections: the current ones; more may be added later. is_away: whether the remote is away. None is cut then,
    because it may be about to answer; once the remote is back, all that are still silent are ended, and so they are
    after all were silent. latency_s: how long a file takes, as in TransferThreads.
    """

    def __init__(
        self,
        connections: list[Connection],
        is_away: Callable[[], bool],
        latency_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._connections = connections
        self._is_away = is_away
        self._latency_s = latency_s
        self._lock = threading.Lock()
        self._has_started = self._was_away = self._was_silent = False
        self._seen: dict[Connection, StreamSample] = {}
        """By connection, its totals at the last check."""

    def start(self) -> None:
        """Start watching, unless already started."""
        with self._lock:
            if not self._has_started:
                self._has_started = True
                threading.Thread(target=_watch, args=(weakref.ref(self),), daemon=True).start()

    def check(self) -> None:
        """Cut the connections that were slow since the last call."""
        active: list[tuple[Connection, StreamSample]] = []
        for connection in list(self._connections):
            bytes, waited_s = connection.totals()
            before = self._seen.get(connection, StreamSample(0, 0.0))
            self._seen[connection] = StreamSample(bytes, waited_s)
            sample = StreamSample(
                bytes - before.bytes, waited_s - before.waited_s, connection.may_be_cut, connection.head_waited_s()
            )
            if sample.bytes or sample.waited_s:
                active.append((connection, sample))
        was_away, self._was_away = self._was_away, self._is_away()
        was_silent, self._was_silent = self._was_silent, bool(active) and not any(each.bytes for _, each in active)
        if self._was_away:
            return
        usual_head_s = median(
            [connection.head_s for connection in self._seen if connection.head_s] or [self._latency_s()]
        )
        if was_away or (was_silent and not self._was_silent):  # requests from before then may be lost
            for connection, sample in active:
                if sample.is_held_up(usual_head_s) and not sample.bytes:
                    connection.interrupt()
        else:
            for number in slow_ones([each for _, each in active], usual_head_s):
                active[number][0].cut()


def _watch(reference: weakref.ref[SlowStreams]) -> None:
    while True:
        time.sleep(WINDOW_S)
        if (streams := reference()) is None:
            return
        streams.check()
        del streams
