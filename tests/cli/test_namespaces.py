"""A mount whose readers, and whose umount, are in other namespaces, as those of containers are."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from growfs.workers.process import KEEP_PRIORITY_VARIABLE
from tests.cli.support import assert_refused, namespace, needs_root, run_inside
from tests.harness import Growfs, make_tree, until, usable_engine

SYS_OPEN_TREE, SYS_MOUNT_SETATTR = 428, 442
"""The same on every architecture (include/uapi/asm-generic/unistd.h)."""
OPEN_TREE_CLONE, AT_EMPTY_PATH, MOUNT_ATTR_IDMAP = 1, 0x1000, 0x100000
"""Of include/uapi/linux/mount.h and fcntl.h."""
READ = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
for _ in range(2):
    assert all(path.read_bytes() for path in folder.iterdir())
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def mounted(growfs: Growfs, tmp_path: Path) -> Growfs:
    """A mount for which root may make namespaces."""
    needs_root()
    make_tree(tmp_path / "remote", directories=1, files=3)
    growfs.mount(tmp_path / "remote", "--settle", 0)
    return growfs


@pytest.mark.promise(21)
def test_a_reader_in_a_pid_namespace_below_that_of_the_daemon_is_known(mounted: Growfs) -> None:
    """As in a container without --pid=host: the kernel gives the daemon its number outside."""
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", READ, f"{mounted.mountpoint}/class0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "1\n", "its own number there"
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (reader,) = mounted.status()["readers"]
        assert (reader["pid"], reader["files_shown"]) == (int(child), 3)
        process.communicate()
    until(lambda: not mounted.status()["readers"])


UNSHARE_USERS = """
import ctypes, pathlib
assert not ctypes.CDLL(None).unshare(0x10000000 | 0x00020000)  # CLONE_NEWUSER, CLONE_NEWNS
pathlib.Path("/proc/self/uid_map").write_text("0 0 1")
"""
"""As `unshare --user --map-root-user --mount`."""


@pytest.mark.promise(11)
def test_a_user_namespace_reads_and_cannot_unmount(mounted: Growfs) -> None:
    """As a container without privileges."""
    with namespace("", keep=mounted.mountpoint) as prefix:
        inside = [*prefix, "unshare", "--user", "--map-root-user", "--mount"]
        read = subprocess.run(
            [*inside, "cat", f"{mounted.mountpoint}/class0/0000.bin"], capture_output=True, check=True
        )
        assert read.stdout == (mounted.mountpoint.parent / "remote/class0/0000.bin").read_bytes()
        refused = run_inside(prefix, ("umount", mounted.mountpoint), mounted.env, UNSHARE_USERS)
    assert_refused(refused, "it was mounted outside this user namespace", "unmount it there")
    assert len(mounted.names()) == 3


@pytest.mark.promise(11)
def test_a_mount_for_a_container_with_users_of_its_own(growfs: Growfs, tmp_path: Path) -> None:
    """As Kubernetes makes one for a pod with hostUsers: false: a copy that shows each owner by another number."""
    needs_root()
    tree = make_tree(tmp_path / "remote", directories=1, files=3)
    engine = usable_engine("passthrough", tmp_path)
    growfs.mount(tmp_path / "remote", "--engine", engine, "--wait-files", len(tree))
    with ExitStack() as stack:
        namespace = stack.enter_context(user_namespace(first_uid=100_000))
        mapped = system_call(SYS_OPEN_TREE, -1, bytes(growfs.mountpoint), OPEN_TREE_CLONE | os.O_CLOEXEC)
        stack.callback(os.close, mapped)
        attributes = struct.pack("QQQQ", MOUNT_ATTR_IDMAP, 0, 0, namespace)
        system_call(SYS_MOUNT_SETATTR, mapped, b"", AT_EMPTY_PATH, attributes, len(attributes))
        for path, content in tree.items():
            assert os.stat(path, dir_fd=mapped).st_uid == 100_000
            with open(path, "rb", opener=partial(os.open, dir_fd=mapped)) as file:
                assert file.read() == content
    assert growfs.status()["requests"].get("READ", 0) == 0


@contextmanager
def user_namespace(first_uid: int) -> Iterator[int]:
    """The descriptor of a user namespace, whose user 0 is `first_uid` outside."""
    with subprocess.Popen(["unshare", "--user", "cat"], stdin=subprocess.PIPE) as process:
        folder = Path(f"/proc/{process.pid}")
        until(lambda: os.readlink(folder / "ns/user") != os.readlink("/proc/self/ns/user"))
        for name in ("uid_map", "gid_map"):
            (folder / name).write_text(f"0 {first_uid} 1000")
        namespace = os.open(folder / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield namespace
        finally:
            os.close(namespace)
            process.communicate()


def system_call(number: int, *arguments: object) -> int:
    """Make a system call that the C library may not have. Raises OSError."""
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@pytest.mark.promise(11)
def test_a_bind_mount_of_a_subfolder_keeps_the_mount_in_use(mounted: Growfs, tmp_path: Path) -> None:
    """As `docker -v /mnt/train/class0:/data` makes one."""
    bound = tmp_path / "bound"
    bound.mkdir()
    subprocess.run(["mount", "--bind", mounted.mountpoint / "class0", bound], check=True)
    assert str(bound) in mounted.run("list").stdout
    refused = mounted.run("umount", mounted.mountpoint, check=False)
    assert_refused(refused, f"in use by a mount on {bound}", "--lazy")
    mounted.run("umount", bound)
    assert (len(mounted.names()), list(bound.iterdir())) == (3, [])
    mounted.run("umount", mounted.mountpoint)


def test_other_mountpoints_may_have_any_name(growfs: Growfs, tmp_path: Path) -> None:
    """A worker looks for the control groups in the table of mounts."""
    make_tree(tmp_path / "remote", directories=1, files=3)
    del growfs.env[KEEP_PRIORITY_VARIABLE]
    script = "\n".join(
        f"mkdir '{folder}'; mount -t tmpfs tmpfs '{folder}'"
        for folder in (f"{tmp_path}/not UTF-8 \udcff", f"{tmp_path}/with a line\u2028separator")
    )
    with namespace(script) as prefix:

        def run(*words: object) -> None:
            assert run_inside(prefix, words, growfs.env).returncode == 0

        run(*growfs.mount_words(tmp_path / "remote", "--no-wait"))
        run("wait", growfs.mountpoint, "--all", "--timeout", "30s")
        run("umount", growfs.mountpoint)
