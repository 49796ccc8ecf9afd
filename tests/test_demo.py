"""tools/demo, the README's first command: it trains through a mount, and removes everything again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from growfs.fuse.mounting import mounts
from tests.forkserver import FORK_ALL_VARIABLE
from tests.frameworks.harness import ENV, FORKS
from tests.needs import need


@pytest.mark.timeout(180)
def test_the_demo_trains_and_leaves_nothing(tmp_path: Path) -> None:
    need("tensorflow")
    variables = {**ENV, FORK_ALL_VARIABLE: "1", "TMPDIR": str(tmp_path)}
    done = FORKS.run(["-m", "tools.demo", "--epochs", "2"], variables, timeout_s=150)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^ +\d  [█▒░]{20} ", done.stdout, re.MULTILINE)) == 2
    seen = re.search(r"The model has seen (\d+) of 64 files", done.stdout)
    assert seen
    assert 0 < int(seen[1]) < 64
    assert not [mount for mount in mounts() if tmp_path in mount.mountpoint.parents]
    assert not list(tmp_path.glob("growfs-*"))
