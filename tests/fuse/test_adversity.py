"""What may go wrong around a mount: few descriptors, odd times, mappings alone, slow listers, mounts that move."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from growfs.fuse.mounting import mounts, unmount
from tests.fuse.conftest import only
from tests.fuse.gated import Gated
from tests.fuse.test_lifecycle import ended
from tests.fuse.test_misses import held_back
from tests.fuse.test_open_files import relist, replace, until_size
from tests.harness import GROWFS, Growfs, make_tree, until

BLOCK = 4096
SIZE = 5 * BLOCK


@contextmanager
def mapped_alone(path: Path) -> Iterator[int]:
    """The address of a mapping of a file that nobody has open. (Python's mmap keeps a descriptor.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = path.stat().st_size
    fd = os.open(path, os.O_RDONLY)
    address = libc.mmap(None, size, 1, 2, fd, 0)  # PROT_READ, MAP_PRIVATE
    os.close(fd)
    try:
        yield address
    finally:
        libc.munmap(address, size)


@pytest.mark.promise(2, 19)
def test_what_is_mapped_alone_is_not_evicted(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=4, size=SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", 3 * SIZE, "--rotation", "never")
    until(lambda: growfs.status()["cache"]["files"] == 3)
    local = sorted(growfs.names())
    (missing,) = set(tree) - set(local)
    with ExitStack() as stack:
        addresses = [stack.enter_context(mapped_alone(growfs.mountpoint / path)) for path in local[:2]]
        assert (growfs.mountpoint / missing).read_bytes() == tree[missing]
        assert growfs.names() == {*local[:2], missing}
        growfs.run("evict", growfs.mountpoint, *local[:2])
        assert growfs.names() == {*local[:2], missing}
        assert [ctypes.string_at(address, SIZE) for address in addresses] == [tree[path] for path in local[:2]]
    growfs.run("evict", growfs.mountpoint, local[0])
    assert local[0] not in growfs.names()


@pytest.mark.promise(2, 28)
def test_what_is_replaced_while_it_is_mapped_alone_counts(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=2, size=SIZE)
    growfs.mount(tmp_path / "remote")
    growfs.run("wait", growfs.mountpoint, "--all")
    path = next(iter(tree))
    with mapped_alone(growfs.mountpoint / path) as address:
        replace(tmp_path / "remote" / path, b"new")
        relist(growfs)
        until_size(growfs.mountpoint / path, 3)
        assert growfs.status()["cache"]["orphan_bytes"] == SIZE
        assert ctypes.string_at(address, SIZE) == tree[path]
    until(lambda: growfs.status()["cache"]["orphan_bytes"] == 0)


@pytest.mark.promise(1)
def test_a_time_before_1970(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=2)
    path = next(iter(tree))
    os.utime(tmp_path / "remote" / path, ns=(0, -86_400 * 10**9))
    growfs.mount(tmp_path / "remote")
    assert growfs.names() == set(tree)
    assert (growfs.mountpoint / path).stat().st_mtime == -86_400


@pytest.mark.promise(9)
def test_a_slow_lister_hears_of_changes_meanwhile(growfs: Growfs, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    tree = make_tree(remote, directories=1, files=900, size=10)
    growfs.mount(remote)
    growfs.run("wait", growfs.mountpoint, "--all")
    order = (growfs.mountpoint / ".growfs/files").read_text().splitlines()
    changed, deleted = order[450:500], order[500:550]
    with os.scandir(growfs.mountpoint / "class0") as entries:
        listed = [next(entries).name]
        for path in changed:
            replace(remote / path, b"new and longer")
        for path in deleted:
            (remote / path).unlink()
        relist(growfs)
        until(lambda: growfs.status()["remote"]["files"] == len(tree) - len(deleted))
        until(lambda: growfs.status()["fetch"]["files_total"] == len(tree) + len(changed))
        listed += [entry.name for entry in entries]
    assert len(listed) == len(set(listed))
    assert {(growfs.mountpoint / path).stat().st_size for path in changed} == {14}
    assert not any((growfs.mountpoint / path).exists() for path in deleted)


def limited(growfs: Growfs, descriptors: int, url: Path) -> subprocess.CompletedProcess[str]:
    """Mount where a process may have only so many descriptors."""
    command = ["mount", url, growfs.mountpoint, "--cache-dir", growfs.cache_dir, "--cache-size", "1GB"]
    limit = f"--nofile={descriptors}:{descriptors}"
    return subprocess.run(
        ["prlimit", limit, *GROWFS, *map(str, command)], capture_output=True, text=True, env=growfs.env, check=False
    )


@pytest.mark.promise(3)
def test_more_open_files_than_the_daemon_may_have(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=400, size=100)
    assert limited(growfs, 300, tmp_path / "remote").returncode == 0
    growfs.run("wait", growfs.mountpoint, "--all")
    with ExitStack() as stack:
        files = {}
        refused = set()
        for path in tree:
            try:
                files[path] = stack.enter_context((growfs.mountpoint / path).open("rb"))
            except OSError as error:
                refused.add(error.errno)
        assert refused == {errno.ENFILE}
        assert len(files) > 100
        assert {path: file.read() for path, file in files.items()} == {path: tree[path] for path in files}
    assert {path: (growfs.mountpoint / path).read_bytes() for path in tree} == tree
    assert growfs.status()["miss"]["files_total"] == growfs.status()["evict"]["files_total"] == 0


@pytest.mark.promise(3)
def test_more_open_virtual_files_than_the_daemon_may_have(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=1)
    growfs.mount(tmp_path / "remote")
    with ExitStack() as stack:
        refused: set[int | None] = set()
        while not refused:
            try:
                stack.enter_context((growfs.mountpoint / ".growfs/log").open())
            except OSError as error:
                refused.add(error.errno)
        assert refused == {errno.ENFILE}
    assert (growfs.mountpoint / ".growfs/status").read_text()


def test_too_few_descriptors_for_a_daemon_are_refused(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=1)
    refused = limited(growfs, 100, tmp_path / "remote")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "may open 100 files only" in refused.stderr
    assert "ulimit -n" in refused.stderr


def test_sigterm_after_the_mountpoint_was_moved(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=1)
    growfs.mountpoint.rmdir()
    growfs.mountpoint = tmp_path / "before/mnt"
    growfs.mountpoint.mkdir(parents=True)
    growfs.mount(tmp_path / "remote")
    pid = growfs.pid
    (tmp_path / "before").rename(tmp_path / "after")
    try:
        os.kill(pid, signal.SIGTERM)
        until(lambda: ended(pid))
        assert [mount for mount in mounts() if tmp_path in mount.mountpoint.parents] == []
        assert os.listdir(tmp_path / "after/mnt") == []
    finally:
        for mount in mounts():
            if tmp_path in mount.mountpoint.parents:
                unmount(mount.mountpoint, lazy=True)


@pytest.mark.promise(3)
@only("passthrough")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_an_interrupt_that_is_read_together_with_its_open(growfs: Growfs, gated: Gated, number: signal.Signals) -> None:
    (path,) = held_back(gated, 1, growfs)
    program = "import sys; print('ready', flush=True); open(sys.argv[1])"
    os.kill(growfs.pid, signal.SIGSTOP)
    with subprocess.Popen([sys.executable, "-S", "-c", program, path], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            until(lambda: "request_wait_answer" in Path(f"/proc/{process.pid}/wchan").read_text())
            process.send_signal(number)
        finally:
            os.kill(growfs.pid, signal.SIGCONT)
        assert process.wait(30) == (-number if number == signal.SIGKILL else -signal.SIGINT)
