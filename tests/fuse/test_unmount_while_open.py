"""A mount that ends while files are open and mapped: what stays readable, and for how long, by the way it ended.

With libfuse a file can be read as long as its daemon lives; with passthrough, what is open is the cached file itself.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from growfs.fuse.mounting import mounted_at
from tests.crash.scene import alive
from tests.fuse.conftest import only, opened
from tests.harness import ENGINES, Growfs, make_tree, until

NAME, OTHER = "class0/0000.bin", "class1/0000.bin"
SIZE = 300_000
GONE = {errno.ENOTCONN, errno.ECONNABORTED}
"""The errors of an open without a daemon; the second occurs while the kernel is still tearing the mount down."""

HOLDER = """
import errno, hashlib, mmap, os, sys

path, *kept = sys.argv[1:]
fd = os.open(path, os.O_RDONLY)
mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
if "descriptor" not in kept:
    os.close(fd)
if "mapping" not in kept:
    mapped.close()
print("ready", flush=True)
sys.stdin.readline()
if "descriptor" in kept:
    try:
        print(hashlib.sha256(os.pread(fd, 1 << 30, 0)).hexdigest(), flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
if "mapping" in kept:
    print(hashlib.sha256(mapped).hexdigest(), flush=True)
"""


class Holder:
    """A process that keeps a file open, mapped or both, and has read nothing of it yet."""

    def __init__(self, path: Path, *kept: str) -> None:
        command = [sys.executable, "-S", "-c", HOLDER, str(path), *kept]
        self._process = subprocess.Popen(
            command, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == "ready\n"
        self.pid = self._process.pid

    def read(self) -> tuple[list[str], int]:
        """Read the whole file; returns (a digest or an errno for each thing it keeps, the exit status)."""
        output, _ = self._process.communicate("\n", timeout=30)
        return output.split(), self._process.returncode

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def digest(growfs: Growfs, tmp_path: Path) -> str:
    """The digest of NAME, in a mount whose files are all local."""
    tree = make_tree(tmp_path / "remote", directories=2, files=1, size=SIZE)
    growfs.mount(tmp_path / "remote")
    growfs.run("wait", growfs.mountpoint, "--all")
    return hashlib.sha256(tree[NAME]).hexdigest()


def read_without_daemon(engine: str, digest: str) -> tuple[list[str], int]:
    """What a holder of a descriptor and a mapping reads when the daemon is gone."""
    return (["ENOTCONN"], -signal.SIGBUS) if engine == "libfuse" else ([digest, digest], 0)


@pytest.mark.promise(11)
def test_a_busy_mount_is_not_unmounted_and_keeps_working(growfs: Growfs, digest: str) -> None:
    for kept in ("descriptor", "mapping"):
        with Holder(growfs.mountpoint / NAME, kept) as holder:
            refused = growfs.run("umount", growfs.mountpoint, check=False)
            assert refused.returncode == 1
            assert f"({holder.pid})" in refused.stderr
            assert len((growfs.mountpoint / OTHER).read_bytes()) == SIZE
            assert holder.read() == ([digest], 0)
    growfs.umount()


@pytest.mark.promise(11)
def test_after_a_lazy_umount_open_and_mapped_files_and_an_open_folder_stay_readable(
    growfs: Growfs, digest: str
) -> None:
    """One after the other lets go; the last one, a mapping alone, keeps the daemon alive."""
    pid = growfs.pid
    with Holder(growfs.mountpoint / NAME, "mapping") as last:
        with (
            opened(growfs.mountpoint / "class0") as folder,
            Holder(growfs.mountpoint / NAME, "descriptor", "mapping") as holder,
        ):
            growfs.umount(lazy=True)
            assert not mounted_at(growfs.mountpoint)
            assert holder.read() == ([digest, digest], 0)
            assert set(os.listdir(folder)) == {"0000.bin"}
            with open("0000.bin", "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=folder)) as file:
                assert hashlib.sha256(file.read()).hexdigest() == digest
        assert alive(pid)
        assert last.read() == ([digest], 0)
    until(lambda: not alive(pid))


@only(*ENGINES)
@pytest.mark.promise(10, 29)
def test_a_signal_stops_it_cleanly_even_while_files_are_open(
    growfs: Growfs, digest: str, engine: str, tmp_path: Path
) -> None:
    for other in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(growfs.pid, other)
    assert growfs.names() == {NAME, OTHER}, "signals that ask for something else than the end are ignored"
    for number, name in ((signal.SIGTERM, NAME), (signal.SIGQUIT, OTHER)):  # nothing of it was read before
        pid, digest = growfs.pid, hashlib.sha256((tmp_path / "remote" / name).read_bytes()).hexdigest()
        with Holder(growfs.mountpoint / name, "descriptor", "mapping") as holder:
            os.kill(pid, number)
            until(lambda pid=pid: not alive(pid))  # type: ignore[misc]
            assert not mounted_at(growfs.mountpoint)
            assert os.listdir(growfs.mountpoint) == []
            assert holder.read() == read_without_daemon(engine, digest)
            growfs.mount(tmp_path / "remote")
            assert hashlib.sha256((growfs.mountpoint / name).read_bytes()).hexdigest() == digest
            assert growfs.status()["fetch"]["files_total"] == 0
    assert "did not stop cleanly" not in growfs.log()


@pytest.mark.promise(10, 29)
def test_after_sigkill_every_new_open_fails_and_open_files_outlive_the_next_mount(
    growfs: Growfs, digest: str, engine: str, tmp_path: Path
) -> None:
    """As do pages in the page cache."""
    path = growfs.mountpoint / NAME
    with (
        Holder(path, "descriptor", "mapping") as first,
        Holder(path, "descriptor", "mapping") as second,
        opened(growfs.mountpoint / OTHER) as fd,
        mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped,
    ):
        page = mapped[:4096]
        growfs.kill()
        assert mapped[:4096] == page == os.pread(fd, 4096, 0)
        for name in (NAME, OTHER, "class1", ".growfs/status", "nothing"):
            with pytest.raises(OSError, match=r".") as refused:
                os.open(growfs.mountpoint / name, os.O_RDONLY)
            assert refused.value.errno in GONE
        assert first.read() == read_without_daemon(engine, digest)
        growfs.mount(tmp_path / "remote")
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
        assert second.read() == read_without_daemon(engine, digest)
