"""Parts by their paths: .growfs/passes/P/K is the same for every process, and waits until it is cached."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import growfs as api
from growfs.errors import GrowfsError
from tests.blocking_server import BlockingServer
from tests.extensions.exact.test_exact import (
    PARTS,
    ROOMY,
    UNREAD,
    assert_each_once,
    cache_size,
    make_remote,
    mount,
    mount_half,
)
from tests.forkserver import SETUP_VARIABLE
from tests.fuse.conftest import SHOW_FILES, only, opened
from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import mount_status, mounted_in_a_pid_namespace, waited_opens
from tests.harness import Growfs, files_below, until
from tests.part_ranks import JOBS, Job, assert_each_once_in_each_pass, run_ranks

PASSES = ".growfs/passes"
pytestmark = pytest.mark.promise(47)


def part(growfs: Growfs, number: int, part: int) -> Path:
    return growfs.mountpoint / PASSES / str(number) / str(part)


def parts_of(growfs: Growfs, number: int) -> int:
    about = json.loads((growfs.mountpoint / PASSES / str(number) / "parts.json").read_text())
    return int(about["parts"])


def exact(growfs: Growfs) -> dict[str, Any]:
    return dict(mount_status(growfs)["exact"])


def read_all(folder: Path) -> set[str]:
    """List a part, and read every file."""
    names = files_below(folder)
    for name in names:
        (folder / name).read_bytes()
    return names


@pytest.mark.parametrize("name", ["one is slower", "they meet after each file"])
def test_ranks_without_a_barrier_read_each_file_once(growfs: Growfs, tmp_path: Path, name: str) -> None:
    """tests/extensions/fill/test_exact.py has the other jobs."""
    job, tree = JOBS[name], make_remote(tmp_path / "remote")
    mount(growfs, tmp_path / "remote", tree, *ROOMY, "--settle", "0.5s")
    lines = run_ranks(growfs.mountpoint, tmp_path / "out", job)
    assert_each_once_in_each_pass(lines, tree, job.passes)
    if not (job.meets or job.stagger_s):
        assert waited_opens(growfs) == 0


def test_ranks_in_another_pid_namespace_read_each_file_once(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_remote(tmp_path / "remote")
    job = Job(3, 2, (2,), pause_s=(0, 0.01))
    flags = "--exact", "--cache-size", cache_size(tree, 0.6), *ROOMY, "--settle", "0.5s"
    with mounted_in_a_pid_namespace(growfs, tmp_path / "remote", *flags):
        assert_each_once_in_each_pass(run_ranks(growfs.mountpoint, tmp_path / "out", job), tree, job.passes)


@only("either", "links")
def test_a_part_is_the_same_however_often_it_is_opened_and_makes_room_once_it_was_read(
    growfs: Growfs, tmp_path: Path
) -> None:
    tree = make_remote(tmp_path / "remote")
    mount(growfs, tmp_path / "remote", tree, *ROOMY)
    first = files_below(part(growfs, 2, 1))
    second = read_all(part(growfs, 2, 2))
    until(lambda: exact(growfs)["in_use"] == "2/1")
    assert files_below(growfs.mountpoint / ".growfs/generations/1") == first
    assert files_below(part(growfs, 2, 1)) == first == read_all(part(growfs, 2, 1))
    until(lambda: exact(growfs)["in_use"] == "")
    assert not first & second
    rest = [read_all(part(growfs, 2, number)) for number in range(3, parts_of(growfs, 2) + 1)]
    assert_each_once([first, second, *rest], tree)
    assert files_below(part(growfs, 2, 1)) == first, "it is fetched again"
    assert waited_opens(growfs) == 0


def test_a_part_waits_for_its_kept_files_too(growfs: Growfs, tmp_path: Path) -> None:
    """A process whose share of a part is kept may come late, and still finds the part."""
    tree = make_remote(tmp_path / "remote")
    mount(growfs, tmp_path / "remote", tree, *ROOMY)
    for number in (2, 3):
        for place in range(1, parts_of(growfs, number) + 1):
            read_all(part(growfs, number, place))
    ledger = csv.DictReader(io.StringIO((growfs.mountpoint / ".growfs/ledger.csv").read_text()))
    kept = {row["path"] for row in ledger if row["fetches"] == "1"}
    first = part(growfs, 4, 1)
    last, *others = sorted(files_below(first), key=lambda name: name not in kept)
    assert last in kept
    for name in others:
        (first / name).read_bytes()
    read_all(part(growfs, 4, 2))
    until(lambda: exact(growfs)["in_use"] == "4/1")
    (first / last).read_bytes()
    until(lambda: exact(growfs)["in_use"] == "")


def test_a_walk_of_growfs_begins_no_part_and_other_names_are_none(growfs: Growfs, tmp_path: Path) -> None:
    """Ids are used again after many names. A part that is in use then gets another one."""
    growfs.env[SETUP_VARIABLE] = "from growfs.extensions.exact import pass_names; pass_names.NAMES_MAX = 100"
    mount(growfs, tmp_path / "remote", make_remote(tmp_path / "remote"), *ROOMY)
    passes = growfs.mountpoint / PASSES
    for name in ("0", "01", "x", "1/0", "1/x", "-1", "1/1/none", "1e3"):
        with pytest.raises(FileNotFoundError):
            os.stat(passes / name)
    with pytest.raises(FileNotFoundError):
        os.listdir(passes / "1/99")
    assert os.listdir(passes) == []
    with opened(part(growfs, 2, 1)) as folder:
        found = subprocess.run(["find", passes], capture_output=True, text=True, check=True).stdout
        assert {line.rpartition("passes/")[2] for line in found.splitlines()} >= {"2", "2/1", "2/1/class1"}
        assert exact(growfs)["in_use"] == "2/1"
        expected = sorted(os.listdir(folder))
        for number in range(1, 200):
            (passes / str(number)).stat()
        assert sorted(os.listdir(part(growfs, 2, 1))) == expected
        assert files_below(part(growfs, 2, 1))
    with Reader(growfs.mountpoint) as reader:
        assert reader.walk() == files_below(part(growfs, 2, 1)), "the root shows the newest part"
    assert (passes / "2/1").stat().st_ino != (passes / "2").stat().st_ino != growfs.mountpoint.stat().st_ino


@only(*SHOW_FILES)
def test_a_process_that_waits_can_be_killed_and_holds_up_nobody(growfs: Growfs, server: BlockingServer) -> None:
    """A wait for a part of which nothing arrives ends. The link goes on once a part was read, whether or not a process
    waits: its room is for the part after the next one."""
    mount_half(growfs, server, "--refresh", "0")
    read_all(part(growfs, 1, 1))
    until(lambda: growfs.status()["state"] == "ahead")
    fetched = mount_status(growfs)["fetch"]["files_total"]
    read = read_all(part(growfs, 1, 2))
    until(lambda: mount_status(growfs)["fetch"]["files_total"] > fetched)
    until(lambda: growfs.status()["state"] == "ahead")
    server.blocked = set(server.files)
    command = ["ls", str(part(growfs, 1, 5))]
    with opened(part(growfs, 1, 3)), subprocess.Popen(command, stdout=subprocess.DEVNULL) as waiting:
        try:
            until(lambda: exact(growfs)["waited_for"] == "1/5")
            until(lambda: exact(growfs)["in_use"] == "1/3")
            assert "a process waits for 1/5 while 1/3 is in use" in growfs.run("status", growfs.mountpoint).stdout
            (part(growfs, 1, 3) / min(read)).stat()
            os.listdir(growfs.mountpoint / PASSES)
            waiting.send_signal(signal.SIGTERM)
            assert waiting.wait(20) == -signal.SIGTERM
            until(lambda: exact(growfs)["waited_for"] == "")
            growfs.run("set", growfs.mountpoint, "miss-timeout=1s")
            with pytest.raises(OSError, match="timed out") as refused:
                os.listdir(part(growfs, 1, 5))
            assert refused.value.errno == errno.ETIMEDOUT
            with pytest.raises(GrowfsError, match="cannot be opened: Connection timed out; see growfs status"):
                next(api.epoch(growfs.mountpoint, 1, 5))
        finally:
            waiting.kill()
            server.unblock()
    growfs.run("set", growfs.mountpoint, "miss-timeout=1m")
    assert os.listdir(part(growfs, 1, 5))


def test_a_rank_that_keeps_a_file_open_holds_up_the_others_for_a_limited_time(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_remote(tmp_path / "remote", 120)
    mount(growfs, tmp_path / "remote", tree, *PARTS, *UNREAD, share=0.35)
    first = part(growfs, 2, 1)
    with opened(first / "class1"):
        os.listdir(part(growfs, 2, 2))
        os.listdir(part(growfs, 2, 3))
        growfs.run("set", growfs.mountpoint, "miss-timeout=1")
        with opened(part(growfs, 2, 3)), pytest.raises(OSError, match="timed out"):
            os.listdir(part(growfs, 2, 4))
    growfs.run("set", growfs.mountpoint, "miss-timeout=1m")
    assert os.listdir(part(growfs, 2, 4))


def test_a_part_that_a_rank_still_reads_keeps_no_other_part(growfs: Growfs, tmp_path: Path) -> None:
    """Not even one that was cached before the rank began. Any number of ranks wait side by side."""
    mount(growfs, tmp_path / "remote", make_remote(tmp_path / "remote"), *ROOMY, "--start", "2/1")
    until(lambda: growfs.status()["state"] == "ahead")
    with opened(part(growfs, 2, 1)):
        for number in (2, 3, 4):
            assert read_all(part(growfs, 2, number))
    assert waited_opens(growfs) == 0
    with ThreadPoolExecutor(16) as threads:
        seen = list(threads.map(files_below, 16 * [part(growfs, 3, 2)]))
    assert seen == 16 * [files_below(part(growfs, 3, 2))]


def test_a_part_goes_on_although_the_remote_deletes_its_files(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_remote(tmp_path / "remote")
    mount(growfs, tmp_path / "remote", tree, *ROOMY, "--refresh", "0.2s")
    parts = [read_all(part(growfs, 2, number)) for number in (1, 2)]
    third = files_below(part(growfs, 2, 3))
    gone = min(third)
    (tmp_path / "remote" / gone).unlink()
    until(lambda: not (growfs.mountpoint / gone).exists())
    parts.append(read_all(part(growfs, 2, 3)) | {gone})
    parts += [read_all(part(growfs, 2, number)) for number in range(4, parts_of(growfs, 2) + 1)]
    assert_each_once(parts, tree)


@pytest.mark.promise(48)
def test_a_killed_mount_has_the_same_parts(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_remote(tmp_path / "remote")
    parts = list[set[str]]()
    for first in (1, 3):
        mount(growfs, tmp_path / "remote", tree, *ROOMY)
        for number in range(first, parts_of(growfs, 2) + 1):
            parts.append(read_all(part(growfs, 2, number)))
            if first == 1 and number == 3:
                break
        if first == 1:
            growfs.kill()
            growfs.run("umount", growfs.mountpoint)
    assert parts.pop(2) == parts[2], "the part in which it was killed is read again"
    assert_each_once(parts, tree)


@pytest.mark.promise(50)
def test_an_epoch_counts_in_the_process_that_calls_it(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_remote(tmp_path / "remote")
    mount(growfs, tmp_path / "remote", tree, *PARTS)
    parts = list[set[str]]()
    for folder in api.epoch(growfs.mountpoint):
        assert folder == part(growfs, 1, len(parts) + 1)
        parts.append(read_all(folder))
    assert_each_once(parts, tree)
    assert next(api.epoch(growfs.mountpoint)) == part(growfs, 2, 1)
    assert list(api.epoch(growfs.mountpoint, 7, parts_of(growfs, 7) + 1)) == []
    with pytest.raises(GrowfsError, match="is not a part of a pass"):
        api.position(growfs.mountpoint / "class1/0000.bin")
