"""Aborts the kernel's connection of a mount when its daemon is killed: see `growfs.fuse.connection` for why.

Runs in the fork server, which outlives the daemon. A socket would not report the end of the daemon, because a thread
that waits in the kernel keeps all of its descriptors open.
"""

from __future__ import annotations

import ctypes
import os
import signal

from growfs.proc import is_killed

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal to get when the thread that started this process ends, which is the daemon's main thread."""


def guard(switch: int) -> None:
    """From now on, abort the connection when the daemon is killed. switch: from `abort_switch`."""
    daemon = os.getppid()

    def abort(*_: object) -> None:
        if os.getppid() != daemon or is_killed(daemon):
            os.write(switch, b"1")

    signal.signal(signal.SIGUSR1, abort)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    abort()  # it may have been killed before
