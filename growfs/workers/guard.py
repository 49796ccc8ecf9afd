"""The kernel's connection between a mount and its daemon, which may outlive the daemon, and what aborts it then.

In the kernel, a notification about a name waits for the lock of its directory until lookups and listings there are
answered. If the daemon is killed meanwhile, they never are: the waiting thread keeps the connection open, so neither
the daemon nor the readers end, whatever the signal. Aborting the connection fails all of its requests at once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from contextlib import ExitStack
from pathlib import Path

from growfs.errors import GrowfsError
from growfs.syscalls import create_file_system, detached_root

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal to get when the thread that started this process ends, which is the daemon's main thread."""
DAEMON_ENDED = signal.SIGRTMAX
"""A signal that nothing else sends."""


def abort_switch(device: str) -> int:
    """A descriptor: anything written to it aborts the connection of a mount, and nothing once that is gone.

    For root, and for the user who mounted if fusectl is mounted. device: of the mount (MountRow). Raises OSError.
    """
    name = f"{device.partition(':')[2]}/abort"
    try:
        # Where fusectl is usually mounted: a folder for each connection (Documentation/filesystems/fuse/fuse.rst).
        return os.open(f"/sys/fs/fuse/connections/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # fusectl is not mounted
        with ExitStack() as stack:
            stack.callback(os.close, file_system := create_file_system("fusectl"))
            stack.callback(os.close, root := detached_root(file_system))
            return os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=root)


def abort(device: str, mountpoint: Path) -> None:
    """Abort the connection of a mount. Raises GrowfsError."""
    try:
        switch = abort_switch(device)
    except OSError as error:
        if error.errno == errno.ENOENT:  # it is gone
            return
        raise GrowfsError(
            f"{mountpoint}: its daemon was killed, but the kernel is still waiting for it, and so are processes"
            f" that cannot be killed; run as root: umount -f {mountpoint}"
        ) from None
    try:
        os.write(switch, b"1")
    finally:
        os.close(switch)


def guard(switch: int) -> None:
    """From now on, abort the connection when the daemon ends, however it ends. switch: from `abort_switch`.

    Runs in the fork server, which outlives the daemon. A socket would not report the end of the daemon, because a
    thread that waits in the kernel keeps all of its descriptors open.
    """
    signal.signal(DAEMON_ENDED, lambda *_: os.write(switch, b"1"))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, DAEMON_ENDED, 0, 0, 0)
