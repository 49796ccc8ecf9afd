"""The order of a pass: the same for the same seed, however the files were listed, and wherever it is resumed."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence, Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs.remote.groups import group_of
from growfs.remote.names import extension
from growfs.rotation.pass_order import Candidate, Order, Pass, draw_key, draw_order, groups_of

NAMES = st.sets(
    st.builds(
        "{}/{}.{}".format,
        st.sampled_from(["a", "b", "a/c"]),
        st.text("xyz01", min_size=1, max_size=4),
        st.sampled_from(["jpg", "txt"]),
    ),
    max_size=30,
)


SIZE = 10


def candidates(
    paths: list[str],
    resident: Set[str] = frozenset(),
    drawn: Set[str] = frozenset(),
    frozen: Set[str] = frozenset(),
) -> list[Candidate]:
    """Candidates in the order of `paths`; their ids follow the sorted names."""
    ids = {path: number for number, path in enumerate(sorted(paths), 1)}
    folders = {folder: number for number, folder in enumerate(sorted({path.rpartition("/")[0] for path in paths}), 1)}
    return [
        Candidate(
            id=ids[path],
            directory=folders[path.rpartition("/")[0]],
            path=path,
            size=SIZE,
            resident=path in resident,
            drawn=path in resident or path in drawn,
            frozen=path in frozen,
        )
        for path in paths
    ]


def whole_order(
    paths: Set[str],
    pass_: Pass,
    resident: Set[str] = frozenset(),
    drawn: Set[str] = frozenset(),
    frozen: Set[str] = frozenset(),
    shuffle: int = 0,
) -> Order:
    """The order of a pass over files that are listed in an order given by `shuffle`."""
    listed = sorted(paths)
    random.Random(shuffle).shuffle(listed)
    return draw_order(candidates(listed, resident, drawn, frozen), pass_)


def paths_of(paths: Set[str], ids: Sequence[int]) -> list[str]:
    """The paths of an order's ids."""
    names = dict(enumerate(sorted(paths), 1))
    return [names[abs(id)] for id in ids]


def order(
    paths: Set[str],
    seed: int = 0,
    resident: Set[str] = frozenset(),
    drawn: Set[str] = frozenset(),
    shuffle: int = 0,
) -> tuple[list[str], list[str]]:
    """(seeds, rest) as paths."""
    drawing = whole_order(paths, Pass(seed, 1), resident, drawn, shuffle=shuffle)
    assert not len(drawing.frozen)
    return paths_of(paths, drawing.seeds), paths_of(paths, drawing.rest)


@pytest.mark.promise(14)
@given(NAMES, st.integers(0, 3), st.integers(0, 99))
def test_the_order_does_not_depend_on_that_of_the_listing(paths: set[str], seed: int, shuffle: int) -> None:
    assert order(paths, seed) == order(paths, seed, shuffle=shuffle)


@pytest.mark.promise(7)
@given(NAMES)
def test_each_directory_has_one_seed_of_its_commonest_extension(paths: set[str]) -> None:
    seeds, _ = order(paths)
    assert Counter(path.rpartition("/")[0] for path in seeds) == Counter({p.rpartition("/")[0] for p in paths})
    for seed in seeds:
        kinds = Counter(extension(path) for path in paths if path.rpartition("/")[0] == seed.rpartition("/")[0])
        most = max(kinds.values())
        assert extension(seed) == min(kind for kind, count in kinds.items() if count == most)


@pytest.mark.promise(14)
@given(NAMES, st.data())
def test_a_resumed_pass_keeps_its_order(paths: set[str], data: st.DataObject) -> None:
    whole = [path for part in order(paths) for path in part]
    fetched = set(whole[: data.draw(st.integers(0, len(whole)))])
    seeds, rest = order(paths, resident=fetched)
    assert seeds + rest == [path for path in whole if path not in fetched]


@given(NAMES, st.data())
def test_a_drawn_file_is_drawn_again_only_where_its_directory_has_no_other(
    paths: set[str], data: st.DataObject
) -> None:
    drawn = data.draw(st.sets(st.sampled_from(sorted(paths)))) if paths else set()
    seeds, rest = order(paths, drawn=drawn)
    assert not set(rest) & drawn
    assert Counter(path.rpartition("/")[0] for path in seeds) == Counter({p.rpartition("/")[0] for p in paths})


@given(NAMES, st.text("xyz", min_size=5, max_size=5))
def test_a_new_file_does_not_change_the_order_of_others(paths: set[str], name: str) -> None:
    _, before = order(paths | {"a/first.jpg"}, resident={"a/first.jpg"})
    _, after = order(paths | {"a/first.jpg", f"a/{name}.jpg"}, resident={"a/first.jpg"})
    assert [path for path in after if path != f"a/{name}.jpg"] == before


def test_another_seed_or_pass_gives_another_order() -> None:
    paths = {f"a/{number}.jpg" for number in range(50)}
    passes = [*(Pass(seed, 1) for seed in range(20)), Pass(0, 2)]
    assert len({tuple(whole_order(paths, pass_).rest) for pass_ in passes}) == 21


@pytest.mark.promise(14)
def test_the_draw_key_never_changes() -> None:
    """Every node of a job and every restart draw by this key: another value would change the order of a saved pass."""
    assert draw_key(0, 1, "class0/0000.jpg") == 0xACEAA3E5A052A3D9
    assert draw_key(7, 2, "ünïcode") == 0x9B9D6B08F51951E9


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a/b.jpg", "jpg"), ("a.d/b", ""), ("x.tar.gz", "gz"), (".hidden", ""), (".hidden.txt", "txt"), ("a.", "")],
)
def test_extension(path: str, expected: str) -> None:
    assert extension(path) == expected


# Frozen files.


def flat(*parts: Sequence[int]) -> list[int]:
    return [id for part in parts for id in part]


@given(NAMES, st.data())
def test_frozen_files_come_first_and_once(paths: set[str], data: st.DataObject) -> None:
    frozen = data.draw(st.sets(st.sampled_from(sorted(paths)))) if paths else set()
    cached = data.draw(st.sets(st.sampled_from(sorted(paths)))) if paths else set()
    drawing = whole_order(paths, Pass(0, 1), resident=cached, frozen=frozen)
    assert set(paths_of(paths, drawing.frozen)) == frozen - cached
    assert Counter(paths_of(paths, flat(drawing.frozen, drawing.seeds, drawing.rest))) == Counter(paths - cached)


def test_an_evicted_file_that_is_frozen_later_is_drawn_again() -> None:
    """A later mount freezes it, and this pass has drawn and evicted it already."""
    paths = {"a/1.bin", "a/2.bin"}
    drawing = whole_order(paths, Pass(0, 1), resident={"a/2.bin"}, frozen={"a/1.bin"}, drawn=paths)
    assert paths_of(paths, drawing.frozen) == ["a/1.bin"]


def test_each_glob_that_freezes_nothing_is_known() -> None:
    pass_ = Pass(0, 1, freeze=("a/*", "!a/2.bin", "b/*", "*.txt"))
    assert whole_order({"a/1.bin", "a/2.bin"}, pass_, frozen={"a/1.bin"}).unmatched == ("b/*", "*.txt")


# Shares: each node of a job draws its own.

NODES = 8
MANY = {f"c{number % 40}/{number:05}.jpg" for number in range(4000)}


def shares(paths: Set[str], nodes: int, frozen: Set[str] = frozenset(), group: str | None = None) -> list[Order]:
    """The order of each node."""
    return [whole_order(paths, Pass(0, 1, (node, nodes), group), frozen=frozen) for node in range(nodes)]


@pytest.mark.promise(26)
@given(NAMES, st.integers(1, 5), st.data())
def test_shares_are_disjoint_and_cover_everything(paths: set[str], nodes: int, data: st.DataObject) -> None:
    """Except for seeds and frozen files, which every node draws."""
    frozen = data.draw(st.sets(st.sampled_from(sorted(paths)))) if paths else set()
    orders = shares(paths, nodes, frozen)
    assert {frozenset(paths_of(paths, order.seeds)) for order in orders} == {
        frozenset(paths_of(paths, orders[0].seeds))
    }
    assert all(set(paths_of(paths, order.frozen)) == frozen for order in orders)
    everywhere = {*paths_of(paths, orders[0].seeds), *frozen}
    rest = Counter(path for order in orders for path in paths_of(paths, order.rest))
    assert not rest.keys() & everywhere
    assert rest == Counter(paths - everywhere)


@given(NAMES, st.integers(1, 5), st.data())
def test_files_and_bytes_of_a_share_count_all_that_it_ever_draws(
    paths: set[str], nodes: int, data: st.DataObject
) -> None:
    drawn = data.draw(st.sets(st.sampled_from(sorted(paths)))) if paths else set()
    for node in range(nodes):
        fresh = whole_order(paths, Pass(0, 1, (node, nodes)))
        assert fresh.share.files == len(flat(fresh.seeds, fresh.rest))
        assert fresh.share.bytes == SIZE * fresh.share.files
        later = whole_order(paths, Pass(0, 1, (node, nodes)), drawn=drawn)
        assert later.share == fresh.share
        assert whole_order(paths, Pass(0, 1, (node, nodes), size_max=SIZE - 1)).share.bytes == 0


@pytest.mark.promise(26)
def test_shares_are_of_about_equal_size() -> None:
    counts = [len(order.rest) for order in shares(MANY, NODES)]
    files = sum(counts)
    sigma = math.sqrt(files / NODES * (1 - 1 / NODES))
    assert files == len(MANY) - 40
    assert all(abs(count - files / NODES) < 5 * sigma for count in counts)


@pytest.mark.promise(26)
def test_a_growing_catalog_moves_no_file_to_another_node() -> None:
    """Nor does another pass."""

    def share(paths: Set[str], node: int, seed: int = 0, number: int = 1) -> set[str]:
        return {path for path in paths if Pass(seed, number, (node, NODES)).has(path)}

    few = set(sorted(MANY)[:1000])
    for node in range(NODES):
        assert share(MANY, node) & few == share(few, node) == share(few, node, number=2)
    assert share(MANY, 0) != share(MANY, 0, seed=1)


# Groups: files that are drawn together.

PAIRS = st.sets(
    st.builds(
        "{}/{}.{}".format,
        st.sampled_from(["a", "b"]),
        st.text("xy01", min_size=1, max_size=3),
        st.sampled_from(["jpg", "json", "txt"]),
    ),
    max_size=30,
)
TEMPLATES = st.sampled_from(["{stem}", "{name}", "{parent}"])


def draws(paths: Set[str], drawing: Order) -> list[set[str]]:
    """The groups that are drawn, in order."""
    return [
        set(paths_of(paths, members))
        for part in (drawing.frozen, drawing.seeds, drawing.rest)
        for members in groups_of(part)
    ]


@pytest.mark.promise(24)
@given(PAIRS, TEMPLATES, st.integers(1, 3), st.data())
def test_a_group_is_drawn_as_a_whole_and_once_until_all_of_it_is_drawn(
    paths: set[str], template: str, number: int, data: st.DataObject
) -> None:
    frozen = data.draw(st.sets(st.sampled_from(sorted(paths)), max_size=2)) if paths else set()
    drawn = data.draw(st.sets(st.sampled_from(sorted(paths)))) if paths else set()
    groups = defaultdict[str, set[str]](set)
    for path in paths:
        groups[group_of(template, path)].add(path)
    found = draws(paths, whole_order(paths, Pass(0, number, None, template), drawn=drawn, frozen=frozen))
    keys = [group_of(template, min(members)) for members in found]
    assert found == [groups[key] for key in keys]
    assert len(keys) == len(set(keys))
    assert {group_of(template, path) for path in paths - drawn} <= set(keys)
    frozen_groups = {group_of(template, path) for path in frozen}
    assert set(keys[: len(frozen_groups)]) == frozen_groups


@given(PAIRS, st.integers(1, 4), TEMPLATES, st.data())
def test_a_group_belongs_to_one_share_and_counts_as_a_whole(
    paths: set[str], nodes: int, group: str, data: st.DataObject
) -> None:
    frozen = data.draw(st.sets(st.sampled_from(sorted(paths)), max_size=2)) if paths else set()
    orders = shares(paths, nodes, frozen, group)
    for drawing in orders:
        assert drawing.share.files == sum(map(len, draws(paths, drawing)))
    assert {path for drawing in orders for members in draws(paths, drawing) for path in members} == paths


def test_groups_of() -> None:
    assert list(groups_of([])) == []
    assert list(groups_of([5, 6, -7, -8, 9])) == [[5], [6, 7, 8], [9]]


@pytest.mark.parametrize(
    ("template", "path", "expected"),
    [
        (None, "a/x.jpg", "a/x.jpg"),
        ("{stem}", "a/x.jpg", "a/x"),
        ("{stem}", "x.jpg", "x"),
        ("{stem}", "a.d/x", "a.d/x"),
        ("{stem}", "a/x.tar.gz", "a/x.tar"),
        ("{stem}", "a/.hidden", "a/.hidden"),
        ("{name}", "a/b/x.jpg", "x"),
        ("{parent}", "a/b/x.jpg", "a/b"),
        ("{parent}", "x.jpg", ""),
        ("{parent}-{name}", "a/x.jpg", "a-x"),
    ],
)
def test_group_of(template: str | None, path: str, expected: str) -> None:
    assert group_of(template, path) == expected
