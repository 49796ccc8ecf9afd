"""What one process has listed, opened and holds, and what of it stays held when a process lists again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from growfs.bitmaps import BitMap64
from growfs.rotation.parts import Part, PassPosition
from growfs.rotation.reader import Reader
from growfs.rotation.rules import EVERYWHERE, Generation, Reading

FILES = {1: [1, 2, 11], 2: [3, 4], 7: [5, 6, 12, 21], 8: [7, 13]}
"""The admissions of the files of each directory."""


def generation(number: int, *listed: int) -> Generation:
    return Generation(number, max(listed), listed=BitMap64(listed), reading=Reading(float(number)))


FIRST = generation(1, *range(1, 10))
SECOND = generation(2, *range(3, 20))
THIRD = generation(3, *range(5, 30))


def new_reader() -> Reader:
    return Reader(4711, "99", "python")


def lists(reader: Reader, directory: int, generation: Generation, now: float = 5.0) -> None:
    """A reader lists a directory to its end."""
    reader.lists(directory, generation, now)
    if directory != EVERYWHERE:
        reader.is_shown(FILES[directory], generation)


@pytest.fixture
def reader() -> Reader:
    return new_reader()


def held(reader: Reader, *directories: int) -> list[int]:
    """What a reader holds of some directories."""
    return [seq for directory in directories for seq in FILES[directory] if seq in reader.held]


def test_what_each_directory_showed_last_is_held(reader: Reader) -> None:
    lists(reader, 7, FIRST)
    lists(reader, 8, FIRST)
    assert held(reader, 7, 8) == [5, 6, 7]
    lists(reader, 7, SECOND)
    assert held(reader, 7, 8) == [5, 6, 12, 7]
    lists(reader, 1, SECOND)
    assert held(reader, 1) == [11]


def test_a_listing_that_shows_a_directory_in_pages_holds_what_it_has_shown(reader: Reader) -> None:
    lists(reader, 7, FIRST)
    reader.lists(7, SECOND, 6.0)
    reader.is_shown(FILES[7][:1], SECOND)
    assert held(reader, 7) == [5, 6], "the rest was shown by the last one"
    reader.is_shown(FILES[7][1:], SECOND)
    assert held(reader, 7) == [5, 6, 12]


def test_a_listing_of_everything_replaces_all_holds(reader: Reader) -> None:
    lists(reader, 1, FIRST)
    lists(reader, EVERYWHERE, SECOND)
    assert reader.held == SECOND.listed
    lists(reader, 7, THIRD)
    assert held(reader, 1, 2, 7, 8) == [11, 3, 4, 5, 6, 12, 21, 7, 13]


def test_a_directory_that_is_not_listed_any_more_is_not_held(reader: Reader) -> None:
    """If it comes and goes, the process cannot list it again."""
    for directory in (7, 8):
        lists(reader, directory, FIRST)
    second = generation(2, *range(1, 20))
    second = replace(second, hidden_below={7: BitMap64(FILES[8])})
    lists(reader, 1, second)
    assert held(reader, 7, 8) == [5, 6, 7]
    lists(reader, 7, second)
    assert held(reader, 7, 8) == [5, 6, 12]


@pytest.mark.promise(47)
def test_a_process_that_lists_the_next_part_holds_nothing_else(reader: Reader) -> None:
    lists(reader, 1, FIRST)
    lists(reader, 8, FIRST)
    position = PassPosition(1, 2)
    lists(reader, 7, Part(2, 20, listed=BitMap64([5, 7]), position=position, to_read=BitMap64()))
    assert list(reader.held) == [5, 7]


def test_an_open_without_a_listing_holds_everything_of_the_first_generation(reader: Reader) -> None:
    reader.opened(1, None, 4.0)
    assert not reader.held
    reader.opened(1, FIRST, 5.0)
    reader.opened(2, SECOND, 6.0)
    assert reader.held == FIRST.listed
    lists(reader, 7, FIRST)
    reader.held.clear()
    assert FIRST.listed, "its holds are its own"


def test_an_open_after_a_listing_holds_nothing_more(reader: Reader) -> None:
    lists(reader, 7, FIRST)
    reader.release()
    reader.opened(1, SECOND, 6.0)
    assert not reader.held
    assert reader.listed_at is not None, "release does not undo that it listed"
    lists(reader, 7, FIRST)
    assert held(reader, 7) == [5, 6]


def test_files_shown_are_those_of_the_last_listings(reader: Reader) -> None:
    job = reader.job
    for _ in range(2):  # the same listings again
        for directory, files in ((7, 515), (8, 5)):
            reader.lists(directory, FIRST, 5.0)
            job.is_shown(directory, FIRST, files)
        assert job.files_shown == 520
    reader.lists(EVERYWHERE, FIRST, 5.0)
    job.is_shown(EVERYWHERE, FIRST, 600)
    reader.lists(9, FIRST, 5.0)
    job.is_shown(9, FIRST, 1)
    assert job.files_shown == 600
    reader.lists(7, SECOND, 6.0)
    job.is_shown(8, FIRST, 5)  # by a listing that began in an earlier generation
    assert job.files_shown == 0


def test_a_reader_whose_job_opened_each_shown_file_opened_all(reader: Reader) -> None:
    other = Reader(4712, "99", "python", job=reader.job)
    for one in (reader, other):
        one.lists(7, FIRST, 5.0)
    reader.job.is_shown(7, FIRST, 2)
    for id in (1, 1, 1):
        reader.opened(id, FIRST, 6.0)
    assert (reader.opens, len(reader.files), reader.opened_all) == (3, 1, False)
    other.opened(2, FIRST, 6.0)
    assert (len(reader.files), reader.opened_all, other.opened_all) == (1, True, True)
    reader.lists(7, SECOND, 7.0)
    reader.job.is_shown(7, SECOND, 1)
    reader.opened(1, SECOND, 8.0)
    assert (len(reader.files), reader.opened_all, other.opened_all) == (1, True, False)


def test_the_unread_share_is_that_of_the_generation_before(reader: Reader) -> None:
    reader.lists(7, FIRST, 5.0)
    reader.job.is_shown(7, FIRST, 4)
    reader.opened(1, FIRST, 6.0)
    assert reader.job.unread == 0
    reader.lists(7, SECOND, 7.0)
    assert reader.job.unread == 0.75
    reader.job.is_shown(7, SECOND, 1)
    for id in (1, 2, 3):  # it may open files that no listing showed
        reader.opened(id, SECOND, 8.0)
    reader.lists(7, THIRD, 9.0)
    assert reader.job.unread == 0


def test_silence_begins_with_the_last_close(reader: Reader) -> None:
    reader.lists(7, FIRST, 0.0)
    assert not reader.is_silent(100.0, 100.0, 10.0)
    assert reader.is_silent(100.1, 100.0, 10.0)
    reader.opened(1, FIRST, 200.0)
    reader.opened(2, FIRST, 200.0)
    reader.closed(300.0)
    assert not reader.is_silent(1e9, 100.0, 10.0)
    reader.closed(400.0)
    assert not reader.is_silent(500.0, 100.0, 10.0)
    assert reader.is_silent(500.1, 100.0, 10.0)


# Holds that last.


def lasting(reader: Reader, lists_now: bool = False) -> list[int]:
    """What it still holds of directories 1 and 2 once a process has listed again."""
    holds = reader.lasting_holds(reader if lists_now else new_reader())
    return [seq for directory in (1, 2) for seq in FILES[directory] if seq in holds]


def test_a_reader_may_keep_its_holds_when_another_one_lists(reader: Reader) -> None:
    for generation, shown in ((FIRST, [1, 2, 3, 4]), (SECOND, [11, 3, 4])):
        lists(reader, 1, generation)
        lists(reader, 2, generation)
        assert lasting(reader) == shown
        assert lasting(reader, lists_now=True) == [], "it is about to list again"
    never_listed = new_reader()
    never_listed.opened(7, FIRST, 0.0)
    assert lasting(never_listed) == [1, 2, 3, 4]


def test_the_ranks_of_the_job_that_lists_are_about_to_list_again(reader: Reader) -> None:
    rank, newcomer = new_reader(), new_reader()
    rank.job = newcomer.job = reader.job
    for one in (reader, rank):
        lists(one, 1, FIRST)
    assert not rank.lasting_holds(reader)
    lists(reader, 1, SECOND)
    assert rank.lasting_holds(reader), "it has stayed behind"


def test_a_directory_that_is_not_listed_again_stays_held(reader: Reader) -> None:
    """Validation, listed once, by a process that lists its training data again and again."""
    for directory in (1, 2):
        lists(reader, directory, FIRST)
    assert lasting(reader, lists_now=True) == []
    lists(reader, 2, SECOND)
    assert lasting(reader, lists_now=True) == [1, 2]
    lists(reader, 1, SECOND)
    assert lasting(reader, lists_now=True) == []


def test_a_directory_that_is_listed_again_is_no_longer_held_by_what_came_before(reader: Reader) -> None:
    """A process opened a file, or read index.csv, before it listed directories in each epoch."""
    opened, indexed = new_reader(), new_reader()
    opened.opened(7, FIRST, 0.0)
    lists(indexed, EVERYWHERE, FIRST)
    for reader in (opened, indexed):
        for generation in (FIRST, SECOND):
            lists(reader, 1, generation)
        assert lasting(reader, lists_now=True) == [3, 4], "it lists the other one in each epoch"
