"""Every access pattern, by real processes on a real mount: nothing that was listed is lost, and the listing grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuse.played import MountedWorld
from tests.harness import Growfs
from tests.simulation.patterns import PATTERNS

OPENS = 800
LISTS_FOR_LONG = ("Keras lists twice while the cache fills", "Hugging Face lists 65 times")
"""Their listings must be of one generation, however slow this machine is. So new processes see nothing new in time."""


FASTER_THAN_IT_POLLS = "a script that polls until there is enough"
"""A local remote fills the cache between two looks; test_generations has the script that polls."""


@pytest.mark.promise(17)
@pytest.mark.parametrize("name", [name for name in PATTERNS if name != FASTER_THAN_IT_POLLS])
def test_a_pattern(name: str, growfs: Growfs, tmp_path: Path) -> None:
    pattern = PATTERNS[name]
    slow = name in LISTS_FOR_LONG
    world = MountedWorld(growfs, OPENS, pattern.grows and not slow, **pattern.options())
    world.mount(tmp_path / "remote", pattern.filled, settle_s=60 if slow else 1)
    world.run(*pattern.processes(world))
    status = growfs.status()
    assert (status["miss"]["files_total"] > 0) is pattern.strangers
    assert status["cache"]["bytes"] <= status["cache"]["limit_bytes"]
