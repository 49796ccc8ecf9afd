"""Which generation a listing shows: that of its job, the newest one, or one that begins with it."""

from __future__ import annotations

import itertools

import pytest

from growfs.rotation.holds import Holds
from growfs.rotation.jobs import RANKS_APART_S, Job
from growfs.rotation.reader import Reader, holds_of
from growfs.rotation.rules import Generation

SETTLE_S = 60.0
FILES = 100


class Mount:
    """Begins a generation when a listing needs one, at any time."""

    def __init__(self) -> None:
        self.newest = Generation(1, 10, 0.0, FILES)
        self.now = 0.0
        self.readers = list[Reader]()
        self._pids = itertools.count(1)

    def reader(self, job: Job | None = None) -> Reader:
        """A process that starts now."""
        self.readers.append(Reader(next(self._pids), "0", "python", job=job or Job()))
        return self.readers[-1]

    def lists(self, reader: Reader, directory: int = 1) -> int:
        """A reader lists a directory; returns the number of the generation that it shows."""
        view = reader.next_view(directory, self.newest, self.now, SETTLE_S, self.readers)
        if view is None:
            view = self.newest = Generation(self.newest.number + 1, 10, self.now, FILES)
        reader.lists(directory, view, self.now, SETTLE_S)
        reader.is_shown(directory, FILES)
        reader.is_shown_all(directory)
        return view.number

    def opens(self, reader: Reader, files: int, first: int = 0) -> None:
        """A reader opens and closes so many files."""
        for id in range(first, first + files):
            reader.opened(id, self.newest, self.now)
            reader.closed(self.now)


@pytest.fixture
def mount() -> Mount:
    return Mount()


@pytest.mark.promise(6)
def test_each_epoch_shows_something_new(mount: Mount) -> None:
    reader = mount.reader()
    for epoch in range(1, 5):
        assert mount.lists(reader) == epoch
        mount.opens(reader, FILES)


@pytest.mark.promise(6)
def test_all_directories_of_a_walk_are_of_one_generation(mount: Mount) -> None:
    reader, other = mount.reader(), mount.reader()
    for directory in range(10):
        assert mount.lists(reader, directory) == 1
        mount.now += 50.0
        mount.lists(other)
        mount.opens(reader, 10)
    assert mount.newest.number > 1


@pytest.mark.promise(5, 6)
def test_a_directory_that_nobody_holds_any_more_is_shown_as_it_is_now(mount: Mount) -> None:
    """Some of what the view showed of it may be gone."""
    reader, other = mount.reader(), mount.reader()
    for one in (reader, other):
        mount.lists(one, 1)
    for _ in range(5):
        mount.now += 100.0
        mount.opens(other, FILES)
        mount.lists(other, 1)
    assert mount.lists(reader, 2) == mount.newest.number > 3


@pytest.mark.promise(17)
def test_what_is_listed_of_an_older_view_is_held(mount: Mount) -> None:
    """Although the process opened a file first, as of a newer one."""
    job = Job()
    first, late, other = mount.reader(job), mount.reader(job), mount.reader()
    shown = mount.lists(first)
    for _ in range(3):
        mount.now += 100.0
        mount.opens(other, FILES)
        mount.lists(other)
    mount.opens(late, 1)
    assert mount.lists(late) == shown < mount.newest.number
    mount.now += 100.0
    assert Holds(holds_of([late], mount.now)).cover(1, 5, mount.newest.number)


@pytest.mark.promise(6)
def test_ranks_that_list_a_folder_each_have_an_epoch_of_all_of_them(mount: Mount) -> None:
    job = Job()
    ranks = [mount.reader(job) for _ in range(8)]
    for directory, rank in enumerate(ranks):
        mount.lists(rank, directory)
        mount.opens(rank, 10, first=100 * directory)
    assert {mount.lists(rank, directory) for directory, rank in enumerate(ranks)} == {1}


@pytest.mark.promise(6)
def test_two_listings_without_an_epoch_in_between_show_the_same(mount: Mount) -> None:
    """Keras lists for its training and its validation set, and a notebook looks at a batch before the second one."""
    keras, other = mount.reader(), mount.reader()
    mount.lists(other)
    for looks in (0, 3, 3):  # at the same batch: the order is seeded
        first = mount.lists(keras)
        mount.opens(keras, looks)
        mount.opens(other, FILES)
        mount.lists(other)
        mount.now += 5.0
        assert mount.lists(keras) == first
    assert mount.newest.number > first


@pytest.mark.promise(6)
def test_few_opens_are_an_epoch_in_time(mount: Mount) -> None:
    reader = mount.reader()
    shown = []
    for _ in range(20):
        shown.append(mount.lists(reader))
        mount.opens(reader, 10)
        mount.now += 30.0
    assert shown[-1] >= 3
    mount.now += 61.0
    assert mount.lists(reader) == shown[-1] + 1


@pytest.mark.promise(6)
def test_a_script_that_polls_sees_growth(mount: Mount) -> None:
    script = mount.reader()
    shown = []
    for _ in range(13):
        shown.append(mount.lists(script))
        mount.now += 10.0
    assert shown == [1] * 7 + [2] * 6


@pytest.mark.promise(6)
@pytest.mark.parametrize("opens", [(49, 50), (50, 49), (13, 12)])
def test_the_ranks_of_a_job_move_on_together(mount: Mount, opens: tuple[int, int]) -> None:
    job = Job()
    ranks = [mount.reader(job) for _ in opens]
    other = mount.reader()
    for _ in range(5):
        assert len({mount.lists(rank) for rank in ranks}) == 1
        for place, (rank, files) in enumerate(zip(ranks, opens, strict=True)):
            mount.opens(rank, files, first=50 * place)
            mount.now += 20.0
        mount.opens(other, FILES)
        mount.lists(other)
    assert mount.newest.number >= 5


@pytest.mark.promise(6)
def test_workers_that_read_a_directory_twice_see_one_list(mount: Mount) -> None:
    """As pathlib's rglob does. The first one has opened files before the second one reads it again."""
    job = Job()
    fast, slow = mount.reader(job), mount.reader(job)
    for epoch in range(1, 5):
        assert [mount.lists(fast), mount.lists(slow), mount.lists(fast)] == [epoch] * 3
        mount.opens(fast, 50)
        assert mount.lists(slow) == epoch
        mount.opens(slow, 50, first=50)


@pytest.mark.promise(6)
def test_a_rank_is_shown_what_its_job_sees_however_late_it_comes(mount: Mount) -> None:
    job = Job()
    first, late, stranger = mount.reader(job), mount.reader(job), mount.reader()
    shown = mount.lists(first)
    mount.opens(first, FILES)
    mount.now += 20 * SETTLE_S
    assert mount.lists(stranger) == shown + 1
    assert mount.lists(late) == shown
    mount.now += RANKS_APART_S
    assert mount.lists(mount.reader(job)) == shown + 1, "nobody waits for so long"


@pytest.mark.promise(6)
def test_processes_that_read_and_ended_have_had_their_epoch(mount: Mount) -> None:
    """A new process for each epoch, or data loader workers that list, of a trainer that has listed as well."""
    for epoch in range(1, 5):
        process = mount.reader()
        assert mount.lists(process) == epoch
        mount.opens(process, FILES)
        process.ended()
    job = Job()
    trainer = mount.reader(job)
    before = mount.lists(trainer) - 1
    for epoch in range(1, 5):
        workers = [mount.reader(job) for _ in range(4)]
        assert {mount.lists(worker) for worker in workers} == {before + epoch}
        for place, worker in enumerate(workers):
            mount.opens(worker, 25, first=25 * place)
        for worker in workers:
            worker.ended()


@pytest.mark.promise(6)
def test_jobs_that_start_one_after_another_keep_nobody_from_the_next_epoch(mount: Mount) -> None:
    trainer = mount.reader()
    for epoch in range(1, 20):
        assert mount.lists(trainer) == epoch
        mount.opens(trainer, FILES)
        for _ in range(3):
            mount.now += 1.0
            mount.lists(mount.reader())  # which has not opened anything yet


def test_what_was_listed_before_the_mount_was_ready_is_not_shown_again(mount: Mount) -> None:
    reader = mount.reader()
    assert mount.lists(reader) == 1
    mount.newest.is_over = True
    assert mount.lists(reader) == 2


@pytest.mark.promise(47)
def test_nobody_that_begins_to_read_gets_a_part_that_a_job_has_left(mount: Mount) -> None:
    """Some of its files may be gone. What has listed before and opened nothing, such as a monitor, sees the rest."""
    job = Job()
    first, late, stranger, monitor = mount.reader(job), mount.reader(job), mount.reader(), mount.reader()
    trainer = mount.reader()
    for reader in (monitor, trainer):
        mount.lists(reader)
    mount.opens(trainer, FILES)
    part = mount.newest = Generation(2, 10, 0.0, FILES)
    mount.lists(first)
    mount.opens(first, FILES)
    first.release()
    mount.now += 2 * SETTLE_S
    part.is_left = True
    for reader in (late, stranger, trainer):
        assert reader.next_view(1, part, mount.now, SETTLE_S, mount.readers, by_time=False) is None
    assert monitor.next_view(1, part, mount.now, SETTLE_S, mount.readers, by_time=False) is part
    assert late.asked_view(part) is None
    assert stranger.asked_view(part) is None
    assert first.asked_view(part) is None
    following = mount.newest = Generation(3, 10, 0.0, FILES)
    assert [reader.asked_view(following) for reader in (first, late, stranger)] == [following] * 3
