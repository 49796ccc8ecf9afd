"""Which readers are in the middle of a walk, and which may never list again."""

from __future__ import annotations

from growfs.rotation.holds import Reader
from growfs.rotation.rules import EVERYWHERE, Generation, Hold, Holds, begins_epoch, begins_generation

SETTLE_S = 60.0
FIRST, SECOND, THIRD = (Generation(number, 100 * number, 0.0) for number in (1, 2, 3))


def new_reader() -> Reader:
    return Reader(4711, "0", "python")


def lasting(reader: Reader, lists_now: bool = False) -> dict[int, Hold]:
    """The holds of directories 1 and 2, and of everything, that it may never renew."""
    holds = reader.lasting_holds(lists_now)
    return {directory: hold for directory in (EVERYWHERE, 1, 2) if (hold := holds.get(directory))}


def begins(reader: Reader, directory: int, generation: Generation, now: float) -> bool:
    listing = reader.about_to_list(directory, generation, now)
    return begins_epoch(listing, now - generation.began_at, SETTLE_S) and begins_generation(listing, SETTLE_S)


def test_a_reader_that_listed_once_may_keep_its_holds_for_ever() -> None:
    reader = new_reader()
    reader.lists(1, FIRST, 0.0)
    reader.lists(2, FIRST, 0.0)
    assert reader.listed_once
    assert lasting(reader) == {1: Hold(1, 100), 2: Hold(1, 100)}
    assert lasting(reader, lists_now=True) == {}, "it is about to list again"


def test_a_reader_that_never_listed_is_expected_never_to_list() -> None:
    reader = new_reader()
    reader.opened(7, FIRST, 0.0)
    assert lasting(reader) == {EVERYWHERE: Hold(1, 100)}


def test_a_directory_that_is_not_listed_again_stays_held() -> None:
    """Validation, listed once, by a process that lists its training data again and again."""
    reader = new_reader()
    for directory in (1, 2):
        reader.lists(directory, FIRST, 0.0)
    assert lasting(reader, lists_now=True) == {}
    reader.lists(2, SECOND, 1.0)
    assert lasting(reader) == lasting(reader, lists_now=True) == {1: Hold(1, 100)}
    reader.lists(1, SECOND, 1.0)
    assert lasting(reader) == {}


def test_a_directory_that_is_listed_again_is_no_longer_held_by_what_came_before() -> None:
    """A process opened a file, or read index.csv, before it listed directories in each epoch."""
    opened, indexed = new_reader(), new_reader()
    opened.opened(7, FIRST, 0.0)
    indexed.lists(EVERYWHERE, FIRST, 0.0)
    for reader in (opened, indexed):
        for generation in (FIRST, SECOND):
            reader.lists(1, generation, 1.0)
        for lists_now in (False, True):
            lasting = Holds([reader.lasting_holds(lists_now)])
            assert not lasting.cover(1, 50, None), "it lists this one in each epoch"
            assert lasting.cover(2, 50, None)


def test_ranks_that_list_again_join_the_epoch_of_the_first_of_them() -> None:
    """Whatever they have opened: else they would train on different files."""
    slow, fast = new_reader(), new_reader()
    for reader, opens in ((slow, 49), (fast, 50)):
        reader.lists(1, FIRST, 0.0)
        reader.is_shown(1, 100)
        for id in range(opens):
            reader.opened(id, FIRST, 1.0)
    assert not begins(slow, 1, FIRST, 2.0)
    again = FIRST.for_another_epoch(2.0)
    slow.lists(1, again, 2.0)
    assert not begins(fast, 1, again, 3.0)
    fast.lists(1, again, 3.0)
    slow.opened(50, again, 4.0)
    assert begins(slow, 1, again, 5.0)


def test_a_walk_over_directories_is_one_listing() -> None:
    """If its first directory joins a generation, the next ones join it too: a walk never spans two generations."""
    reader = new_reader()
    for directory in (1, 2):
        reader.lists(directory, FIRST, 0.0)
    reader.opened(7, FIRST, 1.0)
    assert begins(reader, 1, FIRST, 100.0)
    reader.lists(1, FIRST, 100.0)
    assert not begins(reader, 2, FIRST, 100.0)


def test_the_settle_time_of_a_reader_that_opens_nothing_is_its_own() -> None:
    reader = new_reader()
    reader.lists(1, FIRST, 50.0)
    assert not begins(reader, 1, FIRST, 70.0)
    reader.lists(1, FIRST, 70.0)
    assert begins(reader, 1, FIRST, 111.0)


def test_a_reader_is_listing_until_it_opens_a_file_or_settles() -> None:
    reader = new_reader()
    assert not reader.is_listing(FIRST, 0.0, SETTLE_S)
    reader.lists(1, FIRST, 0.0)
    assert reader.is_listing(FIRST, 60.0, SETTLE_S)
    assert not reader.is_listing(FIRST, 61.0, SETTLE_S), "no reader waits for it for ever"
    assert not reader.is_listing(SECOND, 1.0, SETTLE_S)
    reader.opened(7, FIRST, 1.0)
    assert not reader.is_listing(FIRST, 1.0, SETTLE_S)


def test_no_generation_begins_while_others_are_listing() -> None:
    reader = new_reader()
    reader.lists(1, FIRST, 0.0)
    reader.opened(7, FIRST, 1.0)
    listing = reader.about_to_list(1, FIRST, 100.0)
    assert begins_epoch(listing, 100.0, SETTLE_S)
    assert not begins_epoch(listing, 100.0, SETTLE_S, others_listing=True)


def test_a_reader_is_silent_some_time_after_its_last_close_and_release_ends_holds() -> None:
    reader = new_reader()
    reader.lists(1, THIRD, 0.0)
    reader.opened(7, THIRD, 1.0)
    assert not reader.is_silent(1e6, 3600.0), "a file is open"
    reader.closed(2.0)
    assert not reader.is_silent(3602.0, 3600.0)
    assert reader.is_silent(3603.0, 3600.0)
    reader.release()
    assert not reader.holds
