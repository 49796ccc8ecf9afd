"""Users other than root: who may mount, and who may control a mount."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from growfs.fuse.probe import why_not_passthrough
from tests.cli.support import NOBODY, OtherUser, assert_refused, cache_folders, fuse_device, other_user
from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import CAPACITY, full_cache
from tests.harness import Growfs, make_tree

JOB = 'cd "$1" && names=$(find . -name "*.bin") && cat $names >/dev/null && echo "$names"'
"""Lists and reads everything; prints the names."""


@contextmanager
def user_with_remote() -> Iterator[OtherUser]:
    with other_user() as user:
        for name in ("mnt", "remote"):
            (user.folder / name).mkdir()
        make_tree(user.folder / "remote", directories=1, files=2)
        for path in (user.folder / "mnt", user.folder / "remote"):
            os.chown(path, NOBODY, NOBODY)
        yield user


@pytest.fixture
def nobody() -> Iterator[OtherUser]:
    with user_with_remote() as user:
        yield user


def test_a_folder_that_may_be_listed_but_not_entered_does_not_end_the_listing(nobody: OtherUser) -> None:
    closed = nobody.folder / "remote/closed"
    closed.mkdir()
    (closed / "x").write_bytes(b"x")
    closed.chmod(0o744)
    program = (
        "from growfs.remote import open_remote\nfrom growfs.remote.interface import RemoteSpec\n"
        f"print([page.skipped for page in open_remote(RemoteSpec({str(closed.parent)!r})).pages()])"
    )
    done = nobody.run_program(nobody.python, "-c", program)
    assert "reason='permission denied', path='closed/x'" in done.stdout, done.stderr


@pytest.fixture
def allowed(nobody: OtherUser) -> Iterator[OtherUser]:
    """The user nobody, on a machine where every user may open /dev/fuse, as on most machines."""
    with fuse_device() as nobody.before:
        yield nobody


def mount(user: OtherUser, *flags: object) -> tuple[object, ...]:
    cache = ("--cache-dir", user.folder / "cache", "--cache-size", "1GB")
    return ("mount", user.folder / "remote", user.folder / "mnt", *cache, *flags)


@pytest.mark.promise(17)
def test_jobs_of_two_users_share_a_mount(growfs: Growfs) -> None:
    """Each has its own epochs, and nothing that one of them still reads is evicted for the other."""
    with user_with_remote() as user:
        shutil.rmtree(user.folder / "remote")
        growfs.mountpoint = user.folder / "mnt"
        full_cache(growfs, user.folder / "remote")
        seen: set[str] = set()
        with Reader(growfs.mountpoint) as of_root:
            while len(seen) < 2 * CAPACITY:
                slow = sorted(of_root.walk())
                for part in range(3):
                    job = user.run_program("sh", "-c", JOB, "sh", growfs.mountpoint)
                    assert job.returncode == 0, job.stderr
                    seen.update(job.stdout.splitlines())
                    of_root.read_all(slow[part::3])
        assert growfs.status()["miss"]["files_total"] == 0
        growfs.umount()


@pytest.mark.promise(4)
def test_allow_other_needs_the_permission_in_fuse_conf(allowed: OtherUser) -> None:
    if "\nuser_allow_other" in Path("/etc/fuse.conf").read_text():
        pytest.skip("this machine permits it")
    assert_refused(allowed.run(*mount(allowed, "--allow-other")), "user_allow_other", "/etc/fuse.conf")
    assert cache_folders(allowed.folder / "cache") == []


@pytest.mark.promise(4)
def test_a_mount_of_root_can_be_read_by_all_and_controlled_by_none(growfs: Growfs, nobody: OtherUser) -> None:
    growfs.mountpoint = nobody.folder / "mnt"
    growfs.mount(nobody.folder / "remote")
    read = nobody.run_program("sh", "-c", f"find {growfs.mountpoint} -type f | xargs cat | wc -c")
    assert (read.stdout, read.stderr) == ("20000\n", "")
    assert_refused(nobody.run("set", growfs.mountpoint, "settle=1"), "belongs to another user")
    refused = nobody.run("umount", growfs.mountpoint)
    assert_refused(refused, f"{growfs.mountpoint}: belongs to another user", "as root")
    listed = nobody.run("list")
    assert (listed.returncode, listed.stderr) == (0, "")
    (line,) = [line for line in listed.stdout.splitlines() if str(growfs.mountpoint) in line]
    assert line.rpartition("  ")[2].startswith("this mount belongs to another user"), "the cache is named once"
    growfs.umount()


def test_the_home_of_another_user_holds_no_options(nobody: OtherUser) -> None:
    """As after `su` without a login."""
    home = nobody.folder / "root"
    home.mkdir(mode=0o700)
    nobody.env["HOME"] = str(home)
    done = nobody.run("doctor", "--cache-dir", nobody.folder / "cache", "--measure", "0")
    assert done.stderr == ""
    assert f"{nobody.folder}/cache, to be created" in done.stdout


def test_the_end_of_another_users_folder_is_refused(growfs: Growfs, nobody: OtherUser) -> None:
    folder, cache_dir = nobody.folder / "filled", nobody.folder / "cache-of-root"
    os.chown(nobody.folder, 0, 0)  # else that user could replace the cache, which is refused
    growfs.run("fill", nobody.folder / "remote", folder, "--cache-dir", cache_dir, "--cache-size", "1GB")
    (cache,) = cache_folders(cache_dir)
    for readable in (folder, cache_dir, cache):
        readable.chmod(0o755)
    for command in ("stop", "umount"):
        assert_refused(nobody.run(command, folder), f"{folder}: belongs to another user", "as root")
    growfs.run("stop", folder)


@pytest.mark.promise(4, 10)
def test_a_user_mounts_without_root_by_links_or_libfuse_and_only_root_may_control_it_too(allowed: OtherUser) -> None:
    refused = allowed.run(*mount(allowed, "--engine", "passthrough"))
    assert_refused(refused, "--engine passthrough: needs CAP_SYS_ADMIN", "mount as root", "--engine auto")
    done = allowed.run(*mount(allowed, "--wait-files", 2))
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 of 2 files cached" in done.stdout
    assert "note: programs see symbolic links" in done.stdout
    read = allowed.run_program("sh", "-c", f"find {allowed.folder}/mnt -type l | xargs cat | wc -c")
    assert (read.stdout, read.stderr) == ("20000\n", "")
    (cache,) = cache_folders(allowed.folder / "cache")
    assert cache.stat().st_uid == NOBODY
    assert allowed.run("wait", allowed.folder / "mnt", "--all").returncode == 0
    status = json.loads(allowed.run("status", "--json", allowed.folder / "mnt").stdout)
    assert (status["state"], status["engine"]) == ("complete", "links")
    assert status["engine_reason"].startswith("no passthrough: needs CAP_SYS_ADMIN")
    done = allowed.run_as_root("ls", allowed.folder / "mnt" / "class0")
    assert "Permission denied" in done.stderr, "not even root may, without --allow-other: fuse(4)"
    for command, expected in (("status", "complete"), ("list", "2 of 2 files cached"), ("umount", "")):
        done = allowed.run_growfs_as_root(command, *([] if command == "list" else [allowed.folder / "mnt"]))
        assert (done.returncode, done.stderr) == (0, "")
        assert expected in done.stdout
    assert list((allowed.folder / "mnt").iterdir()) == []
    done = allowed.run(*mount(allowed, "--engine", "libfuse", "--wait-files", 2))
    assert (done.returncode, done.stderr) == (0, "")
    read = allowed.run_program("sh", "-c", f"find {allowed.folder}/mnt -type f | xargs cat | wc -c")
    assert (read.stdout, read.stderr) == ("20000\n", "")
    assert allowed.run("umount", allowed.folder / "mnt").returncode == 0


@pytest.mark.promise(10)
def test_a_user_with_the_capability_gets_passthrough(allowed: OtherUser) -> None:
    """Mounted by fusermount3, which lets that user unmount it."""
    if why_not := why_not_passthrough(allowed.folder):
        pytest.skip(why_not)
    allowed.prefix = (*allowed.prefix[:-1], "--inh-caps=+sys_admin", "--ambient-caps=+sys_admin", "--")
    done = allowed.run(*mount(allowed, "--engine", "passthrough"))
    assert (done.returncode, done.stderr) == (0, "")
    allowed.prefix = OtherUser.prefix
    read = "import pathlib, sys; print(len(pathlib.Path(sys.argv[1]).read_bytes()))"
    path = allowed.folder / "mnt/class0/0000.bin"
    assert allowed.run_program(allowed.python, "-c", read, path).stdout == "10000\n"
    status = json.loads(allowed.run("status", "--json", allowed.folder / "mnt").stdout)
    assert (status["engine"], status["requests"].get("READ", 0)) == ("passthrough", 0)
    assert allowed.run("umount", allowed.folder / "mnt").returncode == 0
    assert list((allowed.folder / "mnt").iterdir()) == []
