"""How many requests run at a time, how many workers send them, and how many files they have ahead.

More requests while that raises the rate, fewer when the store refuses many of them. The number moves up and down in
steps of a quarter, kept if the measured rate justifies them; for small files it is doubled before that, while they wait
for the latency. A store refuses some requests at any number, so only their share counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from growfs.workers.messages import REPORT_FILES

PERIOD_S = 0.5
"""How often the number is adjusted."""
PERIOD_FIRST_S = 0.2
"""The same while streams are doubled: from 64 to 256 takes two periods in which the link is mostly idle."""
STREAMS_FIRST = 16
STREAMS_FIRST_SMALL = 64
"""If the first file is small. Most of its time is a round trip, which occupies a stream but hardly the link. Near a
store these are enough; with 200 ms, 256 streams fetch 1,280 files a second."""
BUSY_PERIODS = 2
"""Doubling stops after so many periods in which the latency occupied a smaller share. A single one may have begun just
before the first files arrived."""
STREAMS_MAX = 256
GAIN_MIN = 0.25
"""More streams are kept if the rate grows by at least this fraction of their own growth."""
REST_PERIODS = 10
"""Periods between two experiments with another number of streams."""
MEMORY = 0.7
"""The weight of a request after another period: those of the last two seconds dominate."""
AHEAD_FILES = 4 * REPORT_FILES
"""Minimum number of files that a worker has: more than it fetches until its last report is processed."""
AHEAD_S = 0.5
"""A worker has at least the files that it fetches in this time, at the last period's rate."""
AHEAD_COMPUTED = 2
"""Minimum number of files that a worker has if it computes them: the one under way, and the next."""
IN_FLIGHT_FILES = 1024
"""Minimum number of small files in flight or waiting for an earlier one."""


class ConcurrencyController:
    """Owns the number of streams. Pure: takes the measurements of a period, and returns the number for the next one."""

    def __init__(self) -> None:
        self._wanted = STREAMS_FIRST
        self._allowed = float(STREAMS_MAX)
        self._answered = self._throttled = 0.0
        self._has_begun = False
        self._before: tuple[int, float] | None = None  # streams and rate before the step that is being tried
        self._settling = 0  # periods until the step is judged even if more streams are in use than that
        # Periods before the first experiment: new connections become faster by themselves. It tries fewer streams: more
        # would be newer connections still, and if the link has a queue, their segments take seconds.
        self._rest = 4
        self._up = False  # the direction of the next step
        self._is_repeated = False  # it is a step that failed before
        self._starting = 0  # streams are doubled until the latency has occupied few of them in so many periods
        self._latent = 0.0

    @property
    def streams(self) -> int:
        """The current number."""
        return min(self._wanted, int(self._allowed))

    @property
    def period_s(self) -> float:
        """How long to measure before the next update."""
        return PERIOD_FIRST_S if self._starting else PERIOD_S

    @property
    def is_throttled(self) -> bool:
        """Whether it is this low because the store refuses requests."""
        return self._allowed < self._wanted

    def begin_file(self, bytes: int | None) -> None:
        """Begin to fetch a file. The first one is taken as typical. bytes: its size, if known."""
        if bytes is not None and not self._has_begun:
            if bytes <= 128 << 10:
                self._wanted, self._starting = STREAMS_FIRST_SMALL, BUSY_PERIODS
            elif bytes >= 256 << 20:
                # New connections become fast by doubling the data sent in each round trip (RFC 5681): with 100 ms, 24
                # of them fill a link of 125 MB/s 0.3 s sooner than 16. Smaller files have too few segments for that:
                # some streams would take segments of the next file, and the first would arrive later.
                self._wanted = 24
        self._has_begun = True

    def note_files(self, files_per_s: float, latency_s: float) -> None:
        """Note the rate of files, and the least time that one took; infinite if the remote has not delivered any.

        Their product is the number of streams that the latency alone occupies (Little's law).
        """
        self._latent = files_per_s * latency_s if latency_s < math.inf else 0.0

    def note_requests(self, answered: int, throttled: int) -> None:
        """Note the outcome of a period's requests: how many were answered, and how many refused with 503 or 429."""
        self._answered = MEMORY * self._answered + answered
        self._throttled = MEMORY * self._throttled + throttled
        count, share = self._answered + self._throttled, 0.1  # more refusals mean that the store wants fewer requests
        # By three standard deviations: of few requests, more may be refused by chance.
        if throttled and self._throttled > share * count + 3 * math.sqrt(share * (1 - share) * count):
            self._allowed = max(1, 0.75 * min(self._allowed, self._wanted))
            self._answered = self._throttled = 0.0  # those came from more streams than now
        elif answered:
            self._allowed = min(max(self._allowed + 1, 1.2 * self._allowed), STREAMS_MAX)  # streams double in 2 s

    def update(self, bytes_per_s: float, was_busy: bool, in_use: float) -> int:
        """End a period; returns the number of streams from now on.

        was_busy: there was more to fetch than streams. in_use: how many streams were in use, on average.
        """
        if self.is_throttled:
            self._before, self._rest, self._starting = None, REST_PERIODS, 0
        elif not was_busy or not bytes_per_s:
            pass  # the period shows nothing; a step that is being tried is judged later
        elif self._starting:
            # If the latency alone occupies a quarter of the streams, neither the link nor a CPU is busy yet. A store's
            # latency varies, and the least is used, so the share is well below 1 from the start.
            if self._latent < 0.25 * self._wanted:
                self._starting -= 1
            else:
                self._wanted = min(2 * self._wanted, STREAMS_MAX)
                self._starting = BUSY_PERIODS if self._wanted < STREAMS_MAX else 0
        elif self._before:
            self._settling -= 1
            # Fewer streams are judged by the first period in which, on average, at most an eighth of the difference was
            # still in use: streams finish their segments, and one of 1.5 MB takes 1.5 s at 1 MB/s.
            if self._settling <= 0 or in_use <= self._wanted + (self._before[0] - self._wanted) / 8:
                self._judge(bytes_per_s)
        elif self._rest:
            self._rest -= 1
        else:
            self._step(bytes_per_s)
        return self.streams

    def _step(self, rate: float) -> None:
        step = max(1, self._wanted // 4)
        streams = self._wanted + (step if self._up or self._wanted == 1 else -step)
        self._before = self._wanted, rate
        # Fewer streams are judged after ten periods at the latest: misses may use more at any time.
        self._settling = 10 if streams < self._wanted else 0
        self._wanted = min(streams, STREAMS_MAX)

    def _judge(self, rate: float) -> None:
        assert self._before
        streams, before = self._before
        self._before = None
        change = self._wanted / streams - 1
        # Fewer streams are kept if they cost no more than 3% of the rate.
        required = GAIN_MIN * change if change > 0 else -0.03
        was_repeated, self._is_repeated = self._is_repeated, False
        if change and rate >= before * (1 + required):
            self._step(rate if change > 0 else max(rate, before))  # another step in the same direction
            return
        self._wanted = streams
        decline = (1 - rate / before) / -change if change < 0 else 0.0
        if (change > 0 or decline >= GAIN_MIN) and not was_repeated:
            # The step is tried again after a period: the rate may have been lower for another reason, such as the end
            # of one file and the start of the next.
            self._is_repeated, self._rest = True, 1
        else:
            self._up = decline >= GAIN_MIN  # otherwise more can gain no more than fewer cost
            # If fewer streams lower the rate by at least half of their own decline, more are tried at once. If they
            # lower it by less than GAIN_MIN, more are not tried: each additional stream gains less than the one before.
            self._rest = 0 if decline >= 0.5 else REST_PERIODS


class WorkerCount:
    """Owns the number of workers: as few as keep the link busy.

    Streams in one process work on segments of the same file, and make way for a file that a reader waits for. Those in
    different processes do not. The number never falls: workers that use little CPU beside training may get no more.
    Pure.
    """

    def __init__(self, count: int, most: int) -> None:
        self.count = count
        self.most = most

    def update(self, cpu_shares: Sequence[float]) -> None:
        """End a period. cpu_shares: of each worker that had files, its CPU time over the elapsed time."""
        # Workers that compute for more than 0.6 of the time may soon limit the rate, as Python runs one thread. A share
        # above 1 is mostly of earlier periods: a worker that imports its store's library reports nothing for a second.
        if len(cpu_shares) >= self.count:
            self.count = max(self.count, min(math.ceil(sum(min(share, 1.0) for share in cpu_shares) / 0.6), self.most))


class FilesAhead(NamedTuple):
    """Decides how many files workers have before they need them. Pure.

    is_computed: workers compute files, one at a time. bytes_per_s, files_per_s: what all workers together fetched in
    the last period.
    """

    is_computed: bool
    bytes_per_s: float = 0.0
    files_per_s: float = 0.0

    def is_enough(self, groups: int, bytes: int, workers: int, streams: int) -> bool:
        """Whether so many groups of files, with so many bytes, are in flight or wait for an earlier one, that no more
        are to be drawn.

        Small files: at least twice as many as the workers have, otherwise all of them would wait for the one with the
        first file. And as many as are fetched in 2 s: a file whose request is refused takes about that long, and later
        files are not listed before it. Large ones: four segments of 16 MiB for each stream. As many groups as there are
        streams may be larger.
        """
        ahead = AHEAD_COMPUTED if self.is_computed else AHEAD_FILES
        wanted = max(IN_FLIGHT_FILES, 2 * ahead * workers, round(2 * self.files_per_s))
        return groups >= wanted or (groups >= streams and bytes >= streams * (64 << 20))

    def may_grow(self, bytes: int, files: int, streams: int, busy: int) -> bool:
        """Whether a worker that has so many bytes and files gets another file. busy: how many workers have files.

        It has at least two files for each of its streams.
        """
        if self.is_computed:
            return files < max(AHEAD_COMPUTED, AHEAD_S * self.files_per_s / busy)
        is_short_of_bytes = bytes < max(64 << 20, AHEAD_S * self.bytes_per_s / busy)
        return is_short_of_bytes and files < max(AHEAD_FILES, 2 * streams)
