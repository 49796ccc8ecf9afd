"""Which generation a listing shows: that of its job, the newest one, or one that begins with it."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from growfs.rotation.jobs import Job
from growfs.rotation.reader import Reader, held_by
from growfs.rotation.rules import Generation, Reading

SETTLE_S = 60.0
FILES = 100


class Mount:
    """Begins a generation when a listing needs one, at any time."""

    def __init__(self, files: int = FILES) -> None:
        self.files = files
        self.newest = Generation(1, 10, files)
        self.now = 0.0
        self.settle_s = SETTLE_S
        self.readers = list[Reader]()
        self._pids = itertools.count(1)

    def reader(self, job: Job | None = None) -> Reader:
        """A process that starts now."""
        self.readers.append(Reader(next(self._pids), "0", "python", job=job or Job()))
        return self.readers[-1]

    def worker(self, above: Reader) -> Reader:
        """A process that another one forks now."""
        reader = self.reader(above.job)
        reader.above = above
        return reader

    def lists(self, reader: Reader, directory: int = 1) -> int:
        """A reader lists a directory; returns the number of the generation that it shows."""
        view = reader.next_view(directory, self.newest, self.now, self.settle_s, self.readers)
        if view is None:
            view = self.newest = Generation(self.newest.number + 1, 10, self.files, reading=Reading(self.now))
        reader.lists(directory, view, self.now, SETTLE_S)
        view.listed.add(directory)  # for a file in it
        reader.is_shown([directory], view)
        reader.job.is_shown(directory, view, self.files)
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
def test_all_directories_of_a_walk_are_of_one_generation(mount: Mount) -> None:
    reader, other = mount.reader(), mount.reader()
    for directory in range(10):
        assert mount.lists(reader, directory) == 1
        mount.now += 50.0
        mount.lists(other)
        mount.opens(reader, 10)
    assert mount.newest.number > 1


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
    assert 1 in held_by([late], mount.now)


@pytest.mark.promise(6)
def test_ranks_that_list_a_folder_each_have_an_epoch_of_all_of_them(mount: Mount) -> None:
    job = Job()
    ranks = [mount.reader(job) for _ in range(8)]
    for directory, rank in enumerate(ranks):
        mount.lists(rank, directory)
        mount.opens(rank, 10, first=100 * directory)
    assert {mount.lists(rank, directory) for directory, rank in enumerate(ranks)} == {1}


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
@pytest.mark.parametrize("lists", ["each", "once"])
@pytest.mark.parametrize("stay", [True, False])
def test_workers_see_what_the_program_sees_that_started_them(mount: Mount, lists: str, stay: bool) -> None:
    """They list at each sample, and are new in each epoch, or stay. The program sees something new in each epoch in
    which it lists."""
    program = mount.reader()
    workers = list[Reader]()
    for epoch in range(1, 6):
        if lists == "each" or epoch == 1:
            shown = mount.lists(program)
            assert shown == epoch
        workers = workers or [mount.worker(program) for _ in range(4)]
        for id in range(FILES):
            assert mount.lists(workers[id % 4]) == shown
            mount.opens(workers[id % 4], 1, first=id)
            mount.now += 1.0
        if not stay:
            for worker in workers:
                worker.ended()
            workers = []


@pytest.mark.promise(6)
def test_workers_that_list_once_an_epoch_end_it(mount: Mount) -> None:
    """As ranks do that a program started after it had listed."""
    program = mount.reader()
    mount.lists(program)
    ranks = [mount.worker(program) for _ in range(4)]
    for epoch in range(1, 5):
        order = ranks[epoch % 4 :] + ranks[: epoch % 4]
        assert [mount.lists(rank) for rank in order] == [epoch] * 4
        for place, rank in enumerate(ranks):
            mount.opens(rank, 25, first=25 * place)


@pytest.mark.promise(6)
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("directories", "files", "sample"), [(1, FILES, 1), (5, FILES, 1), (1, 2, 1), (1, 4, 2), (1, 30, 2)]
)
@pytest.mark.parametrize("by_time", [True, False])
def test_a_program_may_list_at_each_sample(
    before: bool, directories: int, files: int, sample: int, by_time: bool
) -> None:
    """Its view ends with its epoch, although it lists again and again, for longer than --settle.

    files: in each directory. sample: how many files it opens for each, such as an image and its mask.
    """
    mount = Mount(files)
    mount.settle_s = SETTLE_S if by_time else math.inf
    program = mount.reader()
    for epoch in range(1, 5):
        for directory in range(directories):
            assert mount.lists(program, 1 + directory) == epoch
        samples = [(1 + id % directories, id) for id in range(0, directories * files, sample)]
        for directory, id in random.Random(epoch).sample(samples, len(samples)):
            if before:
                assert mount.lists(program, directory) == epoch
            mount.opens(program, sample, first=id)
            mount.now += 5.0
            if not before and len(program.job.opened) < directories * files:
                assert mount.lists(program, directory) == epoch


@pytest.mark.promise(6)
@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_rank_that_opened_nothing_sees_what_its_job_sees(mount: Mount, first: int) -> None:
    """Whether it is the first to list again, or not."""
    job = Job()
    ranks = [mount.reader(job) for _ in range(3)]
    for epoch in range(1, 5):
        assert [mount.lists(ranks[(first + place) % 3]) for place in range(3)] == [epoch] * 3
        for place in range(2):
            mount.opens(ranks[place], FILES // 2, first=FILES // 2 * place)


@pytest.mark.promise(6)
def test_the_ranks_of_a_job_stay_together_if_the_first_one_sees_the_same_again(mount: Mount) -> None:
    """Before --settle has passed since they listed, and after it."""
    job = Job()
    ranks = [mount.reader(job) for _ in range(3)]
    for rank in ranks:
        mount.lists(rank)
    mount.opens(ranks[0], 30)
    mount.now += SETTLE_S - 1
    assert mount.lists(ranks[0]) == 1
    mount.opens(ranks[0], 30)
    mount.opens(ranks[1], 30)
    mount.now += 2
    assert mount.lists(ranks[1]) == 1
    assert mount.lists(ranks[2]) == 1


@pytest.mark.promise(6, 17)
def test_rank_0_lists_for_its_job(mount: Mount) -> None:
    """What the others open counts for the job, and they hold nothing of their own."""
    job = Job()
    rank, other = mount.reader(job), mount.reader(job)
    for epoch in range(1, 5):
        assert mount.lists(rank) == epoch
        mount.opens(rank, 20)
        mount.opens(other, 80, first=20)
    assert not other.held


@pytest.mark.promise(47)
@pytest.mark.parametrize("opens", [0, 10])
def test_who_opens_nothing_of_a_part_sees_the_newest_one_and_begins_none(mount: Mount, opens: int) -> None:
    """Frozen files are in every part, so an open of one is not an open of a part."""
    mount.settle_s = math.inf
    trainer, monitor = mount.reader(), mount.reader()
    for part in range(1, 5):
        assert mount.lists(trainer) == part
        for _ in range(3):
            assert mount.lists(monitor) == part
            for id in range(opens):
                monitor.opened(id, mount.newest, mount.now, is_of_view=False)
            mount.now += SETTLE_S
        mount.opens(trainer, FILES)


def test_what_was_listed_before_the_mount_was_ready_is_not_shown_again(mount: Mount) -> None:
    reader = mount.reader()
    assert mount.lists(reader) == 1
    mount.newest.reading.is_over = True
    assert mount.lists(reader) == 2
