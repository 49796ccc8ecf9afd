"""When a listing begins a generation, in the words of the rules; and who leaves when room is needed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs.rotation import Listing, Victim, begins_generation, eviction

SETTLE_S = 60.0


def by_the_rules(listing: Listing, older_than_settle: bool) -> bool:
    """A new generation begins when (a) a process lists a directory that it already listed in this generation, and it
    or a descendant opened a file since; or (b) this generation is older than --settle, and the process has never
    listed, or lists again having opened nothing. Every other listing joins."""
    if listing.listed_here and listing.opened_since:
        return True
    never = not listing.listed_ever
    again_without_opening = listing.listed_here and not listing.opened_since
    return older_than_settle and (never or again_without_opening)


@pytest.mark.parametrize(("ever", "here", "opened"), list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize(("age_s", "older"), [(0.0, False), (60.0, False), (60.1, True), (1e6, True)])
def test_every_case_of_the_rules(ever: bool, here: bool, opened: bool, age_s: float, older: bool) -> None:
    if here and not ever:
        return  # who listed here has listed
    listing = Listing(listed_ever=ever, listed_here=here, opened_since=opened)
    assert begins_generation(listing, age_s, SETTLE_S) == by_the_rules(listing, older)


@pytest.mark.parametrize(
    ("name", "listing", "age_s", "expected"),
    [
        ("an epoch later", Listing(True, True, True), 1.0, True),
        ("a rank that lists for the first time joins", Listing(False, False, False), 1.0, False),
        ("a second directory of the same walk joins", Listing(True, False, True), 1e6, False),
        ("Keras lists twice", Listing(True, True, False), 1.0, False),
        ("a script that polls sees growth", Listing(True, True, False), 61.0, True),
        ("a job that starts an hour later", Listing(False, False, False), 3600.0, True),
        ("its workers opened before it ever listed", Listing(False, False, True), 1.0, False),
    ],
)
def test_what_readers_do(name: str, listing: Listing, age_s: float, expected: bool) -> None:
    assert begins_generation(listing, age_s, SETTLE_S) is expected


VICTIMS = st.lists(st.integers(0, 100), max_size=8)


@given(VICTIMS, VICTIMS, st.integers(1, 600))
def test_as_few_leave_as_make_the_room_in_order(unlisted: list[int], listed: list[int], need: int) -> None:
    new = [Victim(id, size) for id, size in enumerate(unlisted)]
    old = [Victim(100 + id, size) for id, size in enumerate(listed)]
    sizes = {victim.id: victim.bytes for victim in (*new, *old)}
    chosen = eviction(new, old, need)
    assert chosen == [victim.id for victim in (*new, *old)][: len(chosen)]
    if chosen:
        assert sum(sizes[id] for id in chosen) >= need
        assert sum(sizes[id] for id in chosen[:-1]) < need
    else:
        assert sum(sizes.values()) < need


def test_what_no_reader_knows_of_leaves_first() -> None:
    assert eviction([Victim(9, 10), Victim(8, 10)], [Victim(1, 10)], 30) == [9, 8, 1]
    assert eviction([Victim(9, 10)], [Victim(1, 10), Victim(2, 10)], 15) == [9, 1]


def test_nobody_leaves_in_vain() -> None:
    assert eviction([Victim(9, 10)], [Victim(1, 10)], 21) == []
