"""A daemon that is killed while a notification of it waits in the kernel, which then keeps that thread of it.

With KEEPS_A_LOOKUP_WAITING, a daemon brings that about: it does not answer a lookup of STUCK, and sends a notification
about a name in the same directory, which waits for the answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from growfs.daemon.control_client import daemon_pid
from growfs.fuse.mounting import mounted_at
from growfs.workers.guard import abort_switch
from tests.harness import descendants, until

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


@contextmanager
def reader_of_a_killed_daemon(mountpoint: Path, and_its_processes: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for a daemon that is killed. Whatever fails, nothing is left that cannot be killed.

    For root, which may see where a thread waits. The mount has a directory class0.
    """
    row = mounted_at(mountpoint)
    assert row
    daemon, switch = daemon_pid(row.cache), abort_switch(row.device)
    with subprocess.Popen(
        ["stat", mountpoint / "class0" / STUCK], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
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
