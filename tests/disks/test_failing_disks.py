"""A disk that is full, fails, loses power, or has lost what was written to it: the mount stays, and nothing is wrong.

The file systems are real ones, and so are their errors.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from growfs import disk
from growfs.scheduler.space import LOOK_AGAIN_S_MIN
from tests.cli.support import fill_disk
from tests.crash.test_labels import HURRY
from tests.disks.file_systems import MKFS, MakeFileSystem, file_system, quota_group, run
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, files_below, make_tree, until

FULL_BYTES = 32 << 20
FAILED = "the cached files could not be synced"
FLAGS = ("--settle", 0, "--min-free", 0)


def read_all(growfs: Growfs, tree: dict[str, bytes]) -> set[str]:
    """Read and compare what is listed; returns the names."""
    listed = growfs.names()
    for path in listed:
        assert (growfs.mountpoint / path).read_bytes() == tree[path], path
    return listed


def read_until_seen(growfs: Growfs, tree: dict[str, bytes], files: int) -> None:
    """Read epochs, until more than so many files were listed."""
    seen = set[str]()

    def is_seen() -> bool:
        seen.update(read_all(growfs, tree))
        return len(seen) > files

    until(is_seen, 100)


def error_of(action: Callable[[], object]) -> int | None:
    """The errno with which an action fails; None if it does not."""
    try:
        action()
    except OSError as error:
        return error.errno
    return None


@pytest.mark.promise(3, 28)
@pytest.mark.parametrize("kind", ["tmpfs", *[pytest.param(kind, marks=pytest.mark.long) for kind in MKFS]])
def test_on_a_full_disk_misses_and_smaller_sizes_make_room_and_with_room_rotation_goes_on(
    make_file_system: MakeFileSystem, growfs: Growfs, tmp_path: Path, kind: str
) -> None:
    """To evict is to write the catalog, which needs room as well."""
    system = make_file_system(kind, FULL_BYTES)
    tree = make_tree(tmp_path / "remote", files=30, size=300_000)
    growfs.cache_dir = system.folder / "cache"
    growfs.mount(tmp_path / "remote", *FLAGS, "--cache-size", "6MB")
    until(lambda: growfs.status()["state"] == "held")
    read_all(growfs, tree)
    fill_disk(system.folder / "others")
    for name in ("status", "status.json", "metrics", "log", "files", "index.csv", "ledger.csv"):
        assert (growfs.mountpoint / ".growfs" / name).read_bytes(), name
    for _ in range(3):
        read_all(growfs, tree)
    missed = sorted(set(tree) - files_below(growfs.cache / "files"))
    for path in missed[:5]:
        assert (growfs.mountpoint / path).read_bytes() == tree[path]
    growfs.run("set", growfs.mountpoint, "cache-size=3MB")
    assert disk.free_bytes(system.folder) > 1_000_000
    read_all(growfs, tree)
    (system.folder / "others").unlink()
    generation = growfs.status()["generation"]
    until(lambda: read_all(growfs, tree) and growfs.status()["generation"] > generation + 1)


@pytest.mark.promise(18, 28)
def test_a_cache_gives_way_to_others_on_its_disk_and_goes_on_rotating(
    make_file_system: MakeFileSystem, growfs: Growfs, tmp_path: Path
) -> None:
    """They take more than a generation delists: one after another makes up for it."""
    system = make_file_system("tmpfs", 64 << 20)
    tree = make_tree(tmp_path / "remote", directories=1, files=60, size=500_000)
    growfs.cache_dir = system.folder / "cache"
    growfs.mount(tmp_path / "remote", "--settle", 0, "--min-free", "10MB", "--cache-size", "20MB")
    until(lambda: growfs.status()["state"] == "held")
    with (system.folder / "others").open("wb") as others:
        others.write(bytes(disk.free_bytes(system.folder) - 2_000_000))
    warning = growfs.run("status", growfs.mountpoint).stdout.partition("warning")[2]
    assert "of other data and" in warning
    assert "of which --min-free keeps 10 MB, so the cache cannot grow until" in warning
    read_until_seen(growfs, tree, 50)
    until(lambda: "so the cache cannot grow to its size of 20 MB" in growfs.run("status", growfs.mountpoint).stdout)
    assert disk.free_bytes(system.folder) > 9_000_000


@pytest.mark.promise(18, 28)
@pytest.mark.parametrize("limit", ["its size", "quota"])
def test_a_disk_that_is_smaller_than_the_cache_rotates_and_status_says_so(
    make_file_system: MakeFileSystem, growfs: Growfs, tmp_path: Path, limit: str
) -> None:
    """If the quota of a subvolume is used up, btrfs ends a process that changes a mapped page of SQLite's. The metadata
    that it reserves until a commit may use up what there seems to be; the commit that it then makes must free enough.
    """
    if limit == "quota":
        folder = quota_group(make_file_system("btrfs").folder, FULL_BYTES)
    else:
        folder = make_file_system("ext4", FULL_BYTES).folder
    assert 0 < disk.free_bytes(folder) <= FULL_BYTES
    tree = make_tree(tmp_path / "remote", files=20, size=1_000_000)
    growfs.cache_dir = folder / "cache"
    growfs.mount(tmp_path / "remote", *FLAGS)
    read_until_seen(growfs, tree, 40)
    until(lambda: "so the cache cannot grow to its size of 1 GB" in (growfs.mountpoint / ".growfs/status").read_text())
    if limit == "quota":
        run("sync", "-f", folder)
        assert disk.free_bytes(folder) >= FULL_BYTES // 8


@pytest.mark.long
def test_a_disk_without_inodes_rotates_and_status_says_so(
    make_file_system: MakeFileSystem, growfs: Growfs, tmp_path: Path
) -> None:
    system = make_file_system("ext4", FULL_BYTES, "-N", "4096")
    tree = make_tree(tmp_path / "remote", files=1400, size=10)
    growfs.cache_dir = system.folder / "cache"
    growfs.mount(tmp_path / "remote", *FLAGS, "--no-wait")
    until(lambda: growfs.status()["state"] == "held")
    assert "out of inodes" in growfs.run("status", growfs.mountpoint).stdout
    read_until_seen(growfs, tree, 3900)
    assert growfs.status()["fetch"]["failed"] == 0


@pytest.mark.promise(1, 3)
@pytest.mark.parametrize("kind", ["ext4", pytest.param("xfs", marks=pytest.mark.long)])
def test_a_mount_outlives_its_disk(make_file_system: MakeFileSystem, growfs: Growfs, tmp_path: Path, kind: str) -> None:
    """An empty folder in its place would be trained on."""
    system = make_file_system(kind)
    tree = make_tree(tmp_path / "remote", files=20, size=50_000)
    growfs.cache_dir = system.folder / "cache"
    growfs.env[SETUP_VARIABLE] = HURRY
    growfs.mount(tmp_path / "remote", *FLAGS, "--cache-size", "2MB")
    read_all(growfs, tree)
    missed = growfs.mountpoint / min(set(tree) - files_below(growfs.cache / "files"))
    system.fail()
    for _ in range(3):
        try:
            assert os.listdir(growfs.mountpoint)  # the list from before, until a new one would have to be saved
        except OSError as error:
            assert error.errno == errno.EIO  # noqa: PT017
        assert error_of(missed.read_bytes) == errno.EIO
    shown = growfs.run("status", growfs.mountpoint, check=False)
    assert (shown.returncode, "check the cache's disk" in shown.stderr) == (1, True), shown.stderr
    assert "check the cache's disk" in growfs.run("list").stdout
    growfs.umount()
    system.remount()
    growfs.mount(tmp_path / "remote", *FLAGS, "--cache-size", "2MB", "--no-wait")
    until(lambda: len(read_all(growfs, tree)) > 20)


ROOM = """
import errno, os, pathlib
from growfs import disk
real_room = disk.room
def room(folder):
    if pathlib.Path(os.environ["NO_ROOM"]).exists():
        raise OSError(errno.EIO, "Input/output error")
    return real_room(folder)
disk.room = room
"""
"""As statvfs(2) fails on XFS after the disk has failed."""


@pytest.mark.promise(3)
def test_a_disk_that_reports_no_room_fails_only_those_who_ask_for_it_meanwhile(
    engine: str, growfs: Growfs, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=12)
    growfs.env |= {SETUP_VARIABLE: ROOM, "NO_ROOM": str(tmp_path / "no_room")}
    flags = ("--cache-size", "60kB", "--rotation", "never", "--miss-timeout", "5s")
    growfs.mount(tmp_path / "remote", "--engine", engine, *flags)
    until(lambda: growfs.status()["state"] == "held")
    cached = files_below(growfs.cache / "files")
    missing = min(set(tree) - cached)
    (tmp_path / "no_room").touch()
    assert error_of(lambda: os.statvfs(growfs.mountpoint)) == errno.EIO
    assert error_of((growfs.mountpoint / missing).read_bytes) == errno.EIO
    assert {path: (growfs.mountpoint / path).read_bytes() for path in cached} == {path: tree[path] for path in cached}
    (tmp_path / "no_room").unlink()
    assert os.statvfs(growfs.mountpoint).f_blocks
    assert (growfs.mountpoint / missing).read_bytes() == tree[missing]


@pytest.mark.promise(10)
def test_a_disk_that_became_read_only_serves_what_is_cached(
    make_file_system: MakeFileSystem, growfs: Growfs, tmp_path: Path
) -> None:
    """As ext4 becomes after an error, by default."""
    system = make_file_system("ext4")
    tree = make_tree(tmp_path / "remote", files=5, size=50_000)
    growfs.cache_dir = system.folder / "cache"
    growfs.mount(tmp_path / "remote", *FLAGS)
    until(lambda: growfs.status()["state"] == "complete")
    assert read_all(growfs, tree) == set(tree)
    run("mount", "-o", "remount,abort", system.folder)
    assert read_all(growfs, tree) == set(tree)
    assert "15 of 15 files cached" in growfs.run("list").stdout
    assert "complete" in growfs.run("status", growfs.mountpoint).stdout
    growfs.umount()


@pytest.mark.promise(1, 29)
@pytest.mark.parametrize("kind", ["ext4", *[pytest.param(kind, marks=pytest.mark.long) for kind in ("xfs", "btrfs")]])
def test_after_a_power_loss_nothing_wrong_is_read(
    make_file_system: MakeFileSystem, growfs: Growfs, tmp_path: Path, kind: str
) -> None:
    system = make_file_system(kind)
    tree = make_tree(tmp_path / "remote", files=20, size=300_000)
    growfs.cache_dir = system.folder / "cache"
    growfs.mount(tmp_path / "remote", *FLAGS, "--cache-size", "6MB")
    until(lambda: growfs.status()["state"] == "held")
    growfs.umount()
    durable = len(files_below(growfs.cache / "files"))
    growfs.mount(tmp_path / "remote", *FLAGS, "--cache-size", "100MB")
    until(lambda: growfs.status()["state"] == "complete")
    growfs.kill()
    system.fail()
    system.remount()
    with sqlite3.connect(growfs.cache / "catalog.sqlite") as rows:
        rows.execute("UPDATE meta SET value = 'another boot' WHERE key = 'boot_id'")
    rows.close()
    for path in (growfs.cache_dir / "CACHEDIR.TAG", growfs.cache / "daemon.json"):
        path.write_text("")  # as of files that were just made
    growfs.mount(tmp_path / "remote", *FLAGS, "--cache-size", "100MB", "--no-wait")
    assert (growfs.cache_dir / "CACHEDIR.TAG").read_text()
    read_all(growfs, tree)
    until(lambda: growfs.status()["state"] == "complete" and read_all(growfs, tree) == set(tree))
    assert growfs.status()["fetch"]["files_total"] == len(tree) - durable, "what was synced is kept, and no more"


@pytest.mark.promise(1, 29)
def test_what_a_disk_could_not_write_is_dropped_before_it_is_read_back(
    make_file_system: MakeFileSystem, growfs: Growfs, tmp_path: Path
) -> None:
    """Its writes fail after they were accepted, as those of a thin volume without space, and syncfs tells that once."""
    thin = make_file_system("tmpfs", 8 << 20)
    with file_system("ext4", thin.folder, 64 << 20, "-O", "^has_journal", "-E", "nodiscard") as system:
        tree = make_tree(tmp_path / "remote", files=10, size=500_000)
        growfs.cache_dir = system.folder / "cache"
        growfs.env[SETUP_VARIABLE] = HURRY
        growfs.mount(tmp_path / "remote", *FLAGS, "--no-wait")
        until(lambda: "it has disappeared from the disk" in growfs.log())
        growfs.run("pause", growfs.mountpoint)
        query, failed = f"file:{growfs.cache}/catalog.sqlite?mode=ro", growfs.log().count(FAILED)
        with closing(sqlite3.connect(query, uri=True)) as rows:
            until(  # after each sync that fails, all files that none has covered are verified
                lambda: (
                    growfs.log().count(FAILED) >= failed + 2
                    or rows.execute("SELECT count(*) FROM resident WHERE durable = 0").fetchone() == (0,)
                )
            )
        for path in files_below(growfs.cache / "files"):
            with (growfs.cache / "files" / path).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        read_all(growfs, tree)
        growfs.umount()


@pytest.fixture(scope="session")
def failing_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose calls on files fail as a file says: of programs that preload it."""
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("cc is not installed; apt-get install gcc libc6-dev")
    library = tmp_path_factory.mktemp("failing_disk") / "failing_disk.so"
    run(compiler, "-shared", "-fPIC", "-o", library, Path(__file__).with_name("failing_disk.c"), "-ldl")
    return library


@pytest.fixture
def disk_control(growfs: Growfs, failing_disk: Path, tmp_path: Path) -> Path:
    """The file that says which calls fail, in the daemon, its workers and commands."""
    control = tmp_path / "control"
    growfs.env |= {"LD_PRELOAD": str(failing_disk), "FAILING_DISK": str(control)}
    growfs.starts_python = True
    return control


@pytest.mark.promise(3, 18, 28)
def test_a_quota_that_statvfs_does_not_tell_rotates_and_status_says_so(
    growfs: Growfs, disk_control: Path, tmp_path: Path
) -> None:
    """As users have on the file systems of a cluster. Half of what it allows is the room for the catalog."""
    disk_control.write_text(f"write /cache {16 << 20}\n")
    tree = make_tree(tmp_path / "remote", files=15, size=500_000)
    growfs.mount(tmp_path / "remote", *FLAGS, "--cache-size", "120MB")
    read_until_seen(growfs, tree, len(tree) - 1)
    until(lambda: "a quota seems to limit the cache" in (growfs.mountpoint / ".growfs/status").read_text())
    failed = growfs.status()["fetch"]["failed"]
    for path in sorted(set(tree) - files_below(growfs.cache / "files"))[:5]:
        assert (growfs.mountpoint / path).read_bytes() == tree[path]
    read_until_seen(growfs, tree, len(tree) - 1)
    assert growfs.status()["fetch"]["failed"] == failed, "nothing is fetched any more for which there is no room"


@pytest.mark.promise(3)
def test_a_miss_notices_that_others_make_room_below_a_quota(growfs: Growfs, disk_control: Path, tmp_path: Path) -> None:
    """Nothing reports it, and the miss has nothing to evict: all that is cached is open."""
    disk_control.write_text(f"write /cache {32 << 20}\n")
    tree = make_tree(tmp_path / "remote", directories=1, files=2, size=500_000)
    flags = ("--cache-size", "700kB", "--rotation", "never", "--miss-timeout", "30s")
    growfs.mount(tmp_path / "remote", *FLAGS, *flags)
    until(lambda: growfs.status()["state"] == "held")
    growfs.run("pause", growfs.mountpoint)
    growfs.run("set", growfs.mountpoint, "cache-size=120MB")
    (local,) = files_below(growfs.cache / "files")
    (missing,) = set(tree) - {local}
    with (growfs.mountpoint / local).open("rb"), ThreadPoolExecutor() as threads:
        others = growfs.cache_dir / "others"
        others.touch()
        os.truncate(others, 32 << 20)
        content = threads.submit((growfs.mountpoint / missing).read_bytes)
        until(lambda: "a quota seems to limit the cache" in (growfs.mountpoint / ".growfs/status").read_text())
        time.sleep(2 * LOOK_AGAIN_S_MIN)  # it has looked again in vain
        others.unlink()
        assert content.result() == tree[missing]


@pytest.mark.promise(3, 28, 29)
def test_a_disk_that_fails_below_python_fails_misses_at_most(
    growfs: Growfs, disk_control: Path, tmp_path: Path
) -> None:
    """Here it is SQLite and the C library that meet the errors, in the daemon, its workers and commands."""
    tree = make_tree(tmp_path / "remote", directories=1, files=12)
    growfs.mount(tmp_path / "remote", "--cache-size", "60kB", "--rotation", "never", "--miss-timeout", "1.5s")
    until(lambda: growfs.status()["state"] == "held")
    for calls, part, why in (
        ("write", "catalog.sqlite", r"cannot be written \(disk I/O error\); check its disk"),
        ("write", "partial", r"cannot be written \(\[Errno 5\] Input/output error\); check its disk"),
        # To SQLite, a log that cannot be read may look like a damaged database.
        (
            "read",
            "catalog.sqlite",
            r"catalog\.sqlite: (disk I/O error|database disk image is malformed); check the cache's disk \(dmesg\)",
        ),
    ):
        missing = sorted(set(tree) - files_below(growfs.cache / "files"))
        disk_control.write_text(f"{calls} {part}\n")
        assert error_of((growfs.mountpoint / missing[0]).read_bytes) == errno.EIO
        assert re.search(why, growfs.log())
        if calls == "write":
            for path in files_below(growfs.cache / "files"):
                assert (growfs.mountpoint / path).read_bytes() == tree[path], "what is cached can be read"
        disk_control.unlink()
        until(lambda missing=missing: error_of((growfs.mountpoint / missing[0]).read_bytes) is None)  # type: ignore[misc]
        for path in tree:
            assert (growfs.mountpoint / path).read_bytes() == tree[path], "it goes on when the disk is well"
    growfs.run("verify", growfs.mountpoint)
