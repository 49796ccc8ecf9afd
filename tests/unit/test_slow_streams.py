"""Which connections are too slow beside the others, and that only those are cut."""

from __future__ import annotations

import pytest

from growfs.remote.http.connection import Connection
from growfs.remote.http.slow_streams import WINDOW_S, SlowStreams, StreamSample, slow_ones

FAST = StreamSample(1_000_000, WINDOW_S)
SILENT = StreamSample(0, WINDOW_S)
KEPT = StreamSample(0, WINDOW_S, may_be_cut=False)


def with_late_head(waited_s: float) -> StreamSample:
    return StreamSample(0, WINDOW_S, head_waited_s=waited_s)


@pytest.mark.parametrize(
    ("streams", "head_s", "slow"),
    [
        ([FAST, SILENT, FAST], 0, [1]),
        ([FAST, FAST, StreamSample(1, WINDOW_S)], 0, [2]),
        ([FAST, FAST, StreamSample(100_000, WINDOW_S)], 0, []),  # only slower
        ([FAST, FAST, StreamSample(0, WINDOW_S / 2)], 0, []),  # held up here, by the disk or --bandwidth
        ([SILENT], 0.1, [0]),
        ([SILENT] * 9, 0.1, [0]),
        ([SILENT], 0, []),  # nothing is known yet: a first byte may take seconds
        ([], 0.1, []),
        ([KEPT, KEPT, SILENT, FAST], 0, [2]),
        # A store whose first byte usually takes 11 s would get three times as many requests.
        ([FAST, with_late_head(11), FAST], 11, []),
        ([FAST, with_late_head(22), FAST], 11, [1]),
        ([FAST, with_late_head(11), FAST], 0.1, [1]),
    ],
)
def test_streams_that_are_silent_beside_others_are_slow(
    streams: list[StreamSample], head_s: float, slow: list[int]
) -> None:
    assert slow_ones(streams, head_s) == slow


@pytest.mark.parametrize("fast", [1, 10, 60])
def test_of_many_silent_streams_few_are_cut_at_a_time(fast: int) -> None:
    """The store is overloaded, and would get yet more requests."""
    streams = [FAST] * fast + [SILENT] * 3 * fast
    assert 1 <= len(slow_ones(streams, 0)) <= max(1, len(streams) // 4)


class ScriptedConnection(Connection):
    """Its totals are set by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.may_be_cut = True
        self.interrupted = False
        self.received, self.waited_s, self.waits_for_head_s = 0, 0.0, 0.0

    def totals(self) -> tuple[int, float]:
        return self.received, self.waited_s

    def head_waited_s(self) -> float:
        return self.waits_for_head_s

    def interrupt(self) -> None:
        self.interrupted = True


def window(
    streams: SlowStreams, connections: list[ScriptedConnection], *received: int | None
) -> list[tuple[bool, bool]]:
    """A window in which connections received so much while they waited; None: it was idle.

    Returns whether each was cut and interrupted in it.
    """
    for connection, bytes in zip(connections, received, strict=True):
        connection.was_cut = connection.interrupted = False
        if bytes is not None:
            connection.received += bytes
            connection.waited_s += WINDOW_S
    streams.check()
    return [(connection.was_cut, connection.interrupted) for connection in connections]


LEFT, CUT, INTERRUPTED = (False, False), (True, True), (False, True)


def test_what_is_still_silent_after_all_were_is_ended() -> None:
    """The link may have lost the requests."""
    connections = [ScriptedConnection() for _ in range(4)]
    connections[3].may_be_cut = False
    streams = SlowStreams(list(connections), lambda: False, lambda: 0.1)
    assert window(streams, connections, 0, 0, 0, 0) == [CUT, *[LEFT] * 3]
    assert window(streams, connections, 100, 0, 0, 0) == [LEFT, *[INTERRUPTED] * 3]


def test_responses_that_begin_late_one_after_the_other_are_waited_for() -> None:
    connections = [ScriptedConnection() for _ in range(3)]
    streams = SlowStreams(list(connections), lambda: False)
    for connection, waited_s in zip(connections, (11, 11, 20), strict=True):
        connection.head_s, connection.waits_for_head_s = 11, waited_s
    assert window(streams, connections, 0, 0, 0) == [LEFT] * 3
    connections[0].waits_for_head_s, connections[2].waits_for_head_s = 0, 23
    assert window(streams, connections, 100, 0, 0) == [LEFT, LEFT, INTERRUPTED]


def test_a_lone_request_is_cut_once_others_would_have_been_answered() -> None:
    """A reader would wait 30 s for the timeout, although another request may be answered at once."""
    asked, before = ScriptedConnection(), ScriptedConnection()
    streams = SlowStreams([asked, before], lambda: False)
    asked.waits_for_head_s, before.head_s = 3, 11
    assert window(streams, [asked, before], 0, None) == [LEFT, LEFT]
    before.head_s = 0.1
    assert window(streams, [asked, before], 0, None) == [CUT, LEFT]


def test_an_idle_window_does_not_count_as_silent() -> None:
    """Four of five connections that begin after it may have to wait."""
    connections = [ScriptedConnection() for _ in range(5)]
    streams = SlowStreams(list(connections), lambda: False)
    assert window(streams, connections, *[None] * 5) == [LEFT] * 5
    assert sum(found == CUT for found in window(streams, connections, 100, 0, 0, 0, 0)) == 1


def test_after_an_outage_what_is_still_silent_is_ended() -> None:
    connections, away = [ScriptedConnection() for _ in range(3)], [True]
    connections[2].may_be_cut = False
    streams = SlowStreams(list(connections), lambda: away[0])
    assert window(streams, connections, 0, 0, 0) == [LEFT] * 3
    away[0] = False
    assert window(streams, connections, 100, 0, 0) == [LEFT, INTERRUPTED, INTERRUPTED]
