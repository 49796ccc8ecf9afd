"""When a listing begins a generation, which files it delists, which are held, and which are evicted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs.bitmaps import BitMap64
from growfs.rotation.eviction import pick_victims
from growfs.rotation.rules import (
    CachedFile,
    Delisting,
    FileGroup,
    Kind,
    LastOfKind,
    TurnoverInput,
    delist,
    last_listed,
    needed_bytes,
)


def victim(id: int, bytes: int, group: int | None = None) -> CachedFile:
    """A file that may be evicted; without a group, by itself."""
    return CachedFile(id, 1, "jpg", bytes, id, 1000 + id if group is None else group)


VICTIMS = st.lists(st.integers(0, 100), max_size=16)


@given(VICTIMS, st.integers(1, 600))
def test_as_few_as_needed_are_evicted_in_order(bytes: list[int], need: int) -> None:
    victims = [victim(id, size) for id, size in enumerate(bytes)]
    sizes = dict(enumerate(bytes))
    chosen = pick_victims(victims, need)
    assert chosen == [victim.id for victim in victims][: len(chosen)]
    if chosen:
        assert sum(sizes[id] for id in chosen) >= need
        assert sum(sizes[id] for id in chosen[:-1]) < need
    else:
        assert sum(bytes) < need


def test_a_group_is_evicted_as_a_whole() -> None:
    pair = [victim(1, 10, group=5), victim(2, 10, group=5)]
    assert pick_victims([*pair, victim(3, 10, group=6)], 10) == [1, 2]
    assert pick_victims([victim(3, 10, group=4), *pair], 10) == [3]
    assert pick_victims([victim(3, 10, group=4), *pair], 11) == [3, 1, 2]
    assert pick_victims((victim(id, 10) for id in itertools.count()), 15) == [0, 1], "no more are read"


# What a new generation delists.


def single(id: int, bytes: int = 10, kind: Kind = (1, "jpg"), **state: bool) -> FileGroup:
    """A group of a single file."""
    return FileGroup((id,), (kind,), bytes, **state)


def enough_of_each_kind(groups: Iterable[FileGroup], more: int = 1) -> dict[Kind, int]:
    """Counts of listed files: those of the groups and `more` of each kind, so with more > 0 all may be delisted."""
    counts = Counter(kind for group in groups for kind in group.kinds)
    return {kind: count + more for kind, count in counts.items()}


Drawn = list[tuple[tuple[Kind, ...], int, bool, bool, bool, bool]]
"""For each group: kinds, bytes, has_lasting_hold, delisted, opened, requeued."""
GROUPS = st.lists(
    st.tuples(
        st.lists(st.sampled_from([(1, "jpg"), (1, "txt"), (2, "jpg")]), min_size=1, max_size=3).map(tuple),
        st.integers(0, 100),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


def file_groups(drawn: Drawn) -> list[FileGroup]:
    """File groups with admissions of their own; delisted ones come first."""
    seqs = itertools.count(1)
    ordered = sorted(drawn, key=lambda state: not state[3])
    return [FileGroup(tuple(next(seqs) for _ in kinds), kinds, bytes, *flags) for kinds, bytes, *flags in ordered]


def rank(group: FileGroup) -> int:
    """0 is delisted first, then files never opened, and last those held by a reader that listed only once."""
    if group.has_lasting_hold:
        return 2
    return 0 if group.opened or group.requeued or group.delisted else 1


@pytest.mark.promise(18)
@given(GROUPS, st.integers(0, 600))
def test_as_few_as_needed_are_delisted_in_order(drawn: Drawn, need: int) -> None:
    groups = file_groups(drawn)
    in_order = sorted(groups, key=rank)
    chosen = delist(groups, LastOfKind(enough_of_each_kind(groups)), need)
    expected: list[int] = []
    freed = 0
    for group in in_order:
        if freed >= need:
            break
        expected.extend(group.seqs)
        freed += group.bytes
    assert chosen.delisted == expected


@pytest.mark.promise(7, 18, 24)
@given(GROUPS, st.integers(0, 600), st.integers(0, 2))
def test_the_last_of_a_kind_stays_and_a_group_is_delisted_whole(drawn: Drawn, need: int, more: int) -> None:
    groups = file_groups(drawn)
    listed = enough_of_each_kind(groups, more)
    chosen = delist(groups, LastOfKind(listed), need)
    gone = set(chosen.delisted)
    left = Counter(listed) - Counter(kind for group in groups if group.seqs[0] in gone for kind in group.kinds)
    assert all(left[kind] >= 1 for kind in listed)
    assert all(len(gone & set(group.seqs)) in (0, len(group.seqs)) for group in groups)
    if sum(group.bytes for group in groups if group.seqs[0] in gone) < need:  # then no other group could be delisted
        for group in groups:
            if group.seqs[0] not in gone:
                assert any(left[kind] <= Counter(group.kinds)[kind] for kind in group.kinds)


@pytest.mark.promise(18)
@given(GROUPS, st.integers(0, 600))
def test_only_files_never_opened_are_requeued_and_only_once(drawn: Drawn, need: int) -> None:
    groups = {group.seqs: group for group in file_groups(drawn)}
    chosen = delist(groups.values(), LastOfKind(enough_of_each_kind(groups.values())), need)
    for seqs in chosen.requeued:
        assert rank(groups[seqs]) == 1
        assert not set(seqs) & set(chosen.delisted)


@pytest.mark.promise(25)
@given(st.lists(st.booleans(), max_size=12), st.integers(0, 15), st.integers(0, 100))
def test_exactly_the_given_number_of_files_is_delisted(opened: list[bool], files: int, need: int) -> None:
    groups = [single(id, opened=opened) for id, opened in enumerate(opened, 1)]
    chosen = delist(groups, LastOfKind(enough_of_each_kind(groups)), need, files)
    assert len(chosen.delisted) == min(files, len(groups))


def test_a_group_larger_than_the_number_is_passed_over() -> None:
    pair = FileGroup((1, 2), ((1, "jpg"), (1, "txt")), 20)
    assert delist([single(3), pair, single(4)], LastOfKind({(1, "jpg"): 9, (1, "txt"): 9}), 0, 2).delisted == [3, 4]


def test_a_file_never_opened_is_requeued_once() -> None:
    groups = [single(1, opened=False), single(2)]
    assert delist(groups, LastOfKind(enough_of_each_kind(groups)), 10) == Delisting([2], [(1,)])
    again = [single(2, delisted=True), single(1, opened=False, requeued=True)]
    assert delist(again, LastOfKind(enough_of_each_kind(again)), 20) == Delisting([2, 1], [])


def test_the_queue_is_read_only_as_far_as_needed() -> None:
    read = []

    def queue() -> Iterator[FileGroup]:
        for id in range(1, 1000):
            read.append(id)
            yield single(id)

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
def test_bytes_that_a_generation_delists(
    name: str, limit: int, share: float, largest: int, lacking: int, free: int, expected: int
) -> None:
    turnover = TurnoverInput(limit, share, largest, lacking, free, 0, 0, BitMap64())
    assert needed_bytes(turnover, 0) == (expected, expected)
    assert needed_bytes(turnover._replace(rotates=False), 0) == (max(0, -free), max(0, -free))


@pytest.mark.promise(18)
def test_the_newest_files_are_not_listed_where_no_other_frees_space() -> None:
    kind = (1, "rec")
    newest = [(seq, [kind], 10) for seq in range(20, 10, -1)]
    assert last_listed(newest, LastOfKind({kind: 20}), 30, 20) == 17
    assert last_listed(newest, LastOfKind({kind: 20}), 1000, 20) == 15, "half of them are shown"
    assert last_listed(newest, LastOfKind({kind: 20}), -10, 20) == 20
    assert last_listed(newest, LastOfKind({kind: 2}), 1000, 20) == 19, "a directory is never empty"


def test_a_group_is_listed_later_as_a_whole() -> None:
    jpg, json = (1, "jpg"), (1, "json")
    newest = [(19, [json, jpg], 20), (17, [json, jpg], 20), (15, [json, jpg], 20)]
    assert last_listed(newest, LastOfKind({jpg: 9, json: 9}), 30, 20) == 18
    assert last_listed(newest, LastOfKind({jpg: 9, json: 1}), 30, 20) == 20, "the last of a kind"
