"""The links engine: readers open cached files themselves, and everything else works as with the other engines."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import trio

from growfs.cache.catalog import Removed
from growfs.daemon.control_client import call
from growfs.errors import Unreadable
from growfs.fuse.links.engine import LinksEngine
from growfs.vfs.attributes import LINK_BIT
from growfs.vfs.open_counter import OpenCounter
from tests.cli.support import namespace, needs_root
from tests.forkserver import SETUP_VARIABLE
from tests.fuse.conftest import opened
from tests.fuse.reader import Reader
from tests.harness import Growfs, make_tree, until

if TYPE_CHECKING:
    from growfs.fuse.links.view import LinkedVfs
    from growfs.fuse.protocol import FuseRequest

SIZE = 20_000


def is_link(growfs: Growfs, path: str) -> bool:
    return (growfs.mountpoint / path).is_symlink()


@pytest.mark.promise(28)
def test_a_warm_epoch_asks_the_daemon_for_nothing_but_listings(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", files=20, size=SIZE)
    growfs.mount(tmp_path / "remote", "--wait-files", str(len(tree)))
    assert growfs.content() == tree
    until(lambda: growfs.status()["opens"]["total"] == len(tree))
    (reader,) = growfs.status()["readers"]
    assert reader["opens"] == len(tree)
    assert growfs.content() == tree
    before = growfs.status()["requests"]
    paths = [growfs.mountpoint / path for path in tree]
    for path in paths:
        path.read_bytes()
    after = growfs.status()["requests"]
    assert {name for name in ("OPEN", "READ", "READLINK", "RELEASE") if after.get(name) != before.get(name)} == set()
    assert all(path.is_symlink() for path in paths)
    assert {entry.is_symlink() for entry in os.scandir(paths[0].parent)} == {True}
    assert os.readlink(paths[0]).startswith(str(growfs.cache / "files"))
    assert os.lstat(paths[0]).st_size == len(os.readlink(paths[0]))


@pytest.mark.promise(28)
def test_as_root_an_open_counts_for_the_process(growfs: Growfs, tmp_path: Path) -> None:
    needs_root()
    tree = make_tree(tmp_path / "remote", directories=1, files=4, size=SIZE)
    growfs.mount(tmp_path / "remote", "--wait-files", "4")
    with Reader(growfs.mountpoint) as reader, Reader(growfs.mountpoint) as late, Reader(growfs.mountpoint) as opener:
        for each in (reader, late):
            assert len(each.walk(".")) == 4
        opened_by = {reader: 3, late: 1, opener: 2}
        for each, files in opened_by.items():
            for path in sorted(tree)[:files]:
                each.read(path)
        expected = {each.pid: files for each, files in opened_by.items()}
        until(lambda: {row["pid"]: row["opens"] for row in growfs.status()["readers"]} == expected)
    assert growfs.run("verify", growfs.mountpoint).returncode == 0
    assert growfs.status()["opens"]["total"] == 6, "the daemon and its workers are no readers"


@pytest.mark.promise(28, 29)
def test_a_folder_of_the_cache_that_somebody_deletes_is_filled_again_and_its_opens_are_counted(
    growfs: Growfs, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "remote", directories=2, files=2, size=SIZE)
    growfs.mount(tmp_path / "remote", "--wait-files", "4", "--rotation", "never")
    assert growfs.content() == tree
    shutil.rmtree(growfs.cache / "files/class0")
    until(lambda: not is_link(growfs, "class0/0000.bin") and not is_link(growfs, "class0/0001.bin"))
    assert {path: (growfs.mountpoint / path).read_bytes() for path in tree} == tree  # misses
    until(lambda: is_link(growfs, "class0/0000.bin"))
    assert growfs.content() == tree
    until(lambda: growfs.status()["opens"]["total"] == 3 * len(tree))


def test_a_cache_that_was_moved_and_whose_path_is_odd_and_has_a_link(growfs: Growfs, tmp_path: Path) -> None:
    """Files that programs put beside cached ones are removed at the next start: SQLite makes NAME-wal and NAME-shm."""
    tree = make_tree(tmp_path / "remote", directories=1, files=3, size=SIZE)
    growfs.mount(tmp_path / "remote", "--wait-files", "3")
    assert growfs.content() == tree
    beside = Path(f"{os.readlink(growfs.mountpoint / 'class0/0000.bin')}-shm")
    beside.touch()
    os.listdir(growfs.mountpoint)  # the daemon reads all events first
    growfs.umount()
    assert beside.exists(), "a program may use it"
    (tmp_path / "home").symlink_to(tmp_path / "real home")
    (tmp_path / "real home/new\nline").mkdir(parents=True)
    moved = growfs.cache_dir.rename(tmp_path / "real home/new\nline/ünï 'quote' #%41")
    beside = moved / beside.relative_to(growfs.cache_dir)
    assert beside.exists()
    growfs.run(
        *("mount", tmp_path / "remote", growfs.mountpoint, "--wait-files", "3"),
        *("--cache-dir", tmp_path / "home/new\nline" / moved.name, "--cache-size", "100MB"),
    )
    assert not beside.exists()
    assert growfs.status()["fetch"]["files_total"] == 0, "all were cached"
    assert growfs.content() == tree
    assert all(os.readlink(growfs.mountpoint / path).startswith(str(moved)) for path in tree)


@pytest.mark.promise(1, 8)
def test_a_name_whose_file_was_evicted_waits_for_it_and_is_a_link_again_also_after_sigkill(
    growfs: Growfs, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=5, size=SIZE)
    growfs.mount(tmp_path / "remote", "--rotation", "never", "--wait-files", "5")
    assert growfs.content() == tree
    growfs.run("evict", growfs.mountpoint, "class0/0001.bin")
    until(lambda: not is_link(growfs, "class0/0001.bin"))
    assert (growfs.mountpoint / "class0/0001.bin").stat().st_size == SIZE
    assert (growfs.mountpoint / "class0/0001.bin").read_bytes() == tree["class0/0001.bin"]
    assert growfs.status()["miss"]["files_total"] == 1
    assert is_link(growfs, "class0/0001.bin")
    assert growfs.content() == tree
    gone = os.readlink(growfs.mountpoint / "class0/0001.bin")
    growfs.kill()
    os.unlink(gone)
    growfs.mount(tmp_path / "remote", "--wait-files", "5")
    assert {path: (growfs.mountpoint / path).read_bytes() for path in tree} == tree


@pytest.mark.promise(3, 6)
def test_a_file_that_is_evicted_while_its_directory_is_listed_is_left_out(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=150, size=100, suffix="x" * 200)
    growfs.mount(tmp_path / "remote", "--wait-files", len(tree))
    growfs.run("pause", growfs.mountpoint)
    folder = growfs.mountpoint / "class0"
    whole = os.listdir(folder)
    read_ahead = whole[100:120]  # the daemon reads 128 at a time, and the kernel asks for 32 KB at most
    assert len(whole) == len(tree)
    with os.scandir(folder) as entries:
        listed = [next(entries).name]
        growfs.run("evict", growfs.mountpoint, *(f"class0/{name}" for name in read_ahead))
        listed += [entry.name for entry in entries]
    assert listed == whole[:100] + whole[120:]
    name = f"class0/{read_ahead[0]}"
    assert (growfs.mountpoint / name).read_bytes() == tree[name]


@pytest.mark.promise(2, 3)
def test_a_file_that_is_open_is_not_evicted_and_one_that_is_replaced_counts_until_its_last_close(
    growfs: Growfs, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=5, size=SIZE)
    growfs.mount(tmp_path / "remote", "--wait-files", "5", "--rotation", "never", "--refresh", "1s")
    assert growfs.content() == tree
    with opened(growfs.mountpoint / "class0/0001.bin") as fd:
        assert "1 kept" in growfs.run("evict", growfs.mountpoint, "class0/0001.bin").stdout
        (tmp_path / "remote/class0/0001.bin").write_bytes(b"new" * SIZE)
        until(lambda: growfs.status()["cache"]["orphan_bytes"] >= SIZE)
        assert os.pread(fd, 2 * SIZE, 0) == tree["class0/0001.bin"]
        assert (growfs.mountpoint / "class0/0001.bin").read_bytes() == b"new" * SIZE
    until(lambda: growfs.status()["cache"]["orphan_bytes"] == 0)


@pytest.mark.promise(29)
def test_a_cached_file_that_somebody_changes_is_fetched_again(growfs: Growfs, tmp_path: Path) -> None:
    """Before anything of its folder is read, or later. Permissions do not keep root from writing through a link."""
    tree = make_tree(tmp_path / "remote", directories=1, files=7, size=SIZE)
    growfs.mount(tmp_path / "remote", "--wait-files", len(tree))
    os.listdir(growfs.mountpoint / "class0")
    cached = growfs.cache / "files/class0"

    def replace(name: str) -> None:
        (cached / "new").write_bytes(b"other")
        os.rename(cached / "new", cached / name)

    os.truncate(cached / "0000.bin", 3)
    os.unlink(cached / "0001.bin")
    replace("0002.bin")
    os.utime(cached / "0003.bin")
    assert growfs.content() == tree
    assert growfs.status()["fetch"]["files_total"] == len(tree) + 3, "one has the same content as before"
    assert growfs.content() == tree
    assert all(is_link(growfs, path) for path in tree)
    foreign = cached / os.fsdecode(b"not UTF-8 \xff")
    foreign.touch()
    foreign.unlink()
    replace("0004.bin")
    os.truncate(os.readlink(growfs.mountpoint / "class0/0005.bin"), 3)
    os.unlink(os.readlink(growfs.mountpoint / "class0/0006.bin"))
    until(lambda: not any(is_link(growfs, f"class0/{number:04}.bin") for number in (4, 5, 6)))
    assert {path: (growfs.mountpoint / path).read_bytes() for path in tree} == tree


SLOW_COMMIT = """
import os, time
from growfs import disk

def slow(label, call=disk.fault_point):
    time.sleep(label == "PUBLISH_COMMIT" and os.path.exists({slow!r}))
    call(label)

disk.fault_point = slow
"""


@pytest.mark.promise(1)
def test_a_file_can_be_opened_while_growfs_replaces_it(growfs: Growfs, tmp_path: Path) -> None:
    """Its new version is renamed before its row is committed."""
    tree = make_tree(tmp_path / "remote", directories=1, files=2, size=SIZE)
    slow = tmp_path / "slow"
    growfs.env[SETUP_VARIABLE] = SLOW_COMMIT.format(slow=str(slow))
    growfs.mount(tmp_path / "remote", "--wait-files", "2", "--refresh", "1s")
    os.listdir(growfs.mountpoint / "class0")
    slow.touch()
    (tmp_path / "remote/class0/0000.bin").write_bytes(b"new" * SIZE)
    cached = growfs.cache / "files/class0/0000.bin"
    until(lambda: cached.stat().st_size == 3 * SIZE)
    tree["class0/0000.bin"] = b"new" * SIZE
    assert growfs.content() == tree


@contextmanager
def read_again_and_again(growfs: Growfs, tree: dict[str, bytes]) -> Iterator[list[str]]:
    """Threads read the listed files and a few others until the block ends; yields what was wrong."""
    ended, errors = threading.Event(), list[str]()

    def read(seed: int) -> None:
        generator = random.Random(seed)
        while not ended.is_set():
            names = [*growfs.names(), *generator.sample(sorted(tree), min(5, len(tree)))]
            for path in generator.sample(names, len(names)):
                try:
                    content = (growfs.mountpoint / path).read_bytes()
                except OSError as error:
                    if error.errno != errno.ENOSPC:  # all is held by the others
                        errors.append(f"{path}: {error}")
                else:
                    if content != tree[path]:
                        errors.append(f"{path}: {len(content)} other bytes")

    threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.promise(1)
def test_no_open_of_a_listed_file_fails_while_misses_evict_what_others_list(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=2, files=40, size=SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", "1MB", "--min-free", "0", "--settle", "0")
    with read_again_and_again(growfs, tree) as errors:
        until(lambda: growfs.status()["evict"]["files_total"] > 50 or errors)
    assert errors == []


@pytest.mark.promise(1)
def test_no_open_fails_while_what_is_opened_is_evicted(growfs: Growfs, tmp_path: Path) -> None:
    """A process that has read a link opens the file before it goes; then the name is that of a file to wait for."""
    tree = make_tree(tmp_path / "remote", directories=1, files=4, size=SIZE)
    growfs.mount(tmp_path / "remote", "--wait-files", "4", "--rotation", "never")

    def has_evicted_enough() -> bool:
        call(growfs.cache, "evict", globs=["*"])
        return growfs.status()["evict"]["files_total"] > 20 or bool(errors)

    with read_again_and_again(growfs, tree) as errors:
        until(has_evicted_enough)
    assert errors == []


UNSEEN = """
import errno
from growfs.vfs import open_counter

def refuse(directory):
    raise OSError(errno.EMFILE, "Too many open files")

open_counter.file_events = refuse
"""
"""As on a machine whose programs have used up fs.inotify.max_user_instances."""


@pytest.mark.promise(20)
def test_opens_that_cannot_be_seen_do_not_stop_rotation(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=30, size=SIZE)
    growfs.env[SETUP_VARIABLE] = UNSEEN
    growfs.mount(tmp_path / "remote", "--cache-size", "250kB", "--min-free", "0", "--settle", "0")
    assert "opens are not counted" in growfs.log()
    seen = set[str]()

    def epoch() -> bool:
        for path in growfs.names():
            assert (growfs.mountpoint / path).read_bytes() == tree[path]
            seen.add(path)
        return len(seen) == len(tree)

    until(epoch)


@contextmanager
def waiting(prefix: Sequence[str], script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shell in a `namespace`, which runs a script and then waits until the block ends."""
    command = [*prefix, "sh", "-ec", f"{script}\nread end"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        yield shell


@pytest.mark.promise(10)
def test_a_reader_that_does_not_see_the_cache_is_noticed(growfs: Growfs, tmp_path: Path) -> None:
    """As in a container. One that sees it is not; nor one that is in another mount namespace by itself."""
    tree = make_tree(tmp_path / "remote", directories=1, files=4, size=SIZE)
    growfs.mount(tmp_path / "remote", "--wait-files", 4)
    name = min(tree)
    path = growfs.mountpoint / name
    with (
        namespace("", growfs.mountpoint) as prefix,
        waiting(prefix, f"exec 3< {path}; cat <&3") as seeing,
        namespace(f"mount -t tmpfs tmpfs {growfs.cache}", growfs.mountpoint) as blind_prefix,
    ):
        assert seeing.stdout
        assert seeing.stdout.read(SIZE) == tree[name]
        done = subprocess.run([*blind_prefix, "cat", path], capture_output=True, check=False)
        assert done.returncode == 1, "the kernel has kept the link"
        assert growfs.status()["warnings"] == []
        with waiting(blind_prefix, f"echo {growfs.mountpoint}/*") as blind:
            (warning,) = until(lambda: growfs.status()["warnings"])
    assert warning.startswith(f"sh ({blind.pid}) does not see {growfs.cache}, ")
    assert warning in growfs.log()


@pytest.mark.promise(10)
def test_a_reader_that_finds_the_mount_in_the_place_of_the_cache_does_not_stop_it(
    growfs: Growfs, tmp_path: Path
) -> None:
    """Whoever looks there asks the daemon, also the daemon itself."""
    make_tree(tmp_path / "remote", directories=1, files=1, size=SIZE)
    growfs.mount(tmp_path / "remote", "--wait-files", 1)
    with (
        namespace(f"mount --bind {growfs.mountpoint} {growfs.cache_dir}", growfs.mountpoint) as prefix,
        waiting(prefix, f"echo {growfs.cache_dir}/*") as reader,
    ):
        try:
            (warning,) = until(lambda: call(growfs.cache, "status", answer_s=20)["warnings"])
        except BaseException:
            growfs.kill()  # the reader waits for an answer, and no signal ends it
            raise
        assert reader.stdout
        assert reader.stdout.readline() == f"{growfs.cache_dir}/class0\n".encode()
    assert warning.startswith(f"sh ({reader.pid}) does not see {growfs.cache}, ")


async def test_a_disk_that_fails_ends_neither_the_counter_nor_the_mount(tmp_path: Path) -> None:
    def fails(*_: object) -> None:
        raise Unreadable("the disk fails")

    counter = OpenCounter(fails, fails)
    counter.watch(0, {1: tmp_path})
    (tmp_path / "file").write_text("")
    counter.count_now()
    counter.close()

    async def recheck(_: int) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    engine = LinksEngine(cast("LinkedVfs", SimpleNamespace(evict_within=print, recheck=recheck)))
    engine._to_recheck.add(1)
    await engine._recheck_later(1)
    assert not engine._to_recheck


async def test_a_file_waits_for_those_who_open_it_only_if_its_link_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    vfs = SimpleNamespace(
        evict_within=print, without_links=nullcontext, find=lambda parent, name: SimpleNamespace(id=9)
    )
    engine = LinksEngine(cast("LinkedVfs", vfs))
    dropped = list[bytes]()

    async def drop(messages: Iterable[bytes]) -> None:
        dropped.extend(messages)

    session = SimpleNamespace(notify_all=drop, notify=lambda message: None, send=lambda message: True)
    monkeypatch.setattr(engine, "_session", session, raising=False)
    monkeypatch.setattr(engine, "_mounted", True)
    for id in (6, 7):
        engine._reply_link(cast("FuseRequest", SimpleNamespace(nodeid=id | LINK_BIT, unique=1)), "target")
    engine.forget_files([Removed(6, 1, "a", "a", 3, None)])  # a new version has replaced it
    for ids, expected in (([8], 0), ([7, 8], 1), ([7], 1), ([6], 1), ([9], 2)):
        async with engine.without_links(ids):
            assert len(dropped) == expected


async def test_a_file_that_goes_while_the_mount_ends_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eviction is reported a moment later, when the mount may be ending."""

    async def return_at_once(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    file = SimpleNamespace(id=1, seq=1)
    vfs = SimpleNamespace(
        evict_within=print, find=lambda *_: file, is_unchanged=lambda _: False, recheck=return_at_once
    )
    engine = LinksEngine(cast("LinkedVfs", vfs))
    session = SimpleNamespace(cpu_latency=SimpleNamespace(run=trio.sleep_forever), serve=return_at_once)

    async def count_until_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            engine._recheck(0, 1, "file")

    counter = SimpleNamespace(run=count_until_the_end, close=lambda: None)
    monkeypatch.setattr(engine, "_session", session, raising=False)
    monkeypatch.setattr(engine, "_counter", counter, raising=False)
    await engine.serve()
