"""The order of a pass: the same for the same seed, however the files were listed, and wherever it is taken up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs.sampling import Candidate, draw_key, draw_order, extension

NAMES = st.sets(
    st.builds(
        "{}/{}.{}".format,
        st.sampled_from(["a", "b", "a/c"]),
        st.text("xyz01", min_size=1, max_size=4),
        st.sampled_from(["jpg", "txt"]),
    ),
    max_size=30,
)


def candidates(paths: list[str], resident: Set[str] = frozenset(), drawn: Set[str] = frozenset()) -> list[Candidate]:
    """Candidates with ids that follow the names, whatever their order here."""
    ids = {path: number for number, path in enumerate(sorted(paths), 1)}
    folders = {folder: number for number, folder in enumerate(sorted({path.rpartition("/")[0] for path in paths}), 1)}
    return [
        Candidate(
            ids[path], folders[path.rpartition("/")[0]], path, path in resident, path in resident or path in drawn
        )
        for path in paths
    ]


def order(
    paths: set[str],
    seed: int = 0,
    resident: Set[str] = frozenset(),
    drawn: Set[str] = frozenset(),
    shuffle: int = 0,
) -> tuple[list[str], list[str]]:
    """(seeds, rest) as paths."""
    listed = sorted(paths)
    random.Random(shuffle).shuffle(listed)
    names = dict(enumerate(sorted(paths), 1))
    seeds, rest = draw_order(candidates(listed, resident, drawn), seed, 1)
    return [names[id] for id in seeds], [names[id] for id in rest]


@given(NAMES, st.integers(0, 3), st.integers(0, 99))
def test_the_order_does_not_depend_on_that_of_the_listing(paths: set[str], seed: int, shuffle: int) -> None:
    assert order(paths, seed) == order(paths, seed, shuffle=shuffle)


@given(NAMES)
def test_every_file_comes_once(paths: set[str]) -> None:
    seeds, rest = order(paths)
    assert Counter(seeds + rest) == Counter(paths)


@given(NAMES)
def test_each_directory_has_one_seed_of_its_commonest_extension(paths: set[str]) -> None:
    seeds, _ = order(paths)
    assert Counter(path.rpartition("/")[0] for path in seeds) == Counter({p.rpartition("/")[0] for p in paths})
    for seed in seeds:
        kinds = Counter(extension(path) for path in paths if path.rpartition("/")[0] == seed.rpartition("/")[0])
        most = max(kinds.values())
        assert extension(seed) == min(kind for kind, count in kinds.items() if count == most)


@given(NAMES, st.data())
def test_a_pass_that_is_taken_up_again_keeps_its_order(paths: set[str], data: st.DataObject) -> None:
    whole = [path for part in order(paths) for path in part]
    done = set(whole[: data.draw(st.integers(0, len(whole)))])
    seeds, rest = order(paths, resident=done)
    assert seeds + rest == [path for path in whole if path not in done]


@given(NAMES, st.data())
def test_what_was_drawn_is_not_drawn_again_unless_a_directory_has_nothing_else(
    paths: set[str], data: st.DataObject
) -> None:
    drawn = data.draw(st.sets(st.sampled_from(sorted(paths)))) if paths else set()
    seeds, rest = order(paths, drawn=drawn)
    assert not set(rest) & drawn
    assert Counter(path.rpartition("/")[0] for path in seeds) == Counter({p.rpartition("/")[0] for p in paths})


@given(NAMES, st.text("xyz", min_size=5, max_size=5))
def test_a_new_file_moves_no_other(paths: set[str], name: str) -> None:
    _, before = order(paths | {"a/first.jpg"}, resident={"a/first.jpg"})
    _, after = order(paths | {"a/first.jpg", f"a/{name}.jpg"}, resident={"a/first.jpg"})
    assert [path for path in after if path != f"a/{name}.jpg"] == before


def test_another_seed_is_another_order() -> None:
    paths = {f"a/{number}.jpg" for number in range(50)}
    assert len({tuple(order(paths, seed)[1]) for seed in range(20)}) == 20


def test_another_pass_is_another_order() -> None:
    files = candidates([f"a/{number}.jpg" for number in range(50)])
    assert draw_order(files, 0, 1)[1] != draw_order(files, 0, 2)[1]


def test_the_key_is_the_same_for_ever() -> None:
    """It decides what every node of a job and every restart draws: another value is another order for a saved pass."""
    assert draw_key(0, 1, "class0/0000.jpg") == 0xACEAA3E5A052A3D9
    assert draw_key(7, 2, "ünïcode") == 0x9B9D6B08F51951E9


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a/b.jpg", "jpg"), ("a.d/b", ""), ("x.tar.gz", "gz"), (".hidden", ""), (".hidden.txt", "txt"), ("a.", "")],
)
def test_extension(path: str, expected: str) -> None:
    assert extension(path) == expected
