"""Ordinary programs print the same for the mount as for the remote itself."""

from __future__ import annotations

import filecmp
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fuse.conftest import Library
from tests.harness import files_below

COMMANDS = [
    "find . -type f -size +2M -print0",
    "find . -type f -newermt @1600000005 -printf '%p %s %T@\\0'",
    "find . -type d",
    "md5sum sizes/*",
    "wc -c sizes/* names/plain.bin",
    "grep -rc a names deep",
    "tail -c 1000 sizes/large.bin",
    "tail -c +2000001 sizes/large.bin",
    "dd if=sizes/large.bin bs=64K skip=3 count=7 status=none",
    "stat --format '%n %s %Y %F' sizes/*",
    "du --apparent-size -b sizes/*",
    "du -k --apparent-size sizes/large.bin sizes/odd.bin",
    "ls names",
    "sort deep/a/b/c/d/file.txt 'at the root.txt'",
    "cd deep/a/b && pwd -P | grep -o deep/.* && cat ../b/c/d/file.txt",
]


@pytest.mark.promise(13)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.partition("%")[0][:24])
def test_a_program_prints_the_same_for_mount_and_remote(library: Library, command: str) -> None:
    def output_of(folder: Path) -> list[bytes]:
        done = subprocess.run(["sh", "-c", command], cwd=folder, check=True, capture_output=True, timeout=60)
        return sorted(done.stdout.splitlines(keepends=True) if b"\0" not in done.stdout else done.stdout.split(b"\0"))

    assert output_of(library.path) == output_of(library.remote) != []


@pytest.mark.parametrize("program", ["cmp", "diff"])
def test_cmp_and_diff_find_no_difference(library: Library, program: str) -> None:
    for path in library.tree:
        subprocess.run([program, "--", library.path / path, library.remote / path], check=True, timeout=60)


def test_cmp_finds_a_difference(library: Library) -> None:
    done = subprocess.run(
        ["cmp", library.path / "sizes/one.bin", library.path / "sizes/page.bin"],
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 1


@pytest.mark.promise(1, 13)
def test_diff_of_whole_trees_finds_no_difference(library: Library) -> None:
    subprocess.run(["diff", "-r", library.path, library.remote], check=True, timeout=60)


def test_du_counts_the_blocks_of_the_size(library: Library) -> None:
    for path, content in library.tree.items():
        done = subprocess.run(
            ["du", "-B512", "--", library.path / path], check=True, capture_output=True, text=True, timeout=60
        )
        assert int(done.stdout.split()[0]) == -(-len(content) // 512)


@pytest.mark.promise(1)
def test_copytree_copies_content_and_times(library: Library, tmp_path: Path) -> None:
    shutil.copytree(library.path, tmp_path / "copy")
    paths = list(library.tree)
    assert files_below(tmp_path / "copy") == set(paths)
    assert filecmp.cmpfiles(tmp_path / "copy", library.remote, paths, shallow=False) == (paths, [], [])
    assert {path: (tmp_path / "copy" / path).stat().st_mtime_ns for path in paths} == {
        path: (library.remote / path).stat().st_mtime_ns for path in paths
    }
    subprocess.run(["chmod", "-R", "u+w", tmp_path / "copy"], check=True, timeout=60)  # so that pytest can remove it


def test_a_tar_of_the_mount_unpacks_to_the_remote(library: Library, tmp_path: Path) -> None:
    (tmp_path / "unpacked").mkdir()
    script = 'tar -C "$1" -c . | tar -C "$2" -x --no-same-permissions'
    subprocess.run(["sh", "-c", script, "sh", library.path, tmp_path / "unpacked"], check=True, timeout=60)
    subprocess.run(["chmod", "-R", "u+w", tmp_path / "unpacked"], check=True, timeout=60)
    subprocess.run(["diff", "-r", tmp_path / "unpacked", library.remote], check=True, timeout=60)
