"""Access patterns, by real processes on a real mount: nothing that was listed is lost, and the listing grows.

tests/simulation/test_patterns.py plays every pattern; the simulation and the daemon call the same rules. Here are those
that differ in what reaches the kernel.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuse.played import MountedWorld
from tests.harness import Growfs
from tests.simulation.patterns import PATTERNS

OPENS = 500
LISTS_FOR_LONG = ("Keras lists twice while the cache fills", "Hugging Face lists 65 times")
"""Their listings must be of one generation, however slow this machine is. So new processes see nothing new in time."""
MOUNTED = (
    "8 ranks with offsets, each everything",  # many processes list and open at a time
    "a re-lister beside one that listed once",  # a process that lives holds what it saw
    "hyper-parameter search: a new process every few minutes",  # processes end, and their holds with them
    "a directory with one file",  # whose last file stays
    "cp -r and grep -r in between",  # short processes that list and open everything
    *LISTS_FOR_LONG,  # a directory is read again and again
    "find > list, and then training from the list",  # the process that lists is not the one that opens
    "names from elsewhere beside a re-lister",  # opens by name, which wait for a fetch
)


@pytest.mark.promise(17)
@pytest.mark.parametrize("name", MOUNTED)
def test_a_pattern(name: str, growfs: Growfs, tmp_path: Path) -> None:
    pattern = PATTERNS[name]
    slow = name in LISTS_FOR_LONG
    world = MountedWorld(growfs, OPENS, pattern.grows and not slow, **pattern.options())
    world.mount(tmp_path / "remote", pattern.filled, settle_s=60 if slow else 1)
    world.run(*pattern.processes(world))
    status = growfs.status()
    assert (status["miss"]["files_total"] > 0) is pattern.strangers
    assert status["cache"]["bytes"] <= status["cache"]["limit_bytes"]
