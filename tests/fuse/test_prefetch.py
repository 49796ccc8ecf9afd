"""Prefetch: its order is reproducible, stays within the quota at every moment, and continues after a restart."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from growfs.disk import BLOCK
from growfs.rotation.pass_order import Candidate, Pass, draw_order
from tests.blocking_server import BlockingServer
from tests.forkserver import SETUP_VARIABLE
from tests.fuse.conftest import only, opened
from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import epoch, local
from tests.harness import Growfs, make_tree, starting_with, until

SIZE = 100_000
AHEAD = 80
"""Files that a worker has at a time; more than it fetches at once."""
LATE_AND_FEW = f"""
from growfs.scheduler import admission, stream_count
stream_count.AHEAD_FILES = {AHEAD}
admission.LATE_S = 1000
"""


def admission_order(growfs: Growfs) -> list[str]:
    """Wait until all files are local; returns them in the order of admission."""
    growfs.run("wait", growfs.mountpoint, "--all")
    growfs.run("set", growfs.mountpoint, "settle=0")
    return (growfs.mountpoint / ".growfs/files").read_text().splitlines()


def on_disk(cache: Path) -> int:
    """Allocated bytes of cached files and downloads; a file that is renamed meanwhile counts once."""
    blocks = {}
    for root, _, names in os.walk(cache):
        for name in names:
            if not root.startswith((str(cache / "files"), str(cache / "partial"))) or name == "order":
                continue
            with suppress(FileNotFoundError):
                stat = os.lstat(os.path.join(root, name))
                blocks[stat.st_ino] = stat.st_blocks
    return 512 * sum(blocks.values())


@pytest.mark.promise(14)
@only("passthrough")
def test_a_late_file_stops_no_worker(growfs: Growfs, server: BlockingServer) -> None:
    """Later files are listed after it, but fetched meanwhile; each worker has many files at a time."""
    workers = 2
    server.files = {f"{number:04}": b"%d" % number for number in range((workers + 1) * AHEAD)}
    server.blocked = set(server.files)
    growfs.env[SETUP_VARIABLE] = starting_with(workers) + LATE_AND_FEW
    growfs.mount(server.manifest, "--no-wait", "--workers", workers)
    late = until(lambda: next((path for path in server.requested if path in server.files), None))
    server.unblock(*(server.files.keys() - {late}))
    until(lambda: server.files.keys() <= set(server.requested))
    assert growfs.status()["cache"]["files"] < len(server.files)
    server.unblock()
    growfs.run("wait", growfs.mountpoint, "--all")


@pytest.mark.promise(14)
@only("libfuse")
def test_the_order_depends_neither_on_the_number_of_workers_nor_on_restarts_and_kills(
    growfs: Growfs, server: BlockingServer
) -> None:
    server.files = {f"class{number % 4}/{number:03}": b"%d" % number for number in range(40)}
    server.files["class0/000"] = bytes(5_000_000)  # slower than all files after it
    growfs.env[SETUP_VARIABLE] = starting_with(4)
    growfs.mount(server.manifest, "--workers", 4)
    whole = admission_order(growfs)
    assert len({path.partition("/")[0] for path in whole[:4]}) == 4
    growfs.umount()
    shutil.rmtree(growfs.cache_dir)
    growfs.env[SETUP_VARIABLE] = starting_with(1)
    for stop_at, end in ((15, growfs.umount), (30, growfs.kill)):
        server.blocked = set(whole[stop_at:])
        growfs.mount(server.manifest, "--no-wait", "--workers", 1)
        growfs.until_cached(stop_at)
        end()
    server.unblock()
    growfs.mount(server.manifest, "--workers", 1)
    assert admission_order(growfs) == whole


@pytest.mark.promise(15, 29)
def test_a_restart_after_a_crash_needs_no_remote_and_fetches_nothing(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote")
    growfs.mount(tmp_path / "remote")
    growfs.run("wait", growfs.mountpoint, "--all")
    growfs.kill()
    (tmp_path / "remote").rename(tmp_path / "elsewhere")
    growfs.mount(tmp_path / "remote")
    assert growfs.content() == tree
    until(lambda: growfs.status()["last_error"])
    assert growfs.names() == set(tree)
    assert growfs.status()["fetch"]["files_total"] == growfs.status()["miss"]["files_total"] == 0


@pytest.mark.promise(15)
def test_a_restart_works_while_the_server_denies_access_or_hangs(growfs: Growfs, server: BlockingServer) -> None:
    server.files = {f"{number:03}": b"%d" % number for number in range(20)}
    growfs.mount(server.manifest)
    growfs.run("wait", growfs.mountpoint, "--all")
    growfs.umount()
    server.statuses = dict.fromkeys([*server.files, "manifest.csv"], 403)
    growfs.mount(server.manifest)
    assert growfs.content() == server.files
    until(lambda: growfs.status()["last_error"])
    growfs.umount()
    server.statuses, server.blocked = {}, {"manifest.csv"}
    growfs.mount(server.manifest)
    assert growfs.names() == set(server.files)
    assert growfs.status()["remote"]["listing"]


@pytest.mark.promise(14)
@only("libfuse")
def test_no_smaller_file_overtakes_one_that_waits_for_space(growfs: Growfs, tmp_path: Path) -> None:
    names = [f"{number}.bin" for number in range(8)]
    drawn = draw_order((Candidate(n, 1, name, BLOCK, False, False) for n, name in enumerate(names)), Pass(0, 1))
    order = [names[id] for id in (*drawn.seeds, *drawn.rest)]
    (tmp_path / "remote").mkdir()
    for place, name in enumerate(order):
        (tmp_path / "remote" / name).write_bytes(bytes(3 * BLOCK if place == 3 else BLOCK))
    growfs.mount(tmp_path / "remote", "--cache-size", 5 * BLOCK, "--rotation", "never")
    until(lambda: growfs.status()["state"] == "held")
    assert growfs.names() == set(order[:3])  # two more would fit


@pytest.mark.promise(20)
def test_passes_go_on_while_an_open_waits_for_room(growfs: Growfs, reader: Reader, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=14, size=BLOCK)
    (tmp_path / "remote/class0/large.bin").write_bytes(bytes(11 * BLOCK))
    flags = "--cache-size", 12 * BLOCK, "--no-wait", "--settle", 0, "--turnover", "50%", "--miss-timeout", "1h"
    growfs.mount(tmp_path / "remote", *flags)
    growfs.run("pause", growfs.mountpoint)
    with ThreadPoolExecutor() as threads, ExitStack() as opens:
        for path in list(tree)[:2]:  # which leaves too little room for the large file
            opens.enter_context((growfs.mountpoint / path).open("rb"))
        large = threads.submit((growfs.mountpoint / "class0/large.bin").read_bytes)
        until(lambda: growfs.status()["miss"]["waiting"] == 1)
        growfs.run("resume", growfs.mountpoint)
        until(lambda: epoch(reader) and growfs.status()["fetch"]["files_total"] > 2 * len(tree))
        assert not large.done()
        opens.close()
        assert len(large.result(30)) == 11 * BLOCK


@pytest.mark.promise(28)
def test_the_quota_holds_while_filling_and_while_misses_replace_files(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=3, files=30, size=SIZE)
    limit = 40 * 1 << 10 << 6  # of the 9 MB that there are
    growfs.env[SETUP_VARIABLE] = starting_with(8)
    growfs.mount(tmp_path / "remote", "--cache-size", limit, "--no-wait", "--workers", 8)
    most = 0
    while growfs.status()["state"] != "held":
        for _ in range(20):
            most = max(most, on_disk(growfs.cache))
    assert 0.9 * limit < on_disk(growfs.cache) <= limit
    assert most <= limit
    assert growfs.status()["cache"]["bytes"] == on_disk(growfs.cache)
    with (growfs.mountpoint / "class0/0000.bin").open("rb") as held:
        for path in list(tree)[:50]:
            assert (growfs.mountpoint / path).read_bytes() == tree[path]
            assert on_disk(growfs.cache) <= limit
        assert held.read() == tree["class0/0000.bin"]
    cache = growfs.status()["cache"]
    assert cache["bytes"] == on_disk(growfs.cache)
    assert cache["in_flight_bytes"] == cache["orphan_bytes"] == 0


def modified(folder: Path, names: Iterable[str]) -> list[int]:
    return [(folder / name).stat().st_mtime_ns for name in names]


@pytest.mark.promise(2, 28)
def test_new_versions_wait_while_open_old_versions_fill_the_cache(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=5, size=SIZE)
    limit = 5 * (-(-SIZE // 4096) * 4096)
    growfs.mount(tmp_path / "remote", "--cache-size", limit)
    growfs.run("wait", growfs.mountpoint, "--all")
    files = {path: (growfs.mountpoint / path).open("rb") for path in tree}
    for path in tree:
        later = (tmp_path / "remote" / path).stat().st_mtime_ns + 10**10
        os.utime(tmp_path / "remote" / path, ns=(later, later))
    growfs.run("set", growfs.mountpoint, "refresh=0.1")
    until(lambda: "listed 5 files, 5 of them new, changed or gone" in growfs.log())
    assert growfs.status()["cache"]["files"] == 5  # the old versions, which cannot be replaced yet
    assert all(file.read() == tree[path] for path, file in files.items())
    assert on_disk(growfs.cache) <= limit
    for file in files.values():
        file.close()
    until(lambda: modified(growfs.mountpoint, tree) == modified(tmp_path / "remote", tree))
    growfs.until_cached(5)
    assert on_disk(growfs.cache) <= limit


@pytest.mark.promise(19)
def test_a_file_evicted_for_a_miss_is_fetched_again_when_it_fits(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=6, size=SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", 5 * (-(-SIZE // 4096) * 4096))
    growfs.until_cached(5)
    path = next(iter(growfs.names()))
    growfs.run("evict", growfs.mountpoint, path)
    until(lambda: growfs.status()["fetch"]["files_total"] == 6)  # the pass is complete, and path is not local
    assert (growfs.mountpoint / path).read_bytes() == tree[path]
    assert growfs.status()["evict"]["files_total"] == 2
    growfs.run("evict", growfs.mountpoint, path)
    until(lambda: growfs.status()["fetch"]["files_total"] == 8)
    assert growfs.status()["cache"]["files"] == 5


@pytest.mark.promise(3, 7, 28)
def test_shrinking_the_cache_evicts_and_growing_fetches_unless_it_is_paused(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=2, files=10, size=SIZE)
    growfs.mount(tmp_path / "remote")
    growfs.run("wait", growfs.mountpoint, "--all")
    with ExitStack() as files:
        for path in growfs.mountpoint.glob("*/*"):
            files.enter_context(opened(path))
        refused = growfs.run("set", growfs.mountpoint, "cache-size=1MiB", check=False)
        assert "cannot be evicted: open files" in refused.stderr
        assert "over its size" in (growfs.mountpoint / ".growfs/status").read_text()
    until(lambda: on_disk(growfs.cache) <= 1 << 20)
    assert set(os.listdir(growfs.mountpoint)) == {"class0", "class1"}
    growfs.run("pause", growfs.mountpoint)
    growfs.run("set", growfs.mountpoint, "cache-size=10MiB")
    assert growfs.status()["state"] == "paused"
    cached = local(growfs)
    assert (growfs.mountpoint / min(set(tree) - cached)).read_bytes()
    assert len(local(growfs)) == growfs.status()["cache"]["files"] == len(cached) + 1
    growfs.run("resume", growfs.mountpoint)
    growfs.run("wait", growfs.mountpoint, "--all")  # what was evicted is fetched again


@pytest.mark.promise(14, 20)
@only("libfuse")
def test_a_file_that_fails_does_not_stop_the_others(growfs: Growfs, server: BlockingServer) -> None:
    server.files = {f"{number:03}": b"%d" % number for number in range(20)}
    server.statuses = {"007": 403}
    growfs.mount(server.manifest, "--wait-files", 19)
    assert growfs.names() == set(server.files) - {"007"}
    assert growfs.status()["fetch"]["failed"] >= 1
    assert "007" in growfs.status()["last_error"]
