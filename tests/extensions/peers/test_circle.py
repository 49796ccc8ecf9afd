"""The circle that nodes walk: where each begins, whom it asks for a file, and for whom it waits."""

from __future__ import annotations

import pytest

from growfs.rotation.circle import Position, first_place
from growfs.rotation.pass_order import Pass, draw_key
from growfs.simulation.nodes import FILES, PATIENCE, SimulatedNode, cluster, walk


@pytest.mark.parametrize(("count", "share"), [(4, 0.3), (3, 0.5), (2, 1.0), (16, 0.1)])
def test_caches_that_reach_around_the_circle_read_the_remote_once(count: int, share: float) -> None:
    nodes = cluster(count, share)
    assert walk(nodes, 1) <= 1.05
    assert walk(nodes, 1) <= 0.05, "in the second pass all of it is in some cache"


@pytest.mark.parametrize(("count", "share"), [(4, 0.1), (8, 0.05)])
def test_smaller_caches_read_it_about_once_for_each_pass_of_all_nodes(count: int, share: float) -> None:
    nodes = cluster(count, share)
    walk(nodes, 1)
    assert 0.9 <= walk(nodes, 1) <= 1.3


def test_a_node_that_is_ahead_waits_for_the_next_one() -> None:
    nodes = cluster(4, 0.3)
    assert walk(nodes, 1, [2, 1, 2, 1]) <= 1.1
    assert any(node.waited for node in nodes)


def test_nodes_at_the_same_place_draw_apart_and_do_not_wait_for_each_other() -> None:
    nodes = [SimulatedNode(0.0, FILES * 2 // 3), SimulatedNode(0.02, FILES * 2 // 3)]
    walk(nodes, 1)
    assert walk(nodes, 1) <= 0.05


def test_the_first_of_a_row_of_small_caches_waits_for_nobody() -> None:
    nodes = cluster(4, 0.24)
    walk(nodes, 1)
    assert nodes[0].waited == 0


def test_no_node_waits_for_one_that_stands_still() -> None:
    fast, slow = cluster(2, 0.6)
    walk([fast, slow], 0.5)
    for _ in range(FILES):
        fast.step([slow])
    assert fast.drawn == FILES // 2 + FILES - PATIENCE * FILES


def test_a_node_that_joins_begins_close_behind_another() -> None:
    nodes = cluster(4, 0.3)
    walk(nodes, 0.7)
    late = SimulatedNode(first_place(2, 5, 0.3, [node.position for node in nodes]), round(0.3 * FILES))
    assert walk([*nodes, late], 1) <= 0.05
    assert late.fetched == 0


def test_a_node_that_leaves_costs_no_more_than_what_it_alone_had() -> None:
    nodes = cluster(5, 0.3)
    walk(nodes, 1)
    nodes.pop(2)
    assert walk(nodes, 1) <= 0.3 + 0.05


def test_nodes_that_begin_together_are_evenly_apart_or_within_reach_of_each_other() -> None:
    assert [first_place(rank, 4, 0.5, []) for rank in range(4)] == [0, 0.25, 0.5, 0.75]
    assert [first_place(rank, 4, 0.1, []) for rank in range(4)] == pytest.approx([0, 0.08, 0.16, 0.24])
    fresh = [Position(0.25, 0.3, 0.05), Position(0.5, 0.54, 0.03), Position(0.75, 0.76, 0.0)]
    assert first_place(0, 4, 0.5, fresh) == 0, "they have evicted nothing, though files arrive out of order"
    moved = [Position(0.25, 0.9, 0.5)]
    assert first_place(0, 2, 0.5, moved) == pytest.approx(0.5), "as far behind it as its cache is sure to reach"


def test_the_files_of_a_pass_are_in_the_order_of_the_circle_from_the_start_on() -> None:
    paths = [f"{number}.bin" for number in range(100)]
    first = Pass(seed=3, number=1)
    for number in (1, 7):
        walked = Pass(seed=3, number=number, start=0.5)
        in_order = sorted(paths, key=walked.key)
        places = [first.place(path) for path in in_order]
        assert sorted(places) == sorted(draw_key(3, 1, path) / 2**64 for path in paths)
        assert places == sorted(places, key=lambda place: (place - 0.5) % 1)
