"""The folder of a cache: whose it may be."""

from __future__ import annotations

import errno
import os
import platform
import sqlite3
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from growfs.cache.cache_folder import FORMAT, CacheFolder, CacheInUse, folder_name, open_cache, other_format
from growfs.cache.database import Database
from growfs.daemon.options import Options
from growfs.errors import GrowfsError
from growfs.remote.interface import RemoteSpec
from growfs.trust import ACL_GROUP, ACL_USER
from tests.cli.support import NOBODY, needs_root
from tests.harness import set_format, until

URL = "s3://bucket/train"
SPEC = RemoteSpec(url=URL)


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir(mode=0o700)
    return tmp_path / "cache"


@pytest.fixture
def folder(cache_dir: Path) -> Path:
    return cache_dir / folder_name(SPEC, URL)


def open_and_release(cache_dir: Path) -> CacheFolder:
    cache = open_cache(cache_dir, SPEC, URL)
    cache.release()
    return cache


def test_a_mount_that_waits_for_one_that_fails_gets_a_folder_of_its_own(cache_dir: Path, folder: Path) -> None:
    failing = open_cache(cache_dir, SPEC, URL)
    (folder / "catalog.sqlite").touch()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(open_cache, cache_dir, SPEC, URL)
        until(lambda: list(map(os.path.realpath, Path("/proc/self/fd").iterdir())).count(f"{folder}/lock") == 2)
        failing.undo(keeps_log=False)
        cache = waiting.result()
    assert cache.fresh
    assert cache.is_whole()
    assert os.listdir(folder) == ["lock"]
    cache.release()


@pytest.mark.parametrize("urls", [("/src", "file:///src", "file:///src/", "local:///src"), ("s3://b/p", "s3://b/p/")])
def test_a_remote_has_one_cache_however_its_url_is_written(urls: tuple[str, ...]) -> None:
    assert len({folder_name(RemoteSpec(url=url), url) for url in urls}) == 1


@pytest.mark.parametrize(
    ("name", "url", "given"),
    [
        ("bucket-p-84d13436", "s3://bucket/p", {}),
        ("bucket-p-84d13436", "s3://bucket/p", {"include": ["*.jpg"], "exclude": ["*.tmp"]}),
        ("bucket-p-08d9705f", "s3://bucket/p", {"endpoint_url": "http://host:9000"}),
        ("bucket-p-44d50c3b", "s3://bucket/p", {"manifest": "s3://bucket/list.csv"}),
        ("bucket-p-60c6fe9c", "s3://bucket/p", {"members": "tar"}),
        (
            "bucket-p-c931065f",
            "s3://bucket/p",
            {"manifest": "s3://bucket/list.csv", "members": "/data/shards.py:index"},
        ),
        ("bucket-p-1a4ba6cd", "s3://bucket/p", {"producer": "gunzip", "rename": "{stem}"}),
        ("py-shards-sample-c91554dc", "py:shards:sample", {"seed": "7", "count": "9"}),
    ],
)
def test_a_cache_is_found_under_its_name_by_every_version(name: str, url: str, given: dict[str, Any]) -> None:
    assert folder_name(Options.parse(given).remote(url, Path("/home/me")), url) == name


DYING = """
import ctypes, fcntl, json, os, sys, threading, time
folder, exit_thread = sys.argv[1], int(sys.argv[2])
fcntl.flock(os.open(f"{folder}/lock", os.O_RDWR), fcntl.LOCK_EX)
with open(f"{folder}/daemon.json", "w") as file:
    json.dump({"pid": os.getpid(), "mountpoint": "/mnt/train"}, file)
def last_thread():
    sys.stdin.read()
    time.sleep(0.2)
    os._exit(0)
threading.Thread(target=last_thread).start()
print("locked", flush=True)
ctypes.CDLL(None).syscall(exit_thread, 0)
"""
"""A process whose main thread has ended, as that of a killed daemon, while another thread keeps the lock."""


def test_a_daemon_that_ends_is_waited_for(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.cache.cache_folder.NOTICE_S", 0)
    cache = open_cache(cache_dir, SPEC, URL)
    with pytest.raises(CacheInUse, match=f"{cache.path}: in use by another growfs"):
        open_cache(cache_dir, SPEC, URL)
    cache.note_end()
    end = threading.Timer(0.3, cache.release)
    end.start()
    open_and_release(cache_dir)
    end.join()


def test_a_lock_of_a_dying_daemon_is_waited_for(cache_dir: Path, folder: Path) -> None:
    folder = open_and_release(cache_dir).path
    exit_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]
    command = [sys.executable, "-c", DYING, str(folder), str(exit_thread)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdin
        assert daemon.stdout
        assert daemon.stdout.readline() == "locked\n"
        until(lambda: ") Z " in Path(f"/proc/{daemon.pid}/stat").read_text())
        daemon.stdin.close()
        open_and_release(cache_dir)
        assert daemon.wait() == 0


@pytest.mark.promise(31)
def test_what_another_user_has_prepared_is_refused(cache_dir: Path, folder: Path) -> None:
    needs_root()
    cache_dir.chmod(0o1777)
    folder.mkdir(mode=0o700)
    for path in (folder / "catalog.sqlite", folder, cache_dir):
        path.touch()
        os.chown(path, NOBODY, NOBODY)
        refusal = f"{path}.* belongs to another user .uid {NOBODY}.*--cache-dir"
        with pytest.raises(GrowfsError, match=refusal):
            open_cache(cache_dir, SPEC, URL)
        os.chown(path, 0, 0)
    os.chown(cache_dir, NOBODY, NOBODY)
    with pytest.raises(GrowfsError, match=f"{cache_dir}/x: is inside {cache_dir}, which belongs to .*--cache-dir"):
        open_cache(cache_dir / "x", SPEC, URL)


@pytest.mark.parametrize("name", ["", "files", "partial", "catalog.sqlite", "log", "lock"])
def test_a_link_in_place_of_the_folder_or_in_it_is_refused(
    cache_dir: Path, folder: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "victim").mkdir()
    if name:
        folder.mkdir(mode=0o700)
    (folder / name).symlink_to(tmp_path / "victim")
    refusal = f"{folder / name}: is a link that .* delete it" if name else f"{folder}: is not a folder"
    with pytest.raises(GrowfsError, match=refusal):
        open_cache(cache_dir, SPEC, URL)
    assert list((tmp_path / "victim").iterdir()) == []


@pytest.mark.promise(31)
def test_a_folder_where_others_can_replace_the_cache_is_refused(cache_dir: Path, folder: Path) -> None:
    """They could rename what is there, and put links in its place."""
    cache_dir.chmod(0o777)
    with pytest.raises(GrowfsError, match=f"{cache_dir}: other users may write to it.* chmod go-w {cache_dir}"):
        open_cache(cache_dir, SPEC, URL)
    for below in (cache_dir / "x", cache_dir / "x/x"):
        with pytest.raises(GrowfsError, match=f"{below}: is inside {cache_dir}, where .* chmod \\+t {cache_dir}"):
            open_cache(below, SPEC, URL)
    cache_dir.chmod(0o1777)
    open_and_release(cache_dir / "x/x")
    open_and_release(cache_dir)
    folder.chmod(0o1777)
    with pytest.raises(GrowfsError, match=f"chmod go-w {folder}"):
        open_cache(cache_dir, SPEC, URL)


def grant(path: Path, *entries: tuple[int, int, int], kind: str = "access") -> None:
    """Give a folder an ACL: its owner may do all, others may read, and these entries (tag, permission, id)."""
    acl = sorted([(1, 7, -1), (4, 5, -1), (16, 7, -1), (32, 5, -1), *entries])
    packed = b"".join(struct.pack("<HHi", *entry) for entry in acl)
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", struct.pack("<I", 2) + packed)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip(f"{path}: its file system has no ACLs")


@pytest.mark.promise(31)
@pytest.mark.parametrize("tag", [ACL_USER, ACL_GROUP])
def test_an_acl_that_lets_another_user_replace_the_cache_directory_is_refused(
    cache_dir: Path, folder: Path, tag: int
) -> None:
    """Its mode has the mask of the ACL in place of the permissions of the group, which is that of this process."""
    grant(cache_dir, (tag, 7, NOBODY))
    assert cache_dir.stat().st_mode & 0o777 == 0o775
    with pytest.raises(GrowfsError, match=f"is inside {cache_dir}, where .* chmod \\+t {cache_dir}"):
        open_cache(cache_dir / "x", SPEC, URL)
    with pytest.raises(GrowfsError, match=f"chmod go-w {cache_dir}"):
        open_cache(cache_dir, SPEC, URL)
    cache_dir.chmod(0o755)  # as the message says: the mask then hides what the entries allow
    open_and_release(cache_dir)
    grant(folder, (tag, 7, NOBODY))
    with pytest.raises(GrowfsError, match=f"chmod go-w {folder}"):
        open_cache(cache_dir, SPEC, URL)


@pytest.mark.parametrize("tag", [ACL_USER, ACL_GROUP])
def test_an_acl_that_lets_others_only_read_is_accepted(cache_dir: Path, tag: int) -> None:
    grant(cache_dir, (tag, 5, NOBODY), (ACL_USER, 7, os.geteuid()), (ACL_GROUP, 7, os.getegid()))
    open_and_release(cache_dir / "x")


def test_an_acl_that_the_cache_inherits_lets_nobody_write(cache_dir: Path) -> None:
    needs_root()
    grant(cache_dir, (ACL_USER, 7, NOBODY), kind="default")
    path = open_and_release(cache_dir / "x/y").path
    others = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", "test", "-w")
    for above in (path, path.parent, path.parent.parent):
        assert subprocess.run([*others, above], check=False).returncode == 1
    open_and_release(cache_dir / "x/y")


@pytest.mark.promise(31)
def test_a_link_of_another_user_to_the_cache_directory_is_refused(cache_dir: Path, tmp_path: Path) -> None:
    needs_root()
    (tmp_path / "link").symlink_to(cache_dir)
    open_and_release(tmp_path / "link" / "x")
    os.chown(tmp_path / "link", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(
        GrowfsError, match=f"{tmp_path}/link: is a link that belongs to another user .uid {NOBODY}.*--cache-dir"
    ):
        open_cache(tmp_path / "link" / "x", SPEC, URL)


@pytest.mark.promise(31)
def test_a_link_to_the_cache_directory_that_is_changed_later_changes_nothing(cache_dir: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(cache_dir)
    cache = open_cache(link, SPEC, URL)
    link.unlink()
    link.symlink_to(tmp_path)
    assert cache.path.parent == cache_dir
    cache.release()


def test_the_tag_is_not_written_through_a_link_and_a_cache_can_be_opened_again(cache_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (cache_dir / "CACHEDIR.TAG.new").symlink_to(tmp_path / "victim")
    assert open_and_release(cache_dir).fresh
    assert (tmp_path / "victim").read_text() == "precious"
    assert (cache_dir / "CACHEDIR.TAG").is_file()
    assert not open_and_release(cache_dir).fresh


def test_a_cache_of_another_format_is_left_as_it_is_by_a_refused_mount_and_emptied_but_for_its_lock_by_others(
    cache_dir: Path,
) -> None:
    cache = open_cache(cache_dir, SPEC, URL)
    assert other_format(cache.path) == ""
    Database(cache.database).close()
    assert other_format(cache.path) == ""
    set_format(cache.path, FORMAT + 1)
    assert f"its format is {FORMAT + 1}" in other_format(cache.path)
    before = {path: path.read_bytes() for path in cache_dir.rglob("*") if path.is_file()}
    with pytest.raises(CacheInUse):
        open_cache(cache_dir, SPEC, URL)
    assert {path: path.read_bytes() for path in cache_dir.rglob("*") if path.is_file()} == before
    (cache.path / "files/a").mkdir(parents=True)
    (cache.path / "files/a/1").write_text("1")
    (cache.path / "files/out").symlink_to(cache_dir)
    (cache.path / "log").write_text("")
    cache.empty()
    assert [path.name for path in cache.path.iterdir()] == ["lock"]
    assert (cache_dir / "CACHEDIR.TAG").exists()
    assert other_format(cache.path) == ""
    cache.release()


def test_what_a_crash_has_left_in_the_log_of_the_database_counts(cache_dir: Path) -> None:
    cache = open_cache(cache_dir, SPEC, URL)
    database = Database(cache.database)
    header = cache.database.read_bytes()[60:64]  # sqlite.org/fileformat2.html: the user version
    assert int.from_bytes(header, "big") == 0
    assert other_format(cache.path) == ""
    set_format(cache.path, FORMAT + 1)
    assert f"its format is {FORMAT + 1}" in other_format(cache.path)
    database.close()
    cache.release()


def test_a_folder_with_another_database_is_not_a_cache(cache_dir: Path) -> None:
    cache = open_cache(cache_dir, SPEC, URL)
    with closing(sqlite3.connect(cache.database)) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
    with pytest.raises(GrowfsError, match="is not the database of a growfs cache"):
        other_format(cache.path)
    cache.database.write_bytes(b"no database" * 1000)
    with pytest.raises(GrowfsError, match="file is not a database"):
        other_format(cache.path)
    cache.release()
