"""When a listing begins a generation, in the words of the rules; what it leaves out; who leaves when room is needed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs.rotation import (
    EVERYWHERE,
    Choice,
    Hold,
    Holds,
    Kind,
    Listing,
    Unit,
    Victim,
    begins_generation,
    eviction,
    last_shown,
    leave_out,
    turnover_bytes,
)

SETTLE_S = 60.0


def by_the_rules(listing: Listing, age_s: float) -> bool:
    """A new generation begins when (a) a process lists a directory that it already listed in this generation, and it
    or a descendant opened a file since; or (b) for --settle it has listed that again and again and opened nothing; or
    (c) this generation is older than --settle, and the process has never listed. Every other listing joins."""
    if listing.listed_here and listing.opened_since:
        return True
    looks_again = listing.listed_here and not listing.opened_since
    return (looks_again and listing.looked_s > SETTLE_S) or (not listing.listed_ever and age_s > SETTLE_S)


@pytest.mark.parametrize(("ever", "here", "opened"), list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("age_s", [0.0, 60.0, 60.1, 1e6])
@pytest.mark.parametrize("looked_s", [0.0, 60.0, 60.1])
def test_every_case_of_the_rules(ever: bool, here: bool, opened: bool, age_s: float, looked_s: float) -> None:
    if (here and not ever) or looked_s > age_s:
        return  # who listed here has listed, and not before there was something to list
    listing = Listing(listed_ever=ever, listed_here=here, opened_since=opened, looked_s=looked_s)
    assert begins_generation(listing, age_s, SETTLE_S) == by_the_rules(listing, age_s)


@pytest.mark.parametrize(
    ("name", "listing", "age_s", "expected"),
    [
        ("an epoch later", Listing(True, True, True), 1.0, True),
        ("a rank that lists for the first time joins", Listing(False, False, False), 1.0, False),
        ("a second directory of the same walk joins", Listing(True, False, True), 1e6, False),
        ("Keras lists twice", Listing(True, True, False), 1.0, False),
        ("Keras lists twice, late in a generation of another's", Listing(True, True, False, 5.0), 63.0, False),
        ("a script that polls sees growth", Listing(True, True, False, 61.0), 61.0, True),
        ("a job that starts an hour later", Listing(False, False, False), 3600.0, True),
        ("its workers opened before it ever listed", Listing(False, False, True), 1.0, False),
    ],
)
def test_what_readers_do(name: str, listing: Listing, age_s: float, expected: bool) -> None:
    assert begins_generation(listing, age_s, SETTLE_S) is expected


@given(st.lists(st.integers(0, 100), max_size=12), st.integers(1, 600))
def test_as_few_leave_as_make_the_room_in_order(sizes: list[int], need: int) -> None:
    victims = [Victim(id, size) for id, size in enumerate(sizes)]
    chosen = eviction(victims, need)
    assert chosen == [victim.id for victim in victims][: len(chosen)]
    if chosen:
        assert sum(sizes[id] for id in chosen) >= need
        assert sum(sizes[id] for id in chosen[:-1]) < need
    else:
        assert sum(sizes) < need


def test_no_more_victims_are_looked_for_than_are_needed() -> None:
    assert eviction((Victim(id, 10) for id in itertools.count()), 15) == [0, 1]


def test_nobody_leaves_in_vain() -> None:
    assert eviction([Victim(9, 10), Victim(1, 10)], 21) == []


def unit(id: int, kind: Kind = (1, "rec"), **facts: bool) -> Unit:
    return Unit((id,), (kind,), 10, **facts)


def test_what_is_shown_longest_is_left_out_as_far_as_needed() -> None:
    assert leave_out(map(unit, range(1, 9)), {(1, "rec"): 8}, 25) == Choice([1, 2, 3], [], 30)


def test_of_each_kind_one_file_stays() -> None:
    kinds = {(1, "rec"): 2, (2, "rec"): 1, (1, "json"): 1}
    units = [unit(1), unit(2), unit(3, (2, "rec")), unit(4, (1, "json"))]
    assert leave_out(units, kinds, 40).left_out == [1]


def test_what_nobody_opened_goes_to_the_back_once() -> None:
    units = [unit(1, opened=False), unit(2, opened=False, spared=True), unit(3), unit(4)]
    assert leave_out(units, {(1, "rec"): 9}, 20) == Choice([2, 3], [1], 20)


def test_what_nobody_opened_is_left_out_where_there_is_nothing_else() -> None:
    units = [unit(1, opened=False), unit(2, opened=False), unit(3)]
    assert leave_out(units, {(1, "rec"): 9}, 20) == Choice([3, 1], [2], 20)


def test_what_one_that_listed_once_was_shown_comes_last() -> None:
    units = [unit(1, once=True, left_out=True), unit(2, once=True), unit(3), unit(4)]
    assert leave_out(units, {(1, "rec"): 9}, 30).left_out == [3, 4, 1]


def test_a_group_leaves_whole_or_stays() -> None:
    both = Unit((1, 2), ((1, "jpg"), (1, "json")), 20)
    assert leave_out([both, unit(3, (1, "jpg"))], {(1, "jpg"): 2, (1, "json"): 1}, 10).left_out == [3]
    assert leave_out([both, unit(3, (1, "jpg"))], {(1, "jpg"): 2, (1, "json"): 2}, 10).left_out == [1, 2]


def test_exactly_so_many_files() -> None:
    assert leave_out(map(unit, range(1, 9)), {(1, "rec"): 8}, 0, files=3).left_out == [1, 2, 3]


@pytest.mark.parametrize(
    ("limit", "share", "largest", "lacking", "free", "expected"),
    [
        (1000, 0.2, 10, 5000, 0, 200),
        (1000, 0.2, 10, 5000, 150, 50),
        (1000, 0.2, 10, 5000, 900, 0),
        (1000, 0.2, 150, 5000, 0, 300),  # two of the largest
        (1000, 0.2, 10, 70, 0, 70),  # never more than the catalog lacks
        (1000, 0.2, 800, 5000, 0, 1000),
    ],
)
def test_how_much_is_left_out(limit: int, share: float, largest: int, lacking: int, free: int, expected: int) -> None:
    assert turnover_bytes(limit, share, largest, lacking, free) == expected


HOLD = Hold(generation=5, last_seq=100)


@pytest.mark.parametrize(
    ("seq", "left_out", "held"),
    [(100, None, True), (101, None, False), (1, 6, True), (1, 5, False), (1, 4, False)],
)
def test_a_hold_covers_what_its_generation_showed(seq: int, left_out: int | None, held: bool) -> None:
    assert HOLD.covers(seq, left_out) is held
    assert Holds([{7: HOLD}]).cover(7, seq, left_out) is held
    assert Holds([{EVERYWHERE: HOLD}]).cover(7, seq, left_out) is held
    assert not Holds([{8: HOLD}]).cover(7, seq, left_out)
    assert Holds([{8: HOLD}], foreign=True).cover(7, seq, left_out)


def test_the_last_listing_of_a_directory_is_what_is_held() -> None:
    later = Hold(6, 200)
    assert Holds([{7: HOLD, EVERYWHERE: later}]).cover(7, 150, None)
    assert not Holds([{7: HOLD, EVERYWHERE: later}]).cover(7, 1, 6)


def test_what_was_admitted_last_waits_where_nothing_else_makes_room() -> None:
    newest = [(seq, (1, "rec"), 10) for seq in range(20, 10, -1)]
    assert last_shown(newest, {(1, "rec"): 20}, [], 30, 20) == 17
    assert last_shown(newest, {(1, "rec"): 20}, [], 1000, 20) == 15, "half of them is shown"
    assert last_shown(newest, {(1, "rec"): 20}, [], -10, 20) == 20
    assert last_shown(newest, {(1, "rec"): 20}, [(1, "rec")] * 18, 1000, 20) == 19, "a directory is never empty"
