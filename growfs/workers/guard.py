"""Aborts the kernel's connection of a mount when its daemon is killed: see `growfs.fuse.connection` for why.

Runs in the fork server, which outlives the daemon. A socket would not report the end of the daemon, because a thread
that waits in the kernel keeps all of its descriptors open.
"""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal to get when the thread that started this process ends, which is the daemon's main thread."""
DAEMON_ENDED = signal.SIGRTMAX
"""A signal that nothing else sends."""


def guard(switch: int) -> None:
    """From now on, abort the connection when the daemon ends, however it ends. switch: from `abort_switch`."""
    signal.signal(DAEMON_ENDED, lambda *_: os.write(switch, b"1"))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, DAEMON_ENDED, 0, 0, 0)
