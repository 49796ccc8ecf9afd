"""The bytes left by the quota group of a btrfs subvolume, which statvfs(2) does not report.

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

FS_INFO, INO_LOOKUP = 0x8400941F, 0xD0009412
"""ioctls of linux/btrfs.h; neither needs a privilege if the folder can be opened."""
FIRST_FREE_OBJECTID = 256
"""The inode of each subvolume's root."""
LIMIT_REFERENCED, LIMIT_EXCLUSIVE = 1, 2
"""Bits of limit_flags: BTRFS_QGROUP_LIMIT_MAX_RFER, BTRFS_QGROUP_LIMIT_MAX_EXCL."""
RESERVED = "rsv_data", "rsv_meta_pertrans", "rsv_meta_prealloc"


def free_bytes(folder: Path) -> int | None:
    """Bytes that may still be written to the folder's subvolume; None without such a limit, or on other file systems.

    Ignores groups above the subvolume's own.
    """
    if (group := _group(folder)) is None:
        return None
    try:
        limits = _number(group, "limit_flags")
        reserved = sum(_number(group, name) for name in RESERVED)
        free = [
            _number(group, f"max_{kind}") - _number(group, kind) - reserved
            for bit, kind in ((LIMIT_REFERENCED, "referenced"), (LIMIT_EXCLUSIVE, "exclusive"))
            if limits & bit
        ]
    except (OSError, ValueError):  # quotas are off
        return None
    return max(0, min(free)) if free else None


@cache
def _group(folder: Path) -> str | None:
    """The folder in which the kernel shows the group of a folder's subvolume, if quotas are on."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            info, place = bytearray(1024), bytearray(struct.pack("=QQ4080x", 0, FIRST_FREE_OBJECTID))
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
