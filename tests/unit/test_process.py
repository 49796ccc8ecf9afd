"""A worker has a low priority, and still gets a share of a machine that is always busy."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from growfs.workers.process import IDLE_GROUP, KEEP_PRIORITY_VARIABLE, NICENESS, idle_group
from tests.cli.support import tmpfs
from tests.harness import until

CHECK_S = 0.4
LOWER = f"""
from growfs.workers import process
process.STARVATION_CHECK_S = {CHECK_S}
process.lower_priority()
"""
SPIN = "while True: pass"
WAITS = """
import os, time
from growfs.workers import process

def is_time():
    time.sleep(0.1)
    return os.path.exists({path!r})

process.STARVATION_CHECK_S = {check_s}
measure = process._is_starved
process._is_starved = lambda: is_time() and measure()
process.lower_priority()
while not is_time():
    pass
"""
"""Is not starved until a file exists, however busy the machine is."""
LOOKS = 20
pytestmark = pytest.mark.skipif(not idle_group(), reason="there can be no idle control group here")


@pytest.fixture
def run() -> Iterator[Callable[[str], int]]:
    """Starts a program in Python on a core that all of them share, and returns its number."""
    env = {name: value for name, value in os.environ.items() if name != KEEP_PRIORITY_VARIABLE}
    core = min(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:

        def run(program: str) -> int:
            pinned = f"import os; os.sched_setaffinity(0, [{core}])\n{program}"
            process = subprocess.Popen([sys.executable, "-c", pinned], env=env, start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process.pid

        yield run


def is_idle(pid: int) -> bool:
    return f":/{IDLE_GROUP}\n" in Path(f"/proc/{pid}/cgroup").read_text()


def test_a_starved_process_leaves_the_idle_group(run: Callable[[str], int], tmp_path: Path) -> None:
    worker = run(WAITS.format(path=str(tmp_path / "file"), check_s=CHECK_S) + SPIN)
    until(lambda: is_idle(worker))
    (tmp_path / "file").touch()
    run(SPIN)
    until(lambda: not is_idle(worker), timeout_s=60)


def test_a_starved_process_does_not_join_the_idle_group(run: Callable[[str], int]) -> None:
    """It would get a hundredth of a core until it has noticed that."""
    run(SPIN)
    worker = run(f"{LOWER}\n{SPIN}")
    until(lambda: os.getpriority(os.PRIO_PROCESS, worker) == NICENESS)
    for _ in range(LOOKS):
        time.sleep(CHECK_S / 10)
        assert not is_idle(worker)


def test_the_idle_group_is_found_whatever_the_names_of_mounts(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "\udcff \N{LINE SEPARATOR}"):
        assert idle_group()
