"""What the parts that come next lack, which parts are in use, and when they make room: with a clock of its own."""

from __future__ import annotations

from array import array

import pytest

from growfs.bitmaps import BitMap64
from growfs.extensions.exact.division import Due
from growfs.extensions.exact.part_states import FORGET_S, PartsInUse, PartsToCome
from growfs.rotation.parts import Part, PassPosition
from growfs.rotation.pass_order import Amount
from growfs.rotation.rules import Contents, Generation

SETTLE_S, QUIET_S = 60.0, 0.02
FIRST, SECOND, THIRD = (PassPosition(1, part) for part in (1, 2, 3))


def part(position: PassPosition, *files: int) -> Part:
    """The generation that is a part with these files."""
    return Part(position.part, 1, files=1, contents=Contents({}, 1), position=position, to_read=BitMap64(files))


class Mount:
    """Parts in use, and what is open."""

    def __init__(self) -> None:
        self.now = 0.0
        self.parts = PartsInUse()
        self.open_files = set[int]()
        self.open_folders = set[Generation]()

    def opens(self, *ids: int) -> None:
        """Open files and close them."""
        for id in ids:
            self.parts.note_opened(id, self.now)

    def end(self, after_s: float, is_waited: bool = False) -> list[PassPosition]:
        """The parts that make room after some time."""
        self.now += after_s
        silence_s = SETTLE_S if is_waited else None
        return self.parts.end(self.now, QUIET_S, silence_s, self.open_files, self.open_folders.__contains__)


@pytest.fixture
def mount() -> Mount:
    """A mount that uses one part, with the files 1 and 2."""
    mount = Mount()
    mount.parts.open(part(FIRST, 1, 2), mount.now)
    return mount


pytestmark = pytest.mark.promise(47)


def test_a_part_makes_room_once_each_file_was_opened_and_none_is_open(mount: Mount) -> None:
    generation = mount.parts.find(FIRST)
    mount.opens(1, 7)
    assert mount.end(2 * SETTLE_S) == []
    mount.open_files = {2}
    mount.opens(2)
    assert mount.end(2 * SETTLE_S) == []
    mount.open_files = set()
    assert mount.end(QUIET_S / 2) == []
    assert mount.end(QUIET_S) == [FIRST]
    assert generation
    assert generation.reading.is_over
    assert mount.parts.find(FIRST) is None


def test_a_part_that_was_read_stays_while_a_folder_of_it_is_open(mount: Mount) -> None:
    generation = mount.parts.find(FIRST)
    assert generation
    mount.open_folders = {generation}
    mount.opens(1, 2)
    assert mount.end(2 * SETTLE_S, is_waited=True) == []
    mount.open_folders = set()
    assert mount.end(2 * QUIET_S) == [FIRST]


@pytest.mark.parametrize("opened", [(), (1,)])
def test_a_part_that_was_not_read_makes_room_after_a_silence_if_a_process_waits(
    mount: Mount, opened: tuple[int, ...]
) -> None:
    mount.opens(*opened)
    assert mount.end(SETTLE_S / 2, is_waited=True) == []
    mount.opens(*opened)
    assert mount.end(2 * SETTLE_S) == [], "nobody needs its room"
    assert mount.end(0, is_waited=True) == [FIRST]


def test_a_rank_that_is_behind_the_others_reads_only_its_share(mount: Mount) -> None:
    """The other files were opened before. A part that was read is read again from the start."""
    for shares in ((1,), (2,), (1, 2)):
        mount.parts.open(part(FIRST, 1, 2), mount.now)
        mount.opens(*shares[:1])
        is_read = shares != (1,)
        if len(shares) > 1:
            assert mount.end(2 * QUIET_S) == []
            mount.opens(*shares[1:])
        assert mount.end(2 * QUIET_S) == ([FIRST] if is_read else [])
        assert is_read or mount.end(2 * SETTLE_S, is_waited=True) == [FIRST]


def test_one_part_at_a_time_makes_room_unread(mount: Mount) -> None:
    mount.parts.open(part(SECOND, 3), mount.now)
    assert mount.end(2 * SETTLE_S, is_waited=True) == [FIRST]
    assert mount.end(0, is_waited=True) == [SECOND]


def test_opening_its_folders_again_does_not_prolong_the_use_of_a_part(mount: Mount) -> None:
    """A monitor may walk all folders, again and again."""
    mount.now += SETTLE_S
    generation = mount.parts.find(FIRST)
    assert generation
    mount.parts.open(generation, mount.now)
    assert mount.end(1, is_waited=True) == [FIRST]


def test_files_that_the_remote_has_deleted_or_replaced_are_not_waited_for(mount: Mount) -> None:
    mount.opens(1)
    mount.parts.note_gone(2)
    assert mount.end(2 * QUIET_S) == [FIRST]


def test_a_part_all_of_whose_files_stay_takes_no_room_and_is_forgotten(mount: Mount) -> None:
    mount.parts.open(part(THIRD), mount.now)
    assert mount.parts.without_room == {THIRD}
    assert mount.end(FORGET_S / 2) == []
    assert mount.end(FORGET_S) == [THIRD]


def due(**files: int) -> Due:
    """A look-up that finds two coming parts: the first lacks the files a and b, as far as given, the second c.

    The file d is of a later part.
    """
    ids = {name: "abcd".index(name) + 1 for name in files}
    of_parts = [{ids[name]: files[name] for name in names if name in files} for names in ("ab", "c")]
    none, lacking = array("q"), BitMap64(ids.values())
    return Due(none, array("q", lacking), lacking, sum(files.values()), of_parts, none, none)


A, B, C, D = 1, 2, 3, 4


@pytest.fixture
def to_come() -> PartsToCome:
    """Two parts, of which each lacks something."""
    parts = PartsToCome()
    parts.look_up()
    parts.found((FIRST, SECOND), due(a=10, b=20, c=30, d=40))
    return parts


def test_a_part_lacks_nothing_once_its_files_have_arrived_or_cannot_be_fetched(to_come: PartsToCome) -> None:
    assert to_come.note_arrived(A, 10)
    assert to_come.lacking == {FIRST: {B: 20}, SECOND: {C: 30}}
    to_come.note_failed(B)
    assert to_come.lacking[FIRST] == {}
    assert to_come.missing == Amount(3, 90), "what has failed is tried again"
    assert not to_come.note_arrived(7, 70), "a file that was opened by name"


def test_a_file_that_failed_is_waited_for_after_the_next_look_up(to_come: PartsToCome) -> None:
    """So is one that was evicted after it had arrived."""
    to_come.note_failed(A)
    to_come.note_arrived(B, 20)
    assert list(to_come.failed) == [A]
    to_come.look_up()
    to_come.found((FIRST, SECOND), due(a=10, b=20))
    assert (list(to_come.failed), to_come.lacking) == ([], {FIRST: {A: 10, B: 20}, SECOND: {}})


def test_what_arrives_during_a_look_up_is_not_missing_after_it(to_come: PartsToCome) -> None:
    to_come.look_up()
    to_come.note_arrived(A, 10)
    to_come.note_arrived(D, 40)
    to_come.found((FIRST, SECOND), due(a=10, b=20, d=40))
    assert to_come.lacking == {FIRST: {B: 20}, SECOND: {}}
    assert to_come.missing == Amount(1, 20)
    assert not to_come.note_arrived(A, 10)
    to_come.lose(SECOND, BitMap64([C]))
    assert to_come.lacking[SECOND].keys() == {C}, "a complete part that loses a file is not complete"
    to_come.note_arrived(C, 30)
    assert to_come.lacking[SECOND] == {}


def test_a_part_that_begins_or_whose_pass_is_divided_anew_is_unknown(to_come: PartsToCome) -> None:
    to_come.begin(FIRST)
    assert (list(to_come.lacking), to_come.missing) == ([SECOND], None)
    to_come.note_arrived(C, 30)
    assert (to_come.lacking, to_come.missing) == ({SECOND: {}}, None), "how much the next one lacks was not looked up"
    to_come.forget(SECOND.pass_ + 1)
    assert SECOND in to_come.lacking
    to_come.forget(SECOND.pass_)
    assert to_come.lacking == {}


def test_each_change_wakes_those_that_wait(to_come: PartsToCome) -> None:
    counts = [to_come.changed.count]
    for change in (
        lambda: to_come.note_arrived(A, 10),
        lambda: to_come.note_failed(B),
        lambda: to_come.begin(FIRST),
        lambda: to_come.found((FIRST, SECOND), due()),
    ):
        change()
        counts.append(to_come.changed.count)
    assert counts == sorted({*counts})
