"""Nothing but a live hold of more than half of the cache keeps a mount from showing every file."""

from __future__ import annotations

import pytest

from growfs.rotation.jobs import Job
from growfs.rotation.rules import EVERYWHERE
from growfs.simulation.cache import File
from tests.simulation.world import SIZE, Process, World

EPOCHS = 60


def shown(world: World) -> float:
    """The share of the files that was ever listed."""
    return world.simulation.shown_files / len(world.files)


@pytest.mark.promise(18)
@pytest.mark.parametrize("listings", [1, 2, 3])
def test_a_process_that_lists_no_more_holds_up_nobody(listings: int) -> None:
    """A notebook whose cell ran once, twice or three times, and that stays."""
    world = World(opens=10_000)
    world.fill()
    notebook = world.simulation.reader()
    for _ in range(listings):
        for id in notebook.list():
            notebook.open(id)

    def stays() -> Process:
        while not world.enough:
            notebook.open(next(iter(notebook.reader.files)))
            yield 60.0

    world.run(stays(), world.train())
    assert shown(world) > 0.6
    assert world.simulation.gone == 0


@pytest.mark.promise(18)
def test_who_opens_nothing_evicts_nothing() -> None:
    """`ls -R` by monitoring, again and again, on a cache that is full."""
    world = World(opens=0)
    world.fill()
    for _ in range(100):
        look = world.simulation.reader()
        look.list()
        look.exit()
        world.simulation.sleep(90.0)
    assert world.simulation.cache.evicted == 0
    reader = world.simulation.reader()
    for _ in range(10):
        for id in reader.list():
            reader.open(id)
        look = world.simulation.reader()
        look.list()
        look.exit()
        world.simulation.sleep(90.0)
    assert world.simulation.cache.evicted > 0.5 * len(world.simulation.cache.folders[EVERYWHERE])


@pytest.mark.promise(18)
def test_what_is_evicted_is_in_proportion_to_what_is_opened() -> None:
    """A fifth of the cache for a read of all that is listed, which is at least three quarters of it."""
    for part in (1.0, 0.5, 0.1):
        world = World(opens=4_000, downloads=5.0)
        world.fill()
        world.run(world.train(part=part, step_s=10.0))
        evicted = world.simulation.cache.evicted * SIZE
        assert evicted < 0.2 / 0.75 * 4_000 * SIZE


@pytest.mark.promise(18)
def test_jobs_that_start_one_after_another_hold_up_nobody() -> None:
    world = World(opens=10_000)
    world.fill()

    def starts() -> Process:
        while not world.enough:
            reader = world.simulation.reader()
            ids = reader.list()
            yield 30.0
            yield from world.read(reader, ids[:3])
            reader.exit()

    def after(start_s: float) -> Process:
        yield start_s
        yield from starts()

    world.run(world.train(), starts(), after(10.0), after(20.0))
    assert shown(world) > 0.9
    assert world.simulation.gone == 0


@pytest.mark.promise(7, 18)
@pytest.mark.parametrize("kinds", [1, 4])
def test_folders_that_are_samples_come_and_go(kinds: int) -> None:
    """patient_017/scan.nii.gz; or an image, its mask, its text and its boxes."""
    files = [
        File(1 + sample, f"patient{sample}/x.{kind}", SIZE)
        for sample in range(240)
        for kind in ("png", "json", "txt", "xml")[:kinds]
    ]
    world = World(opens=8_000, files=files, share=0.58, downloads=5.0)
    world.fill()
    world.run(world.train())
    assert shown(world) == 1
    assert world.simulation.gone == 0


@pytest.mark.promise(6)
@pytest.mark.parametrize("apart_s", [1.2, 59.0, 61.0, 600.0])
def test_ranks_of_a_job_that_starts_see_one_list(apart_s: float) -> None:
    """Whatever else lists, begins epochs, and starts meanwhile."""
    world = World(opens=8000, downloads=2.0)
    world.fill(0.5)
    lists: list[list[frozenset[int]]] = []

    def rank(start_s: float, job: Job, seen: list[frozenset[int]]) -> Process:
        yield start_s
        reader = world.simulation.reader(job)
        seen.append(frozenset((yield from world.walk(reader, 0.1))))
        yield from world.read(reader, sorted(seen[-1])[:40], step_s=0.2)
        yield 3000.0
        reader.exit()

    ranks = []
    for start_s in (59.4, 700.0, 1500.0):
        seen: list[frozenset[int]] = []
        lists.append(seen)
        job = Job()
        ranks += [rank(start_s, job, seen), rank(start_s + apart_s, job, seen)]
    world.run(*ranks, world.train(step_s=0.2), world.look(30.0), world.look(170.0, copies=True))
    assert [len(set(seen)) for seen in lists] == [1, 1, 1]
    assert world.simulation.gone == 0


@pytest.mark.promise(6, 18)
def test_a_process_for_each_epoch_sees_something_new_in_each() -> None:
    """However short: each takes 8 s."""
    world = World(opens=EPOCHS * 200, downloads=50.0)
    world.fill()

    def epochs() -> Process:
        while not world.enough:
            reader = world.simulation.reader()
            ids = yield from world.walk(reader)
            yield from world.read(reader, ids, step_s=0.04)
            reader.exit()

    world.run(epochs())
    assert shown(world) == 1


@pytest.mark.promise(18)
@pytest.mark.parametrize("fast", [True, False], ids=["a training run", "ls"])
def test_a_job_with_long_epochs_sees_everything_beside_a_faster_one(fast: bool) -> None:
    world = World(opens=10_000, downloads=2.0)
    world.fill()
    seen = set[int]()

    def slow() -> Process:
        reader = world.simulation.reader()
        while not world.enough and len(seen) < len(world.files):
            ids = yield from world.walk(reader)
            seen.update(ids)
            yield from world.read(reader, world.shuffled(ids), step_s=30.0)
        world.opens = world.opens_target

    world.run(slow(), world.train(start_s=10.0, step_s=10.0) if fast else world.look(1500.0))
    assert len(seen) > 0.6 * len(world.files)
    assert world.simulation.gone == 0


@pytest.mark.promise(18)
@pytest.mark.parametrize("step_s", [30.0, 300.0, 3000.0])
def test_a_job_with_long_epochs_holds_up_no_faster_one(step_s: float) -> None:
    world = World(opens=10_000, downloads=2.0)
    world.fill()
    seen = [set[int](), set[int]()]

    def train(number: int, step_s: float) -> Process:
        yield float(number)
        reader = world.simulation.reader()
        while not world.enough:
            ids = yield from world.walk(reader)
            seen[number].update(ids)
            yield from world.read(reader, world.shuffled(ids), step_s=step_s)

    world.run(train(0, step_s), train(1, 10.0))
    assert len(seen[1]) > 0.9 * len(world.files)
    assert world.simulation.gone == 0


@pytest.mark.promise(5, 6)
def test_a_directory_that_is_listed_late_is_not_empty() -> None:
    world = World(opens=10**9, downloads=2.0)
    world.fill()

    def late() -> Process:
        reader = world.simulation.reader()
        ids = reader.list(1)
        for _ in range(30):
            reader.open(ids[0])
            yield 30.0
        assert reader.list(2) == world.simulation.cache.listed(2) != []
        world.opens_target = 0

    world.run(late(), world.train(start_s=1.0))
