"""In every access pattern: what a listing showed is there when it is opened, and who lists again sees more."""

from __future__ import annotations

import pytest

from growfs.rotation.rules import EVERYWHERE, Holds
from growfs.simulation.simulator import Process
from tests.simulation.patterns import PATTERNS
from tests.simulation.world import World

OPENS = 1_000_000 // len(PATTERNS) + 1
OPENS_FEW = 6_000


def played(name: str, policy: str = "growfs", opens: int = OPENS) -> World:
    """A world in which a pattern's processes have ended."""
    pattern = PATTERNS[name]
    world = World(policy, opens, **pattern.options())
    world.fill(pattern.filled)
    world.run(*pattern.processes(world), _halfway(world))
    return world


def _halfway(world: World) -> Process:
    """Note what was shown by the middle of the opens."""
    while world.opens < world.opens_wanted / 2:
        yield 60.0
    world.shown_halfway = world.simulation.shown_files


@pytest.mark.promise(17, 18)
@pytest.mark.parametrize("name", PATTERNS)
def test_nothing_that_was_listed_is_lost_and_the_listing_grows(name: str) -> None:
    pattern = PATTERNS[name]
    world = played(name)
    simulation = world.simulation
    assert sum(simulation.opens) >= OPENS
    assert simulation.gone == 0
    assert (simulation.unlisted > 0) is pattern.strangers
    if pattern.grows:
        renewed = [id for id, file in enumerate(world.files) if file.directory not in pattern.listed_once]
        grown = simulation.shown_files - world.shown_halfway
        assert all(simulation.shown[id] for id in renewed) or grown > 0.2 * len(simulation.cache.folders[EVERYWHERE])
    assert simulation.cache.used <= world.limit


@pytest.mark.parametrize("name", PATTERNS)
def test_lru_loses_in_the_same_patterns(name: str) -> None:
    try:
        lost = played(name, "lru", OPENS_FEW).simulation.gone
    except AssertionError:  # two listings that must be equal are not
        return
    assert lost > 0


@pytest.mark.parametrize(
    "name",
    [
        "two jobs out of phase",
        "8 ranks with offsets, each everything",
        "a re-lister beside one that listed once",
        "train re-listed while validation was listed once",
        "training from a list for ever, beside a re-lister",
    ],
)
def test_without_holds_files_are_lost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above see it when a rule is broken."""
    monkeypatch.setattr(Holds, "cover", lambda *_: False)
    assert played(name, opens=OPENS_FEW).simulation.gone > 0


@pytest.mark.promise(17)
def test_a_reader_that_falls_silent_holds_nothing_any_more() -> None:
    world = World(opens=0)
    world.fill()
    silent, other = world.simulation.reader(), world.simulation.reader()
    ids = silent.list()
    silent.open(ids[0])
    grown = []
    for _ in range(40):
        world.simulation.sleep(200.0)
        other.open(other.list()[0])
        grown.append(world.simulation.shown_files)
    hour = 18
    assert grown[-1] > grown[hour] + 300, "it made room"
    assert all(world.simulation.cache.seq[id] for id in ids) is False
