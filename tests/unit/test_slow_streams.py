"""Which connections are too slow beside the others, and that only those are cut."""

from __future__ import annotations

import pytest

from growfs.remote.http.slow_streams import FEW, WINDOW_S, StreamSample, slow_ones

FAST = StreamSample(1_000_000, WINDOW_S)
SILENT = StreamSample(0, WINDOW_S)


def test_one_silent_stream_among_fast_ones_is_slow() -> None:
    assert slow_ones([FAST, SILENT, FAST], 0) == [1]
    assert slow_ones([FAST, FAST, StreamSample(1, WINDOW_S)], 0) == [2]


def test_a_stream_that_is_only_slower_is_not() -> None:
    assert slow_ones([FAST, FAST, StreamSample(100_000, WINDOW_S)], 0) == []


def test_a_stream_that_was_held_up_here_is_not() -> None:
    """By the disk, or by --bandwidth: it did not wait for the network."""
    assert slow_ones([FAST, FAST, StreamSample(0, WINDOW_S / 2)], 0) == []


@pytest.mark.parametrize("fast", [1, 10, 60])
def test_of_many_silent_streams_few_are_cut_at_a_time(fast: int) -> None:
    """The store is overloaded, and would get yet more requests."""
    streams = [FAST] * fast + [SILENT] * 3 * fast
    assert 1 <= len(slow_ones(streams, 0)) <= max(1, len(streams) // FEW)


def test_the_last_stream_is_judged_by_what_streams_brought_before() -> None:
    assert slow_ones([SILENT], 1_000_000) == [0]
    assert slow_ones([SILENT], 0) == [], "nothing is known yet"
    assert slow_ones([], 1_000_000) == []


def test_those_that_may_not_be_cut_do_not_keep_others_from_it() -> None:
    kept = StreamSample(0, WINDOW_S, may_be_cut=False)
    assert slow_ones([kept, kept, SILENT, FAST], 0) == [2]
