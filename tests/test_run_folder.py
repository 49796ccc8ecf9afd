"""What a test run leaves behind, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import processes_of
from tests.harness import make_tree, until
from tests.run_folder import ROOT, mountpoints

RUN = """
import os, sys
from tests.harness import Growfs
from tests.run_folder import RunFolder

folder = RunFolder()
command = Growfs(folder.path)
command.mount(sys.argv[1])
print(folder.path, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), 9)
folder.is_kept = sys.argv[2] == "failed"
folder.close()
"""


@pytest.mark.parametrize("end", ["failed", "killed"])
def test_a_run_leaves_no_mount_and_no_process(tmp_path: Path, end: str) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2)

    def run(how: str) -> Path:
        command = [sys.executable, "-c", RUN, str(tmp_path / "remote"), how]
        env = os.environ | {"TMPDIR": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, check=False)
        return Path(done.stdout.strip())

    folder = run(end)
    assert folder.parent == tmp_path
    until(lambda: not [path for path in mountpoints() if folder in path.parents])
    until(lambda: not processes_of(folder))
    until(lambda: folder.exists() == (end == "failed"))
    if end == "failed":
        passed = run("passed")
        assert not folder.exists()
        until(lambda: not passed.exists() and not processes_of(passed))
