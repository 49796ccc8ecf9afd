"""A worker has a low priority, and still gets a share of a machine that is always busy."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from growfs.workers.process import IDLE_GROUP, KEEP_PRIORITY_VARIABLE, idle_group
from tests.harness import until

SPIN = "while True: pass"


@pytest.mark.skipif(not idle_group(), reason="there can be no idle control group here")
def test_a_starved_process_leaves_the_idle_group() -> None:
    """A process of normal niceness uses its core, the only one it may run on, all the time."""
    env = {name: value for name, value in os.environ.items() if name != KEEP_PRIORITY_VARIABLE}
    core = min(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:

        def run(program: str) -> int:
            pinned = f"import os; os.sched_setaffinity(0, [{core}])\n{program}"
            process = subprocess.Popen([sys.executable, "-c", pinned], env=env, start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process.pid

        worker = run(f"from growfs.workers.process import lower_priority; lower_priority()\n{SPIN}")
        group = Path(f"/proc/{worker}/cgroup")
        until(lambda: f":/{IDLE_GROUP}\n" in group.read_text())
        run(SPIN)
        until(lambda: f":/{IDLE_GROUP}\n" not in group.read_text(), timeout_s=60)
