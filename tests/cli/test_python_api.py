"""growfs.mount() in Python: an object, and a context manager that mounts for a block."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import growfs as package
from growfs.errors import GrowfsError, UsageError
from growfs.fuse.mounting import mounted_at, mounts
from tests.blocking_server import blocking_server
from tests.cli.support import cache_folders, leftovers, processes_of
from tests.harness import COMMAND_S, FORKS, Growfs, files_below, make_tree, until

pytestmark = pytest.mark.usefixtures("daemons_are_forked")


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    make_tree(tmp_path / "remote", directories=2, files=2)
    return tmp_path / "remote"


def test_a_given_mountpoint_is_kept_and_options_are_those_of_the_command(growfs: Growfs, remote: Path) -> None:
    options: dict[str, Any] = {"cache_size": 50_000_000, "seed": 3, "include": "class0/", "wait_files": 1}
    with package.mount(str(remote), growfs.mountpoint, cache_dir=str(growfs.cache_dir), **options) as path:
        assert path == growfs.mountpoint
        status = growfs.status()
    assert (status["cache"]["limit_bytes"], status["seed"], status["remote"]["files"]) == (50_000_000, 3, 2)
    assert not mounted_at(growfs.mountpoint)
    assert growfs.mountpoint.is_dir()


def test_an_error_says_why_and_leaves_nothing(
    growfs: Growfs, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GrowfsError, match="no such file or folder"):
        package.mount(str(tmp_path / "gone"), growfs.mountpoint, cache_dir=growfs.cache_dir)
    with pytest.raises(UsageError, match="cachesize"):
        package.mount(str(remote), growfs.mountpoint, cache_dir=growfs.cache_dir, cachesize="1GB")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(GrowfsError, match="there is no temporary folder to mount on"):
        package.mount(str(remote), cache_dir=growfs.cache_dir)
    assert leftovers(growfs) == []


@pytest.mark.parametrize("failure", [None, ZeroDivisionError])
def test_a_file_left_open_stays_readable_after_the_unmount(
    growfs: Growfs, remote: Path, failure: type[Exception] | None
) -> None:
    with suppress(ZeroDivisionError), package.mount(str(remote), cache_dir=growfs.cache_dir) as path:
        file = (path / "class0/0000.bin").open("rb")
        if failure:
            raise failure
    assert not path.exists()
    assert file.read() == (remote / "class0/0000.bin").read_bytes()
    file.close()
    until(lambda: processes_of(growfs.cache_dir) == [])


@pytest.mark.parametrize("end", [Growfs.umount, Growfs.kill])
def test_a_mount_may_end_within_the_block(growfs: Growfs, remote: Path, end: Callable[[Growfs], None]) -> None:
    with package.mount(str(remote), growfs.mountpoint, cache_dir=growfs.cache_dir):
        end(growfs)
    assert not mounted_at(growfs.mountpoint)
    assert cache_folders(growfs.cache_dir)


def test_two_mounts_at_once_of_which_one_has_nested_storage_options(growfs: Growfs, remote: Path) -> None:
    tokens: list[str | None] = []
    options = {"headers": {"X-Token": "s3kr1t"}}
    with blocking_server({"f": b"web"}) as server, package.mount(str(remote), cache_dir=growfs.cache_dir) as one:
        server.on_headers = lambda headers: tokens.append(headers["X-Token"])
        with package.mount(server.url, cache_dir=growfs.cache_dir, storage_options=options) as two:
            assert (two / "f").read_bytes() == b"web"
        assert files_below(one) == files_below(remote)
    assert set(tokens) == {"s3kr1t"}


@pytest.mark.parametrize("way", ["again", "late", "lazy"])
def test_a_mount_that_has_ended_does_not_unmount_its_successor(
    growfs: Growfs, remote: Path, tmp_path: Path, way: str
) -> None:
    """lazy: its daemon still serves an open file."""
    mount = package.mount(str(remote), growfs.mountpoint, cache_dir=growfs.cache_dir)
    kept = next(path for path in growfs.mountpoint.rglob("*") if path.is_file()).open("rb")
    if way != "lazy":
        kept.close()
    mount.unmount() if way == "again" else growfs.umount(lazy=way == "lazy")
    (tmp_path / "other").mkdir()
    other = Growfs(tmp_path / "other")
    other.mountpoint = growfs.mountpoint
    other.mount(remote)
    mount.unmount()
    assert mounted_at(growfs.mountpoint)
    other.umount()
    kept.close()
    until(lambda: processes_of(growfs.cache_dir) == [])


def test_the_same_call_again_gives_the_mount_that_there_is(growfs: Growfs, remote: Path) -> None:
    """As a notebook does whose cell is run again, without a `with` statement."""
    given: dict[str, Any] = {"cache_dir": growfs.cache_dir, "cache_size": "1GB"}
    mount = package.mount(str(remote), **given)
    assert files_below(mount.path) == files_below(remote)
    assert repr(mount) == f"<growfs mount of {remote} on {mount.path}>"
    assert package.mount(str(remote), **given) is mount
    with package.mount(str(remote), **given) as path:
        assert path == mount.path
    assert mounted_at(mount.path), "the others still use it"
    with pytest.raises(GrowfsError, match="in use by growfs"):
        package.mount(str(remote), seed=1, **given)
    mount.unmount()
    mount.unmount()
    assert repr(mount).endswith(", unmounted>")
    assert not mount.path.exists()
    until(lambda: processes_of(growfs.cache_dir) == [])
    with package.mount(str(remote), **given) as path:
        assert path != mount.path
    assert not mounted_at(path)


def test_threads_that_ask_for_the_same_mount_share_it(growfs: Growfs) -> None:
    with blocking_server({"f": b"web"}, "f") as server, ThreadPoolExecutor(2) as threads:
        first = threads.submit(package.mount, server.url, cache_dir=growfs.cache_dir)
        until(lambda: "f" in server.requested)
        second = threads.submit(package.mount, server.url, cache_dir=growfs.cache_dir)
        wait([second], 2)  # an attempt of its own would fail by then
        server.unblock()
        assert first.result() is second.result()
        first.result().unmount()


IN_A_BLOCK = """
import os, sys, growfs
with growfs.mount(sys.argv[1], cache_dir=sys.argv[2]) as path:
    if not os.fork():
        sys.exit()  # leaves the block, as its parent does later
    os.wait()
    assert os.path.ismount(path) and os.listdir(path)
"""
FORGETS_TO_UNMOUNT = """
import os, sys, growfs
mount = growfs.mount(sys.argv[1], cache_dir=sys.argv[2])
file = {file}
if not os.fork():
    sys.exit()  # runs the functions of atexit, as its parent does
os.wait()
assert os.path.ismount(mount.path)
"""
OPEN = FORGETS_TO_UNMOUNT.format(file='next(mount.path.rglob("*.bin")).open("rb")')


@pytest.mark.parametrize(
    "program", [IN_A_BLOCK, FORGETS_TO_UNMOUNT.format(file=None), OPEN], ids=["block", "end", "open"]
)
def test_the_end_of_the_interpreter_unmounts_but_not_that_of_a_fork(growfs: Growfs, remote: Path, program: str) -> None:
    done = FORKS.run(["-c", program, str(remote), str(growfs.cache_dir)], growfs.env, COMMAND_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert not [mount for mount in mounts() if mount.cache.parent == growfs.cache_dir]
    until(lambda: processes_of(growfs.cache_dir) == [])


def test_it_waits_and_says_what_is_cached(growfs: Growfs, remote: Path) -> None:
    with package.mount(str(remote), growfs.mountpoint, cache_dir=growfs.cache_dir, no_wait=True):
        pass
    mount = package.mount(str(remote), growfs.mountpoint, cache_dir=growfs.cache_dir, no_wait=True)
    for enough in ({"files": 1}, {"bytes": "20kB"}, {"fraction": 0.5}, {"all": True}):
        assert mount.wait(timeout="50s", **enough)["cache"]["files"] >= 1
    assert mount.status()["cache"] == growfs.status()["cache"]
    with pytest.raises(GrowfsError, match="no more files will be fetched"):
        mount.wait(files=5, timeout=50)
    with pytest.raises(UsageError, match="only one"):
        mount.wait(files=1, all=True)
    assert mount.wait()["ready"]
    mount.unmount()
    with pytest.raises(GrowfsError, match="not mounted"):
        mount.status()


def test_a_report_is_a_page_for_a_notebook_and_for_a_file(
    growfs: Growfs, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("growfs.extensions.report.page._library", lambda: "")
    mount = package.mount(str(remote), growfs.mountpoint, cache_dir=growfs.cache_dir)
    mount.wait(all=True)
    report = mount.report(last="1h")
    assert report._repr_html_().startswith("<iframe ")
    report.save(tmp_path / "page.html")
    assert f"<h1>{remote}</h1>" in (tmp_path / "page.html").read_text()
    mount.unmount()
