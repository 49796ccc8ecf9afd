"""The access patterns that rotation must serve, each as processes on a simulated mount."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from growfs.rotation.jobs import Job
from growfs.rotation.rules import EVERYWHERE
from growfs.simulation.cache import File
from tests.simulation.world import MINUTE, STEP_S, Process, World, catalog


@dataclass(frozen=True)
class Pattern:
    """An access pattern.

    processes: makes them for a world. grows: whether a reader lists again, and so sees more files. filled: the part of
    the cache that is full when they start. opens_unlisted: whether it opens names that no listing showed. listed_once:
    directories that are listed only once. options: of the world.
    """

    processes: Callable[[World], list[Process]]
    grows: bool = True
    filled: float = 1.0
    opens_unlisted: bool = False
    listed_once: tuple[int, ...] = ()
    options: Callable[[], dict[str, Any]] = dict


def _one_alone() -> dict[str, Any]:
    return {"files": [*catalog(1000), File(11, "c11/alone.rec", 1000)]}


PATTERNS = {
    "single re-lister": Pattern(lambda world: [world.train()]),
    "lists once": Pattern(lambda world: [world.train(relist=False)], grows=False),
    "8 ranks with offsets, each reads everything": Pattern(
        lambda world: [world.train(start_s=8.0 * rank, step_s=STEP_S * (1 + rank / 100)) for rank in range(8)]
    ),
    "two jobs out of phase": Pattern(lambda world: [world.train(), world.train(start_s=77.0, step_s=1.7)]),
    "a re-lister beside one that listed once": Pattern(
        lambda world: [world.train(start_s=30.0), world.train(relist=False)]
    ),
    "30% epochs": Pattern(lambda world: [world.train(part=0.3)]),
    "60% epochs": Pattern(lambda world: [world.train(part=0.6)]),
    "sampling with replacement": Pattern(
        lambda world: [world.train(choose=lambda ids: world.random.choices(ids, k=len(ids)))]
    ),
    "files opened three times in a row": Pattern(lambda world: [world.train(times=lambda epoch: 3)]),
    "files opened three times, and then once": Pattern(
        lambda world: [world.train(times=lambda epoch: 3 if epoch == 0 else 1)]
    ),
    "a directory with one file": Pattern(
        lambda world: [world.train(), world.train(start_s=50.0, part=0.3)], options=_one_alone
    ),
    "150 directories": Pattern(
        lambda world: [world.train(), world.train(start_s=50.0, relist=False, epochs=3)],
        options=lambda: {"files": catalog(1500, 150), "share": 0.3},
    ),
    "a reader that opens half of the names": Pattern(
        lambda world: [world.train(choose=lambda ids: [id for id in ids if id // 10 % 2])]
    ),
    "ls, find, du in between": Pattern(
        lambda world: [world.train(), world.look(45.0, walks=False), world.look(61.0), world.look(307.0)]
    ),
    "cp -r and grep -r in between": Pattern(
        lambda world: [world.train(), world.look(700.0, copies=True), world.look(1111.0, copies=True, step_s=0.5)]
    ),
    "a program that lists at each sample": Pattern(
        lambda world: [world.train_listing_at_each_sample(), world.train(start_s=50.0)]
    ),
    "workers that list at each sample": Pattern(
        lambda world: [world.train_listing_at_each_sample(workers=4), world.train(start_s=50.0)]
    ),
    "workers that list at each sample, of a program that listed once": Pattern(
        lambda world: [world.train_listing_at_each_sample(workers=4, relist=False), world.train(start_s=50.0)]
    ),
}


def pattern(name: str, **fields: Any) -> Callable[[Callable[[World], list[Process]]], None]:
    """Register a pattern; decorates the function that makes its processes."""

    def register(processes: Callable[[World], list[Process]]) -> None:
        PATTERNS[name] = Pattern(processes, **fields)

    return register


@pattern("one file is opened before the first listing")
def _(world: World) -> list[Process]:
    def process() -> Process:
        look = world.simulation.reader()
        labels = look.list(world.directories[0])[:1]
        look.exit()
        reader = world.simulation.reader()
        yield from world.read(reader, labels)
        yield from world.train(reader=reader)

    return [process()]


@pattern("index.csv is read once, then directories are listed")
def _(world: World) -> list[Process]:
    reader = world.simulation.reader()
    reader.list(EVERYWHERE)
    return [world.train(reader=reader)]


@pattern("8 ranks with offsets, disjoint parts")
def _(world: World) -> list[Process]:
    def part(rank: int) -> Callable[[list[int]], list[int]]:
        return lambda ids: sorted(ids)[rank::8]

    return [world.train(start_s=8.0 * rank, choose=part(rank)) for rank in range(8)]


@pattern("train re-listed while validation was listed once", listed_once=(1,))
def _(world: World) -> list[Process]:
    def process() -> Process:
        reader = world.simulation.reader()
        validation = reader.list(world.directories[0])
        while not world.enough:
            train = []
            for directory in world.directories[1:]:
                train += reader.list(directory)
            yield from world.read(reader, world.shuffled(train))
            yield from world.read(reader, validation)
        reader.exit()

    return [process()]


@pattern("hyper-parameter search: a new process every few minutes")
def _(world: World) -> list[Process]:
    def trials(start_s: float) -> Process:
        yield start_s
        while not world.enough:
            yield from world.train(epochs=3, relist=False, part=0.7)

    return [trials(0.0), trials(100.0), trials(200.0)]


@pattern("a job that dies at 40% and resumes")
def _(world: World) -> list[Process]:
    def process() -> Process:
        while not world.enough:
            first = world.simulation.reader()
            ids = world.shuffled((yield from world.walk(first)))
            count = round(0.4 * len(ids))
            yield from world.read(first, ids[:count])
            first.exit()
            yield 5 * MINUTE
            second = world.simulation.reader()
            listed = set((yield from world.walk(second)))
            yield from world.read(second, [id for id in ids[count:] if id in listed])
            yield from world.read(second, world.shuffled((yield from world.walk(second))))
            second.exit()

    return [process()]


@pattern("a file browser that stays open")
def _(world: World) -> list[Process]:
    def browser() -> Process:
        reader = world.simulation.reader()
        while not world.enough:
            reader.list(world.random.choice(world.directories))
            yield world.random.choice([5.0, 600.0, 1800.0])
        reader.exit()

    return [world.train(), browser()]


@pattern("an indexer")
def _(world: World) -> list[Process]:
    def indexer() -> Process:
        reader = world.simulation.reader()
        while not world.enough:
            for directory in world.directories:
                yield from world.read(reader, reader.list(directory), step_s=0.05)
            yield 15 * MINUTE
        reader.exit()

    return [world.train(), indexer()]


@pattern("Keras lists twice while the cache fills", filled=0.1)
def _(world: World) -> list[Process]:
    def process() -> Process:
        while not world.enough:
            reader = world.simulation.reader()
            both = []
            for _ in range(2):
                both.append((yield from world.walk(reader, 0.5)))
                yield 3.0
            assert set(both[0]) == set(both[1])
            cut = len(both[0]) // 5
            training, validation = sorted(both[0])[cut:], sorted(both[1])[:cut]
            for _ in range(4):
                yield from world.read(reader, world.shuffled(training))
                yield from world.read(reader, validation)
            reader.exit()

    return [process()]


@pattern("a notebook looks at a batch before it lists the validation set")
def _(world: World) -> list[Process]:
    def notebook() -> Process:
        while not world.enough:
            reader = world.simulation.reader()
            for _ in range(2):
                training = yield from world.walk(reader)
                yield from world.read(reader, world.shuffled(training)[: len(training) // 5])
                validation = yield from world.walk(reader)
                assert set(training) == set(validation)
                yield from world.read(reader, world.shuffled(training))
            reader.exit()

    return [notebook(), world.train(start_s=10.0)]


@pattern("Hugging Face lists 65 times")
def _(world: World) -> list[Process]:
    def process() -> Process:
        while not world.enough:
            reader = world.simulation.reader()
            lists = set()
            for _ in range(65):
                lists.add(frozenset((yield from world.walk(reader, 0.05))))
                if len(lists) == 1:
                    yield 0.2
            yield from world.read(reader, world.shuffled(sorted(next(iter(lists)) if len(lists) == 1 else ())))
            assert len(lists) == 1
            reader.exit()

    return [process()]


@pattern("find > list, then training from the list")
def _(world: World) -> list[Process]:
    def process() -> Process:
        while not world.enough:
            find = world.simulation.reader()
            ids = yield from world.walk(find)
            find.exit()
            yield 5.0
            reader = world.simulation.reader()
            for _ in range(3):
                yield from world.read(reader, world.shuffled(ids))
            reader.exit()

    return [process()]


@pattern("training from a fixed list, beside a re-lister")
def _(world: World) -> list[Process]:
    def from_list() -> Process:
        find = world.simulation.reader()
        ids = yield from world.walk(find)
        find.exit()
        reader = world.simulation.reader()
        while not world.enough:
            yield from world.read(reader, world.shuffled(ids))
        reader.exit()

    return [from_list(), world.train(start_s=40.0)]


@pattern("names from another source", grows=False, opens_unlisted=True)
def _(world: World) -> list[Process]:
    def process() -> Process:
        reader = world.simulation.reader()
        while not world.enough:
            yield from world.read(reader, world.random.sample(range(len(world.files)), 100))
        reader.exit()

    return [process()]


@pattern("names from another source beside a re-lister", opens_unlisted=True)
def _(world: World) -> list[Process]:
    def process() -> Process:
        while not world.enough:
            reader = world.simulation.reader()
            yield from world.read(reader, world.random.sample(range(len(world.files)), 10))
            reader.exit()
            yield 10 * MINUTE

    return [process(), world.train()]


@pattern("a script that polls until there is enough", filled=0.02)
def _(world: World) -> list[Process]:
    def script() -> Process:
        reader = world.simulation.reader()
        seen = []
        while len(ids := (yield from world.walk(reader))) < 150:
            seen.append(len(ids))
            yield 10.0
        assert sorted(seen) == seen
        assert len(set(seen)) > 1
        while not world.enough:
            yield from world.read(reader, world.shuffled(ids))
            ids = yield from world.walk(reader)
        reader.exit()

    return [script()]


@pattern("notebooks that list once and stay, beside a re-lister")
def _(world: World) -> list[Process]:
    def notebook(start_s: float) -> Process:
        yield start_s
        reader = world.simulation.reader()
        ids = yield from world.walk(reader)
        while not world.enough:
            yield from world.read(reader, world.random.sample(ids, 5))
            yield MINUTE
        reader.exit()

    return [world.train(), *(notebook(start_s) for start_s in (500.0, 1700.0, 4100.0, 4900.0, 6000.0))]


@pattern("train re-listed while a larger validation set was listed once", listed_once=(1, 2, 3, 4))
def _(world: World) -> list[Process]:
    def process() -> Process:
        reader = world.simulation.reader()
        ids = yield from world.walk(reader)
        validation = [id for id in ids if world.files[id].directory <= 4]
        train = [id for id in ids if world.files[id].directory > 4]
        while not world.enough:
            yield from world.read(reader, world.shuffled(train))
            yield from world.read(reader, validation)
            train = []
            for directory in world.directories[4:]:
                train += reader.list(directory)
        reader.exit()

    return [process()]


@pattern("ranks that start seconds apart")
def _(world: World) -> list[Process]:
    job = Job()
    seen: list[list[set[int]]] = []

    def rank(number: int) -> Process:
        yield 3.0 * number
        reader = world.simulation.reader(job)
        epoch = 0
        while not world.enough:
            ids = yield from world.walk(reader, 0.2)
            if len(seen) == epoch:
                seen.append([])
            seen[epoch].append(set(ids))
            yield from world.read(reader, sorted(ids)[number::8])
            epoch += 1
            while len(seen[epoch - 1]) < 8 and not world.enough:
                yield 1.0
        reader.exit()

    def check() -> Process:
        while not world.enough:
            yield MINUTE
        assert all(lists.count(lists[0]) == len(lists) for lists in seen)

    return [*map(rank, range(8)), check()]


@pattern("rank 0 lists for its job")
def _(world: World) -> list[Process]:
    def ranks() -> Process:
        job = Job()
        ranks = [world.simulation.reader(job) for _ in range(4)]
        while not world.enough:
            ids = yield from world.walk(ranks[0])
            for place, id in enumerate(world.shuffled(ids)):
                yield from world.read(ranks[place % 4], [id])
        for rank in ranks:
            rank.exit()

    return [ranks(), world.train(start_s=50.0)]


@pattern("walks longer than --settle, for two sets")
def _(world: World) -> list[Process]:
    def process(start_s: float, job: Job, epochs: list[set[int]]) -> Process:
        yield start_s
        reader = world.simulation.reader(job)
        epoch = 0
        while not world.enough:
            for _ in range(2):
                ids = set((yield from world.walk(reader, 12.0)))
                if len(epochs) == epoch:
                    epochs.append(ids)
                assert ids == epochs[epoch]
            yield from world.read(reader, sorted(ids))
            epoch += 1
            yield max(0.0, 1000.0 * epoch + start_s - world.simulation.now)
        reader.exit()

    job, epochs = Job(), list[set[int]]()
    return [process(0.0, job, epochs), process(7.0, job, epochs), world.train(start_s=50.0)]


@pattern("monitors that list everything again and again")
def _(world: World) -> list[Process]:
    def monitor(every_s: float) -> Process:
        reader = world.simulation.reader()
        while not world.enough:
            yield from world.walk(reader)
            yield every_s
        reader.exit()

    return [world.train(), monitor(10.0), monitor(100.0)]
