"""What another user of the machine prepares, so that a command of root does something else than root means."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from growfs import cli
from growfs.cache.cache_folder import FORMAT
from growfs.daemon.control_client import call
from growfs.errors import GrowfsError
from growfs.fuse.mounting import mounted_at, unmount
from tests.blocking_server import blocking_server
from tests.cli.support import OtherUser, assert_refused, fuse_device, other_user, start_mount, tmpfs
from tests.harness import Growfs, make_tree, until

DAEMON = """
import contextlib, os, socket, sys
from setproctitle import setproctitle
os.chdir(sys.argv[1])
lock = os.open("lock", os.O_RDWR)
listening = socket.socket(socket.AF_UNIX)
listening.bind("control.sock")
listening.listen()
setproctitle("growfs: x")
print("ready", flush=True)
while True:
    connection, _ = listening.accept()
    if b'"stop"' in connection.recv(1000):
        break
    with contextlib.suppress(BrokenPipeError):  # who looks only which process it is
        connection.sendall(b'{"result": []}\\n')
    connection.close()
"""
"""A process that looks like a daemon: its title, its open lock, its socket."""
MOUNTED = """
import os, sys
from pathlib import Path
from growfs.fuse.mounting import MountSpec
mountpoint = Path(sys.argv[1])
cache = Path(sys.argv[2].replace("%00", "\\0"))
MountSpec(mountpoint, cache, False, os.open(mountpoint, os.O_RDONLY)).attach()
print("ready", flush=True)
sys.stdin.read()
"""
"""A mount that names any cache."""


@pytest.fixture
def user() -> Iterator[OtherUser]:
    with other_user() as user:
        yield user


@pytest.fixture
def mounted(growfs: Growfs, tmp_path: Path) -> Growfs:
    """A mount with two cached files. The user is another one than its owner."""
    make_tree(tmp_path / "remote", directories=1, files=2)
    growfs.mount(tmp_path / "remote")
    return growfs


@contextmanager
def running(user: OtherUser, script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A program of the user, once it says that it is ready."""
    command = [*user.before, *user.prefix, user.python, "-c", script, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=user.env, cwd="/") as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def own_cache(user: OtherUser, **announced: object) -> Path:
    """A cache that the user has made, whose daemon.json has what the user wants."""
    cache = user.folder / "cache"
    cache.mkdir()
    (cache / "lock").touch()
    (cache / "daemon.json").write_text(json.dumps({"format": FORMAT, "url": "x", "started": 0, **announced}))
    for path in (cache, *cache.iterdir()):
        os.chown(path, user.folder.stat().st_uid, user.folder.stat().st_gid)
    return cache


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_umount_ends_no_process_that_another_user_names(
    growfs: Growfs, user: OtherUser, bystander: subprocess.Popen[bytes]
) -> None:
    cache = own_cache(user, pid=bystander.pid, mountpoint=str(user.folder / "mnt"))
    with running(user, DAEMON, cache) as daemon:
        growfs.run("umount", user.folder / "mnt")
        assert daemon.wait(30) == 0, "it was asked to end"
    assert bystander.poll() is None


def test_stop_ends_the_daemon_and_no_process_of_the_same_number(
    growfs: Growfs, bystander: subprocess.Popen[bytes]
) -> None:
    """As in another pid namespace, where the number in daemon.json is that of a bystander."""
    with blocking_server({"a": b"x"}, "") as server, start_mount(growfs, server.url) as mounting:
        until(lambda: "" in server.requested)
        announced = json.loads((growfs.cache / "daemon.json").read_text())
        (growfs.cache / "daemon.json").write_text(json.dumps({**announced, "pid": bystander.pid}))
        growfs.run("stop", growfs.mountpoint)
        assert mounting.wait(30) == 1
    assert bystander.poll() is None


def test_a_mount_that_names_the_cache_of_another_user_is_not_believed(mounted: Growfs, user: OtherUser) -> None:
    (user.folder / "mnt").mkdir()
    os.chown(user.folder / "mnt", user.folder.stat().st_uid, -1)
    with fuse_device() as user.before, running(user, MOUNTED, user.folder / "mnt", mounted.cache):
        for command in (("evict", user.folder / "mnt", "*"), ("umount", user.folder / "mnt")):
            done = user.run_growfs_as_root(*command)
            assert_refused(done, "the cache of another user", f"umount {user.folder / 'mnt'}")
        assert "the cache of another user" in user.run_growfs_as_root("list").stdout
    assert mounted.status()["cache"]["files"] == 2


def test_a_link_to_the_cache_of_another_user_is_not_believed(mounted: Growfs, user: OtherUser) -> None:
    """Even if it is made after root's command has asked whose cache it is."""
    for link, target in ((".growfs", mounted.cache), ("cache", mounted.cache), ("caches", mounted.cache_dir)):
        assert user.run_program("ln", "-s", target, user.folder / link).returncode == 0
    assert_refused(mounted.run("stop", user.folder, check=False), "the cache of another user", "rm ")
    for path in (user.folder / "cache", user.folder / "caches" / mounted.cache.name):
        with pytest.raises(GrowfsError, match="belongs to another user"):
            call(path, "evict", patterns=["*"])
    assert mounted.status()["cache"]["files"] == 2


def test_verify_removes_nothing_for_another_user(mounted: Growfs, user: OtherUser, tmp_path: Path) -> None:
    """A link in the cache may lead to a file of root."""
    mounted.umount()
    uid, gid = user.folder.stat().st_uid, user.folder.stat().st_gid
    cache = user.folder / "cache"
    mounted.cache.rename(cache)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/0000.bin").write_text("precious")
    (cache / "files/class0").rename(cache / "files/before")
    (cache / "files/class0").symlink_to(tmp_path / "precious")
    for path in (cache, *cache.rglob("*")):
        os.chown(path, uid, gid, follow_symlinks=False)
    assert_refused(mounted.run("verify", cache, check=False), "belongs to another user")
    assert (tmp_path / "precious/0000.bin").read_text() == "precious"


@pytest.mark.parametrize("name", ["lock", "daemon.json"])
def test_list_waits_for_no_fifo_of_another_user(growfs: Growfs, user: OtherUser, name: str) -> None:
    cache = own_cache(user, pid=1, mountpoint=str(user.folder / "mnt"))
    (cache / name).unlink()
    assert user.run_program("mkfifo", cache / name).returncode == 0
    with running(user, DAEMON, cache):
        growfs.run("list", timeout_s=30)


NONSENSE = (
    *("", "[" * 50_000, "[]", "null", '{"mountpoint": 7}', '{"pid": 1}', '{"mountpoint": "/a"}'),
    *('{"pid": 1, "mountpoint": "/a\\u0000b"}', '{"pid": 1, "mountpoint": "/a\\ud800"}'),
    '{"pid": 1, "mountpoint": "a"}',
    *('{"pid": -1, "mountpoint": "/a"}', '{"pid": true, "mountpoint": "/a"}', '{"pid": 1e9, "mountpoint": "/a"}'),
    '{"pid": 99999999, "mountpoint": "/a"}',
    *('{"pid": 1, "mountpoint": "/a", "version": [1]}', '{"pid": 1, "mountpoint": "/a", "format": "x"}'),
)
"""What no daemon announces."""


def test_commands_of_root_read_no_nonsense_of_another_user(growfs: Growfs, user: OtherUser) -> None:
    cache = own_cache(user)
    with running(user, DAEMON, cache):
        for content in NONSENSE:
            (cache / "daemon.json").write_text(content)
            assert str(cache) not in CliRunner().invoke(cli.main, ["list"], catch_exceptions=False).stdout, content
            refused = CliRunner().invoke(cli.main, ["umount", str(growfs.mountpoint)])
            assert "growfs is not mounted there" in refused.stderr


def test_a_mount_may_name_a_cache_that_no_path_can_have(growfs: Growfs, user: OtherUser) -> None:
    assert user.run_program("mkdir", user.folder / "mnt").returncode == 0
    with fuse_device() as user.before, running(user, MOUNTED, user.folder / "mnt", f"{user.folder}/%00"):
        listed = user.run_growfs_as_root("list")
        elsewhere = user.run_growfs_as_root("umount", growfs.mountpoint)
        assert user.run_growfs_as_root("umount", user.folder / "mnt").returncode == 0
    assert (listed.returncode, listed.stderr) == (0, "")
    assert re.search(rf"{user.folder}/mnt +{user.folder}/%00 +dead", listed.stdout)
    assert_refused(elsewhere, "growfs is not mounted there")


def test_no_link_of_another_user_leads_to_a_mountpoint(mounted: Growfs, user: OtherUser, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, target in (("link", mounted.mountpoint), ("to-folder", tmp_path / "folder")):
        assert user.run_program("ln", "-s", target, user.folder / name).returncode == 0
    link, to_folder = user.folder / "link", user.folder / "to-folder"
    for command in (("umount", link), ("evict", link, "*")):
        refused = mounted.run(*command, check=False)
        assert_refused(refused, f"{link}: is a link that belongs to another user")
    assert mounted.status()["cache"]["files"] == 2
    for mountpoint in (to_folder, to_folder / "new"):
        refused = mounted.run("mount", tmp_path / "remote", mountpoint, "--cache-dir", tmp_path / "x", check=False)
        assert_refused(refused, f"{to_folder}: is a link that belongs to another user")
    assert os.listdir(tmp_path / "folder") == []


def test_a_name_does_not_move_the_cursor(mounted: Growfs, user: OtherUser, tmp_path: Path) -> None:
    name = "\x1b[2Jx"
    cache = own_cache(user, pid=1, mountpoint=str(user.folder / name))
    with running(user, DAEMON, cache):
        listed = mounted.run("list").stdout
    assert f"{user.folder}/�[2Jx" in listed
    assert "mounted by another version of growfs" in listed
    (tmp_path / name).symlink_to("/bin/sleep")
    with subprocess.Popen([tmp_path / name, "60"], cwd=mounted.mountpoint) as process:
        try:
            refused = mounted.run("umount", mounted.mountpoint, check=False)
            shown = mounted.run("status", mounted.mountpoint).stdout
        finally:
            process.kill()
    assert_refused(refused, f"in use by �[2Jx ({process.pid})")
    assert "\x1b" not in refused.stderr + shown


def test_root_mounts_on_the_folder_that_was_checked(growfs: Growfs, user: OtherUser, tmp_path: Path) -> None:
    """While the remote is listed, its user moves it, and puts a link in its place."""
    growfs.mountpoint, elsewhere = user.folder / "mnt", tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert user.run_program("mkdir", growfs.mountpoint).returncode == 0
    with blocking_server({"a": b"x"}, "") as server, start_mount(growfs, server.url) as mounting:
        until(lambda: "" in server.requested)
        moved = growfs.mountpoint.rename(user.folder / "moved")
        growfs.mountpoint.symlink_to(elsewhere)
        server.unblock()
        assert mounting.wait(30) == 0
    assert not mounted_at(elsewhere)
    assert os.listdir(elsewhere) == []
    growfs.mountpoint = moved
    assert os.listdir(moved) == ["a"]
    os.kill(growfs.pid, signal.SIGTERM)
    until(lambda: not mounted_at(moved))
    assert os.listdir(moved) == []


@pytest.mark.parametrize("lazy", [True, False])
def test_root_unmounts_nothing_to_which_another_user_has_put_a_link(tmp_path: Path, lazy: bool) -> None:
    """The owner of a folder above the mountpoint replaces it between the look at the mount table and umount2(2)."""
    mountpoint = tmp_path / "of another user/mnt"
    (tmp_path / "of another user").symlink_to("system")
    (tmp_path / "system").mkdir()
    with tmpfs(tmp_path / "system/mnt"):
        with pytest.raises(GrowfsError, match="cannot be unmounted: Not a directory"):
            unmount(mountpoint, lazy)
        assert (tmp_path / "system/mnt").is_mount()


def test_a_mountpoint_may_be_a_link_to_another(growfs: Growfs, tmp_path: Path) -> None:
    """It is resolved once: all commands find the mount by the links and by the folder, and SIGTERM unmounts it."""
    make_tree(tmp_path / "remote", directories=1, files=1)
    folder, growfs.mountpoint = growfs.mountpoint, tmp_path / "link"
    growfs.mountpoint.symlink_to("between")
    (tmp_path / "between").symlink_to(folder.name)
    mounted = growfs.mount(tmp_path / "remote")
    assert f"{folder}: 1 of 1 file" in mounted.stdout
    for path in (growfs.mountpoint, tmp_path / "between", folder):
        assert str(folder) in growfs.run("status", path).stdout
    os.kill(growfs.pid, signal.SIGTERM)
    until(lambda: not mounted_at(folder))
    growfs.mount(tmp_path / "remote")
    growfs.run("umount", growfs.mountpoint)
    assert os.listdir(folder) == []
    (tmp_path / "loop").symlink_to("loop")
    assert_refused(growfs.run("mount", tmp_path, tmp_path / "loop", check=False), "is a link that leads to itself")
