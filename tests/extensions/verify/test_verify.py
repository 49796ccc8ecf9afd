"""growfs verify: what has changed on the disk without a trace is found, evicted and fetched again."""

from __future__ import annotations

import ctypes
import sqlite3
from pathlib import Path

import pytest

import growfs as package
from tests.cli.support import WITHOUT_CHARTS, assert_refused
from tests.forkserver import SETUP_VARIABLE
from tests.harness import COMMAND_S, FORKS, Growfs, make_tree, mapped_only, until
from tests.needs import need_programs

DAMAGED = "class0/0001.bin"
PRIORITIES = """
import os, subprocess, sys
import growfs
from click.testing import CliRunner
from growfs import cli
place = sys.argv[1]
for verify in (growfs.verify, lambda place: CliRunner().invoke(cli.main, ["verify", place]), lambda _: None):
    subprocess.run(["ionice", "-p", str(os.getpid())], check=True)
    verify(place)
"""
"""Prints the disk priority of its process before and after the function, and after the command."""


@pytest.fixture
def tree(tmp_path: Path) -> dict[str, bytes]:
    return make_tree(tmp_path / "remote", directories=2, files=3)


def fill(growfs: Growfs, remote: Path, *flags: object) -> None:
    growfs.mount(remote, "--settle", "0", *flags)
    until(lambda: growfs.status()["state"] == "complete")


def rot(growfs: Growfs, path: str = DAMAGED) -> None:
    """Change a byte of a cached file as a failing disk does: inode and modification time stay as they were."""
    cached = growfs.cache / "files" / path
    data = bytearray(cached.read_bytes())
    data[5_000] ^= 1
    with cached.open("r+b") as file:
        file.write(data)
    with sqlite3.connect(growfs.cache / "catalog.sqlite") as database:
        database.execute(
            "UPDATE resident SET file_mtime_ns = ? WHERE ino = ?", (cached.stat().st_mtime_ns, cached.stat().st_ino)
        )
    database.close()


@pytest.mark.promise(29)
def test_a_damaged_file_of_a_mount_is_fetched_again(
    growfs: Growfs, tmp_path: Path, tree: dict[str, bytes], engine: str
) -> None:
    """It opens as it should be although a process still has it mapped."""
    fill(growfs, tmp_path / "remote")
    growfs.umount()
    rot(growfs)
    fill(growfs, tmp_path / "remote", "--engine", engine)
    with mapped_only(growfs.mountpoint / DAMAGED) as address:
        damaged = ctypes.string_at(address, len(tree[DAMAGED]))
        assert damaged != tree[DAMAGED], "nothing but the digest tells"
        done = growfs.run("verify", growfs.mountpoint, check=False)
        assert done.returncode == 1
        assert f"damaged: {DAMAGED}\n" in done.stdout
        assert "6 files verified" in done.stdout
        assert "1 damaged and evicted, 1 fetched again" in done.stdout
        if engine == "passthrough":  # with libfuse a mapping keeps the file open
            until(lambda: (growfs.mountpoint / DAMAGED).read_bytes() == tree[DAMAGED])
        assert ctypes.string_at(address, len(damaged)) == damaged, "what is mapped does not change"
    until(lambda: (growfs.mountpoint / DAMAGED).read_bytes() == tree[DAMAGED])
    assert growfs.content() == tree
    done = growfs.run("verify", growfs.mountpoint)
    assert "6 files verified" in done.stdout
    assert ": 0 damaged\n" in done.stdout


@pytest.mark.promise(29)
def test_a_damaged_file_of_a_cache_without_a_mount_is_removed(
    growfs: Growfs, tmp_path: Path, tree: dict[str, bytes]
) -> None:
    fill(growfs, tmp_path / "remote")
    growfs.umount()
    rot(growfs)
    found = package.verify(growfs.cache_dir)
    assert (found.files, found.damaged, found.fetched) == (6, [DAMAGED], 0)
    assert not (growfs.cache / "files" / DAMAGED).exists()
    fill(growfs, tmp_path / "remote")
    assert growfs.status()["fetch"]["files_total"] == 1, "the others are kept"
    assert growfs.content() == tree
    growfs.umount()
    rot(growfs)
    assert package.verify(growfs.cache).damaged == [DAMAGED], "the folder of one cache"


def test_missing_files_and_those_of_another_length_are_damaged(
    growfs: Growfs, tmp_path: Path, tree: dict[str, bytes]
) -> None:
    """One that cannot be fetched again is not listed."""
    fill(growfs, tmp_path / "remote")
    files = growfs.cache / "files"
    (tmp_path / "remote" / DAMAGED).unlink()
    for path in (DAMAGED, "class0/0002.bin"):
        (files / path).unlink()
    (files / "class1/0000.bin").write_bytes(b"short")
    done = growfs.run("verify", growfs.mountpoint, check=False)
    assert done.returncode == 1
    assert "3 damaged and evicted, 2 fetched again; the others not yet: " in done.stdout
    del tree[DAMAGED]
    assert growfs.content() == tree


def test_only_the_command_lowers_the_disk_priority_of_its_process(
    growfs: Growfs, tmp_path: Path, tree: dict[str, bytes]
) -> None:
    need_programs("ionice", by="apt-get install util-linux")
    fill(growfs, tmp_path / "remote")
    growfs.umount()
    done = FORKS.run(["-c", PRIORITIES, str(growfs.cache_dir)], growfs.env, COMMAND_S)
    before, after_function, after_command = done.stdout.splitlines()
    assert (after_function, after_command) == (before, "idle")


def test_a_mount_is_not_looked_into_for_a_cache(growfs: Growfs, tmp_path: Path) -> None:
    """Its files may be named like a cache's, and to list it would begin a generation, or fail if the daemon is dead."""
    growfs.env[SETUP_VARIABLE] = WITHOUT_CHARTS
    remote = tmp_path / "remote"
    for name in ("catalog.sqlite", "below/catalog.sqlite"):
        (remote / name).parent.mkdir(parents=True, exist_ok=True)
        (remote / name).write_bytes(b"not a cache")
    fill(growfs, remote)
    assert "2 files verified" in growfs.run("verify", growfs.mountpoint).stdout
    growfs.run("report", growfs.mountpoint, "-o", tmp_path / "report.html")
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", growfs.mountpoint / "below"):
        assert_refused(growfs.run("verify", place, check=False), f"{place}: growfs is not mounted there")
    assert growfs.status()["generation"] == 0
    growfs.kill()
    assert_refused(growfs.run("verify", place, check=False), f"{place}: growfs is not mounted there")
    growfs.umount()
