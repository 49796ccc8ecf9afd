"""The kernel's connection between a mount and its daemon, which may outlive the daemon.

In the kernel, a notification about a name waits for the lock of its directory until lookups and listings there are
answered. If the daemon is killed meanwhile, they never are: the waiting thread keeps the connection open, so neither
the daemon nor the readers end, whatever the signal. Aborting the connection fails all of its requests at once.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path

from growfs.errors import GrowfsError
from growfs.fuse.mounting import MountRow
from growfs.syscalls import create_file_system, detached_root

CONNECTIONS = Path("/sys/fs/fuse/connections")
"""Where fusectl is usually mounted: a folder for each connection (Documentation/filesystems/fuse/fuse.rst)."""


def abort_switch(row: MountRow) -> int:
    """A descriptor: anything written to it aborts the connection of a mount, and nothing once that is gone.

    For root, and for the user who mounted if fusectl is mounted. Raises OSError.
    """
    name = f"{row.device.partition(':')[2]}/abort"
    try:
        return os.open(CONNECTIONS / name, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # fusectl is not mounted
        with ExitStack() as stack:
            stack.callback(os.close, file_system := create_file_system("fusectl"))
            stack.callback(os.close, root := detached_root(file_system))
            return os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=root)


def abort(row: MountRow) -> None:
    """Abort the connection of a mount. Raises GrowfsError."""
    try:
        switch = abort_switch(row)
    except OSError as error:
        if error.errno == errno.ENOENT:  # it is gone
            return
        raise GrowfsError(
            f"{row.mountpoint}: its daemon was killed, but the kernel is still waiting for it, and so are processes"
            f" that cannot be killed; run as root: umount -f {row.mountpoint}"
        ) from None
    try:
        os.write(switch, b"1")
    finally:
        os.close(switch)
