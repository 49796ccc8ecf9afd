"""File systems for the tests: on loop devices, in memory and stacked. Each is unmounted after the test."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.needs import SET_UP

MKFS = {"ext4": ("mkfs.ext4", "-q", "-m", "0"), "xfs": ("mkfs.xfs", "-q"), "btrfs": ("mkfs.btrfs", "-q")}
"""Commands that make a file system, by its name in /proc/filesystems."""
SMALLEST = {"ext4": 32 << 20, "xfs": 300 << 20, "btrfs": 256 << 20}
"""Sizes in bytes with which all of these commands are content. The image is sparse: it takes what is written."""
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
"""_IOR('X', 125, __u32), as all of them have it: EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN, BTRFS_IOC_SHUTDOWN."""
BUSY_S = 10.0


def why_not(kind: str) -> str | None:
    """Why this kind of file system cannot be mounted here; None if it can."""
    if os.geteuid() != 0:
        return "needs root: run the tests as root"
    known = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
    if kind not in known:
        return f"this kernel has no {kind}"
    command = MKFS.get(kind, ("mount",))[0]
    return None if shutil.which(command) else f"{command} is not installed; {SET_UP}"


@dataclass
class FileSystem:
    """A mounted file system. Its content survives `remount`.

    folder: where it is mounted. image: the file that it is in, if it is on a loop device. command: mounts any other.
    """

    kind: str
    folder: Path
    image: Path | None = None
    command: list[str] = field(default_factory=list)

    def mount(self) -> None:
        """Mount it.

        Each time on a loop device of its own: another mount namespace, which was made meanwhile, may still have a
        failed one, and the kernel would mount the same failed file system again.
        """
        if not self.image:
            run(*self.command, self.folder)
            return
        device = run("losetup", "--find", "--show", self.image)
        try:
            run("mount", "-t", self.kind, device, self.folder)
        finally:
            run("losetup", "--detach", device)  # once it is unmounted

    def unmount(self) -> None:
        """Unmount it; fails the test if it stays in use."""
        deadline = time.monotonic() + BUSY_S
        while subprocess.run(["umount", self.folder], capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, f"{self.folder} is in use"
            time.sleep(0.05)

    def remount(self) -> None:
        """Unmount and mount: what is read then comes from the medium."""
        self.unmount()
        self.mount()

    def fail(self) -> None:
        """Fail everything from now on with EIO, and lose what was not synced, until `remount`: as without power.

        Skips the test where the file system cannot do that.
        """
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, NO_LOG_FLUSH.to_bytes(4, "little"))
        except OSError as error:
            if error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP):
                raise
            pytest.skip(f"this kernel's {self.kind} cannot be shut down")
        finally:
            os.close(fd)

    @property
    def used_bytes(self) -> int:
        stat = os.statvfs(self.folder)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize


MakeFileSystem = Callable[..., FileSystem]
"""`file_system`, with its arguments but the folder."""


@pytest.fixture
def make_file_system(tmp_path: Path) -> Iterator[MakeFileSystem]:
    """Makes file systems. It is named before `growfs` in a test, so that they go after the mount."""
    with contextlib.ExitStack() as stack:
        yield lambda kind, *arguments: stack.enter_context(file_system(kind, tmp_path, *arguments))


@contextlib.contextmanager
def file_system(kind: str, folder: Path, size: int = 0, *options: str) -> Iterator[FileSystem]:
    """A new file system below a folder; skips the test where this kind cannot be had.

    size: in bytes; at least what its mkfs makes. options: more arguments for its mkfs.
    """
    if reason := why_not(kind):
        pytest.skip(reason)
    at = folder / kind
    at.mkdir(parents=True)
    system = FileSystem(kind, at)
    size = max(size, SMALLEST.get(kind, 0))
    with contextlib.ExitStack() as stack:
        if kind == "tmpfs":
            system.command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
        elif kind == "overlay":
            beneath = stack.enter_context(file_system("ext4", folder, size))
            for name in ("lower", "upper", "work"):
                (beneath.folder / name).mkdir()
            layers = ",".join(f"{name}dir={beneath.folder / name}" for name in ("lower", "upper", "work"))
            system.command = ["mount", "-t", "overlay", "-o", layers, "overlay"]
        else:
            image = folder / f"{kind}.img"
            with image.open("wb") as file:
                file.truncate(size)
            stack.callback(image.unlink)
            run(*MKFS[kind], *options, image)
            system.image = image
        system.mount()
        stack.callback(lambda: subprocess.run(["umount", "-l", at], capture_output=True, check=False))
        yield system


def quota_group(btrfs: Path, limit: int) -> Path:
    """A new subvolume of a file system, which refuses to hold more bytes than the limit."""
    subvolume = btrfs / "subvolume"
    run("btrfs", "quota", "enable", btrfs)
    run("btrfs", "subvolume", "create", subvolume)
    run("btrfs", "qgroup", "limit", limit, subvolume)
    return subvolume


def run(*command: object) -> str:
    """Run a command; returns what it printed, with which the test fails if the command does."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout.strip()
