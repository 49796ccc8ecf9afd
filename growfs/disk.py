"""Every file operation that matters goes through here, under a label.

A label names the step, so that a test can stop the process or fail the operation exactly there:
`GROWFS_FAULT=PUBLISH:kill` or `GROWFS_FAULT=PUBLISH:ENOSPC`, read once at start.
Nothing else in growfs renames, unlinks or makes folders.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

BLOCK = 4096
"""Bytes that a file system hands out at a time; ext4's and XFS's default."""

_fault_label, _, _fault_kind = os.environ.get("GROWFS_FAULT", "").partition(":")
_libc = ctypes.CDLL(None, use_errno=True)


def at(label: str) -> None:
    """The point in the program that a test names by label."""
    if label != _fault_label:
        return
    if _fault_kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    code = getattr(errno, _fault_kind)
    raise OSError(code, f"{os.strerror(code)} (asked for by GROWFS_FAULT)")


def rename(label: str, source: Path, target: Path) -> None:
    """Put source in target's place, making the folders that target needs."""
    at(label)
    try:
        os.rename(source, target)
    except FileNotFoundError:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(source, target)


def keep(label: str, path: Path, aside: Path) -> bool:
    """Give a file a second name, so that it outlives what takes its place; False where there is no such file."""
    at(label)
    try:
        os.link(path, aside)
    except FileNotFoundError:
        return False
    return True


def unlink(label: str, path: Path) -> None:
    """Remove a file; one that is not there is as good as removed."""
    at(label)
    path.unlink(missing_ok=True)


def prune_folders(label: str, folder: Path, top: Path) -> None:
    """Remove folder and the parents that this leaves empty, up to top, which stays."""
    at(label)
    while folder != top:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def fresh_folder(label: str, folder: Path) -> None:
    """Make folder, empty."""
    at(label)
    remove_tree(label, folder)
    folder.mkdir(parents=True, mode=0o700)


def remove_tree(label: str, folder: Path) -> None:
    """Remove folder and all in it; one that is not there is as good as removed."""
    at(label)
    if folder.exists():
        shutil.rmtree(folder)


def write_text(label: str, path: Path, text: str) -> None:
    """Replace path's content as a whole: a reader sees the old or the new."""
    at(label)
    draft = path.with_name(path.name + ".new")
    draft.write_text(text)
    os.rename(draft, path)


def syncfs(label: str, folder: Path) -> None:
    """Return when all that was written to folder's file system is on the medium (syncfs(2)); raises OSError."""
    at(label)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(fd)


def walk_files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file below folder, in no order."""
    for root, _folders, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            yield path, path.lstat()


def allocated(stat: os.stat_result) -> int:
    """Bytes that a file takes on the disk (st_blocks counts 512 bytes, whatever the file system's block: stat(2))."""
    return stat.st_blocks * 512


def allocation(size: int) -> int:
    """Bytes that a file of this size will take on the disk."""
    return -(-size // BLOCK) * BLOCK


def free_bytes(folder: Path) -> int:
    """Bytes that an ordinary user may still write to folder's file system."""
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize
