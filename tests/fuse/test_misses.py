"""An open of a file that is not local waits for its fetch, up to a limit, and delays no other request."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from growfs.scheduler.in_flight import TRIES_MAX
from growfs.scheduler.stream_count import STREAMS_FIRST_SMALL
from tests.blocking_server import BlockingServer
from tests.forkserver import SETUP_VARIABLE
from tests.fuse.conftest import SHOW_FILES, only
from tests.harness import Growfs, make_tree, until

SIZE = 4096
REFUSING_DISK = """
import errno, os, sqlite3
import growfs.scheduler.space
from growfs.cache.publish import Publisher
from growfs.workers.downloader import Downloader

growfs.scheduler.space.LOOK_AGAIN_S_MIN = growfs.scheduler.space.LOOK_AGAIN_S_MAX = 0.01


def refuse(name, of, path, error):
    def refused(*arguments):
        try:
            tries = os.open(path, os.O_WRONLY | os.O_APPEND)  # not created: the test may remove it at any moment
        except FileNotFoundError:
            return function(*arguments)
        os.write(tries, b".")
        os.close(tries)
        raise error

    function = getattr(of, name)
    setattr(of, name, refused)


refuse("_download", Downloader, "{file}", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
refuse("_download", Downloader, "{failing}", OSError(errno.EIO, os.strerror(errno.EIO)))
refuse("publish", Publisher, "{catalog}", sqlite3.OperationalError("database or disk is full"))
"""
"""Refuses as a full disk does, or as one that fails, as long as the files are there."""


def mount_blocked(server: BlockingServer, names: int, growfs: Growfs, *flags: object) -> list[Path]:
    """Mount a remote where all files but first.bin are blocked, and only opened files are fetched."""
    server.files = {"first.bin": b"1" * SIZE, **{f"{number:04}.bin": b"%04d" % number for number in range(names)}}
    server.blocked = set(server.files) - {"first.bin"}
    growfs.mount(server.manifest, "--no-wait", *flags)
    growfs.run("pause", growfs.mountpoint)
    assert (growfs.mountpoint / "first.bin").read_bytes() == b"1" * SIZE
    return [growfs.mountpoint / name for name in sorted(set(server.files) - {"first.bin"})]


def error_of(path: Path) -> int | None:
    """The errno of an open for reading."""
    with pytest.raises(OSError, match=r".") as failed:
        path.open("rb")
    return failed.value.errno


def mount_full_cache(growfs: Growfs, tmp_path: Path, capacity: int, *flags: object) -> tuple[list[Path], list[Path]]:
    """A cache of `capacity` of the six files of one directory; returns (local files, missing files)."""
    tree = make_tree(tmp_path / "remote", directories=1, files=6, size=SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", capacity * SIZE, "--rotation", "never", *flags)
    until(lambda: growfs.status()["state"] == "held")
    local = growfs.names()
    assert len(local) == capacity
    return (
        [growfs.mountpoint / path for path in sorted(local)],
        [growfs.mountpoint / path for path in sorted(set(tree) - local)],
    )


@pytest.mark.promise(3)
@only(*SHOW_FILES)
def test_many_opens_wait_and_delay_no_other_request(growfs: Growfs, server: BlockingServer) -> None:
    """Ten of them are of the same file, which is fetched once."""
    *paths, other = mount_blocked(server, 71, growfs)
    opened = [*paths, *10 * paths[:1]]
    with ThreadPoolExecutor(len(opened)) as threads:
        contents: list[Future[bytes]] = [threads.submit(path.read_bytes) for path in opened]
        until(lambda: growfs.status()["miss"]["files_total"] == len(opened) + 1)  # first.bin was one
        script = "import os, sys; print(os.stat(sys.argv[1]).st_size, len(open(sys.argv[2]).read()), *os.listdir('.'))"
        done = subprocess.run(  # in a process of its own, which a timeout can end
            [sys.executable, "-c", script, other, growfs.mountpoint / "first.bin"],
            cwd=growfs.mountpoint, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert done.stdout.split() == ["4", str(SIZE), "first.bin"]
        assert not any(content.done() for content in contents)
        server.unblock()
        assert [content.result(60) for content in contents] == [path.stem.encode() for path in opened]
    status = growfs.status()
    assert status["fetch"]["files_total"] == status["cache"]["files"]
    assert status["miss"]["wait_s_total"] > 0


@pytest.mark.promise(3, 14)
@pytest.mark.parametrize("files", [90, 400])  # the worker already has all of 90 files, but only some of 400
def test_a_miss_overtakes_prefetches(growfs: Growfs, server: BlockingServer, files: int) -> None:
    names = [f"{number:03}.bin" for number in range(files)]
    server.files = dict.fromkeys(names, b"x")
    server.blocked = set(names)
    growfs.mount(server.manifest, "--no-wait", "--workers", 1)

    def requested() -> list[str]:
        return [name for name in names if server.requests[name]]

    until(lambda: len(requested()) == STREAMS_FIRST_SMALL)  # all streams are blocked
    last = next(name for name in names if not server.requests[name])
    server.blocked = set(names) - {last}
    assert (growfs.mountpoint / last).read_bytes() == b"x"
    assert len(requested()) == STREAMS_FIRST_SMALL + 1
    server.unblock()


@pytest.mark.promise(3)
def test_with_on_miss_error_an_uncached_file_does_not_open(growfs: Growfs, tmp_path: Path) -> None:
    local, missing = mount_full_cache(growfs, tmp_path, 3, "--on-miss", "error")
    assert {error_of(path) for path in missing} == {errno.ENOENT}
    assert all(path.read_bytes() for path in local)
    assert growfs.status()["miss"]["files_total"] == 0


@pytest.mark.promise(3)
@only(*SHOW_FILES)
def test_a_remote_that_refuses_gives_eio_and_a_logged_reason(growfs: Growfs, server: BlockingServer) -> None:
    server.statuses = {"0000.bin": 403, "0001.bin": 404}
    denied, gone, _ = mount_blocked(server, 3, growfs)
    server.unblock()
    assert error_of(denied) == errno.EIO, "another file is served, so it is no outage"
    assert error_of(gone) == errno.ENOENT  # the fetch found that the remote no longer has it
    expected = ("an open of 0000.bin failed", "0001.bin", "403")
    recent = growfs.mountpoint / ".growfs/log"
    until(lambda: all(words in log for log in (growfs.log(), recent.read_text()) for words in expected))
    assert growfs.status()["last_error"]
    server.statuses = {}
    assert denied.read_bytes() == b"0000"


@pytest.mark.promise(3)
def test_a_file_larger_than_the_cache_gives_efbig(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2, size=SIZE)
    (tmp_path / "remote" / "large.bin").write_bytes(b"x" * 20 * SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", 10 * SIZE, "--wait-files", 2)
    assert error_of(growfs.mountpoint / "large.bin") == errno.EFBIG
    assert growfs.names() == {"class0/0000.bin", "class0/0001.bin"}
    skipped = {"reason": "larger than the whole cache", "files": 1}  # once the pass comes to it
    until(lambda: any(skipped.items() <= skip.items() for skip in growfs.status()["skipped"]))
    growfs.run("set", growfs.mountpoint, f"cache-size={30 * SIZE}")
    assert (growfs.mountpoint / "large.bin").read_bytes() == b"x" * 20 * SIZE


@pytest.mark.promise(3, 19)
def test_a_miss_gives_enospc_while_every_file_is_open_or_pinned(growfs: Growfs, tmp_path: Path) -> None:
    """It waits for a close, and uses the space that this frees; it does not wait if no close could make room."""
    local, missing = mount_full_cache(growfs, tmp_path, 3, "--miss-timeout", "2")
    files = [path.open("rb") for path in local]
    assert error_of(missing[0]) == errno.ENOSPC
    assert "no room" in growfs.log()
    growfs.run("set", growfs.mountpoint, "miss-timeout=1h")
    before = growfs.status()["miss"]["files_total"]
    with ThreadPoolExecutor() as threads:
        content = threads.submit(missing[0].read_bytes)
        until(lambda: growfs.status()["miss"]["files_total"] > before)
        assert not content.done()
        files.pop().close()
        assert len(content.result(30)) == SIZE
    for file in files:
        file.close()
    growfs.run("pin", growfs.mountpoint, *(f"/{path}" for path in growfs.names()))
    assert error_of(missing[1]) == errno.ENOSPC
    growfs.run("unpin", growfs.mountpoint, "*")
    assert missing[1].read_bytes()


@pytest.mark.promise(3)
@pytest.mark.parametrize("lacks", ["room for a whole group", "a disk with room"])
def test_a_reader_waits_for_room_as_long_as_if_it_were_alone(growfs: Growfs, tmp_path: Path, lacks: str) -> None:
    """Another reader came before it, waits for the same file, and gives up earlier."""
    refuses = tmp_path / "refuses"
    group: list[str] = []
    if lacks == "room for a whole group":
        group = ["--group", "{stem}"]
        make_tree(tmp_path / "remote", directories=1, files=6, size=SIZE, suffix=".txt")
    elif lacks == "a disk with room":
        others = {name: tmp_path / name for name in ("catalog", "failing")}
        growfs.env[SETUP_VARIABLE] = REFUSING_DISK.format(file=refuses, **others)
    local, missing = mount_full_cache(growfs, tmp_path, 4, "--miss-timeout", "4", *group)
    with ExitStack() as files, ThreadPoolExecutor() as threads:
        if lacks == "a disk with room":
            refuses.touch()
            files.callback(refuses.unlink)
        else:
            for path in local:
                files.enter_context(path.open("rb"))
        first = threads.submit(error_of, missing[0])
        time.sleep(3)
        second = threads.submit(missing[0].read_bytes)
        assert first.result(60) == errno.ENOSPC
        time.sleep(0.2)
        assert not second.done()
        files.close()
        assert second.result(60)


@pytest.mark.promise(3)
def test_a_miss_waits_until_a_full_disk_has_room(growfs: Growfs, tmp_path: Path) -> None:
    """A worker finds the disk full, or the catalog does when the file is admitted; each time one byte is added here."""
    tries = {name: tmp_path / name for name in ("file", "catalog")}
    growfs.env[SETUP_VARIABLE] = REFUSING_DISK.format(**tries, failing=tmp_path / "failing")
    _, missing = mount_full_cache(growfs, tmp_path, 2, "--miss-timeout", "30s")
    for path, tried in zip(missing, tries.values(), strict=False):
        tried.touch()
        with ThreadPoolExecutor() as threads:
            content = threads.submit(path.read_bytes)
            until(lambda tried=tried: tried.stat().st_size > TRIES_MAX + 1)  # type: ignore[misc]
            assert not content.done()
            tried.unlink()
            assert len(content.result()) == SIZE
    tries["catalog"].touch()
    growfs.run("set", growfs.mountpoint, "miss-timeout=3")  # time enough for a slow machine to find the disk full
    assert error_of(missing[2]) == errno.ENOSPC
    assert "the cache directory cannot be written (database or disk is full)" in growfs.log()
    tries["catalog"].unlink()
    (tmp_path / "failing").touch()
    assert error_of(missing[3]) == errno.EIO, "a disk that fails is not a full one"
    assert "the cache directory cannot be written ([Errno 5] Input/output error)" in growfs.log()
    (tmp_path / "failing").unlink()
    growfs.run("set", growfs.mountpoint, "miss-timeout=30s")
    assert missing[3].read_bytes()


@only(*SHOW_FILES)
def test_unmounting_does_not_wait_for_misses(growfs: Growfs, server: BlockingServer) -> None:
    (path,) = mount_blocked(server, 1, growfs)
    with ThreadPoolExecutor() as threads:
        error = threads.submit(error_of, path)
        until(lambda: growfs.status()["miss"]["files_total"] == 2)
        os.kill(growfs.pid, signal.SIGTERM)
        assert error.result(30)
    until(lambda: not growfs.mountpoint.is_mount())
