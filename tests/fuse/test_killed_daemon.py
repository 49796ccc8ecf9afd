"""A daemon that is killed while a notification of it waits in the kernel, which then keeps that thread of it.

The daemon of these tests brings that about: it does not answer a lookup of STUCK, and sends a notification about a name
in the same directory, which waits for the answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from growfs.fuse.connection import abort_switch
from growfs.fuse.mounting import mounted_at
from tests.cli.support import needs_root
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, descendants, make_tree, until

STUCK = "stuck"
KEEPS_A_LOOKUP_WAITING = f"""
import time
from growfs.vfs.filesystem import Vfs

answer = Vfs.lookup

def lookup(vfs, parent, name):
    if name == {STUCK!r}.encode():
        vfs.name_invalidated.notify(parent, "0000.bin")
        time.sleep(1000)
    return answer(vfs, parent, name)

Vfs.lookup = lookup
"""


def notifies(pid: int) -> bool:
    """Whether a thread of a process waits in the kernel with a notification about a name."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            if "fuse_reverse_inval_entry" in (task / "stack").read_text():
                return True
    return False


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.fixture(autouse=True)
def mount(growfs: Growfs, tmp_path: Path) -> None:
    """A mount with such a daemon."""
    needs_root()  # to see where a thread waits
    make_tree(tmp_path / "remote", directories=1, files=2)
    growfs.env[SETUP_VARIABLE] = KEEPS_A_LOOKUP_WAITING
    growfs.mount(tmp_path / "remote")


@contextmanager
def reader_of_a_killed_daemon(growfs: Growfs, and_its_processes: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for a daemon that is killed. Whatever fails, nothing is left that cannot be killed."""
    daemon, row = growfs.pid, mounted_at(growfs.mountpoint)
    assert row
    switch = abort_switch(row)
    with subprocess.Popen(
        ["stat", growfs.mountpoint / "class0" / STUCK], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as reader:
        try:
            until(lambda: notifies(daemon))
            for pid in [*(descendants(daemon) if and_its_processes else []), daemon]:
                os.kill(pid, signal.SIGKILL)
            yield reader
            until(lambda: is_gone(daemon))
        finally:
            os.write(switch, b"1")
            os.close(switch)


@pytest.mark.promise(11)
def test_the_readers_of_a_killed_daemon_get_an_error(growfs: Growfs) -> None:
    with reader_of_a_killed_daemon(growfs) as reader:
        assert reader.wait(30) == 1


@pytest.mark.promise(11)
@pytest.mark.parametrize("command", ["umount", "umount --lazy", "mount"])
def test_a_command_ends_what_waits_for_a_daemon_that_was_killed_with_all_its_processes(
    growfs: Growfs, tmp_path: Path, command: str
) -> None:
    with reader_of_a_killed_daemon(growfs, and_its_processes=True) as reader:
        (line,) = (line for line in growfs.run("list").stdout.split("\n") if line.startswith(str(growfs.mountpoint)))
        assert line.endswith("dead; remove it with growfs umount")
        if command == "mount":
            growfs.mount(tmp_path / "remote")
        else:
            growfs.run(*command.split(), growfs.mountpoint)
        assert reader.wait(30) == 1


def test_filling_from_the_cache_of_a_killed_daemon_ends_what_waits_for_it(growfs: Growfs, tmp_path: Path) -> None:
    with reader_of_a_killed_daemon(growfs, and_its_processes=True) as reader:
        growfs.run("fill", tmp_path / "remote", tmp_path / "folder", "--cache-dir", growfs.cache_dir)
        assert reader.wait(30) == 1
    growfs.run("stop", tmp_path / "folder")
