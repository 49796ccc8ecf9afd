"""Access patterns of the simulation on a real mount: no listed file is lost, and the listing grows.

tests/simulation/test_patterns.py runs every pattern; the simulation and the daemon share the rules. CI runs those that
differ in the requests that reach the kernel, each with one engine, and --long runs all of them with each engine.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.fuse.mounted_world import MountedWorld
from tests.harness import ENGINES, Growfs
from tests.simulation.patterns import PATTERNS

OPENS = 50
LISTS_FOR_LONG = (
    "Keras lists twice while the cache fills",
    "a notebook looks at a batch before it lists the validation set",
    "Hugging Face lists 65 times",
)
"""Their listings must be of one generation on a slow machine, too, so new processes see no new files in time."""
RUNS = [("names from another source beside a re-lister", "libfuse")]  # opens by name, which wait for fetches
"""What CI runs, and with which engine: they run the same code but for the requests themselves. test_jobs.py has
ranks, tools that walk in between, and mappings."""
TOO_LARGE = "a script that polls until there is enough"
"""It polls for more files than this cache holds."""
ALL_RUNS = [
    run if run in RUNS else pytest.param(*run, marks=pytest.mark.long)
    for run in itertools.product(PATTERNS, ENGINES)
    if run[0] != TOO_LARGE
]


@pytest.mark.promise(17)
@pytest.mark.parametrize(("name", "engine"), ALL_RUNS, indirect=["engine"])
def test_no_reader_loses_a_listed_file(name: str, growfs: Growfs, tmp_path: Path) -> None:
    pattern = PATTERNS[name]
    slow = name in LISTS_FOR_LONG
    world = MountedWorld(growfs, OPENS, pattern.grows and not slow, **pattern.options())
    world.mount(tmp_path / "remote", pattern.filled, settle_s=60 if slow else 0.1)
    world.run(*pattern.processes(world))
    status = growfs.status()
    assert (status["miss"]["files_total"] > 0) is pattern.opens_unlisted
    assert status["cache"]["bytes"] <= status["cache"]["limit_bytes"]
