"""How many requests are under way at a time: more while more come through, fewer when the store asks for that.

Additive increase and multiplicative decrease, as TCP does it (RFC 5681), but led by what comes through.
"""

from __future__ import annotations

STREAMS_MIN = 1
STREAMS_FIRST = 16
STREAMS_MAX = 128
GAIN_MIN = 0.25
"""Of the share by which the streams grow, so much has to come through as well, else they were enough."""
LOSS_MAX = 0.03
"""Fewer streams are enough where they cost no more of the rate than this."""
STEP_SHARE = 4
"""A step is one part in four of the streams."""
SETTLED_PERIODS = 10
"""Between two looks whether another number would do better."""


class ConcurrencyController:
    """Owns the number of streams. Pure: told what came through in each period, it says how many for the next."""

    def __init__(self) -> None:
        self.streams = STREAMS_FIRST
        self._before: tuple[int, float] | None = None  # streams and rate ahead of the step that is being tried
        self._rest = 0
        self._up = True

    def update(self, bytes_per_s: float, was_busy: bool, was_refused: bool) -> int:
        """A period is over; how many streams from now on.

        was_busy: there was more to fetch than streams. was_refused: the store said that it was too much (503, 429).
        """
        if was_refused:
            self.streams = max(STREAMS_MIN, self.streams // 2)
            self._before, self._rest = None, SETTLED_PERIODS
        elif not was_busy or not bytes_per_s:
            pass  # which tells nothing; a step that is being tried is judged later
        elif self._before:
            self._judge(bytes_per_s)
        elif self._rest:
            self._rest -= 1
        else:
            self._step(bytes_per_s)
        return self.streams

    def _step(self, rate: float) -> None:
        step = max(1, self.streams // STEP_SHARE)
        streams = self.streams + (step if self._up else -step)
        self._before = self.streams, rate
        self.streams = min(max(streams, STREAMS_MIN), STREAMS_MAX)

    def _judge(self, rate: float) -> None:
        assert self._before
        streams, before = self._before
        self._before = None
        change = self.streams / streams - 1
        wanted = GAIN_MIN * change if change > 0 else -LOSS_MAX
        if change and rate >= before * (1 + wanted):
            self._step(rate)  # and on in that direction
        else:
            self.streams, self._rest, self._up = streams, SETTLED_PERIODS, not self._up
