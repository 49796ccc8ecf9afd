"""Test whether this machine can mount, and can do passthrough for files in a folder, by trying it.

The passthrough test creates a FUSE file system without mounting it. The mount test is made in a mount namespace that
ends with it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from growfs.errors import GrowfsError
from growfs.fuse import protocol
from growfs.fuse.mounting import DEVICE, MountSpec, mount_rows
from growfs.fuse.session import Session
from growfs.syscalls import create_file_system

CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18
"""Flags of unshare(2) and mount(2) (sched.h, sys/mount.h)."""

_libc = ctypes.CDLL(None, use_errno=True)


def why_not_passthrough(folder: Path, stack_depth: int = protocol.STACK_DEPTH_MAX) -> str | None:
    """Why there is no passthrough for files in folder, or None if it works. stack_depth: see `STACK_DEPTH_MAX`."""
    with ExitStack() as stack:
        try:
            device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, device)
            settings = {"source": "growfs", "fd": str(device), "rootmode": "40000", "user_id": "0", "group_id": "0"}
            stack.callback(os.close, create_file_system("fuse", settings, ("default_permissions",)))
            session = Session(device)
            session.handshake(protocol.InitFlag.PASSTHROUGH, stack_depth)
        except (protocol.KernelTooOld, GrowfsError) as error:
            return f"Linux {platform.release()} has no passthrough ({error}); it needs Linux 6.9"
        except OSError as error:
            return _reason(error, "FUSE cannot be mounted")
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                session.close_backing(session.open_backing(file.fileno()))
            except OSError as error:
                return _reason(error, f"{folder}: its file system refuses passthrough")
    return None


def try_mount() -> bool:
    """Mount on / where only a short-lived thread can see it. False if that cannot be tried here.

    For root. Even with the capabilities, mounting may be refused: by AppArmor, as in containers, SELinux or seccomp.
    Raises GrowfsError.
    """
    shared = any(row.peers for row in mount_rows())
    results: list[GrowfsError | None] = []

    def run() -> None:
        if _libc.unshare(CLONE_NEWNS) != 0:
            return
        if shared and _libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
            return  # other processes would see the mount
        try:
            folder = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # in this mount namespace
            os.close(MountSpec(Path("/"), Path("growfs"), allow_other=True, folder=folder).attach())
        except GrowfsError as error:
            results.append(error)
        else:
            results.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in filter(None, results):
        raise error
    return bool(results)


def _reason(error: OSError, what: str) -> str:
    if error.errno == errno.ELOOP:
        return f"{what}: overlay file systems are stacked too deep; use another --cache-dir"
    if error.errno in (errno.EPERM, errno.EACCES):
        return "needs CAP_SYS_ADMIN outside any user namespace; mount as root"
    return f"{what} ({error.strerror})"
