"""In every access pattern, listed files stay available until they are opened, and new listings show new files."""

from __future__ import annotations

import pytest

from growfs.bitmaps import BitMap64
from growfs.rotation.rules import EVERYWHERE
from tests.simulation.patterns import PATTERNS
from tests.simulation.world import Process, World

OPENS = 200_000 // len(PATTERNS) + 1
OPENS_FEW = 6_000


def run_pattern(name: str, opens: int = OPENS) -> World:
    """Run the processes of a pattern until they end; returns their world."""
    pattern = PATTERNS[name]
    world = World(opens=opens, **pattern.options())
    world.fill(pattern.filled)
    world.run(*pattern.processes(world), _record_halfway(world))
    return world


def _record_halfway(world: World) -> Process:
    """Record how many files were shown after half of the opens."""
    while world.opens < world.opens_target / 2:
        yield 60.0
    world.shown_halfway = world.simulation.shown_files


@pytest.mark.promise(17, 18)
@pytest.mark.parametrize("name", PATTERNS)
def test_no_listed_file_is_lost_and_the_listing_grows(name: str) -> None:
    pattern = PATTERNS[name]
    world = run_pattern(name)
    simulation = world.simulation
    assert sum(simulation.opens) >= OPENS
    assert simulation.gone == 0
    assert (simulation.unlisted > 0) is pattern.opens_unlisted
    if pattern.grows:
        renewed = [id for id, file in enumerate(world.files) if file.directory not in pattern.listed_once]
        grown = simulation.shown_files - world.shown_halfway
        assert all(simulation.shown[id] for id in renewed) or grown > 0.2 * len(simulation.cache.folders[EVERYWHERE])
    assert simulation.cache.used <= world.limit


@pytest.mark.parametrize(
    "name",
    [
        "two jobs out of phase",
        "8 ranks with offsets, each reads everything",
        "training from a fixed list, beside a re-lister",
    ],
)
def test_without_holds_listed_files_are_lost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the tests above detect a broken rule."""
    monkeypatch.setattr("growfs.simulation.cache.held_by", lambda *_: BitMap64())
    assert run_pattern(name, opens=OPENS_FEW).simulation.gone > 0


@pytest.mark.promise(17)
def test_a_reader_that_stays_silent_loses_its_holds() -> None:
    world = World(opens=0)
    world.fill()
    silent, other = world.simulation.reader(), world.simulation.reader()
    ids = silent.list()
    silent.open(ids[0])
    grown = []
    for _ in range(40):
        world.simulation.sleep(200.0)
        for id in other.list():
            other.open(id)
        grown.append(world.simulation.shown_files)
    hour = 18
    assert grown[-1] > grown[hour] + 300, "files of the silent reader were evicted"
    assert all(world.simulation.cache.seq[id] for id in ids) is False
