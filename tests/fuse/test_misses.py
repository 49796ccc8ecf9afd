"""A name of the catalog that is not local: an open waits for it, with bounds, and nobody else waits along."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from growfs.scheduler.concurrency import STREAMS_FIRST
from tests.fuse.conftest import only
from tests.fuse.gated import Gated
from tests.harness import Growfs, make_tree, until

SIZE = 4096


def held_back(gated: Gated, names: int, growfs: Growfs, *flags: object) -> list[Path]:
    """Mount a remote of which only first.bin is let through, and nothing is fetched but what is opened."""
    gated.files = {"first.bin": b"1" * SIZE, **{f"{number:04}.bin": b"%04d" % number for number in range(names)}}
    gated.held = set(gated.files) - {"first.bin"}
    growfs.mount(gated.manifest, "--no-wait", *flags)
    growfs.run("pause", growfs.mountpoint)
    assert (growfs.mountpoint / "first.bin").read_bytes() == b"1" * SIZE
    return [growfs.mountpoint / name for name in sorted(set(gated.files) - {"first.bin"})]


def error_of(path: Path) -> int | None:
    """The errno of an open for reading."""
    with pytest.raises(OSError, match=r".") as failed:
        path.open("rb")
    return failed.value.errno


def held_cache(growfs: Growfs, tmp_path: Path, room: int, *flags: object) -> tuple[list[Path], list[Path]]:
    """A mount with room for so many of six files of one directory; returns (what is local, what is not)."""
    tree = make_tree(tmp_path / "remote", directories=1, files=6, size=SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", room * SIZE, "--rotation", "never", *flags)
    until(lambda: growfs.status()["state"] == "held")
    local = growfs.names()
    assert len(local) == room
    return (
        [growfs.mountpoint / path for path in sorted(local)],
        [growfs.mountpoint / path for path in sorted(set(tree) - local)],
    )


@pytest.mark.promise(3)
def test_an_open_waits_for_its_file(growfs: Growfs, gated: Gated) -> None:
    (path,) = held_back(gated, 1, growfs)
    with ThreadPoolExecutor() as threads:
        content = threads.submit(path.read_bytes)
        until(lambda: growfs.status()["miss"]["files_total"] == 2)  # first.bin was one
        assert not content.done()
        assert path.stat().st_size == 4
        gated.let_go()
        assert content.result(30) == b"0000"
    assert growfs.status()["miss"]["wait_s_total"] > 0


@pytest.mark.promise(3)
def test_many_openers_cause_one_fetch(growfs: Growfs, gated: Gated) -> None:
    (path,) = held_back(gated, 1, growfs)
    with ThreadPoolExecutor(20) as threads:
        contents = [threads.submit(path.read_bytes) for _ in range(20)]
        until(lambda: growfs.status()["miss"]["files_total"] == 21)
        gated.let_go()
        assert {content.result(30) for content in contents} == {b"0000"}
    assert gated.fetched["0000.bin"] == 1


@pytest.mark.promise(3)
def test_a_hundred_waiting_opens_delay_nobody(growfs: Growfs, gated: Gated) -> None:
    paths = held_back(gated, 131, growfs)
    *opened, other = paths
    with ThreadPoolExecutor(len(opened)) as threads:
        contents: list[Future[bytes]] = [threads.submit(path.read_bytes) for path in opened]
        until(lambda: growfs.status()["miss"]["files_total"] == len(opened) + 1)
        script = "import os, sys; print(os.stat(sys.argv[1]).st_size, len(open(sys.argv[2]).read()), *os.listdir('.'))"
        told = subprocess.run(  # in a process that can be given up
            [sys.executable, "-c", script, other, growfs.mountpoint / "first.bin"],
            cwd=growfs.mountpoint, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert told.stdout.split() == ["4", str(SIZE), "first.bin"]
        assert not any(content.done() for content in contents)
        gated.let_go()
        assert [content.result(60) for content in contents] == [b"%04d" % number for number in range(len(opened))]


@pytest.mark.promise(3, 14)
@pytest.mark.parametrize("files", [40, 400])  # so many are with the worker already; some of them are not
def test_a_miss_overtakes_what_nobody_waits_for(growfs: Growfs, gated: Gated, files: int) -> None:
    names = [f"{number:03}.bin" for number in range(files)]
    gated.files = dict.fromkeys(names, b"x")
    gated.held = set(names)
    growfs.mount(gated.manifest, "--no-wait", "--workers", 1)
    until(lambda: sum(gated.fetched[name] for name in names) == STREAMS_FIRST)  # all streams wait for the gate
    last = next(name for name in names if not gated.fetched[name])
    gated.held = set(names) - {last}
    assert (growfs.mountpoint / last).read_bytes() == b"x"
    assert sum(gated.fetched[name] for name in names) == STREAMS_FIRST + 1
    gated.let_go()


@pytest.mark.promise(3)
def test_a_miss_ends_at_its_timeout(growfs: Growfs, gated: Gated) -> None:
    (path,) = held_back(gated, 1, growfs)
    growfs.run("set", growfs.mountpoint, "miss-timeout=0.2")
    assert error_of(path) == errno.ETIMEDOUT
    assert "--miss-timeout" in growfs.log()
    growfs.run("set", growfs.mountpoint, "miss-timeout=60")
    gated.let_go()
    assert path.read_bytes() == b"0000"
    assert gated.fetched["0000.bin"] == 1


@pytest.mark.promise(3)
def test_told_not_to_wait_there_is_no_such_file(growfs: Growfs, tmp_path: Path) -> None:
    local, missing = held_cache(growfs, tmp_path, 3, "--on-miss", "error")
    assert {error_of(path) for path in missing} == {errno.ENOENT}
    assert all(path.read_bytes() for path in local)
    assert growfs.status()["miss"]["files_total"] == 0


@pytest.mark.promise(3)
def test_a_remote_that_refuses_is_an_io_error_with_a_reason(growfs: Growfs, gated: Gated) -> None:
    gated.refused = {"0000.bin": 403, "0001.bin": 404}
    gated.let_go()
    denied, gone = held_back(gated, 2, growfs)
    assert error_of(denied) == errno.EIO
    assert error_of(gone) == errno.ENOENT  # the fetch found that the remote has it no more
    says = ("an open of 0000.bin failed", "0001.bin", "403")
    recent = growfs.mountpoint / ".growfs/log"
    until(lambda: all(words in log for log in (growfs.log(), recent.read_text()) for words in says))
    assert growfs.status()["last_error"]
    gated.refused = {}
    assert denied.read_bytes() == b"0000"


@pytest.mark.promise(3)
def test_a_file_larger_than_the_cache(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2, size=SIZE)
    (tmp_path / "remote" / "large.bin").write_bytes(b"x" * 20 * SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", 10 * SIZE)
    assert error_of(growfs.mountpoint / "large.bin") == errno.EFBIG
    assert growfs.names() == {"class0/0000.bin", "class0/0001.bin"}
    assert {"reason": "larger than the whole cache", "files": 1} in [
        {key: skip[key] for key in ("reason", "files")} for skip in growfs.status()["skipped"]
    ]
    growfs.run("set", growfs.mountpoint, f"cache-size={30 * SIZE}")
    assert (growfs.mountpoint / "large.bin").read_bytes() == b"x" * 20 * SIZE


@pytest.mark.promise(3)
def test_no_room_because_everything_is_open(growfs: Growfs, tmp_path: Path) -> None:
    local, missing = held_cache(growfs, tmp_path, 3, "--miss-timeout", "0.3")
    files = [path.open("rb") for path in local]
    assert error_of(missing[0]) == errno.ENOSPC
    assert "no room" in growfs.log()
    files.pop().close()
    growfs.run("set", growfs.mountpoint, "miss-timeout=60")
    assert missing[0].read_bytes()
    for file in files:
        file.close()


@pytest.mark.promise(3)
def test_no_room_because_everything_is_pinned(growfs: Growfs, tmp_path: Path) -> None:
    local, missing = held_cache(growfs, tmp_path, 3, "--miss-timeout", "0.3")
    growfs.run("pin", growfs.mountpoint, *(f"/{path.relative_to(growfs.mountpoint)}" for path in local))
    assert error_of(missing[0]) == errno.ENOSPC
    growfs.run("unpin", growfs.mountpoint, "*")
    growfs.run("set", growfs.mountpoint, "miss-timeout=60")
    assert missing[0].read_bytes()


@pytest.mark.promise(19)
def test_a_miss_gets_the_room_that_a_close_frees(growfs: Growfs, tmp_path: Path) -> None:
    local, missing = held_cache(growfs, tmp_path, 2)
    files = [path.open("rb") for path in local]
    with ThreadPoolExecutor() as threads:
        content = threads.submit(missing[0].read_bytes)
        until(lambda: growfs.status()["miss"]["files_total"] == 1)
        assert not content.done()
        files.pop().close()
        assert len(content.result(30)) == SIZE
    files.pop().close()


@pytest.mark.promise(7, 19)
def test_a_miss_makes_room_and_never_takes_a_directorys_last(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=3, files=4, size=SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", 6 * SIZE)
    growfs.run("pause", growfs.mountpoint)
    for path in tree:
        assert (growfs.mountpoint / path).read_bytes() == tree[path]
    cache = growfs.status()["cache"]
    assert cache["bytes"] <= cache["limit_bytes"]
    assert set(os.listdir(growfs.mountpoint)) == {"class0", "class1", "class2"}
    assert {path.parent.name for path in (growfs.cache / "files").rglob("*.bin")} == {"class0", "class1", "class2"}


@pytest.mark.promise(3, 10)
@only("libfuse")
def test_a_waiting_opener_that_is_killed_leaves_when_the_wait_ends(growfs: Growfs, gated: Gated) -> None:
    """Documented: this engine is not told of signals. What matters is that the mount goes on."""
    path, other = held_back(gated, 2, growfs)
    growfs.run("set", growfs.mountpoint, "miss-timeout=1")
    waiting = subprocess.Popen(["cat", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: growfs.status()["miss"]["files_total"] == 2)
    waiting.kill()
    assert waiting.wait(30) != 0
    gated.let_go()
    growfs.run("set", growfs.mountpoint, "miss-timeout=60")
    assert path.read_bytes() == b"0000"
    assert other.read_bytes() == b"0001"


def test_unmounting_does_not_wait_for_misses(growfs: Growfs, gated: Gated) -> None:
    (path,) = held_back(gated, 1, growfs)
    errors: list[OSError] = []

    def read() -> None:
        try:
            path.read_bytes()
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: growfs.status()["miss"]["files_total"] == 2)
    os.kill(growfs.pid, 15)
    thread.join(30)
    assert not thread.is_alive()
    assert errors
    until(lambda: not growfs.mountpoint.is_mount())
