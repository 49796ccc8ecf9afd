"""How a mount ends (umount, while busy, by a signal, killed), and what the next mount finds."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

import growfs as growfs_package
from growfs.daemon import launch
from growfs.fuse.mounting import mounted_at, mounts, unmount
from tests.cli.support import assert_refused
from tests.crash.scene import alive
from tests.fuse.conftest import only, opened
from tests.harness import Growfs, descendants, make_tree, until

NAME = "class0/0000.bin"
SIZE = 3_000_000
FILE_BYTES = 12_288
"""What each file of `make_tree` takes on disk."""
CACHE = {"lock", "log", "catalog.sqlite", "files", "partial", "url.json"}
"""What a daemon leaves in the cache folder."""


def fork_server_of(daemon: int) -> int:
    """The process that forks the workers of a daemon."""
    return next(int(pid) for pid in Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split())


def has_kept_code(pid: int) -> bool:
    """Whether a process has its own code in memory."""
    try:
        return any("growfs-code" in os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:  # one was closed meanwhile
        return False


@only("either")
@pytest.mark.promise(29)
def test_a_deleted_folder_for_downloads_is_restored_and_a_deleted_cache_ends_the_daemon(
    growfs: Growfs, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "remote")
    growfs.mount(tmp_path / "remote")
    growfs.until_cached(len(tree))
    growfs.run("pause", growfs.mountpoint)
    growfs.run("evict", growfs.mountpoint, "**")
    partial = growfs.cache / "partial"
    shutil.rmtree(partial)
    until(partial.exists)
    assert {path: (growfs.mountpoint / path).read_bytes() for path in tree} == tree
    pid = growfs.pid
    shutil.rmtree(growfs.cache)
    until(lambda: not alive(pid))
    assert "was deleted; remove the dead mount" in growfs.run("status", growfs.mountpoint, check=False).stderr
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        os.listdir(growfs.mountpoint)
    growfs.mount(tmp_path / "remote", "--wait-files", len(tree))
    assert growfs.names() == set(tree)


@only("either")
def test_umount_returns_when_the_daemon_has_ended_and_leaves_nothing_but_the_cache(
    growfs: Growfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache's disk can be unmounted then. The daemon is stopped meanwhile, so that it ends a while later.

    The program that unmounts has thousands of open files: select(2) takes no descriptor from 1024 on.
    """
    make_tree(tmp_path / "remote")
    growfs.mount(tmp_path / "remote")
    pid = growfs.pid

    def unmount_stopped(mountpoint: Path, lazy: bool) -> None:
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (pid, signal.SIGCONT)).start()
        unmount(mountpoint, lazy)

    monkeypatch.setattr(launch, "unmount", unmount_stopped)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    many = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    before = os.listdir("/proc/self/fd")
    try:
        growfs.umount()
        assert os.listdir("/proc/self/fd") == before
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not alive(pid)
    assert not mounted_at(growfs.mountpoint)
    assert os.listdir(growfs.mountpoint) == []
    assert {path.name for path in growfs.cache.iterdir()} == CACHE
    assert list((growfs.cache / "partial").iterdir()) == []


@pytest.mark.promise(11)
def test_a_busy_mount_names_who_works_in_it_and_a_plain_umount_ends_it_then(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote")
    growfs.mount(tmp_path / "remote")
    with subprocess.Popen(["cat"], cwd=growfs.mountpoint, stdin=subprocess.PIPE) as user:
        refused = growfs.run("umount", growfs.mountpoint, check=False)
        user.communicate(timeout=30)
    assert_refused(refused, f"in use by cat ({user.pid})", "--lazy")
    assert mounted_at(growfs.mountpoint)
    pid = growfs.pid
    subprocess.run(["umount", growfs.mountpoint], check=True, timeout=30)
    until(lambda: not alive(pid))
    growfs.mount(tmp_path / "remote")
    assert growfs.status()["fetch"]["files_total"] == 0


@pytest.mark.promise(29)
@only("either")
def test_a_refused_mount_leaves_the_cache_as_after_a_clean_stop(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote")
    flags = "--exact", "--part-size", "50%", "--cache-size"
    growfs.mount(tmp_path / "remote", *flags, 10 * FILE_BYTES)
    for name in growfs.names():  # the pass begins
        (growfs.mountpoint / name).read_bytes()
    growfs.umount()
    refused = growfs.mount(tmp_path / "remote", *flags, 4 * FILE_BYTES, check=False)
    assert "leave --cache-size at" in refused.stderr
    growfs.mount(tmp_path / "remote", *flags, 10 * FILE_BYTES)
    assert "did not stop cleanly" not in growfs.log()


@pytest.mark.promise(29)
@only("either")
def test_a_dead_mount_is_left_in_place_by_wrong_commands_replaced_by_the_next_mount_and_removed_by_umount(
    growfs: Growfs, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "remote")
    growfs.mount(tmp_path / "remote")
    growfs.run("wait", growfs.mountpoint, "--all")
    with opened(growfs.mountpoint / NAME):
        growfs.kill()
        refused = growfs.run("status", growfs.mountpoint, check=False)
        assert refused.returncode == 1
        assert "its daemon is gone" in refused.stderr
        assert f"growfs umount {growfs.mountpoint}" in refused.stderr
        assert growfs.listed() == "dead; remove it with growfs umount"
        for option, message in (
            ("--members=tarr", "has no function tarr"), ("--count=3", "--count needs py:FUNCTION as the URL")
        ):  # fmt: skip
            refused = growfs.run("mount", tmp_path / "remote", growfs.mountpoint, option, check=False)
            assert refused.returncode == 2
            assert message in refused.stderr
            with pytest.raises(OSError, match="not connected"):  # a program would train on nothing in an empty folder
                os.listdir(growfs.mountpoint)
        growfs.mount(tmp_path / "remote")
        assert growfs.content() == tree
    assert "did not stop cleanly" in growfs.log()
    workers = descendants(growfs.pid)
    assert workers
    growfs.kill()
    until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in workers))
    assert "its daemon was gone" in growfs.run("umount", growfs.mountpoint).stdout
    assert not mounted_at(growfs.mountpoint)
    assert os.listdir(growfs.mountpoint) == []


@pytest.mark.promise(30)
@only("either")
def test_a_second_daemon_on_a_cache_is_refused(growfs: Growfs, tmp_path: Path) -> None:
    """Another remote has its own in the same directory."""
    tree = make_tree(tmp_path / "remote")
    make_tree(tmp_path / "other", directories=1)
    growfs.mount(tmp_path / "remote")
    second, flags = tmp_path / "second", ("--cache-dir", growfs.cache_dir)
    second.mkdir()
    refused = growfs.run("mount", tmp_path / "remote", second, *flags, check=False)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert f"in use by growfs (pid {growfs.pid}), mounted on {growfs.mountpoint}" in refused.stderr
    assert not mounted_at(second)
    growfs.run("mount", tmp_path / "other", second, *flags)
    try:
        assert os.listdir(second) == ["class0"]
        assert growfs.names() == set(tree)
    finally:
        growfs.run("umount", second)


@only("either")
def test_a_mountpoint_with_spaces_and_unicode_that_is_moved(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=1)
    growfs.mountpoint.rmdir()
    growfs.mountpoint = tmp_path / "before/mit Leerzeichen\tund Ümläuten"
    growfs.cache_dir = tmp_path / "cäche, dir\\mit = allem"
    growfs.mountpoint.mkdir(parents=True)
    growfs.mount(tmp_path / "remote")
    assert growfs.names() == set(tree)
    assert growfs.status()["mountpoint"] == str(growfs.mountpoint)
    pid = growfs.pid
    (tmp_path / "before").rename(tmp_path / "after")
    try:
        os.kill(pid, signal.SIGTERM)
        until(lambda: not alive(pid))
        assert [mount for mount in mounts() if tmp_path in mount.mountpoint.parents] == []
        assert os.listdir(tmp_path / "after" / growfs.mountpoint.name) == []
    finally:
        for mount in mounts():
            if tmp_path in mount.mountpoint.parents:
                unmount(mount.mountpoint, lazy=True)


def upgrade(growfs: Growfs, site: Path) -> None:
    """Replace or remove the code of a mount, once it has kept a copy, and kill its fork server."""
    until(lambda: has_kept_code(growfs.pid) and has_kept_code(fork_server_of(growfs.pid)))
    for number, path in enumerate(sorted((site / "growfs").rglob("*.py"))):
        if number % 2:
            path.write_text("raise RuntimeError('another version')\n")
        else:
            path.unlink()
    os.kill(fork_server_of(growfs.pid), signal.SIGKILL)


@pytest.fixture
def site(growfs: Growfs, tmp_path: Path) -> Path:
    """A folder with the code of growfs, for the daemon: the command is in its working directory."""
    shutil.copytree(Path(growfs_package.__path__[0]), tmp_path / "site/growfs")
    growfs.starts_python = True
    growfs.env["PYTHONPATH"] = str(tmp_path / "site")
    return tmp_path / "site"


@only("either")
@pytest.mark.promise(47)
def test_a_mount_goes_on_if_growfs_is_upgraded_or_removed(growfs: Growfs, tmp_path: Path, site: Path) -> None:
    """Modules that it has not imported yet would be missing, or of another version: those of new workers, which list,
    fetch, and divide the next pass with the code of an extension.
    """
    tree = make_tree(tmp_path / "remote", directories=1, files=2)
    growfs.mount(tmp_path / "remote", "--exact", "--refresh", "0.2s")
    upgrade(growfs, site)
    (tmp_path / "remote/class0/new.bin").write_bytes(b"new")
    until(lambda: growfs.status()["cache"]["files"] == 3)
    part = growfs.mountpoint / ".growfs/passes/9/1/class0"
    assert sorted(f"class0/{name}" for name in os.listdir(part)) == sorted([*tree, "class0/new.bin"])
    assert (part / "new.bin").read_bytes() == b"new"
    assert "growfs_ready 1.0" in (growfs.mountpoint / ".growfs/metrics").read_text()
    until(lambda: growfs.status()["last_error"] is None)  # it may have listed when it was killed
    growfs.umount()
