"""btrfs: the limit of a subvolume's quota group, which statvfs(2) does not report, and the commits that free space.

The kernel shows each group as a folder of numbers: https://docs.kernel.org/filesystems/btrfs.html, fs/btrfs/sysfs.c
(since Linux 5.9).
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from functools import cache
from pathlib import Path
from uuid import UUID

FS_INFO, INO_LOOKUP, START_SYNC, WAIT_SYNC = 0x8400941F, 0xD0009412, 0x80089418, 0x40089416
"""ioctls of linux/btrfs.h; none needs a privilege if the folder can be opened."""


def limit_bytes(folder: Path) -> int | None:
    """Bytes that the folder's subvolume may hold; None without such a limit, or on other file systems.

    Ignores groups above the subvolume's own.
    """
    return min((limit for limit, _ in _limits(folder)), default=None)


def free_bytes(folder: Path) -> int | None:
    """Bytes that may still be written to the folder's subvolume; None as for `limit_bytes`."""
    return min((max(0, limit - used) for limit, used in _limits(folder)), default=None)


def commit(fd: int) -> None:
    """Commit the transaction of the file system of an open folder: until then, deleted files count as used space.

    Unlike syncfs(2), this does not write the content of files. Does nothing on other file systems.
    """
    with suppress(OSError):
        fcntl.ioctl(fd, WAIT_SYNC, fcntl.ioctl(fd, START_SYNC, bytes(8)))


def _limits(folder: Path) -> list[tuple[int, int]]:
    """The limits of the subvolume's group, each with the bytes that are used, or reserved for the content of files.

    Leaves out the reservations of metadata, most of which the next commit gives back. If they reach the limit, btrfs
    commits by itself.
    """
    if (group := _group(folder)) is None:
        return []
    try:
        limits = _number(group, "limit_flags")
        reserved = _number(group, "rsv_data")
        return [
            (_number(group, f"max_{kind}"), _number(group, kind) + reserved)
            for bit, kind in ((1, "referenced"), (2, "exclusive"))  # BTRFS_QGROUP_LIMIT_MAX_RFER, _EXCL
            if limits & bit
        ]
    except (OSError, ValueError):  # quotas are off
        return []


@cache
def _group(folder: Path) -> str | None:
    """The folder in which the kernel shows the group of a folder's subvolume, if quotas are on."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # 256 is the inode of each subvolume's root.
            info, place = bytearray(1024), bytearray(struct.pack("=QQ4080x", 0, 256))
            fcntl.ioctl(fd, FS_INFO, info)
            fcntl.ioctl(fd, INO_LOOKUP, place)
        finally:
            os.close(fd)
        file_system = UUID(bytes=bytes(info[16:32]))  # after max_id and num_devices
        (subvolume,) = struct.unpack_from("=Q", place)
        return f"/sys/fs/btrfs/{file_system}/qgroups/0_{subvolume}"
    return None


def _number(group: str, name: str) -> int:
    fd = os.open(f"{group}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(fd, 32))
    finally:
        os.close(fd)
