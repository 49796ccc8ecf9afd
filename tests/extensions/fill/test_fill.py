"""`growfs fill`: a folder that grows without a mount. What readers see, what they hold, and what the quota counts."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

import growfs as api
from growfs import verify
from growfs.cache.cache_folder import DATABASE
from growfs.client import generation
from growfs.daemon.control_client import call
from growfs.daemon.launch import stop
from growfs.errors import GrowfsError
from growfs.extensions.fill import trees
from growfs.extensions.peers.membership import PeerPoll
from tests.cli.support import tmpfs
from tests.crash.scene import alive
from tests.extensions.fill.conftest import Fill
from tests.generation_readers import Readers
from tests.harness import files_below, make_tree, until
from tests.layouts import LAYOUTS, make_samples
from tests.servers import free_port

SIZE = 4096
CAPACITY = 10


def full(growfs: Fill, tmp_path: Path, *flags: object, files: int = 40) -> dict[str, bytes]:
    """Fill with files in two directories and a cache of CAPACITY files, and wait until that is full."""
    tree = make_tree(tmp_path / "remote", directories=2, files=files // 2, size=SIZE)
    growfs.fill(tmp_path / "remote", "--cache-size", CAPACITY * SIZE, *(flags or ("--turnover", "50%")))
    growfs.until_cached(CAPACITY)
    return tree


def until_replaced(growfs: Fill) -> None:
    """Wait until files that were not shown yet have taken the place of all that were delisted."""

    def is_replaced() -> bool:
        now = growfs.status()
        cache = now["cache"]
        full = cache["files"] == CAPACITY and cache["left_out_bytes"] == 0
        return bool(full and now["listed"]["files"] < CAPACITY)

    until(is_replaced)


@pytest.mark.promise(43, 45)
def test_all_files_are_there_and_native_and_their_opens_are_counted(growfs: Fill, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=3, files=4)
    printed = growfs.fill(tmp_path / "remote")
    assert "12 of 12 files cached" in printed
    assert {name: (growfs.current / name).read_bytes() for name in files_below(growfs.current)} == tree
    for name in tree:
        found, remote = (growfs.current / name).stat(), (tmp_path / "remote" / name).stat()
        assert found.st_mtime_ns == remote.st_mtime_ns
        assert found.st_ino == (growfs.cache / "files" / name).stat().st_ino
    foreign = growfs.current / "class0" / os.fsdecode(b"not UTF-8 \xff")
    foreign.touch()
    foreign.read_bytes()
    for name in tree:
        (growfs.current / name).read_bytes()
    until(  # inotify(7) joins equal events that follow each other
        lambda: growfs.status()["opens"]["total"] >= len(tree)
    )


@pytest.mark.promise(43, 44)
def test_an_epoch_loop_sees_everything_within_the_quota(
    growfs: Fill, tmp_path: Path, readers: Readers, links: str
) -> None:
    tree = full(growfs, tmp_path, files=18)
    reader = readers.new()
    seen: set[str] = set()
    while len(seen) < len(tree):
        reader.next_generation(growfs.mountpoint)
        shown = reader.names()
        assert {name.split("/")[0] for name in shown} == {"class0", "class1"}
        for name in shown:
            assert reader.read(name) == SIZE
            assert (growfs.mountpoint / "current" / name).is_symlink() == (links == "symbolic")
            assert growfs.used_bytes() <= CAPACITY * SIZE
        seen |= shown
        if growfs.status()["generation"] > 1:
            until_replaced(growfs)
    reader.end()


@pytest.mark.promise(24, 43)
def test_a_sample_of_nested_folders_is_there_as_a_whole(growfs: Fill, tmp_path: Path, readers: Readers) -> None:
    samples = make_samples(tmp_path / "remote", LAYOUTS["zarr"], 12, SIZE)
    left = set().union(*samples)
    flags = "--group", "zarr", "--turnover", "50%"
    growfs.fill(tmp_path / "remote", "--cache-size", len(left) // 3 * SIZE, *flags)
    reader = readers.new()
    while left:
        generation = reader.next_generation(growfs.mountpoint)
        shown = reader.names()
        assert [sample & shown for sample in samples if sample & shown] == [each for each in samples if each <= shown]
        assert all(folders or names for _, folders, names in os.walk(generation))
        for name in shown:
            assert reader.read(name) == SIZE
        left -= shown
    reader.end()


WATCHED_MIRRORS = """
import threading
from growfs.cache import publish
class Mirrors(list):
    def remove(self, path):
        assert threading.current_thread() is not threading.main_thread()
        super().remove(path)
made = publish.Publisher.__init__
def make(self, *args):
    made(self, *args)
    self.mirrors = Mirrors()
publish.Publisher.__init__ = make
"""
"""The writing thread alone changes which trees there are: it goes through them meanwhile, to unlink what is evicted."""


@pytest.mark.promise(44)
def test_a_held_generation_stays_whole_until_its_reader_is_killed(
    growfs: Fill, tmp_path: Path, readers: Readers
) -> None:
    growfs.env["TEST_SETUP"] = WATCHED_MIRRORS
    full(growfs, tmp_path, "--settle", "0", "--keep-generations", "1", "--turnover", "50%")
    slow, fast = readers.new(), readers.new()
    tree = slow.next_generation(growfs.mountpoint)
    shown = slow.names()
    for _ in range(6):
        fast.next_generation(growfs.mountpoint)
        assert growfs.used_bytes() <= CAPACITY * SIZE
    assert slow.names() == shown
    assert all(slow.read(name) == SIZE for name in shown)
    assert int(tree.name) in growfs.generations
    slow.end(kill=True)
    newest = fast.next_generation(growfs.mountpoint)
    until(lambda: growfs.generations == [int(newest.name)])
    fast.end()


@pytest.mark.promise(44)
@pytest.mark.parametrize("is_command", [False, True])
def test_jobs_that_overlap_see_new_files(growfs: Fill, tmp_path: Path, readers: Readers, is_command: bool) -> None:
    full(growfs, tmp_path, "--settle", "0", "--keep-generations", "1", "--turnover", "50%")
    jobs = [readers.new(), readers.new()]
    for job in jobs:
        job.next_generation(growfs.mountpoint)
        assert all(job.read(name) == SIZE for name in job.names())
        if job is jobs[0]:
            until_replaced(growfs)
    if is_command:
        growfs.run("next", growfs.mountpoint)
    else:
        jobs.append(readers.new())
        jobs[-1].next_generation(growfs.mountpoint)
    cached = files_below(growfs.cache / "files")
    jobs[0].end()
    until(lambda: files_below(growfs.cache / "files") - cached)
    for job in jobs[1:]:
        job.end()


@pytest.mark.promise(44)
def test_an_open_file_keeps_its_generation(growfs: Fill, tmp_path: Path, readers: Readers) -> None:
    full(growfs, tmp_path, "--settle", "60", "--keep-generations", "1", "--turnover", "50%")
    first = growfs.current
    other = readers.new()
    with (first / min(files_below(first))).open("rb"):
        for _ in range(3):
            other.next_generation(growfs.mountpoint)
        until(lambda: len(growfs.generations) == 2)
        assert first.exists()
    until(lambda: not first.exists())
    other.end()


def test_a_lock_is_seen_without_proc(tmp_path: Path) -> None:
    """Of a process that the daemon's user may not look at, the lock alone tells that it reads."""
    locks = [generation._lock(tmp_path) for _ in range(2)]  # any number of processes
    for lock in locks:
        assert lock is not None
        assert trees.is_locked(tmp_path)
        os.close(lock)
    assert not trees.is_locked(tmp_path)


def test_a_generation_that_is_locked_for_a_moment_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon locks a tree to learn whether a process reads it."""
    lock = trees.locked_alone(tmp_path)
    assert lock is not None
    is_over = iter((False, True))

    def ask(*_: object) -> Path:
        if next(is_over):
            os.close(lock)
        return tmp_path

    monkeypatch.setattr(generation, "_ask", ask)
    assert generation.next_generation(tmp_path, 1) == tmp_path
    generation._held.pop(tmp_path).end()


SLOW_TREES = """
import time
from growfs.extensions.fill import trees
shown_files = trees.shown_files
def shown_slowly(*arguments):
    time.sleep(0.5)
    return shown_files(*arguments)
trees.shown_files = shown_slowly
"""


@pytest.mark.promise(44)
def test_who_asks_while_a_generation_is_made_gets_it(growfs: Fill, tmp_path: Path) -> None:
    """A folder is ready once its first one is there."""
    growfs.env["TEST_SETUP"] = SLOW_TREES

    def ask(delay_s: float) -> int:
        time.sleep(delay_s)
        return int(call(growfs.cache, "next", answer_s=None, after=newest, holds=False)["generation"])

    with ThreadPoolExecutor(5) as threads:
        filling = threads.submit(full, growfs, tmp_path)
        until((growfs.mountpoint / ".growfs/control.sock").exists)
        while not filling.done():
            is_ready = growfs.status()["ready"]
            assert (growfs.mountpoint / "current").exists() >= is_ready
        filling.result()
        newest = growfs.generations[-1]
        assert list(threads.map(ask, (0.0, 0.1, 0.2, 0.3, 3.0))) == 5 * [newest + 1]


@pytest.mark.promise(44)
def test_a_folder_grows_by_itself_for_those_who_never_ask(growfs: Fill, tmp_path: Path) -> None:
    full(growfs, tmp_path, "--settle", "0.2", "--turnover", "50%")
    seen: set[str] = set()

    def read() -> bool:
        tree = growfs.current
        for name in files_below(tree):
            try:
                (tree / name).read_bytes()
            except FileNotFoundError:  # nobody holds it
                break
            seen.add(name)
        return len(seen) > 2 * CAPACITY

    until(read)
    assert growfs.used_bytes() <= CAPACITY * SIZE


@pytest.mark.promise(29, 43)
@pytest.mark.usefixtures("links")
def test_what_is_damaged_or_the_remote_changes_and_deletes_changes_in_all_generations(
    growfs: Fill, tmp_path: Path, readers: Readers
) -> None:
    """Also a file with the longest name that there can be."""
    content = make_tree(tmp_path / "remote", directories=2, files=3)
    longest = "class0/" + 255 * "n"
    content[longest] = b"old"
    (tmp_path / "remote" / longest).write_bytes(b"old")
    growfs.fill(tmp_path / "remote", "--refresh", "0.1s")
    damaged = growfs.cache / "files/class1/0000.bin"
    damaged.chmod(0o644)
    damaged.write_bytes(b"?")
    found = verify(growfs.mountpoint)
    assert (found.damaged, found.fetched) == (["class1/0000.bin"], 1)
    assert files_below(growfs.current) == content.keys() - {"class1/0000.bin"}
    reader = readers.new()
    reader.next_generation(growfs.mountpoint)
    tree = reader.next_generation(growfs.mountpoint)
    assert {name: (tree / name).read_bytes() for name in files_below(tree)} == content
    (tmp_path / "remote" / longest).write_bytes(b"newer")
    (tmp_path / "remote/class0/0000.bin").write_bytes(b"new")
    (tmp_path / "remote/class0/0001.bin").unlink()
    until(lambda: (tree / "class0/0000.bin").read_bytes() == b"new")
    until(lambda: not (tree / "class0/0001.bin").exists())
    until(lambda: (tree / longest).read_bytes() == b"newer")
    until(lambda: not any((growfs.cache / "partial").glob("*.old")))
    reader.end()


@pytest.mark.promise(43)
def test_commands_work_as_on_a_mount(growfs: Fill, tmp_path: Path, readers: Readers) -> None:
    full(growfs, tmp_path)
    at = growfs.mountpoint
    assert "folder engine" in growfs.run("status", at).stdout
    assert str(at) in growfs.run("list").stdout
    growfs.run("wait", at, "--files", "5")
    reader = readers.new()

    def newly_shown() -> set[str]:
        reader.next_generation(at)
        return reader.names()

    shown = until(lambda: len(shown := newly_shown()) > 2 and shown)
    growfs.run("pause", at)
    folders = [name.partition("/")[0] for name in shown]
    victim = next(name for name, folder in zip(shown, folders, strict=True) if folders.count(folder) > 1)
    printed = growfs.run("evict", at, victim).stdout
    assert not (growfs.current / victim).exists(), printed
    growfs.run("fetch", at, victim)
    growfs.run("pin", at, victim)
    growfs.run("resume", at)
    assert victim in newly_shown()
    assert growfs.used_bytes() <= CAPACITY * SIZE
    printed = growfs.run("next", at, "--", "pwd").stdout.strip()
    assert printed == str(growfs.current)
    assert growfs.run("next", at).stdout.strip() == str(growfs.current)
    growfs.run("stop", at)
    assert files_below(growfs.current)
    assert "nothing is filling it" in growfs.run("status", at, check=False).stderr
    assert "no new generation" in growfs.run("next", at).stderr
    done = growfs.run("next", at, "--", "pwd")
    assert done.stdout.strip() == str(growfs.current)
    assert re.fullmatch(rf"warning: {at}: no new generation; .*\n", done.stderr), done.stderr
    reader.end()


@pytest.mark.promise(44)
@pytest.mark.usefixtures("links")
def test_after_a_kill_the_next_start_puts_right(growfs: Fill, tmp_path: Path, readers: Readers) -> None:
    tree = full(growfs, tmp_path)
    holder, killed = readers.new(), readers.new()
    first = holder.next_generation(growfs.mountpoint)
    shown = holder.names()
    until(lambda: killed.next_generation(growfs.mountpoint) != first)
    growfs.kill()
    killed.end(kill=True)
    (growfs.mountpoint / "generations/0999/class0").mkdir(parents=True)  # one that was not finished
    broken = growfs.cache / "files" / min(files_below(growfs.cache / "files"))
    broken.chmod(0o644)
    broken.write_bytes(b"?" * SIZE)
    growfs.fill(tmp_path / "remote", "--cache-size", CAPACITY * SIZE, "--turnover", "50%")
    assert 999 not in growfs.generations
    assert int(first.name) in growfs.generations
    kept = holder.names()
    assert kept >= shown - {str(broken.relative_to(growfs.cache / "files"))}
    for path in (first, growfs.current):
        assert all((path / name).read_bytes() == tree[name] for name in files_below(path))
    growfs.until_cached(CAPACITY)
    assert growfs.used_bytes() <= CAPACITY * SIZE
    holder.end()
    until(lambda: int(first.name) not in growfs.generations)


@pytest.mark.promise(44)
def test_after_a_kill_the_newest_generations_are_still_kept(growfs: Fill, tmp_path: Path) -> None:
    flags = "--settle", "60s", "--keep-generations", 4, "--turnover", "50%"
    tree = full(growfs, tmp_path, *flags)
    first = int(growfs.current.name)

    def newest_differ() -> bool:
        call(growfs.cache, "next", number=growfs.generations[-1] + 1, holds=False)
        return first not in growfs.generations and len({*map(frozenset, newest().values())}) > 1

    def newest() -> dict[Path, set[str]]:
        paths = [growfs.mountpoint / "generations" / f"{number:04}" for number in growfs.generations[-3:]]
        return {path: files_below(path) for path in paths}

    until(newest_differ)
    growfs.kill()
    kept = newest()
    growfs.fill(tmp_path / "remote", "--cache-size", CAPACITY * SIZE, *flags)
    growfs.until_cached(CAPACITY)
    assert {path: files_below(path) for path in kept} == kept
    for path, names in kept.items():
        assert all((path / name).read_bytes() == tree[name] for name in names)
    assert growfs.used_bytes() <= CAPACITY * SIZE


READS_NO_CONTENT = """
from growfs.remote import digest
def of(*_): raise OSError("a cached file is read")
digest.of = of
"""


@pytest.mark.promise(29)
def test_after_a_kill_no_file_is_read_again(growfs: Fill, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=2, files=3)
    growfs.fill(tmp_path / "remote")
    growfs.kill()
    with closing(sqlite3.connect(growfs.cache / DATABASE)) as catalog, catalog:
        catalog.execute("UPDATE resident SET durable = 1")  # as after the sync of every half minute
    growfs.env["TEST_SETUP"] = READS_NO_CONTENT
    growfs.fill(tmp_path / "remote")
    assert growfs.status()["fetch"]["files_total"] == 0


def test_nodes_that_fill_folders_fetch_from_one_another(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=2, files=3)
    (tmp_path / "token").write_text("a secret\n")
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    nodes, poll = [], PeerPoll("", "a secret")

    def span(address: str) -> float:
        position = poll.look([address], None).positions.get(address)
        return position.span if position else 0

    try:
        for number, address in enumerate(addresses):
            (tmp_path / str(number)).mkdir()
            nodes.append(node := Fill(tmp_path / str(number)))
            known = "--peers", ",".join(addresses), "--peer-addr", address, "--peer-token-file", tmp_path / "token"
            node.fill(tmp_path / "remote", *known)
            until(lambda: len(files_below(nodes[-1].current)) == len(tree))
            until(lambda at=address: span(at) == 1)  # type: ignore[misc] # it tells the other that it has everything
        second = nodes[1]
        assert {name: (second.current / name).read_bytes() for name in files_below(second.current)} == tree
        assert second.status()["fetch"]["peer_files_total"] == len(tree)
    finally:
        for node in nodes:
            stop(node.mountpoint)


@pytest.mark.promise(43, 44)
def test_after_a_fault_the_next_start_puts_right(growfs: Fill, tmp_path: Path) -> None:
    """Each start is killed a step further than the one before. tests/crash/test_labels.py has the errors of a disk."""
    tree = make_tree(tmp_path / "remote", directories=2, files=3)
    for label in ("FOLDER", "GENERATION", "CURRENT"):
        growfs.env["GROWFS_FAULT"] = f"{label}:kill"
        assert "growfs:" in growfs.fill(tmp_path / "remote", check=False)
    growfs.env["GROWFS_FAULT"] = ""
    growfs.fill(tmp_path / "remote")
    assert {name: (growfs.current / name).read_bytes() for name in files_below(growfs.current)} == tree


WITHOUT_LINUX = """
import os, sys
for name in ("O_PATH", "pidfd_open", "memfd_create", "posix_fadvise", "sched_getaffinity", "preadv", "RWF_NOWAIT"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("trio", "inotify_simple", "pyfuse3", "setproctitle", "_posixsubprocess"):
    sys.modules[name] = None
import growfs
print(growfs.next_generation(sys.argv[1]))
"""


@pytest.mark.promise(44)
def test_a_reader_needs_nothing_of_linux(growfs: Fill, tmp_path: Path) -> None:
    """As far as that can be tried here: without what Python has on Linux only, and without the daemon's libraries."""
    make_tree(tmp_path / "remote", directories=1, files=2)
    with tempfile.TemporaryDirectory(prefix="growfs-") as short:  # a socket's path is short there
        growfs.mountpoint, growfs.cache_dir = Path(short), Path(short) / "c"
        growfs.fill(tmp_path / "remote")
        try:
            short_cache = Path(short) / "s"
            short_cache.symlink_to(growfs.cache)
            link = Path(short) / ".growfs"
            link.unlink()
            link.symlink_to(short_cache)
            command = [sys.executable, "-W", "error", "-c", WITHOUT_LINUX, short]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.stderr, Path(done.stdout.strip())) == ("", growfs.current)
        finally:
            stop(growfs.mountpoint)


@pytest.mark.promise(44)
def test_a_generation_that_somebody_removes_is_replaced(growfs: Fill, tmp_path: Path, readers: Readers) -> None:
    tree = make_tree(tmp_path / "remote", directories=2, files=3)
    growfs.fill(tmp_path / "remote")
    shutil.rmtree(growfs.mountpoint / "generations")
    until(lambda: "another program has removed it" in growfs.log())
    reader = readers.new()
    newest = int(reader.next_generation(growfs.mountpoint).name)
    assert reader.names() == set(tree)
    for number in (newest + 1, newest + 2):
        reader.next_generation(growfs.mountpoint, number)
        assert reader.names() == set(tree)
        until(lambda kept=[number]: growfs.generations == kept)  # type: ignore[misc]
        shutil.rmtree(growfs.mountpoint / "generations/.spare")
    reader.end()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """As after an error of the disk."""
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", folder], check=True)


UNREADABLE_CATALOG = """
import pathlib, sqlite3
from growfs.extensions.fill import trees
shown_files = trees.shown_files
def refuse(*arguments):
    if pathlib.Path({there!r}).exists():
        raise sqlite3.DatabaseError("disk I/O error")
    return shown_files(*arguments)
trees.shown_files = refuse
"""


@contextmanager
def unreadable(catalog: Path) -> Iterator[None]:
    """A page of it."""
    catalog.touch()
    yield
    catalog.unlink()


@pytest.mark.promise(44)
@pytest.mark.parametrize("fault", [read_only, unreadable])
def test_a_tree_that_could_not_be_made_is_made_later(
    growfs: Fill, tmp_path: Path, readers: Readers, fault: Callable[[Path], AbstractContextManager[None]]
) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2)
    damage = tmp_path / "damage"
    growfs.env["TEST_SETUP"] = UNREADABLE_CATALOG.format(there=str(damage))
    with tmpfs(growfs.mountpoint):
        growfs.fill(tmp_path / "remote", "--refresh", "1s", "--settle", "1s")
        reader = readers.new()
        reader.next_generation(growfs.mountpoint)
        with fault(growfs.mountpoint if fault is read_only else damage):
            (tmp_path / "remote" / "later").write_bytes(b"later")
            growfs.until_cached(3)
            tree = reader.next_generation(growfs.mountpoint)
            assert "later" not in reader.names()
            assert int(tree.name) == growfs.generations[-1], "the other one, which could not be made, is removed"
        reader.next_generation(growfs.mountpoint)
        assert "later" in reader.names()
        reader.end()
        stop(growfs.mountpoint)


@pytest.mark.promise(44)
def test_the_daemon_of_a_folder_that_is_moved_ends(growfs: Fill, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=2)
    growfs.cache_dir = growfs.mountpoint / ".cache"
    growfs.fill(tmp_path / "remote")
    moved = tmp_path / "moved"
    daemon = growfs.status()["pid"]
    growfs.mountpoint.rename(moved)
    until(lambda: not alive(daemon))
    growfs.mountpoint, growfs.cache_dir = moved, moved / ".cache"
    assert re.search("moved or removed|deleted or moved", growfs.log())  # the folder, or the cache in it
    growfs.fill(tmp_path / "remote")
    assert set(files_below(growfs.current)) == set(tree)


@pytest.mark.promise(44)
def test_who_asks_while_a_folder_starts_waits_until_training_can_start(
    growfs: Fill, tmp_path: Path, readers: Readers
) -> None:
    tree = make_tree(tmp_path / "remote", directories=6, files=2, size=40_000)
    reader = readers.new()
    with ThreadPoolExecutor(1) as threads:
        filled = threads.submit(growfs.fill, tmp_path / "remote", "--bandwidth", "100kB/s", "--wait-files", 6)
        until((growfs.mountpoint / ".growfs").exists)
        reader.next_generation(growfs.mountpoint)
        assert {Path(name).parent for name in reader.names()} == {Path(name).parent for name in tree}
        filled.result()
    reader.end()


@pytest.mark.promise(43)
def test_mounts_and_filled_folders_take_over_the_cache_of_one_another(growfs: Fill, tmp_path: Path) -> None:
    """The folder may have a dead mount, and the cache the links that growfs fill has left."""
    tree = make_tree(tmp_path / "remote")
    growfs.mount(tmp_path / "remote")
    growfs.until_cached(len(tree))
    growfs.kill()
    growfs.fill(tmp_path / "remote")
    assert {name: (growfs.current / name).read_bytes() for name in files_below(growfs.current)} == tree
    assert growfs.status()["fetch"]["files_total"] == 0
    stop(growfs.mountpoint)
    (tmp_path / "mnt2").mkdir()
    growfs.mountpoint = tmp_path / "mnt2"
    growfs.mount(tmp_path / "remote")
    try:
        assert growfs.content() == tree
        assert growfs.status()["fetch"]["files_total"] == 0
    finally:
        growfs.umount()


def test_what_cannot_be_filled_is_refused(growfs: Fill, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote")
    (growfs.mountpoint / "mine").write_text("")
    assert "is not empty, and growfs did not fill it" in growfs.fill(tmp_path / "remote", check=False)
    assert os.listdir(growfs.mountpoint) == ["mine"]
    neither = "is neither a growfs mount nor a folder filled by growfs fill"
    assert neither in growfs.run("next", tmp_path, check=False).stderr
    with pytest.raises(GrowfsError, match=neither):
        generation.next_generation(tmp_path)


@pytest.mark.promise(44)
def test_a_folder_that_another_cache_fills_stays_as_it_is(growfs: Fill, tmp_path: Path, readers: Readers) -> None:
    full(growfs, tmp_path)
    make_tree(tmp_path / "other")
    reader = readers.new()
    reader.next_generation(growfs.mountpoint)
    shown = reader.names()
    for is_running in (True, False):
        if not is_running:
            stop(growfs.mountpoint)
        refusal = "another growfs is filling it" if is_running else "is filled from another cache"
        for url, *flags in ((tmp_path / "other",), (tmp_path / "remote", "--cache-dir", tmp_path / "cache2")):
            assert refusal in growfs.fill(url, *flags, check=False)
            assert reader.names() == shown
            assert all(reader.read(name) == SIZE for name in shown)
    reader.end()


@pytest.mark.long
@pytest.mark.promise(45)
def test_without_inotify_what_is_shown_counts_as_read(growfs: Fill, tmp_path: Path, readers: Readers) -> None:
    growfs.env["TEST_SETUP"] = "import inotify_simple\ninotify_simple.INotify = None\n"
    growfs.env["TEST_SETUP"] += "def INotify(): raise OSError(24, 'Too many open files')\n"
    growfs.env["TEST_SETUP"] += "inotify_simple.INotify = INotify\n"
    full(growfs, tmp_path)
    assert "so all listed files count as read" in growfs.log()
    reader = readers.new()
    shown = (reader.next_generation(growfs.mountpoint), reader.names())[1]
    reader.next_generation(growfs.mountpoint)
    until(lambda: growfs.status()["opens"]["max"] == 1)
    assert shown
    reader.end()


@pytest.mark.promise(44, 50)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_generation_is_asked_for_by_its_number(growfs: Fill, tmp_path: Path, readers: Readers) -> None:
    """Without its daemon, training goes on."""
    full(growfs, tmp_path, "--settle", "0", "--turnover", "50%")
    first, second = readers.new(), readers.new()
    newest = int(growfs.current.name)
    for number in range(newest + 1, newest + 4):
        tree = first.next_generation(growfs.mountpoint, number)
        assert int(tree.name) == number
        assert second.next_generation(growfs.mountpoint, number) == tree
    for number in (newest, newest + 9):
        refusal = rf"^\[Errno 0\] generation {number} has ended, or is not the one after the newest"
        with pytest.raises(OSError, match=refusal):
            first.next_generation(growfs.mountpoint, number)
    first.end()
    (before,), (after,) = api.epoch(growfs.mountpoint), api.epoch(growfs.mountpoint)  # without parts, the next one
    assert before != after == growfs.current
    newest = int(after.name)
    with pytest.raises(GrowfsError, match=f"generation {newest + 9} has ended"):
        api.next_generation(growfs.mountpoint, newest + 9)
    growfs.kill()
    with pytest.raises(OSError, match="no new generation; training continues with"):  # a warning, as an error there
        second.next_generation(growfs.mountpoint)
    assert all(second.read(name) == SIZE for name in second.names())
    second.end()
    with pytest.raises(GrowfsError, match="does not answer"):
        api.next_generation(growfs.mountpoint, newest + 1)
    for tree in sorted((growfs.mountpoint / "generations").glob("0*")):
        with pytest.warns(UserWarning, match=f"training continues with {tree.name}"):
            assert api.next_generation(growfs.mountpoint, int(tree.name)) == tree
    generation._held.pop(growfs.mountpoint).end()


def test_the_shell_reads_while_a_command_runs(growfs: Fill, tmp_path: Path, readers: Readers) -> None:
    full(growfs, tmp_path, "--settle", "0", "--turnover", "50%")
    growfs.starts_python = True
    command = [sys.executable, "-m", "growfs.cli", "next", str(growfs.mountpoint), "--", "sleep", "100"]
    with subprocess.Popen(command, env=growfs.env) as shell:
        until(lambda: Path(f"/proc/{shell.pid}/comm").read_text() == "sleep\n")
        tree = Path(os.readlink(f"/proc/{shell.pid}/cwd"))
        other = readers.new()
        for _ in range(3):
            other.next_generation(growfs.mountpoint)
        assert call(growfs.cache, "status")["generation"] > int(tree.name)
        assert tree.exists()
        shell.kill()
    other.end()
