"""Flights land in the order in which they were drawn, whatever the order in which they are fetched."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs.cache.catalog import Node
from growfs.scheduler.in_flight import BATCH_MAX, Flight, Landing, State, Unit


def flight(id: int, unit: Unit, urgent: bool = False, renews: bool = False) -> Flight:
    node = Node(id, 1, f"{id}", False, 10, None, "v1", 0, 0, None)
    return Flight(node, f"{id}", Path(f"{id}"), 10, unit, urgent=urgent, renews=renews)


def drawn(landing: Landing, *ids: int) -> Unit:
    """A unit that is drawn now."""
    unit = Unit(drawn=True, ids=ids if len(ids) > 1 else ())
    landing.expect(unit)
    for id in ids:
        flight(id, unit)
    return unit


def fetched(landing: Landing, *flights: Flight) -> None:
    """As the fetcher does with each that is fetched."""
    for flight in flights:
        flight.move(State.FETCHING)
        flight.move(State.FETCHED)
        landing.hurry(flight.unit)


def admitted(landing: Landing) -> list[int]:
    """Admit what is ready."""
    batch = landing.ready()
    for flight in batch:
        flight.move(State.ADMITTED)
    return [flight.node.id for flight in batch]


@pytest.mark.promise(14)
@given(st.lists(st.integers(1, 3), max_size=8), st.randoms())
def test_the_order_of_admission_is_that_of_the_draws(sizes: list[int], order: random.Random) -> None:
    landing, ids = Landing(), iter(range(1, 100))
    units = [drawn(landing, *(next(ids) for _ in range(size))) for size in sizes]
    flights = [flight for unit in units for flight in unit.flights]
    expected = [flight.node.id for flight in flights]
    landed = []
    order.shuffle(flights)
    for flight in flights:
        fetched(landing, flight)
        landed += admitted(landing)
    assert landed == expected
    assert len(landing) == 0


def test_a_group_lands_whole() -> None:
    landing = Landing()
    pair = drawn(landing, 1, 2)
    fetched(landing, pair.flights[1])
    assert admitted(landing) == []
    fetched(landing, pair.flights[0])
    assert admitted(landing) == [1, 2]


def test_what_somebody_waits_for_does_not_wait_for_its_turn() -> None:
    landing = Landing()
    first, second = drawn(landing, 1), drawn(landing, 2)
    fetched(landing, *second.flights)
    assert admitted(landing) == []
    second.flights[0].urgent = True
    landing.hurry(second)
    assert admitted(landing) == [2]
    assert len(landing) == 1
    fetched(landing, *first.flights)
    assert admitted(landing) == [1]


def test_a_miss_of_a_group_waits_for_the_whole_group() -> None:
    landing = Landing()
    drawn(landing, 9)
    unit = Unit(ids=(1, 2))
    miss = [flight(1, unit, urgent=True), flight(2, unit, urgent=True)]
    fetched(landing, miss[0])
    assert admitted(landing) == []
    fetched(landing, miss[1])
    assert admitted(landing) == [1, 2]
    assert len(landing) == 1


def test_a_newer_version_has_no_turn() -> None:
    landing = Landing()
    drawn(landing, 9)
    fetched(landing, flight(1, Unit(), renews=True))
    assert admitted(landing) == [1]


def test_what_fails_holds_nobody_up() -> None:
    landing = Landing()
    first, second, third = (drawn(landing, id) for id in (1, 2, 3))
    fetched(landing, *second.flights, *third.flights)
    first.flights[0].move(State.FAILED)
    assert admitted(landing) == [2, 3]
    assert len(landing) == 0


def test_what_landed_in_its_turn_does_not_land_again() -> None:
    landing = Landing()
    unit = drawn(landing, 1)
    fetched(landing, *unit.flights)
    unit.flights[0].urgent = True
    landing.hurry(unit)
    assert admitted(landing) == [1]
    assert admitted(landing) == []


def test_no_more_at_a_time_than_a_commit_may_take() -> None:
    landing = Landing()
    units = [drawn(landing, id) for id in range(1, BATCH_MAX + 11)]
    for unit in units:
        fetched(landing, *unit.flights)
    assert len(admitted(landing)) == BATCH_MAX
    assert len(admitted(landing)) == 10
