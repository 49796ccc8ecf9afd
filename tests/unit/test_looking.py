"""Who is in the middle of its listings, and who may never list again."""

from __future__ import annotations

from growfs.rotation.reader import Reader
from growfs.rotation.rules import EVERYWHERE, Generation, Hold, begins_generation

SETTLE_S = 60.0
FIRST, SECOND, THIRD = (Generation(number, 100 * number, 0.0) for number in (1, 2, 3))


def reader() -> Reader:
    return Reader(4711, "0", "python")


def begins(one: Reader, directory: int, generation: Generation, now: float) -> bool:
    return begins_generation(one.about_to_list(directory, generation, now), now - generation.began_at, SETTLE_S)


def test_one_that_listed_once_may_never_renew_what_it_holds() -> None:
    one = reader()
    one.lists(1, FIRST, 0.0)
    one.lists(2, FIRST, 0.0)
    assert one.listed_once
    assert one.unrenewed_holds() == {1: Hold(1, 100), 2: Hold(1, 100)}
    assert one.unrenewed_holds(lists_now=True) == {}, "it is about to list again"


def test_one_that_never_listed_will_not_begin_to() -> None:
    one = reader()
    one.opened(7, FIRST, 0.0)
    assert one.unrenewed_holds() == {EVERYWHERE: Hold(1, 100)}


def test_a_directory_that_it_passes_by_is_held_for_good() -> None:
    """Validation, listed once, by a process that lists its training data again and again."""
    one = reader()
    for directory in (1, 2):
        one.lists(directory, FIRST, 0.0)
    assert one.unrenewed_holds(lists_now=True) == {}
    one.lists(2, SECOND, 1.0)
    assert one.unrenewed_holds() == one.unrenewed_holds(lists_now=True) == {1: Hold(1, 100)}
    one.lists(1, SECOND, 1.0)
    assert one.unrenewed_holds() == {}


def test_a_walk_over_directories_is_one_listing() -> None:
    """Where its first directory joins, because others look, the next ones do, too: else the walk would be of two."""
    one = reader()
    for directory in (1, 2):
        one.lists(directory, FIRST, 0.0)
    one.opened(7, FIRST, 1.0)
    assert begins(one, 1, FIRST, 100.0)
    one.lists(1, FIRST, 100.0)
    assert not begins(one, 2, FIRST, 100.0)


def test_one_that_only_looks_sees_growth_by_its_own_time() -> None:
    one = reader()
    one.lists(1, FIRST, 50.0)
    assert not begins(one, 1, FIRST, 70.0)
    one.lists(1, FIRST, 70.0)
    assert begins(one, 1, FIRST, 111.0)


def test_who_is_in_the_middle_of_its_listings() -> None:
    one = reader()
    assert not one.is_listing(FIRST, 0.0, SETTLE_S)
    one.lists(1, FIRST, 0.0)
    assert one.is_listing(FIRST, 60.0, SETTLE_S)
    assert not one.is_listing(FIRST, 61.0, SETTLE_S), "nobody waits for ever"
    assert not one.is_listing(SECOND, 1.0, SETTLE_S)
    one.opened(7, FIRST, 1.0)
    assert not one.is_listing(FIRST, 1.0, SETTLE_S)


def test_nothing_begins_while_others_look() -> None:
    one = reader()
    one.lists(1, FIRST, 0.0)
    one.opened(7, FIRST, 1.0)
    known = one.about_to_list(1, FIRST, 100.0)
    assert begins_generation(known, 100.0, SETTLE_S)
    assert not begins_generation(known, 100.0, SETTLE_S, others_listing=True)


def test_silence_and_release() -> None:
    one = reader()
    one.lists(1, THIRD, 0.0)
    one.opened(7, THIRD, 1.0)
    assert not one.is_silent(1e6, 3600.0), "a file is open"
    one.closed(2.0)
    assert not one.is_silent(3602.0, 3600.0)
    assert one.is_silent(3603.0, 3600.0)
    one.release()
    assert one.holds == {}
