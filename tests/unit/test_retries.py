"""How often and when failed requests are repeated."""

from __future__ import annotations

import pytest

from growfs.errors import RemoteBusy
from growfs.remote.retries import BUDGET, BUDGET_PER_S, DELAY_S_MAX, DELAY_S_MIN, TRIES_MAX, Retries, Tries

BUSY = RemoteBusy("busy")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test sets."""
    now = [0.0]
    monkeypatch.setattr("growfs.remote.retries.time.monotonic", lambda: now[0])
    return now


def test_pauses_grow_and_differ(now: list[float]) -> None:
    first = {round(Tries(Retries(lambda _: None)).pause(BUSY), 6) for _ in range(20)}
    assert len(first) > 10
    assert DELAY_S_MIN <= min(first) <= max(first) <= 1.5 * DELAY_S_MIN
    tries = Tries(Retries(lambda _: None))
    pauses = [tries.pause(BUSY) for _ in range(TRIES_MAX - 1)]
    assert pauses == sorted(pauses)
    assert pauses[-1] <= DELAY_S_MAX * 1.5


def test_a_request_fails_after_so_many_failures_in_a_row_and_its_file_with_it(now: list[float]) -> None:
    tries = Tries(Retries(lambda _: None))
    for _ in range(TRIES_MAX - 1):
        tries.pause(BUSY, "a")
        tries.pause(BUSY, "b")
    with pytest.raises(RemoteBusy):
        tries.pause(BUSY, "a")
    with pytest.raises(RemoteBusy):
        tries.pause(BUSY, "b")
    with pytest.raises(RemoteBusy):
        tries.pause_to_restart(BUSY)


def test_while_others_of_the_file_arrive_a_request_is_repeated_longer(now: list[float]) -> None:
    tries = Tries(Retries(lambda _: None))
    for _ in range(10 * TRIES_MAX):
        tries.pause(BUSY, "a")
        tries.answered()
    for _ in range(999):
        tries.pause(BUSY, object())
    with pytest.raises(RemoteBusy):
        tries.pause(BUSY, object())


def test_answers_do_not_make_a_file_begin_anew_for_ever(now: list[float]) -> None:
    """Its checksum is wrong each time."""
    tries = Tries(Retries(lambda _: None))
    for _ in range(TRIES_MAX - 1):
        tries.answered()
        tries.pause_to_restart(BUSY)
    with pytest.raises(RemoteBusy):
        tries.pause_to_restart(BUSY)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_store_that_answers_nothing_is_not_hammered(now: list[float], workers: int) -> None:
    """Any number of files gets BUDGET requests and then BUDGET_PER_S a second, from all workers together."""
    retries = Retries(lambda _: None, workers=lambda: workers)
    own = round(BUDGET / workers)
    pauses = [Tries(retries).pause(BUSY) for _ in range(own + 20)]
    assert max(pauses[:own]) <= 1.5 * DELAY_S_MIN
    assert pauses[-1] == pytest.approx(20 * workers / BUDGET_PER_S)
    now[0] = 1000.0
    assert Tries(retries).pause(BUSY) <= 1.5 * DELAY_S_MIN, "it recovers with time"
