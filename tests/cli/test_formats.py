"""A cache that another version of growfs has written: a mount says so, empties it, and fills it again."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

import growfs as package
from growfs.cache.cache_folder import DATABASE, FORMAT
from growfs.daemon.control_client import call
from growfs.daemon.launch import stop
from growfs.errors import GrowfsError
from tests.cli.support import WITHOUT_CHARTS, assert_refused
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, files_below, make_tree, set_format, until

OTHER = f"its format is {FORMAT + 1}, but this growfs uses format {FORMAT}"


@pytest.fixture
def tree(tmp_path: Path) -> dict[str, bytes]:
    return make_tree(tmp_path / "remote", directories=2, files=3)


@pytest.fixture
def other(growfs: Growfs, tree: dict[str, bytes], tmp_path: Path) -> Path:
    """A cache of another format, with another column, and files of another kind beside those that growfs knows."""
    growfs.mount(tmp_path / "remote", "--settle", "0")
    until(lambda: growfs.status()["state"] == "complete")
    growfs.umount()
    with closing(sqlite3.connect(growfs.cache / DATABASE)) as connection:
        connection.execute("ALTER TABLE resident RENAME COLUMN queue_position TO turn")
    set_format(growfs.cache, FORMAT + 1)
    (growfs.cache / "files" / "old").write_text("old")
    (growfs.cache / "index").mkdir()
    return growfs.cache


def state_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_below(folder)}


@pytest.mark.promise(29)
def test_mount_says_that_it_empties_it_and_fills_it_again(
    growfs: Growfs, tree: dict[str, bytes], other: Path, tmp_path: Path
) -> None:
    (growfs.cache_dir / "mine").write_text("mine")
    neighbor = growfs.cache_dir / "neighbor"
    neighbor.mkdir()
    (neighbor / "catalog.sqlite").write_bytes((other / "catalog.sqlite").read_bytes())
    before = state_of(neighbor)
    mounted = growfs.mount(tmp_path / "remote", "--settle", "0")
    assert mounted.stderr == f"note: {other}: {OTHER}; it is emptied and refilled\n"
    until(lambda: growfs.status()["state"] == "complete")
    assert growfs.content() == tree
    growfs.umount()
    assert files_below(other / "files") == set(tree)
    assert not (other / "index").exists()
    assert OTHER in (other / "log").read_text()
    assert (growfs.cache_dir / "mine").read_text() == "mine"
    assert state_of(neighbor) == before
    shutil.rmtree(neighbor)
    assert growfs.mount(tmp_path / "remote").stderr == ""
    assert growfs.status()["fetch"]["files_total"] == 0


def test_a_folder_is_filled_again(growfs: Growfs, tree: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "folder"

    def fill() -> str:
        done = growfs.run("fill", tmp_path / "remote", folder, "--cache-size", "1GB", "--settle", "0")
        until(lambda: call(folder / ".growfs", "status")["state"] == "complete")
        return done.stderr

    try:
        assert fill() == ""
        stop(folder)
        cache = (folder / ".growfs").resolve()
        set_format(cache, FORMAT + 1)
        assert fill() == f"note: {cache}: {OTHER}; it is emptied and refilled\n"
        growfs.run("next", folder)
        assert state_of((folder / "current").resolve()) == tree
    finally:
        with suppress(GrowfsError):
            stop(folder)


def test_what_reads_a_cache_says_that_it_is_of_another_format(growfs: Growfs, other: Path, tmp_path: Path) -> None:
    growfs.env[SETUP_VARIABLE] = WITHOUT_CHARTS
    before = state_of(other)
    again = "the next mount empties and refills it"
    assert_refused(growfs.run("verify", other, check=False), f"{other}: {OTHER}; {again}")
    assert_refused(growfs.run("report", other, "-o", tmp_path / "page.html", check=False), f"{other}: {OTHER}; {again}")
    doctor = growfs.run("doctor", tmp_path / "remote", "--cache-dir", growfs.cache_dir, "--measure", "0s")
    assert f"{other}: {OTHER}; a mount empties and refills it" in " ".join(doctor.stdout.split())
    assert state_of(other) == before


def test_commands_on_a_mount_of_another_version(growfs: Growfs, tree: dict[str, bytes], tmp_path: Path) -> None:
    """They say what to do, and what there is can be unmounted."""
    growfs.mount(tmp_path / "remote")
    announced = growfs.cache / "daemon.json"
    daemon = json.loads(announced.read_text())
    announced.write_text(json.dumps({**daemon, "format": FORMAT + 1, "version": "0.1.0"}))
    what = f"{growfs.mountpoint}: mounted by another version of growfs (0.1.0; this is {package.__version__}); "
    for command in (["status"], ["wait"], ["pause"]):
        assert_refused(growfs.run(*command, growfs.mountpoint, check=False), what)
    assert what in growfs.run("list").stdout
    growfs.umount()


def test_a_folder_with_the_catalog_of_another_program_is_refused(growfs: Growfs, other: Path, tmp_path: Path) -> None:
    (other / "catalog.sqlite").unlink()
    with closing(sqlite3.connect(other / "catalog.sqlite")) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
    before = state_of(other / "files")
    done = growfs.mount(tmp_path / "remote", check=False)
    assert_refused(done, f"{other}/catalog.sqlite: is not the database of a growfs cache")
    assert state_of(other / "files") == before
