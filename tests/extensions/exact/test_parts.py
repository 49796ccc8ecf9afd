"""How --exact divides a pass: each file in one part, in parts that fit, whatever the order of the catalog."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growfs.errors import GrowfsError
from growfs.rotation.parts import CatalogFile, Division, ExactPass, divide
from growfs.rotation.pass_order import groups_of

BLOCK = 4096
PASS = ExactPass(seed=0, number=1, cache_bytes=100 * BLOCK, part_bytes=20 * BLOCK)


def catalog(sizes: Sequence[int], folders: int = 3, always: int = 0) -> list[CatalogFile]:
    """Files of so many blocks; the first ones are in each part."""
    return [
        CatalogFile(number, f"c{number % folders}/{number}.bin", blocks * BLOCK, blocks * BLOCK, number <= always)
        for number, blocks in enumerate(sizes, 1)
    ]


def parts_of(files: Sequence[CatalogFile], pass_: ExactPass) -> tuple[Division, list[tuple[list[int], list[int]]]]:
    """The division, and the (streamed, kept) ids of each part."""
    division, ids = divide(files, pass_)
    absolute = [*map(abs, ids)]
    return division, [(absolute[part.start : part.kept], absolute[part.kept : part.end]) for part in division.parts]


def paths(files: Sequence[CatalogFile], pass_: ExactPass) -> list[set[str]]:
    """The paths of each part."""
    by_id = {file.id: file.path for file in files}
    _, parts = parts_of(files, pass_)
    return [{by_id[id] for id in streamed + kept} for streamed, kept in parts]


@given(
    st.lists(st.integers(0, 12), max_size=200),
    st.integers(40, 400),
    st.integers(1, 60),
    st.integers(0, 3),
    st.integers(1, 3),
)
@settings(max_examples=200, deadline=None)
def test_each_file_is_in_one_part_and_the_parts_fit(
    sizes: list[int], cache: int, part: int, always: int, nodes: int
) -> None:
    files = catalog(sizes, always=always)
    size_of = {file.id: file.bytes for file in files}
    in_parts = list[int]()
    counts = set[int]()
    for node in range(nodes):
        pass_ = replace(PASS, cache_bytes=cache * BLOCK, part_bytes=part * BLOCK, share=(node, nodes))
        try:
            division, parts = parts_of(files, pass_)
        except GrowfsError:
            room = max(part * BLOCK, 2 * max(size_of.values()))
            assert room + sum(sizes[:always]) * BLOCK > 0.98 * cache * BLOCK
            return
        in_parts += [id for streamed, kept in parts for id in streamed + kept]
        counts.add(len(parts))
        streamed_bytes = [sum(size_of[id] for id in streamed) for streamed, _ in parts]
        kept_bytes = sum(size_of[id] for _, kept in parts for id in kept) + sum(sizes[:always]) * BLOCK
        assert division.part_bytes == max(streamed_bytes)
        assert division.kept_bytes == kept_bytes
        assert division.streamed_bytes == sum(streamed_bytes)
        assert kept_bytes + 2 * max(streamed_bytes) == division.needed_bytes <= cache * BLOCK
    assert sorted(in_parts) == [file.id for file in files if not file.is_always_listed]
    assert len(counts) == 1, "otherwise a node would wait for another at the end of its epoch"


def test_the_order_of_the_catalog_and_its_ids_do_not_matter() -> None:
    files = catalog([number % 7 for number in range(300)])
    shuffled = [file._replace(id=file.id + 1000) for file in files]
    random.Random(1).shuffle(shuffled)
    one, two = divide(files, PASS)[0], divide(shuffled, PASS)[0]
    assert one == two
    assert paths(files, PASS) == paths(shuffled, PASS)


def test_each_pass_has_another_order_and_keeps_the_same_files() -> None:
    files = catalog([1] * 300)
    kept, orders = [], []
    for number in (1, 2):
        _, parts = parts_of(files, replace(PASS, number=number))
        kept.append({id for _, ids in parts for id in ids})
        orders.append(paths(files, replace(PASS, number=number)))
    assert kept[0] == kept[1]
    assert len(kept[0]) == 100 - 1 - 20
    assert orders[0] != orders[1]
    assert paths(files, replace(PASS, seed=5)) != orders[0]


def test_each_part_has_its_share_of_streamed_and_kept_files_and_of_each_folder() -> None:
    _, parts = parts_of(catalog([1] * 400, folders=4), replace(PASS, number=2, cache_bytes=300 * BLOCK))
    assert len(parts) == -(-(400 - (300 - 3 - 20)) // 10), "a hundredth of the cache stays free"
    for counts in ([len(streamed) for streamed, _ in parts], [len(kept) for _, kept in parts]):
        assert max(counts) - min(counts) <= 1
    for folder in range(4):
        in_folder = [sum(id % 4 == folder for id in kept) for _, kept in parts]
        assert max(in_folder) - min(in_folder) <= 2


def test_everything_fits() -> None:
    """The first pass begins before everything is there."""
    division, parts = parts_of(catalog([1] * 100), replace(PASS, number=2))
    assert len(parts) == 1
    assert not division.streams
    assert division.kept_bytes == 100 * BLOCK
    assert [len(kept) for _, kept in parts_of(catalog([1] * 100), PASS)[1]] == [5] * 20
    assert [len(kept) for _, kept in parts_of(catalog([1] * 7), PASS)[1]] == [1] * 7


def test_no_part_is_empty() -> None:
    """Nodes have equally many parts, whatever their shares."""
    files = catalog([1] * 400)
    for node in range(4):
        pass_ = replace(PASS, number=2, cache_bytes=30 * BLOCK, part_bytes=2 * BLOCK, share=(node, 4))
        _, parts = parts_of(files, pass_)
        assert all(streamed or kept for streamed, kept in parts)


def test_a_group_stays_together_even_where_one_of_it_is_always_listed() -> None:
    files = [
        CatalogFile(number * 2 + half, f"{number}.{'ab'[half]}", BLOCK, BLOCK, is_always_listed=number == half == 1)
        for number in range(1, 200)
        for half in range(2)
    ]
    division, ids = divide(files, replace(PASS, group="{stem}"))
    assert {frozenset(group) for group in groups_of(ids)} == {
        frozenset({number * 2, number * 2 + 1}) for number in range(1, 200)
    }
    assert sorted(map(abs, ids[: division.always])) == [2, 3]
    for part in division.parts:
        assert ids[part.start] > 0


@pytest.mark.promise(47)
@pytest.mark.parametrize("group", [None, "{parent}"])
def test_folders_that_are_groups_are_samples(group: str | None) -> None:
    """The smallest file of each of 30 folders fits into half of the cache, but a whole folder of each does not."""
    division, _ = divide(catalog([1] * 240, folders=30), replace(PASS, group=group))
    assert division.lists_all_folders == (group is None)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_an_added_file_moves_few_kept_files(share: float) -> None:
    """Each that moves is fetched again."""
    pass_ = replace(PASS, cache_bytes=int(1000 * share) * BLOCK, part_bytes=20 * BLOCK)
    kept = []
    for files in (1000, 1010):
        _, parts = parts_of(catalog([1] * files), pass_)
        kept.append({id for _, ids in parts for id in ids})
    assert len(kept[0] - kept[1]) <= 10
