"""What one process listed, opened and holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs.rotation.reader import Marks, Reader
from growfs.rotation.rules import EVERYWHERE, Generation, Hold, ListingContext

FIRST, SECOND, THIRD = Generation(1, 10, 0.0), Generation(2, 20, 0.0), Generation(3, 30, 0.0)


@pytest.fixture
def reader() -> Reader:
    return Reader(4711, "99", "python")


def about(reader: Reader, directory: int, generation: Generation | None) -> ListingContext:
    """What decides, but for how long it has looked, which is for test_looking."""
    return replace(reader.about_to_list(directory, generation, 0.0), listing_s=0.0)


@given(st.lists(st.integers(0, 100_000)))
def test_marks_are_a_set(numbers: list[int]) -> None:
    marks = Marks()
    for number in numbers:
        marks.add(number)
    assert len(marks) == len(set(numbers))
    marks.clear()
    assert len(marks) == 0
    marks.add(5)
    assert len(marks) == 1


def test_who_never_listed(reader: Reader) -> None:
    assert about(reader, 7, None) == ListingContext(False, False, False)
    assert about(reader, 7, FIRST) == ListingContext(False, False, False)
    assert not reader.listed_once
    assert not reader.opened_all
    assert reader.files_shown == 0


def test_who_opened_before_it_ever_listed(reader: Reader) -> None:
    reader.opened(1, FIRST, 5.0)
    assert about(reader, 7, FIRST) == ListingContext(False, False, True)


def test_who_lists_again(reader: Reader) -> None:
    reader.lists(7, FIRST, 5.0)
    assert about(reader, 7, FIRST) == ListingContext(True, True, False)
    assert about(reader, 8, FIRST) == ListingContext(True, False, False)
    reader.opened(1, FIRST, 6.0)
    assert about(reader, 7, FIRST) == ListingContext(True, True, True)
    assert about(reader, 7, SECOND) == ListingContext(True, False, True)


def test_who_opens_the_same_file_again_used_it(reader: Reader) -> None:
    reader.opened(1, FIRST, 4.0)
    reader.lists(7, FIRST, 5.0)
    reader.opened(1, FIRST, 6.0)
    assert about(reader, 7, FIRST).opened_since


def test_a_listing_is_held_by_its_directory(reader: Reader) -> None:
    reader.lists(7, FIRST, 5.0)
    reader.lists(8, FIRST, 5.0)
    assert reader.holds == {7: Hold(1, 10), 8: Hold(1, 10)}
    reader.lists(7, SECOND, 6.0)
    assert reader.holds == {7: Hold(2, 20), 8: Hold(1, 10)}


def test_a_listing_of_everything_lets_go_of_all_that_was_held(reader: Reader) -> None:
    reader.lists(7, FIRST, 5.0)
    reader.lists(EVERYWHERE, SECOND, 6.0)
    assert reader.holds == {EVERYWHERE: Hold(2, 20)}
    reader.lists(8, THIRD, 7.0)
    assert reader.holds == {EVERYWHERE: Hold(2, 20), 8: Hold(3, 30)}


def test_an_open_without_a_listing_holds_everything_of_the_first(reader: Reader) -> None:
    reader.opened(1, None, 4.0)
    assert reader.holds == {}
    reader.opened(1, FIRST, 5.0)
    reader.opened(2, SECOND, 6.0)
    assert reader.holds == {EVERYWHERE: Hold(1, 10)}


def test_an_open_after_a_listing_holds_nothing_more(reader: Reader) -> None:
    reader.lists(7, FIRST, 5.0)
    reader.release()
    reader.opened(1, SECOND, 6.0)
    assert reader.holds == {}
    assert about(reader, 7, FIRST) == ListingContext(True, True, True)  # it has listed all the same


def test_files_shown_are_those_of_the_last_listings(reader: Reader) -> None:
    reader.lists(7, FIRST, 5.0)
    reader.is_shown(7, 512)
    reader.is_shown(7, 3)
    reader.lists(8, FIRST, 5.0)
    reader.is_shown(8, 5)
    assert reader.files_shown == 520
    reader.lists(7, FIRST, 5.0)  # the same once more
    reader.is_shown(7, 515)
    assert reader.files_shown == 520
    reader.lists(EVERYWHERE, FIRST, 5.0)
    reader.is_shown(EVERYWHERE, 600)
    assert reader.files_shown == 600
    reader.lists(7, SECOND, 6.0)
    assert reader.files_shown == 0


def test_who_listed_in_one_generation_listed_once(reader: Reader) -> None:
    reader.lists(7, FIRST, 5.0)
    reader.lists(7, FIRST, 6.0)
    reader.lists(8, FIRST, 7.0)
    assert (reader.listed_once, reader.generation, reader.listed_at) == (True, 1, 7.0)
    reader.lists(7, SECOND, 8.0)
    assert (reader.listed_once, reader.generation, reader.listed_at) == (False, 2, 8.0)


def test_who_opened_each_file_opened_all(reader: Reader) -> None:
    reader.lists(7, FIRST, 5.0)
    reader.is_shown(7, 2)
    for id in (1, 1, 1):
        reader.opened(id, FIRST, 6.0)
    assert (reader.opens, len(reader.files), reader.opened_all) == (3, 1, False)
    reader.opened(2, FIRST, 6.0)
    assert (len(reader.files), reader.opened_all) == (2, True)
    reader.lists(7, SECOND, 7.0)
    assert (len(reader.files), reader.opened_all) == (0, False)


def test_what_it_left_unread_of_the_generation_before(reader: Reader) -> None:
    reader.lists(7, FIRST, 5.0)
    reader.is_shown(7, 4)
    reader.opened(1, FIRST, 6.0)
    assert reader.unread == 0
    reader.lists(7, SECOND, 7.0)
    assert reader.unread == 0.75
    reader.is_shown(7, 1)
    for id in (1, 2, 3):  # it may open what nobody showed it
        reader.opened(id, SECOND, 8.0)
    reader.lists(7, THIRD, 9.0)
    assert reader.unread == 0


def test_opens_that_waited(reader: Reader) -> None:
    reader.opened(1, FIRST, 5.0, waited=True)
    reader.opened(2, FIRST, 5.0)
    assert (reader.opens, reader.waited) == (2, 1)


def test_silence_begins_with_the_last_close(reader: Reader) -> None:
    reader.lists(7, FIRST, 0.0)
    assert not reader.is_silent(100.0, 100.0)
    assert reader.is_silent(100.1, 100.0)
    reader.opened(1, FIRST, 200.0)
    reader.opened(2, FIRST, 200.0)
    reader.closed(300.0)
    assert not reader.is_silent(1e9, 100.0)
    reader.closed(400.0)
    assert not reader.is_silent(500.0, 100.0)
    assert reader.is_silent(500.1, 100.0)


def test_release_ends_what_is_held(reader: Reader) -> None:
    reader.lists(7, FIRST, 0.0)
    reader.release()
    assert reader.holds == {}
    reader.lists(7, FIRST, 1.0)
    assert reader.holds == {7: Hold(1, 10)}
