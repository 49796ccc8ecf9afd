"""A process that lets others go first, but gets on all the same."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from growfs.priority import IDLE_GROUP, idle_group
from tests.harness import until

SPIN = "while True: pass"


@pytest.mark.skipif(not idle_group(), reason="no group can be made here that is idle as a whole")
def test_who_gets_no_core_is_idle_no_more() -> None:
    """While others, who are not nice, want all cores all the time."""
    with contextlib.ExitStack() as stack:

        def run(program: str) -> int:
            process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process.pid

        aside = run(f"from growfs.priority import step_aside; step_aside()\n{SPIN}")
        group = Path(f"/proc/{aside}/cgroup")
        until(lambda: f":/{IDLE_GROUP}\n" in group.read_text())
        for _ in os.sched_getaffinity(0):
            run(SPIN)
        until(lambda: f":/{IDLE_GROUP}\n" not in group.read_text(), timeout_s=60)
