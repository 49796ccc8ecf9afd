"""Signals to a process whose open waits: with passthrough, one that ends the process ends the wait at once.

(With libfuse the wait ends at --miss-timeout: tests/fuse/test_misses.py.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.fuse.conftest import only
from tests.fuse.gated import Gated
from tests.fuse.test_misses import held_back
from tests.harness import Growfs, until

HANDLES = """
import signal, sys

for number in (signal.SIGCHLD, signal.SIGWINCH, signal.SIGUSR1):
    signal.signal(number, lambda *_: None)
sys.stdout.write(open(sys.argv[1]).read())
"""
CAT = ("cat",)
PYTHON = (sys.executable, "-S", "-c", "import sys; print(open(sys.argv[1]).read())")
HANDLING = (sys.executable, "-S", "-c", HANDLES)


@contextmanager
def waiting(growfs: Growfs, path: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A process that waits in an open."""
    before = growfs.status()["miss"]["files_total"]
    with subprocess.Popen([*command, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            until(lambda: growfs.status()["miss"]["files_total"] == before + 1)
            yield process
        finally:
            process.kill()


@pytest.mark.promise(3, 10)
@only("passthrough")
@pytest.mark.parametrize(
    ("command", "number"),
    [(CAT, signal.SIGKILL), (CAT, signal.SIGINT), (PYTHON, signal.SIGINT), (PYTHON, signal.SIGTERM)],
    ids=["cat-SIGKILL", "cat-SIGINT", "python-SIGINT", "python-SIGTERM"],
)
def test_a_signal_that_ends_the_process_ends_its_wait(
    growfs: Growfs, gated: Gated, command: tuple[str, ...], number: signal.Signals
) -> None:
    (path,) = held_back(gated, 1, growfs)
    with waiting(growfs, path, *command) as process:
        process.send_signal(number)
        assert process.wait(30) == -number
    assert "0000.bin" in gated.held
    growfs.umount()  # nothing is left that uses it


@pytest.mark.promise(3)
@only("passthrough")
def test_a_signal_that_is_handled_does_not_end_the_wait(growfs: Growfs, gated: Gated) -> None:
    (path,) = held_back(gated, 1, growfs)
    with waiting(growfs, path, *HANDLING) as process:
        for number in (signal.SIGCHLD, signal.SIGWINCH, signal.SIGUSR1):
            process.send_signal(number)
            growfs.status()  # the daemon has heard of it
        assert growfs.status()["miss"]["files_total"] == 2  # it has not opened anew
        assert process.poll() is None
        gated.let_go()
        assert process.communicate(timeout=30)[0] == "0000"
    assert process.returncode == 0


@pytest.mark.promise(3)
@only("passthrough")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_that_ends_the_process_is_heard_after_one_that_did_not(
    growfs: Growfs, gated: Gated, number: signal.Signals
) -> None:
    """The kernel tells of the first signal alone (fs/fuse/dev.c, request_wait_answer)."""
    (path,) = held_back(gated, 1, growfs)
    with waiting(growfs, path, *HANDLING) as process:
        process.send_signal(signal.SIGWINCH)
        growfs.status()  # the daemon has heard of it
        process.send_signal(number)
        assert process.wait(30) == -number
    assert "0000.bin" in gated.held


@pytest.mark.promise(3)
@only("passthrough")
def test_who_else_waits_goes_on_waiting(growfs: Growfs, gated: Gated) -> None:
    (path,) = held_back(gated, 1, growfs)
    with ExitStack() as stack:
        first, second, third = [stack.enter_context(waiting(growfs, path, *CAT)) for _ in range(3)]
        first.kill()
        second.send_signal(signal.SIGINT)
        assert (first.wait(30), second.wait(30)) == (-signal.SIGKILL, -signal.SIGINT)
        gated.let_go()
        assert third.communicate(timeout=30)[0] == "0000"
    assert gated.fetched["0000.bin"] == 1


@pytest.mark.promise(3)
@only("passthrough")
def test_a_hundred_waiting_opens_can_all_be_ended(growfs: Growfs, gated: Gated) -> None:
    paths = held_back(gated, 110, growfs)
    with subprocess.Popen(
        ["sh", "-c", 'for path; do cat "$path" & done; wait', "sh", *paths], start_new_session=True
    ) as shell:
        until(lambda: growfs.status()["miss"]["files_total"] == len(paths) + 1)
        os.killpg(shell.pid, signal.SIGKILL)
    until(lambda: growfs.run("umount", growfs.mountpoint, check=False).returncode == 0)
    assert gated.held


def test_the_fetch_goes_on_after_its_reader_has_left(growfs: Growfs, gated: Gated) -> None:
    """A file that somebody wanted is fetched all the same."""
    (path,) = held_back(gated, 1, growfs)
    growfs.run("set", growfs.mountpoint, "miss-timeout=1")
    with waiting(growfs, path, *CAT) as process:
        process.kill()
    gated.let_go()
    growfs.run("set", growfs.mountpoint, "miss-timeout=60")
    assert path.read_bytes() == b"0000"
    assert gated.fetched["0000.bin"] == 1
