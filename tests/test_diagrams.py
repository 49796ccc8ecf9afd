"""What docs/how-it-decides.md says of its picture is true of the simulation that it is drawn from."""

from __future__ import annotations

import pytest

from tools.diagrams import (
    CACHED,
    LISTED,
    NEW,
    REMOTE,
    SECOND_ENDS,
    SECOND_LISTS,
    days_of_nodes,
    passes_of_nodes,
    rotation,
)


def test_one_program_sees_every_file_and_never_more_than_the_cache_holds() -> None:
    rows = rotation(second=False)
    assert all(NEW in states for states in rows)
    cached = [sum(state != REMOTE for state in epoch) for epoch in zip(*rows, strict=True)]
    assert max(cached) == cached[3] == CACHED  # full in epoch 4


def test_nothing_that_a_second_program_saw_is_deleted_while_it_runs() -> None:
    rows = rotation(second=True)
    saw = [states for states in rows if states[SECOND_LISTS - 1] in (NEW, LISTED)]
    assert saw
    assert all(REMOTE not in states[SECOND_LISTS - 1 : SECOND_ENDS] for states in saw)
    assert any(NEW in states[SECOND_LISTS:SECOND_ENDS] for states in rows)  # the first one goes on rotating


def test_nodes_read_the_bucket_as_the_page_of_many_nodes_says() -> None:
    assert [passes_of_nodes(8, share)[0] for share in (0.05, 0.2, 1.2)] == [1, 1, 0]
    assert [round(passes_of_nodes(8, 0.2, replaced)[0], 1) for replaced in (1, 3)] == [1, 1]
    assert 2 < passes_of_nodes(8, 1.0, 1)[0] < 3 < passes_of_nodes(8, 1.1, 3)[0] < 4
    assert days_of_nodes(1000, with_peers=True) == pytest.approx(93, abs=0.5)
    assert days_of_nodes(1000, with_peers=False) == pytest.approx(2315, abs=1)


def test_nodes_show_all_files_equally_long_as_the_page_of_many_nodes_says() -> None:
    assert max(passes_of_nodes(8, share)[1] for share in (0.05, 0.2, 1.2)) < 0.06
    assert 0.1 < passes_of_nodes(8, 0.2, 1)[1] < 0.3
    assert max(passes_of_nodes(8, 1.0, replaced)[1] for replaced in (1, 3)) < 0.5
