"""What one process has listed, opened and holds, and what of it stays held when a process lists again."""

from __future__ import annotations

import pytest

from growfs.rotation.holds import EVERYWHERE, Holds
from growfs.rotation.reader import Reader
from growfs.rotation.rules import Generation

FIRST, SECOND, THIRD = Generation(1, 10, 0.0), Generation(2, 20, 0.0), Generation(3, 30, 0.0)


def new_reader() -> Reader:
    return Reader(4711, "99", "python")


@pytest.fixture
def reader() -> Reader:
    return new_reader()


def holds(reader: Reader, *directories: int) -> dict[int, Generation]:
    """What a reader holds of these directories and of everything."""
    return {id: hold for id in (EVERYWHERE, *directories) if (hold := reader.holds.get(id))}


def test_each_listed_directory_has_its_own_hold(reader: Reader) -> None:
    reader.lists(7, FIRST, 5.0)
    reader.lists(8, FIRST, 5.0)
    assert holds(reader, 7, 8) == {7: FIRST, 8: FIRST}
    reader.lists(7, SECOND, 6.0)
    assert holds(reader, 7, 8) == {7: SECOND, 8: FIRST}


def test_a_listing_of_everything_replaces_all_holds(reader: Reader) -> None:
    reader.lists(7, FIRST, 5.0)
    reader.lists(EVERYWHERE, SECOND, 6.0)
    assert holds(reader, 7, 8) == dict.fromkeys((EVERYWHERE, 7, 8), SECOND)
    reader.lists(8, THIRD, 7.0)
    assert holds(reader, 7, 8) == {EVERYWHERE: SECOND, 7: SECOND, 8: THIRD}


def test_an_open_without_a_listing_holds_everything_of_the_first_generation(reader: Reader) -> None:
    reader.opened(1, None, 4.0)
    assert not reader.holds
    reader.opened(1, FIRST, 5.0)
    reader.opened(2, SECOND, 6.0)
    assert holds(reader, 7, 8) == dict.fromkeys((EVERYWHERE, 7, 8), FIRST)


def test_an_open_after_a_listing_holds_nothing_more(reader: Reader) -> None:
    reader.lists(7, FIRST, 5.0)
    reader.release()
    reader.opened(1, SECOND, 6.0)
    assert not reader.holds
    assert reader.listed_at is not None, "release does not undo that it listed"


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


def test_merged_holds_cover_the_same_files() -> None:
    readers = [Reader(pid, "99", "python") for pid in range(6)]
    for number, reader in enumerate(readers):
        for directory in range(1, 8):
            if directory % (number + 1) == 0:
                reader.lists(directory, FIRST if directory < 5 else SECOND, 5.0)
    readers[3].lists(EVERYWHERE, FIRST, 6.0)
    readers[4].lists(EVERYWHERE, FIRST, 6.0)
    readers[4].lists(3, THIRD, 7.0)
    merged = Holds(reader.holds for reader in readers)
    merged.merge()
    for directory in range(10):
        for seq in (10, 20, 30):
            for delisted in (None, 2, 3):
                held = any(Holds([reader.holds]).cover(directory, seq, delisted) for reader in readers)
                assert merged.cover(directory, seq, delisted) is held


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


def test_release_ends_all_holds(reader: Reader) -> None:
    reader.lists(7, FIRST, 0.0)
    reader.release()
    assert not reader.holds
    reader.lists(7, FIRST, 1.0)
    assert holds(reader, 7, 8) == {7: FIRST}


# Holds that last.


def lasting(reader: Reader, lists_now: bool = False) -> dict[int, Generation]:
    """The holds of directories 1 and 2, and of everything, that a process does not end when it lists again."""
    holds = reader.lasting_holds(reader if lists_now else new_reader())
    return {directory: hold for directory in (EVERYWHERE, 1, 2) if (hold := holds.get(directory))}


def test_a_reader_may_keep_its_holds_when_another_one_lists(reader: Reader) -> None:
    for generation in (FIRST, SECOND):
        reader.lists(1, generation, 0.0)
        reader.lists(2, generation, 0.0)
        assert lasting(reader) == {1: generation, 2: generation}
        assert lasting(reader, lists_now=True) == {}, "it is about to list again"


def test_a_reader_that_never_listed_is_expected_never_to_list(reader: Reader) -> None:
    reader.opened(7, FIRST, 0.0)
    assert lasting(reader) == dict.fromkeys((EVERYWHERE, 1, 2), FIRST)


def test_the_ranks_of_the_job_that_lists_are_about_to_list_again(reader: Reader) -> None:
    rank, newcomer = new_reader(), new_reader()
    rank.job = newcomer.job = reader.job
    for one in (reader, rank):
        one.lists(1, FIRST, 0.0)
    assert not rank.lasting_holds(reader)
    reader.lists(1, SECOND, 0.0)
    assert rank.lasting_holds(reader), "it has stayed behind"


def test_a_directory_that_is_not_listed_again_stays_held(reader: Reader) -> None:
    """Validation, listed once, by a process that lists its training data again and again."""
    for directory in (1, 2):
        reader.lists(directory, FIRST, 0.0)
    assert lasting(reader, lists_now=True) == {}
    reader.lists(2, SECOND, 1.0)
    assert lasting(reader, lists_now=True) == {1: FIRST}
    reader.lists(1, SECOND, 1.0)
    assert lasting(reader, lists_now=True) == {}


def test_a_directory_that_is_listed_again_is_no_longer_held_by_what_came_before(reader: Reader) -> None:
    """A process opened a file, or read index.csv, before it listed directories in each epoch."""
    opened, indexed = new_reader(), new_reader()
    opened.opened(7, FIRST, 0.0)
    indexed.lists(EVERYWHERE, FIRST, 0.0)
    for reader in (opened, indexed):
        for generation in (FIRST, SECOND):
            reader.lists(1, generation, 1.0)
        lasting = Holds([reader.lasting_holds(reader)])
        assert not lasting.cover(1, 5, None), "it lists this one in each epoch"
        assert lasting.cover(2, 5, None)
