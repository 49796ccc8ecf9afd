"""The mount and the simulation agree: the same events in a real store and in memory list and evict the same files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from growfs.bitmaps import BitMap64
from growfs.disk import BLOCK
from growfs.rotation.reader import Reader, held_by
from growfs.rotation.rules import EVERYWHERE
from growfs.simulation.cache import File, MountSettings, Rotating
from tests.unit.local_cache import LocalCache, file, open_local_cache, run_in_memory

DIRECTORIES, FILES, READERS = 2, 20, 3
BLOCKS_MAX = 2
NEED_MAX = 6
NOW = 0.0


@dataclass
class Twins:
    """A real cache and its simulation. A file's number is its index in `paths`, and its id in the simulation."""

    cache: LocalCache
    paths: list[str]
    simulated: Rotating
    readers: list[tuple[Reader, Reader]] = field(
        default_factory=lambda: [(Reader(n, "0", "a"), Reader(n, "0", "b")) for n in range(READERS)]
    )
    opened: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)

    def node_id(self, id: int) -> int:
        return self.cache.node(self.paths[id]).id

    def ids(self, paths: set[str]) -> set[int]:
        return {self.paths.index(path) for path in paths}

    @property
    def resident(self) -> set[int]:
        return set(self.simulated.cached)

    def holds(self) -> BitMap64:
        return held_by([real for real, _ in self.readers], NOW)

    def set_turnover(self, share: float) -> None:
        self.cache.generations.turnover = share
        self.simulated._settings = replace(self.simulated._settings, turnover=share)

    def resident_file(self, number: int) -> int:
        """One of the resident files, chosen by number."""
        resident = sorted(self.resident)
        return resident[number % len(resident)]

    async def fill(self, number: int) -> None:
        """Fetch files, beginning with any of them, as long as they fit without an eviction."""
        for id in [*range(number, len(self.paths)), *range(number)]:
            await self.admit(id)

    async def admit(self, id: int) -> None:
        size = self.simulated.files[id].size
        if id not in self.resident and size <= self.simulated.free:
            await self.cache.admit(self.paths[id], content=b"x" * size)
            self.simulated.admit(id)

    async def open_file(self, number: int) -> None:
        if (id := self.resident_file(number)) not in self.open:
            assert self.cache.store.open(self.node_id(id))
            self.simulated.opened(id)
            self.simulated.busy[id] += 1
            self.opened.add(id)
            self.open.add(id)

    async def read_some(self, number: int) -> None:
        """Open and close some resident files, or all."""
        for id in sorted(self.resident)[:: 1 + number % 3]:
            self.simulated.opened(id)
            self.opened.add(id)

    async def close_files(self, _: int) -> None:
        for id in self.open:
            self.cache.store.close_file(self.node_id(id))
        self.open.clear()
        for id in list(self.simulated.busy.elements()):
            self.simulated.closed(id)

    async def list(self, number: int) -> None:
        """A reader lists everything or one directory, and a generation begins."""
        real, copy = self.readers[number % READERS]
        place = number // READERS % (1 + DIRECTORIES)
        lasting_holds = BitMap64().union(*(reader.lasting_holds(real) for reader, _ in self.readers))
        generation = await self.cache.begin(lasting_holds, frozenset(map(self.node_id, self.opened & self.resident)))
        if self.simulated.generation:
            self.simulated.generation.reading.opened.clear()
            self.simulated.generation.reading.opened.update(self.resident)  # as `LocalCache.begin` does
        begun = self.simulated._begin(copy, NOW)
        assert generation
        assert (generation.number, generation.files) == (begun.number, begun.files)
        directory = self.cache.node(f"d{place}").id if place else EVERYWHERE
        real.lists(directory, generation, NOW)
        real.is_shown(
            (seq for (seq,) in self.cache.database.rows("SELECT seq FROM resident WHERE parent = ?", directory)),
            generation,
        )
        copy.lists(place, begun, NOW)
        copy.is_shown([self.simulated.cached[id].seq for id in self.simulated.folders[place]], begun)
        self.simulated.readers_changed()

    async def release(self, number: int) -> None:
        for reader in self.readers[number % READERS]:
            reader.release()
        self.simulated.readers_changed()

    async def draw(self, number: int) -> None:
        """Reserve space for a drawn file, as rotation does."""
        await self._reserve(1 + number % NEED_MAX, self.cache.reserve_by_rotation, missed=False)

    async def miss(self, number: int) -> None:
        """Reserve space for a missed file, which may evict more."""
        await self._reserve(1 + number % NEED_MAX, self.cache.reserve_by_eviction, missed=True)

    async def _reserve(
        self, blocks: int, reserve: Callable[[int, BitMap64], Awaitable[int | None]], missed: bool
    ) -> None:
        before = self.resident
        reserved = await reserve(blocks * BLOCK, self.holds())
        assert self.simulated.make_room(blocks * BLOCK, NOW, missed) is (reserved is not None)
        if reserved is not None:
            self.cache.give_back()
        self.opened -= before - self.resident

    def assert_agree(self) -> None:
        """Both hold, list and delist the same files."""
        assert self.ids(self.cache.resident()) == self.resident
        if self.simulated.generation:
            assert self.ids(self.cache.listed()) == set(self.simulated.listed(EVERYWHERE))
        query = "SELECT id, delisted FROM resident WHERE suffix IS NOT NULL ORDER BY queue_position"
        rows = self.cache.database.rows(query)
        queue = sorted(self.simulated.cached.values(), key=lambda file: file.queue_position)
        assert rows == [(self.node_id(file.id), file.delisted) for file in queue]


async def twins_of(folder: Path, paths: list[str], sizes: list[int], limit: int) -> Twins:
    """Empty caches over a catalog of files d1/... and d2/.... sizes, limit: in blocks."""
    files = [File(int(path[1]), path, size * BLOCK) for path, size in zip(paths, sizes, strict=True)]
    cache = open_local_cache(folder, limit * BLOCK)
    cache.largest = max(file.size for file in files)
    await cache.list([file(of.path, of.size) for of in files])
    twins = Twins(cache, paths, Rotating(files, limit * BLOCK, MountSettings(turnover=0.2)))
    twins.simulated.live += [copy for _, copy in twins.readers]
    return twins


EVENTS = [
    Twins.fill, Twins.fill, Twins.open_file, Twins.open_file, Twins.read_some, Twins.close_files,
    Twins.list, Twins.list, Twins.release, Twins.draw, Twins.draw, Twins.miss, Twins.miss,
]  # fmt: skip
NUMBERS = st.integers(0, FILES - 1)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, BLOCKS_MAX), min_size=FILES, max_size=FILES),
    limit=st.integers(8, 20),
    turnover=st.sampled_from([0.1, 0.3, 0.6]),
    listings=st.lists(NUMBERS, min_size=2, max_size=5),
    events=st.lists(st.tuples(st.sampled_from(EVENTS), NUMBERS), min_size=3, max_size=30),
)
@example(  # the smallest file of a kind is evicted, after which the last files take too much
    sizes=[1, 2, 2, *[1] * 12, 2, *[1] * 4],
    limit=8,
    turnover=0.1,
    listings=[0, 0],
    events=[
        (Twins.miss, 3), (Twins.draw, 0), (Twins.open_file, 0), (Twins.miss, 0), (Twins.list, 0), (Twins.fill, 12),
        (Twins.close_files, 0), (Twins.list, 0), (Twins.miss, 4), (Twins.miss, 0), (Twins.read_some, 0),
        (Twins.miss, 17),
    ],
)  # fmt: skip
@example(  # a file that was listed and opened is evicted before the next generation begins
    sizes=[2, 1, 2, 2, 2, 1, 2, *[1] * 13], limit=12, turnover=0.6, listings=[3, 1, 1],
    events=[(Twins.miss, 5), (Twins.list, 0)],
)  # fmt: skip
@example(sizes=[*[1] * (FILES - 1), 2], limit=14, turnover=0.6, listings=[0, 0], events=[(Twins.fill, 0)] * 3)
def test_the_mount_and_the_simulation_list_and_evict_the_same(
    sizes: list[int],
    limit: int,
    turnover: float,
    listings: list[int],
    events: list[tuple[Callable[[Twins, int], Awaitable[None]], int]],
) -> None:
    async def run(folder: Path) -> None:
        twins = await twins_of(folder, [f"d{1 + n % 2}/{n:02}.s{n // 2 % 2}" for n in range(FILES)], sizes, limit)
        twins.set_turnover(turnover)
        await twins.fill(0)
        await twins.read_some(0)
        for number in listings:
            await twins.list(number)
            twins.assert_agree()
        for event, number in events:
            await event(twins, number)
            twins.assert_agree()
        twins.cache.database.close()

    run_in_memory(run)


@pytest.mark.promise(7, 19)
async def test_both_keep_the_last_listed_file_of_a_kind_where_a_delisted_one_is_open(tmp_path: Path) -> None:
    twins = await twins_of(tmp_path, [f"d1/{n}.s" for n in range(4)], [1] * 4, limit=2)
    await twins.fill(0)
    await twins.read_some(0)
    await twins.list(0)
    await twins.list(0)
    assert twins.simulated.listed(EVERYWHERE) == [1]
    await twins.open_file(0)
    await twins.miss(0)
    twins.assert_agree()
    assert twins.resident == {0, 1}
    await twins.close_files(0)
    await twins.miss(0)
    twins.assert_agree()
    assert twins.resident == {1}
    twins.cache.database.close()
