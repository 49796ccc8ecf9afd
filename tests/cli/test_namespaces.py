"""A mount whose readers, and whose umount, are in other namespaces, as those of containers are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import assert_refused, needs_root
from tests.harness import Growfs, make_tree, until

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


@pytest.mark.promise(11)
def test_a_user_namespace_reads_and_cannot_unmount(mounted: Growfs) -> None:
    """As a container without privileges."""
    inside = ["unshare", "--user", "--map-root-user", "--mount"]
    done = subprocess.run([*inside, "cat", f"{mounted.mountpoint}/class0/0000.bin"], capture_output=True, check=True)
    assert done.stdout == (mounted.mountpoint.parent / "remote/class0/0000.bin").read_bytes()
    words = [*inside, sys.executable, "-m", "growfs.cli", "umount", str(mounted.mountpoint)]
    refused = subprocess.run(words, capture_output=True, text=True, env=mounted.env, check=False)
    assert_refused(refused, "it was mounted outside of this user namespace", "unmount it there")
    assert len(mounted.names()) == 3


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
