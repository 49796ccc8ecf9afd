"""The set of directories is complete as soon as `mount` returns, and directories may be large."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.blocking_server import BlockingServer
from tests.fuse.test_open_files import relist, replace
from tests.harness import Growfs, make_tree, until

BLOCK = 4096


def imagefolder(remote: Path, directories: int) -> None:
    """Class folders with a README, three pictures, and an odd file that sorts first."""
    for directory in range(directories):
        folder = remote / f"class{directory:03}"
        folder.mkdir(parents=True)
        for name in ("0.json", "README.md", *(f"{number}.jpg" for number in range(3))):
            (folder / name).write_bytes(b"x" * BLOCK)


def listed_types(folder: Path) -> dict[str, set[str]]:
    """The extensions in each listed class folder."""
    return {name: {Path(file).suffix for file in os.listdir(folder / name)} for name in os.listdir(folder)}


@pytest.mark.promise(7)
def test_every_directory_has_its_most_common_file_type_before_mount_returns(growfs: Growfs, tmp_path: Path) -> None:
    imagefolder(tmp_path / "remote", 30)
    growfs.mount(tmp_path / "remote", "--cache-size", 62 * BLOCK)
    shown = listed_types(growfs.mountpoint)
    assert sorted(shown) == sorted(os.listdir(tmp_path / "remote"))
    assert all(".jpg" in found for found in shown.values())
    assert growfs.status()["unpromised"] is None


@pytest.mark.promise(7, 19)
def test_neither_a_command_nor_a_miss_evicts_the_last_file_of_a_type_in_a_directory(
    growfs: Growfs, tmp_path: Path
) -> None:
    imagefolder(tmp_path / "remote", 5)
    growfs.mount(tmp_path / "remote")
    growfs.run("wait", growfs.mountpoint, "--all")
    growfs.run("pause", growfs.mountpoint)
    growfs.run("evict", growfs.mountpoint, "*")
    shown = listed_types(growfs.mountpoint)
    assert shown == {name: {".json", ".md", ".jpg"} for name in os.listdir(tmp_path / "remote")}
    assert growfs.status()["cache"]["files"] == 5 * 3
    growfs.run("set", growfs.mountpoint, f"cache-size={17 * BLOCK}")
    for path in sorted((tmp_path / "remote").rglob("*.*")):
        assert (growfs.mountpoint / path.relative_to(tmp_path / "remote")).read_bytes() == path.read_bytes()
    assert growfs.status()["cache"]["bytes"] <= 17 * BLOCK
    assert listed_types(growfs.cache / "files") == shown
    assert set(os.listdir(growfs.mountpoint)) == set(shown)


@pytest.mark.promise(14)
def test_the_seeds_do_not_depend_on_the_cache_size(growfs: Growfs, tmp_path: Path) -> None:
    imagefolder(tmp_path / "remote", 8)
    growfs.mount(tmp_path / "remote", "--cache-size", 17 * BLOCK)
    small = (growfs.mountpoint / ".growfs/files").read_text().splitlines()[:8]
    growfs.umount()
    shutil.rmtree(growfs.cache_dir)
    growfs.mount(tmp_path / "remote", "--workers", 1)
    assert (growfs.mountpoint / ".growfs/files").read_text().splitlines()[:8] == small


@pytest.mark.promise(7)
def test_seeds_that_do_not_fit_are_reported(growfs: Growfs, tmp_path: Path) -> None:
    imagefolder(tmp_path / "remote", 8)
    output = growfs.mount(tmp_path / "remote", "--cache-size", 6 * BLOCK).stdout
    assert "not every directory has a file yet: a file from each takes" in output
    assert "come and go as samples" in growfs.status()["unpromised"]
    assert "not every directory" in (growfs.mountpoint / ".growfs/status").read_text()


@pytest.mark.promise(7)
def test_a_directory_found_by_a_refresh_appears_with_the_next_generation(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=2)
    (tmp_path / "remote/empty/below").mkdir(parents=True)
    growfs.mount(tmp_path / "remote")
    assert set(os.listdir(growfs.mountpoint)) == {"class0", "class1"}, "empty directories are not listed"
    make_tree(tmp_path / "remote", directories=3)
    growfs.run("set", growfs.mountpoint, "refresh=0.1")
    growfs.until_cached(15)
    assert set(os.listdir(growfs.mountpoint)) == {"class0", "class1"}
    growfs.run("set", growfs.mountpoint, "settle=0")
    assert set(os.listdir(growfs.mountpoint)) == {"class0", "class1", "class2"}
    assert len(os.listdir(growfs.mountpoint / "class2")) == 5


@pytest.mark.promise(9)
def test_changes_during_a_slow_listing_are_visible_and_no_name_is_repeated(growfs: Growfs, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    tree = make_tree(remote, directories=1, files=300, size=10)
    growfs.mount(remote)
    growfs.run("wait", growfs.mountpoint, "--all")
    order = (growfs.mountpoint / ".growfs/files").read_text().splitlines()
    changed, deleted, evicted = order[200:225], order[225:250], order[250:275]
    with os.scandir(growfs.mountpoint / "class0") as entries:
        listed = [next(entries).name]
        for path in changed:
            replace(remote / path, b"new and longer")
        for path in deleted:
            (remote / path).unlink()
        relist(growfs)
        until(lambda: growfs.status()["remote"]["files"] == len(tree) - len(deleted))
        until(lambda: growfs.status()["fetch"]["files_total"] == len(tree) + len(changed))
        growfs.run("evict", growfs.mountpoint, *evicted)
        listed += [entry.name for entry in entries]
    assert len(listed) == len(set(listed))
    assert {(growfs.mountpoint / path).stat().st_size for path in changed} == {14}
    assert not any((growfs.mountpoint / path).exists() for path in deleted)
    assert all((growfs.mountpoint / path).exists() for path in evicted)


@pytest.mark.promise(31)
def test_a_path_of_too_many_folders_is_skipped(growfs: Growfs, server: BlockingServer) -> None:
    deepest = "d/" * 500 + "x.bin"
    server.files = {"a.bin": b"a", deepest: b"x", f"d/{deepest}": b"y", "d/" * 1500 + "x.bin": b"z"}
    growfs.mount(server.manifest)
    growfs.run("wait", growfs.mountpoint, "--all")
    assert (growfs.mountpoint / deepest).read_bytes() == b"x"
    (skipped,) = growfs.status()["skipped"]
    assert (skipped["reason"], skipped["files"]) == ("more than 500 folders deep", 2)
