"""Every operation on the local disk that must survive a crash, each under a label.

A label names a step, so that a test can kill the process or make the operation fail exactly there:
`GROWFS_FAULT=PUBLISH:kill` or `GROWFS_FAULT=PUBLISH:ENOSPC`, read once at start. Nothing else in growfs renames,
unlinks or creates folders.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from growfs import btrfs
from growfs.errors import DiskFailed, DiskFull
from growfs.paths import StrPath

BLOCK = 4096
"""The unit in which a file system allocates, in bytes; the default of ext4 and XFS."""

DATABASE_FULL = "database or disk is full"
"""The message of SQLITE_FULL; its code was added in Python 3.11."""

GET_FLAGS, SET_FLAGS, NOCOW = 0x80086601, 0x40086602, 0x00800000
"""ioctl_iflags(2): FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_NOCOW_FL."""

_fault_label, _, _fault_kind = os.environ.get("GROWFS_FAULT", "").partition(":")
_libc = ctypes.CDLL(None, use_errno=True)


def cannot_write(error: Exception) -> DiskFull | DiskFailed:
    """The error for a cache directory that refuses to write a file (OSError) or the catalog (sqlite3.Error)."""
    code = getattr(error, "errno", 0)
    is_full = str(error) == DATABASE_FULL or code in (errno.ENOSPC, errno.EDQUOT)
    remedy = "see ulimit -f, and the file system" if code == errno.EFBIG else "check its disk"
    return (DiskFull if is_full else DiskFailed)(f"the cache directory cannot be written ({error}); {remedy}")


def fault_point(label: str) -> None:
    """Fail here if GROWFS_FAULT names this label."""
    if label != _fault_label:
        return
    if _fault_kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    code = getattr(errno, _fault_kind)
    raise OSError(code, f"{os.strerror(code)} (injected by GROWFS_FAULT)")


def rename(label: str, source: StrPath, target: StrPath) -> None:
    """Rename source to target, replacing it; creates the folders that target needs."""
    fault_point(label)
    try:
        os.rename(source, target)
    except FileNotFoundError:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        os.rename(source, target)


def make_overwritable(path: Path) -> None:
    """Create an empty file whose blocks are written in place once allocated. Does nothing if it exists.

    Otherwise btrfs allocates new blocks for each change. If the disk has none, a process that changes a mapping of the
    file gets SIGBUS.
    """
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            flags = int.from_bytes(fcntl.ioctl(fd, GET_FLAGS, bytes(8)), sys.byteorder)
            fcntl.ioctl(fd, SET_FLAGS, (flags | NOCOW).to_bytes(8, sys.byteorder))
        finally:
            os.close(fd)


def link(label: str, path: StrPath, other: StrPath, folder: int | None = None) -> bool:
    """Give a file a second name, so that it outlives its replacement; False if there is no such file.

    folder: a descriptor of the folder of the other name.
    """
    fault_point(label)
    try:
        os.link(path, other, dst_dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def link_by_path(label: str, path: Path, other: str, folder: int, target: str) -> bool:
    """As `link`, with a symbolic link. target: its text.

    A relative one is better: many file systems store a short one in its inode, but use a block for a longer one.
    """
    fault_point(label)
    if not path.exists():
        return False
    os.symlink(target, other, dir_fd=folder)
    return True


def unlink(label: str, path: StrPath, folder: int | None = None) -> None:
    """Remove a file, if it exists. folder: a descriptor of the folder that the path starts at."""
    fault_point(label)
    with suppress(FileNotFoundError):
        os.unlink(path, dir_fd=folder)


def remove_empty(label: str, name: str, folder: int) -> None:
    """Remove a folder within another one, given by its descriptor, if it is an empty folder."""
    fault_point(label)
    with suppress(OSError):
        os.rmdir(name, dir_fd=folder)


def symlink(label: str, target: str, path: Path) -> None:
    """Make a symbolic link, replacing an existing one: a reader sees the old or the new."""
    fault_point(label)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)  # left by a crash
    new.symlink_to(target)
    os.rename(new, path)


def make_folder(label: str, folder: Path) -> None:
    """Create a folder and its parents, unless it exists."""
    fault_point(label)
    folder.mkdir(parents=True, exist_ok=True)


def prune_folders(label: str, folder: Path, top: Path) -> None:
    """Remove a folder and those of its parents that this leaves empty, but not top."""
    fault_point(label)
    while folder != top:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def fresh_folder(label: str, folder: Path) -> None:
    """Create an empty folder, replacing an existing one."""
    remove_tree(label, folder)
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)  # a running daemon restores one of its folders


def remove_tree(label: str, folder: Path) -> None:
    """Remove a folder with all its contents, if it exists. Another thread may remove some of them meanwhile."""
    fault_point(label)
    while folder.exists():
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)


def write_text(label: str, path: Path, text: str) -> None:
    """Replace the content of a file atomically: a reader sees the old or the new."""
    fault_point(label)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)  # left by a crash, or a link put there by another user
    with new.open("x") as file:
        file.write(text)
    os.rename(new, path)


def syncfs(label: str, folder: int) -> None:
    """Return when all data written to the file system is on the medium (syncfs(2)); raises OSError.

    folder: a descriptor of a folder there. Errors since it was opened, or since the last call with it, are raised.
    """
    fault_point(label)
    if _libc.syncfs(folder) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def walk_files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file below a folder, in no particular order. A file that is removed meanwhile may be left out."""
    for root, _folders, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            try:
                stat = path.lstat()
            except FileNotFoundError:
                continue
            yield path, stat


def allocated(stat: os.stat_result) -> int:
    """Bytes that a file takes on disk (st_blocks counts 512 bytes on every file system: stat(2)).

    At least its size: ZFS, and others that allocate late, report the blocks seconds after the file was written.
    """
    return max(stat.st_blocks * 512, stat.st_size)


def allocation(size: int) -> int:
    """Bytes that a file of this size will take on disk."""
    return -(-size // BLOCK) * BLOCK


def free_bytes(folder: Path) -> int:
    """Bytes that an ordinary user may still write to the folder's file system."""
    return room(folder)[0]


def taken_bytes(folder: Path) -> int:
    """Bytes that files take on the folder's file system, or within its project quota."""
    stat = os.statvfs(folder)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize


def room(folder: Path) -> tuple[int, int]:
    """How much an ordinary user may still write to the folder's file system: (bytes, files).

    Includes project quotas (ext4, XFS) and those of ZFS and btrfs, but not user quotas, which nothing reports. The last
    1024 files (inodes), or a quarter of a small file system's, are left for other programs and for those in flight that
    are not created yet. Some file systems do not limit the number of files.
    """
    stat = os.statvfs(folder)
    spare = min(1024, stat.f_files // 4)
    files = max(0, stat.f_favail - spare) if stat.f_files else sys.maxsize
    free = stat.f_bavail * stat.f_frsize
    if (in_group := btrfs.free_bytes(folder)) is not None:
        free = min(free, in_group)
    return free, files
