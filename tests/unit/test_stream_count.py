"""The number of concurrent requests, with a simulated link and store."""

from __future__ import annotations

import math
import random

import pytest

from growfs.scheduler.stream_count import (
    PERIOD_FIRST_S,
    PERIOD_S,
    STREAMS_FIRST,
    STREAMS_FIRST_SMALL,
    STREAMS_MAX,
    ConcurrencyController,
    WorkerCount,
)

PERIODS = 60
SMALL = 100_000
"""Bytes of a small file."""
NOISE = 0.03


class Link:
    """A link: the rate is the sum of the streams', at most that of the link, with some noise.

    ending: how many streams can end in a period; the others are in the middle of a part.
    """

    def __init__(
        self, link: float, each: float, seed: int = 1, deviation: float = NOISE, ending: int = STREAMS_MAX
    ) -> None:
        self.link, self.each, self.deviation, self.ending = link, each, deviation, ending
        self.noise = random.Random(seed)
        self.in_use = 0

    def rate(self, streams: int) -> float:
        return min(self.link, streams * self.each) * self.noise.gauss(1, self.deviation)

    def period(self, controller: ConcurrencyController) -> int:
        """A period without refusals. A file is a unit of the rate, so a stream alone takes 1 / each for one."""
        in_use = max(controller.streams, self.in_use - self.ending)
        self.in_use = in_use
        rate = self.rate(in_use)
        controller.note_files(rate, 1 / self.each)
        controller.note_requests(controller.streams, 0)
        return controller.update(rate, True, in_use)

    def drive(self, controller: ConcurrencyController, periods: int) -> list[int]:
        """The number of streams after each of so many periods."""
        return [self.period(controller) for _ in range(periods)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("link", "each"), [(100, 1), (100, 2), (100, 5), (30, 1), (1000, 8), (10, 5), (20, 20)])
def test_the_controller_uses_the_link(link: float, each: float, seed: int) -> None:
    controller = ConcurrencyController()
    streams = Link(link, each, seed).drive(controller, 2 * PERIODS)[PERIODS:]
    used = sum(min(link, count * each) for count in streams) / len(streams)
    assert used >= 0.9 * min(link, STREAMS_MAX * each), streams


def streams_at_first(*sizes: int | None) -> int:
    """How many streams there are when files of these sizes have begun."""
    controller = ConcurrencyController()
    for size in sizes:
        controller.begin_file(size)
    return controller.streams


def test_the_first_file_says_how_many_streams_there_are_at_first() -> None:
    usual = streams_at_first(1 << 20)
    assert usual == streams_at_first(1 << 20, 1) == streams_at_first(None, 1)
    assert usual < streams_at_first(1 << 30, 1) < streams_at_first(1000, 1 << 30)


@pytest.mark.parametrize(("each", "most"), [(20, 1), (95 / 12, 1), (100 / STREAMS_FIRST, 3)])
def test_a_full_link_gets_few_new_connections(each: float, most: float) -> None:
    """Their segments come late. None are tried if 12 streams deliver nearly as much as the first 16."""
    streams = Link(100, each, deviation=NOISE if most > 1 else 0).drive(ConcurrencyController(), 5 * PERIODS)
    assert max(streams) <= most * STREAMS_FIRST


def test_where_each_stream_counts_more_are_tried_at_once() -> None:
    streams = Link(1000, 5).drive(ConcurrencyController(), 14)
    assert streams[-1] > 2 * STREAMS_FIRST


@pytest.mark.parametrize("ending", [1, 2, 4])
def test_streams_count_until_they_have_ended_their_parts(ending: int) -> None:
    """Otherwise fewer would seem to cost nothing, over connections so slow that a part takes longer than a period."""
    link = Link(1000, 1, ending=ending)
    assert min(link.drive(ConcurrencyController(), PERIODS)) >= 12
    assert link.in_use > 2 * STREAMS_FIRST


@pytest.mark.parametrize("bad", range(14))
def test_one_slow_period_delays_more_streams_only_briefly(bad: int) -> None:
    """As at the end of one file and the start of the next."""
    controller, link = ConcurrencyController(), Link(1000, 1, deviation=0)
    for number in range(24):
        streams = controller.streams
        controller.update(link.rate(streams) * (0.7 if number == bad else 1), True, streams)
    assert controller.streams > 4 * STREAMS_FIRST


def test_misses_do_not_keep_fewer_streams_from_being_judged() -> None:
    """They may exceed the number at any time."""
    controller, link = ConcurrencyController(), Link(1000, 5)
    for _ in range(PERIODS):
        controller.update(link.rate(controller.streams), True, in_use=STREAMS_MAX)
    assert controller.streams > STREAMS_FIRST


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("enough", [4, 32, 100, 1000])
def test_streams_for_small_files_are_as_many_as_the_round_trip_needs_within_a_second(enough: int, seed: int) -> None:
    controller = ConcurrencyController()
    controller.begin_file(SMALL)
    streams = Link(100 * enough, 100, seed).drive(controller, round(0.8 / PERIOD_FIRST_S))
    assert streams[-1] >= min(enough, STREAMS_MAX)
    assert max(streams) <= max(STREAMS_FIRST_SMALL, 8 * enough)


def test_a_slow_period_does_not_end_the_doubling() -> None:
    """The rate of a store and of a machine varies, and a period may begin just before the first files arrive."""
    controller, link = ConcurrencyController(), Link(1000, 1, deviation=0)
    controller.begin_file(SMALL)
    for _ in range(3):
        for slow in (1, 0.3 * link.rate(controller.streams)):
            controller.note_files(slow, 1)
            controller.update(slow, True, in_use=0)
    assert controller.streams == STREAMS_MAX


@pytest.mark.parametrize("latency_s", [0.001, math.inf])
def test_streams_are_not_doubled_if_they_do_not_wait_for_the_store(latency_s: float) -> None:
    """Near a store, the CPU limits the rate. A node that fetches from others has not measured the store."""
    controller = ConcurrencyController()
    controller.begin_file(SMALL)
    for _ in range(5):
        controller.note_files(2000, latency_s)
        assert controller.update(2000, True, in_use=0) == STREAMS_FIRST_SMALL


def test_streams_that_are_not_needed_any_more_are_reduced() -> None:
    controller = ConcurrencyController()
    Link(100, 1).drive(controller, PERIODS)
    assert controller.streams > 64
    assert Link(100, 10).drive(controller, 3 * PERIODS)[-1] < 40


@pytest.mark.parametrize("requests", [20, 100, 1000])
@pytest.mark.parametrize("share", [0.005, 0.02, 0.05])
def test_a_few_refusals_change_nothing(share: float, requests: int) -> None:
    """Stores refuse a few requests whatever their number."""
    chance, controller, calm = random.Random(1), ConcurrencyController(), ConcurrencyController()
    for _ in range(PERIODS):
        refused = sum(chance.random() < share for _ in range(requests))
        controller.note_requests(requests - refused, refused)
        assert controller.update(50, True, in_use=0) == calm.update(50, True, in_use=0)


def test_a_store_that_wants_fewer_requests_gets_them_and_recovers_in_seconds() -> None:
    """It serves so many at a time, and refuses the others."""
    controller, link = ConcurrencyController(), Link(1000, 1)
    before = link.drive(controller, PERIODS)[-1]
    assert before > 64
    for _ in range(PERIODS):
        served = min(8, controller.streams)
        controller.note_requests(10 * served, 10 * (controller.streams - served))
        controller.update(served, True, in_use=0)
        if controller.streams <= 8:
            break
    assert 4 <= controller.streams <= 8
    assert link.drive(controller, round(10 / PERIOD_S))[-1] >= 0.75 * before


def test_throttling_does_not_judge_the_step_before() -> None:
    controller = ConcurrencyController()
    controller.update(100, True, in_use=0)
    controller.note_requests(10, 10)
    fewer = controller.update(500, True, in_use=0)
    assert fewer < STREAMS_FIRST
    controller.note_requests(10, 10)
    assert controller.update(500, True, in_use=0) < fewer


@pytest.mark.parametrize("idle", [(50.0, False), (0.0, True)])
@pytest.mark.parametrize("enough", [STREAMS_FIRST, STREAMS_MAX])
def test_an_idle_period_does_not_end_the_trial_of_a_step(idle: tuple[float, bool], enough: int) -> None:
    """With an idle period after each busy one, it takes the same steps as without."""
    controller, steady = ConcurrencyController(), ConcurrencyController()
    link, steady_link = Link(100, 100 / enough), Link(100, 100 / enough)
    for _ in range(3 * PERIODS):
        streams = controller.update(link.rate(controller.streams), True, in_use=0)
        assert controller.update(*idle, in_use=0) == streams
        assert streams == steady.update(steady_link.rate(steady.streams), True, in_use=0)


@pytest.mark.parametrize("each", [0.0, 1.0, 1e12])
def test_streams_stay_within_their_bounds(each: float) -> None:
    controller, chance = ConcurrencyController(), random.Random(7)
    for _ in range(2000):
        rate = controller.streams * each * chance.random()
        controller.note_requests(chance.randrange(100), chance.randrange(20))
        assert 1 <= controller.update(rate, chance.random() < 0.9, chance.random() * STREAMS_MAX) <= STREAMS_MAX
    for _ in range(PERIODS):
        controller.note_requests(0, 10)
        controller.update(0, False, in_use=0)
    assert controller.streams == 1, "everything is refused"


WORKER_CORES = 1.2
"""What a worker uses if the link could deliver more: one thread of Python, and system calls beside it."""


@pytest.mark.parametrize(("link_cores", "periods"), [(0.5, 0), (1.2, 1), (4.0, 2), (8.0, 3)])
def test_a_link_that_keeps_many_cores_busy_soon_has_workers_for_them(link_cores: float, periods: int) -> None:
    """link_cores: how many cores are busy while the whole link is used. periods: those after which it is used."""
    workers, used = WorkerCount(1, 16), []
    for _ in range(10):
        used.append(min(link_cores, workers.count * WORKER_CORES))
        workers.update([used[-1] / workers.count] * workers.count)
    assert used.index(link_cores) <= periods
    assert workers.count <= 1 + link_cores / 0.6


def test_there_are_no_more_workers_than_asked_for_and_none_for_what_is_idle() -> None:
    workers = WorkerCount(1, 2)
    workers.update([WORKER_CORES])
    workers.update([WORKER_CORES, WORKER_CORES])
    assert workers.count == 2
    workers.update([0.1, 0.1])
    assert workers.count == 2
    few = WorkerCount(3, 8)
    few.update([WORKER_CORES, WORKER_CORES])  # the third one had no files
    assert few.count == 3


def test_cpu_time_of_several_periods_that_is_reported_at_once_is_taken_for_that_of_one() -> None:
    """A worker whose store's library was imported began five others, each of which imported it, too."""
    workers = WorkerCount(1, 8)
    workers.update([0.0])
    workers.update([3.1])
    workers.update([0.2, 3.1])
    assert workers.count == 2
