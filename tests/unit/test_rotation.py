"""When a listing begins a generation, in the words of the rules; what it leaves out, what is held, and who leaves."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs.rotation.eviction import pick_victims
from growfs.rotation.rules import (
    EVERYWHERE,
    CachedFile,
    Delisting,
    FileGroup,
    Generation,
    Hold,
    Holds,
    Kind,
    LastOfKind,
    ListingContext,
    begins_generation,
    delist,
    hold_on,
    last_listed,
    turnover_bytes,
)

SETTLE_S = 60.0


def by_the_rules(listing: ListingContext, age_s: float) -> bool:
    """A new generation begins when (a) a process lists a directory that it already listed in this generation, and it
    or a descendant opened a file since; or (b) for --settle it has listed that again and again and opened nothing; or
    (c) this generation is older than --settle, and the process has never listed. Every other listing joins."""
    if listing.listed_here and listing.opened_since:
        return True
    looks_again = listing.listed_here and not listing.opened_since
    return (looks_again and listing.listing_s > SETTLE_S) or (not listing.listed_ever and age_s > SETTLE_S)


@pytest.mark.promise(6)
@pytest.mark.parametrize(("ever", "here", "opened"), list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("age_s", [0.0, 60.0, 60.1, 1e6])
@pytest.mark.parametrize("listing_s", [0.0, 60.0, 60.1])
def test_every_case_of_the_rules(ever: bool, here: bool, opened: bool, age_s: float, listing_s: float) -> None:
    if (here and not ever) or listing_s > age_s:
        return  # who listed here has listed, and not before there was something to list
    listing = ListingContext(listed_ever=ever, listed_here=here, opened_since=opened, listing_s=listing_s)
    assert begins_generation(listing, age_s, SETTLE_S) == by_the_rules(listing, age_s)


@pytest.mark.parametrize(
    ("name", "listing", "age_s", "expected"),
    [
        ("an epoch later", ListingContext(True, True, True), 1.0, True),
        ("a rank that lists for the first time joins", ListingContext(False, False, False), 1.0, False),
        ("a second directory of the same walk joins", ListingContext(True, False, True), 1e6, False),
        ("Keras lists twice", ListingContext(True, True, False), 1.0, False),
        ("Keras lists twice, late in a generation of another's", ListingContext(True, True, False, 5.0), 63.0, False),
        ("a script that polls sees growth", ListingContext(True, True, False, 61.0), 61.0, True),
        ("a job that starts an hour later", ListingContext(False, False, False), 3600.0, True),
        ("its workers opened before it ever listed", ListingContext(False, False, True), 1.0, False),
    ],
)
def test_what_readers_do(name: str, listing: ListingContext, age_s: float, expected: bool) -> None:
    assert begins_generation(listing, age_s, SETTLE_S) is expected


def victim(id: int, bytes: int, group: int | None = None) -> CachedFile:
    """A file that may be evicted; alone, where it has no group."""
    return CachedFile(id, 1, "jpg", bytes, id, 1000 + id if group is None else group)


VICTIMS = st.lists(st.integers(0, 100), max_size=16)


@given(VICTIMS, st.integers(1, 600))
def test_as_few_leave_as_make_the_room_in_order(bytes: list[int], need: int) -> None:
    victims = [victim(id, size) for id, size in enumerate(bytes)]
    sizes = dict(enumerate(bytes))
    chosen = pick_victims(victims, need)
    assert chosen == [victim.id for victim in victims][: len(chosen)]
    if chosen:
        assert sum(sizes[id] for id in chosen) >= need
        assert sum(sizes[id] for id in chosen[:-1]) < need
    else:
        assert sum(bytes) < need


def test_the_first_leave_first() -> None:
    assert pick_victims([victim(9, 10), victim(8, 10), victim(1, 10)], 30) == [9, 8, 1]
    assert pick_victims([victim(9, 10), victim(1, 10), victim(2, 10)], 15) == [9, 1]


def test_what_leaves_as_one_leaves_whole() -> None:
    pair = [victim(1, 10, group=5), victim(2, 10, group=5)]
    assert pick_victims([*pair, victim(3, 10, group=6)], 10) == [1, 2]
    assert pick_victims([victim(3, 10, group=4), *pair], 10) == [3]
    assert pick_victims([victim(3, 10, group=4), *pair], 11) == [3, 1, 2]


def test_nobody_leaves_in_vain() -> None:
    assert pick_victims([victim(9, 10), victim(1, 10)], 21) == []


# What a new generation leaves out.


def unit(id: int, bytes: int = 10, kind: Kind = (1, "jpg"), **state: bool) -> FileGroup:
    """A file that leaves alone."""
    return FileGroup((id,), (kind,), bytes, **state)


def plenty(units: Iterable[FileGroup], more: int = 1) -> dict[Kind, int]:
    """So many files of each kind that all of the units may leave."""
    counts = Counter(kind for unit in units for kind in unit.kinds)
    return {kind: count + more for kind, count in counts.items()}


Drawn = list[tuple[tuple[Kind, ...], int, bool, bool, bool, bool]]
UNITS = st.lists(
    st.builds(
        lambda kinds, bytes, unrenewed, delisted, opened, requeued: (
            tuple(kinds),
            bytes,
            unrenewed,
            delisted,
            opened,
            requeued,
        ),
        st.lists(st.sampled_from([(1, "jpg"), (1, "txt"), (2, "jpg")]), min_size=1, max_size=3),
        st.integers(0, 100),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


def numbered(drawn: Drawn) -> list[FileGroup]:
    """Units with ids of their own; what is left out already comes first."""
    ids = itertools.count(1)
    ordered = sorted(drawn, key=lambda state: not state[3])
    return [
        FileGroup(tuple(next(ids) for _ in kinds), kinds, bytes, unrenewed, delisted, opened, requeued)
        for kinds, bytes, unrenewed, delisted, opened, requeued in ordered
    ]


def rank(unit: FileGroup) -> int:
    """Who goes before whom: what nobody holds that listed only once; of that what was opened, spared, or left out."""
    if unit.unrenewed:
        return 2
    return 0 if unit.opened or unit.requeued or unit.delisted else 1


@given(UNITS, st.integers(0, 600))
def test_as_few_are_left_out_as_are_needed_in_order(drawn: Drawn, need: int) -> None:
    units = numbered(drawn)
    in_order = sorted(units, key=rank)
    chosen = delist(units, LastOfKind(plenty(units)), need)
    expected: list[int] = []
    freed = 0
    for unit in in_order:
        if freed >= need:
            break
        expected.extend(unit.ids)
        freed += unit.bytes
    assert chosen.delisted == expected


@pytest.mark.promise(7, 18, 24)
@given(UNITS, st.integers(0, 600), st.integers(0, 2))
def test_the_last_of_a_kind_stays_and_a_group_leaves_whole(drawn: Drawn, need: int, more: int) -> None:
    units = numbered(drawn)
    listed = plenty(units, more)
    chosen = delist(units, LastOfKind(listed), need)
    gone = set(chosen.delisted)
    left = Counter(listed) - Counter(kind for unit in units if unit.ids[0] in gone for kind in unit.kinds)
    assert all(left[kind] >= 1 for kind in listed)
    assert all(len(gone & set(unit.ids)) in (0, len(unit.ids)) for unit in units)
    if sum(unit.bytes for unit in units if unit.ids[0] in gone) < need:  # then no more could go
        for unit in units:
            if unit.ids[0] not in gone:
                assert any(left[kind] <= Counter(unit.kinds)[kind] for kind in unit.kinds)


@pytest.mark.promise(18)
@given(UNITS, st.integers(0, 600))
def test_to_the_back_go_those_never_opened_once_and_only_those(drawn: Drawn, need: int) -> None:
    units = {unit.ids: unit for unit in numbered(drawn)}
    chosen = delist(units.values(), LastOfKind(plenty(units.values())), need)
    for ids in chosen.requeued:
        assert rank(units[ids]) == 1
        assert not set(ids) & set(chosen.delisted)


@pytest.mark.promise(25)
@given(st.lists(st.booleans(), max_size=12), st.integers(0, 15), st.integers(0, 100))
def test_exactly_so_many_files_where_a_number_is_asked_for(opened: list[bool], files: int, need: int) -> None:
    units = [unit(id, opened=opened) for id, opened in enumerate(opened, 1)]
    chosen = delist(units, LastOfKind(plenty(units)), need, files)
    assert len(chosen.delisted) == min(files, len(units))


def test_a_group_too_large_for_the_number_gives_way_to_smaller_ones() -> None:
    pair = FileGroup((1, 2), ((1, "jpg"), (1, "txt")), 20)
    assert delist([unit(3), pair, unit(4)], LastOfKind({(1, "jpg"): 9, (1, "txt"): 9}), 0, 2).delisted == [3, 4]


def test_what_is_left_out_already_stays_so_where_it_is_enough() -> None:
    units = [unit(1, delisted=True), unit(2, delisted=True), unit(3)]
    assert delist(units, LastOfKind(plenty(units)), 10).delisted == [1]  # 2 is shown again
    assert delist(units, LastOfKind(plenty(units)), 20).delisted == [1, 2]
    assert delist(units, LastOfKind(plenty(units)), 21).delisted == [1, 2, 3]


def test_nothing_is_left_out_where_nothing_is_needed() -> None:
    units = [unit(1, delisted=True), unit(2), unit(3, opened=False)]
    assert delist(units, LastOfKind(plenty(units)), 0) == Delisting()


@pytest.mark.promise(18)
def test_what_a_reader_holds_that_listed_once_goes_last() -> None:
    units = [unit(1, unrenewed=True), unit(2, opened=False), unit(3), unit(4, unrenewed=True, delisted=True)]
    assert delist(units, LastOfKind(plenty(units)), 40).delisted == [3, 2, 1, 4]
    assert delist(units, LastOfKind(plenty(units)), 10).delisted == [3]


def test_a_file_never_opened_goes_to_the_back_once() -> None:
    units = [unit(1, opened=False), unit(2)]
    assert delist(units, LastOfKind(plenty(units)), 10) == Delisting([2], [(1,)])
    again = [unit(2, delisted=True), unit(1, opened=False, requeued=True)]
    assert delist(again, LastOfKind(plenty(again)), 20) == Delisting([2, 1], [])


def test_a_file_never_opened_leaves_where_no_other_can() -> None:
    units = [unit(1, opened=False), unit(2, opened=False), unit(3, unrenewed=True)]
    assert delist(units, LastOfKind(plenty(units)), 10) == Delisting([1], [(2,)])
    assert delist(units, LastOfKind(plenty(units)), 30) == Delisting([1, 2, 3], [])


def test_the_last_of_a_kind_waits_for_its_successor() -> None:
    units = [unit(1, kind=(1, "txt")), unit(2), unit(3)]
    assert delist(units, LastOfKind({(1, "txt"): 1, (1, "jpg"): 2}), 99).delisted == [2]
    assert delist(units, LastOfKind({(1, "txt"): 2, (1, "jpg"): 3}), 99).delisted == [1, 2, 3]


def test_the_queue_is_read_only_as_far_as_needed() -> None:
    read = []

    def queue() -> Iterator[FileGroup]:
        for id in range(1, 1000):
            read.append(id)
            yield unit(id)

    assert delist(queue(), LastOfKind({(1, "jpg"): 1000}), 30).delisted == [1, 2, 3]
    assert len(read) <= 4


@pytest.mark.promise(18)
@pytest.mark.parametrize(
    ("name", "limit", "share", "largest", "lacking", "free", "expected"),
    [
        ("a share of a full cache", 1000, 0.2, 10, 9000, 0, 200),
        ("with what is free", 1000, 0.2, 10, 9000, 150, 50),
        ("more is free", 1000, 0.2, 10, 9000, 500, 0),
        ("two of the largest files", 1000, 0.2, 300, 9000, 0, 600),
        ("not more than the cache", 1000, 0.2, 800, 9000, 0, 1000),
        ("not more than is lacking", 1000, 0.2, 10, 70, 0, 70),
        ("nothing is lacking", 1000, 0.2, 300, 0, 0, 0),
        ("a resident set that is larger than the catalog", 1000, 0.2, 300, -5, 0, 0),
        ("whole bytes", 999, 0.2, 10, 9000, 0, 200),
        ("over the limit", 1000, 0.2, 10, 9000, -100, 300),
    ],
)
def test_how_much_is_left_out(
    name: str, limit: int, share: float, largest: int, lacking: int, free: int, expected: int
) -> None:
    assert turnover_bytes(limit, share, largest, lacking, free) == expected


# Generations, and what is held of them.


def test_a_generation_shows_what_it_does_not_leave_out() -> None:
    third = Generation(3, 100, 0.0, changes={7: 3, 8: None})
    assert third.shows(1, None)
    assert third.shows(1, 4)
    assert not third.shows(1, 3)
    assert not third.shows(1, 2)
    assert not third.shows(7, None)  # what its files do not tell yet
    assert third.shows(8, 2)


def test_a_hold_covers_what_its_generation_showed() -> None:
    hold = Hold(3, 100)
    assert hold.covers(100, None)
    assert not hold.covers(101, None)
    assert hold.covers(1, 4)
    assert not hold.covers(1, 3)


@pytest.mark.parametrize(
    ("holds", "expected"),
    [
        ({}, None),
        ({7: Hold(1, 10)}, Hold(1, 10)),
        ({8: Hold(1, 10)}, None),
        ({EVERYWHERE: Hold(1, 10)}, Hold(1, 10)),
        ({EVERYWHERE: Hold(1, 10), 7: Hold(2, 20)}, Hold(2, 20)),
        ({EVERYWHERE: Hold(2, 20), 7: Hold(1, 10)}, Hold(2, 20)),
    ],
)
def test_the_last_listing_is_what_a_process_holds(holds: dict[int, Hold], expected: Hold | None) -> None:
    assert hold_on(holds, 7) == expected


def test_a_file_is_held_by_anyone() -> None:
    holds = Holds([{7: Hold(1, 10)}, {8: Hold(2, 20)}, {EVERYWHERE: Hold(3, 5)}, {}])
    assert holds.cover(7, 10, None)
    assert holds.cover(7, 10, 2)
    assert not holds.cover(7, 11, None)
    assert not holds.cover(7, 10, 1)
    assert holds.cover(8, 20, 3)
    assert holds.cover(99, 5, 4)
    assert not holds.cover(99, 6, None)


def test_a_directory_that_is_listed_again_lets_go_of_what_everything_held() -> None:
    holds = Holds([{EVERYWHERE: Hold(1, 10), 7: Hold(4, 40)}])
    assert not holds.cover(7, 5, 3)
    assert holds.cover(8, 5, 3)


def test_who_cannot_be_told_apart_holds_everything() -> None:
    assert Holds(foreign=True).cover(7, 1 << 40, 1)
    assert not Holds().cover(7, 1, None)


@pytest.mark.promise(17)
@given(st.lists(st.dictionaries(st.integers(0, 3), st.builds(Hold, st.integers(1, 5), st.integers(0, 9)))), st.data())
def test_holds_are_those_of_each_process(readers: list[dict[int, Hold]], data: st.DataObject) -> None:
    directory, seq = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 9))
    left_out = data.draw(st.none() | st.integers(1, 6))
    each = [hold.covers(seq, left_out) for holds in readers if (hold := hold_on(holds, directory))]
    assert Holds(readers).cover(directory, seq, left_out) == any(each)


def test_no_more_victims_are_looked_for_than_are_needed() -> None:
    assert pick_victims((victim(id, 10) for id in itertools.count()), 15) == [0, 1]


@pytest.mark.promise(18)
def test_what_was_admitted_last_waits_where_nothing_else_makes_room() -> None:
    kind = (1, "rec")
    newest = [(seq, [kind], 10) for seq in range(20, 10, -1)]
    assert last_listed(newest, LastOfKind({kind: 20}), 30, 20) == 17
    assert last_listed(newest, LastOfKind({kind: 20}), 1000, 20) == 15, "half of them is shown"
    assert last_listed(newest, LastOfKind({kind: 20}), -10, 20) == 20
    assert last_listed(newest, LastOfKind({kind: 2}), 1000, 20) == 19, "a directory is never empty"


def test_a_group_waits_whole() -> None:
    jpg, json = (1, "jpg"), (1, "json")
    newest = [(19, [json, jpg], 20), (17, [json, jpg], 20), (15, [json, jpg], 20)]
    assert last_listed(newest, LastOfKind({jpg: 9, json: 9}), 30, 20) == 18
    assert last_listed(newest, LastOfKind({jpg: 9, json: 1}), 30, 20) == 20, "the last of a kind"
