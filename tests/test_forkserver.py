"""The code that a test gives to the programs it starts (SETUP_VARIABLE)."""

from __future__ import annotations

from pathlib import Path

from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, make_tree

FAILS_IN_WORKERS = """
from setproctitle import getproctitle
assert "growfs.workers" not in getproctitle(), "wrong for workers"
"""


def test_code_that_fails_in_the_fork_server_of_workers_fails_the_mount(growfs: Growfs, tmp_path: Path) -> None:
    """The daemon starts a fork server that has died again."""
    growfs.env[SETUP_VARIABLE] = FAILS_IN_WORKERS
    make_tree(tmp_path / "remote", directories=1, files=1)
    done = growfs.mount(tmp_path / "remote", check=False)
    assert done.returncode == 1, growfs.log()
    (log,) = growfs.cache_dir.glob("*.log")
    assert "wrong for workers" in log.read_text(), done.stderr
