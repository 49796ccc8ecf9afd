"""When `growfs mount` returns, what it leaves running, and what it cleans up when it is interrupted."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from growfs.daemon import launch, wiring
from growfs.daemon.options import Options
from growfs.errors import GrowfsError
from growfs.fuse.mounting import mounted_at
from growfs.rotation.pass_order import Candidate, Pass, draw_order
from growfs.version import __version__
from tests.blocking_server import blocking_server
from tests.cli.support import (
    Done,
    assert_refused,
    cache_folders,
    closed,
    leftovers,
    mark_environment,
    needs_root,
    processes_of,
    script,
    start_mount,
    started,
    tmpfs,
)
from tests.forkserver import SETUP_VARIABLE
from tests.harness import COMMAND_S, FORKS, Growfs, make_tree, until

TREE = {f"{folder}/{number}": b"x" * 1000 for folder in "abc" for number in range(4)}


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    make_tree(tmp_path / "remote", directories=3, files=4)
    return tmp_path / "remote"


@pytest.mark.promise(7, 15)
def test_by_default_every_directory_has_a_file(growfs: Growfs) -> None:
    with blocking_server(TREE, *TREE) as server, start_mount(growfs, server.url) as mounting:
        for _ in range(3):
            path = until(lambda: next((path for path in server.requested if path in server.blocked), None))
            assert mounting.poll() is None, "mount returned before every directory had a file"
            server.unblock(path)
        # Sizes are unknown in a web server's listing, so the default condition is that every file is cached.
        until(lambda: mounted_at(growfs.mountpoint))
        server.unblock()
        assert mounting.wait(30) == 0
        assert {path.split("/")[0] for path in growfs.names()} == {"a", "b", "c"}


@pytest.mark.promise(15)
def test_by_default_a_tenth_of_the_cache_is_full(growfs: Growfs, remote: Path) -> None:
    growfs.mount(remote, "--cache-size", "1MB")  # the remote has 120 kB, more than a tenth of that
    assert growfs.status()["cache"]["content_bytes"] >= 100_000


@pytest.mark.promise(15)
def test_only_what_the_start_waits_for_is_fetched_until_mount_returns_soon_after_its_first_files(
    growfs: Growfs,
) -> None:
    """A tenth of a cache may take hours to come."""
    growfs.env[SETUP_VARIABLE] = "from growfs.scheduler import readiness; readiness.START_S = 0.3"
    files = {f"{number:02}": bytes(4096) for number in range(40)}
    order = draw_order((Candidate(n, 1, path, 4096, False, False) for n, path in enumerate(files)), Pass(0, 1))
    with (
        blocking_server(files, *files) as server,
        start_mount(growfs, server.manifest, "--cache-size", 40 * 4096) as mounting,
    ):
        until(lambda: len(server.requests.keys() & server.blocked) == 4)
        time.sleep(0.3)  # in which others would be requested
        assert len(server.requests.keys() & server.blocked) == 4, "a tenth of the cache"
        server.unblock(list(files)[order.seeds[0]])
        output, _ = mounting.communicate(timeout=30)
        waited = "waited for a file from each directory and what arrived in 0.3 s more; now filling the cache"
        assert waited in output
        until(lambda: len(server.requests.keys() & server.blocked) > 4)
        server.unblock()
        growfs.run("wait", growfs.mountpoint, "--all")


def test_at_the_start_files_of_unknown_size_are_fetched_side_by_side(growfs: Growfs) -> None:
    """What is reserved for each is a guess, and two are more than what the start waits for."""
    tree = {f"{number}": b"x" * 1000 for number in range(12)}
    with blocking_server(tree, *tree) as server, start_mount(growfs, server.url) as mounting:
        until(lambda: len(tree.keys() & server.requested) > 6)
        server.unblock()
        assert mounting.wait(30) == 0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Growfs, Done]]:
    """A mount of a small remote, which no test changes, and what the command printed."""
    folder = tmp_path_factory.mktemp("small")
    growfs = Growfs(folder)
    make_tree(folder / "remote", directories=3, files=4)
    with closed(growfs):
        yield growfs, growfs.mount(folder / "remote", "--seed", 3, "--storage-option", "secret=hidden")


@pytest.mark.promise(15)
def test_by_default_a_small_remote_is_cached_whole(small: tuple[Growfs, Done]) -> None:
    growfs, mounted = small
    assert mounted.stdout.splitlines()[0] == f"{growfs.mountpoint}: 12 of 12 files cached, 120 KB of 120 KB"
    assert len(growfs.names()) == 12
    for done in (mounted, growfs.run("wait", growfs.mountpoint, "--all")):
        assert done.stderr == "", "a pipe gets no progress bar"
        assert "\x1b" not in done.stdout


def test_the_log_begins_with_what_a_report_of_a_fault_needs(small: tuple[Growfs, Done]) -> None:
    growfs, _ = small
    first, second = growfs.log().splitlines()[:2]
    url = growfs.mountpoint.parent / "remote"
    for text in (f"growfs {__version__}, Python 3.", os.uname().release, f"{url} on {growfs.mountpoint}", "--seed 3"):
        assert text in first
    assert "hidden" not in first
    assert f"{growfs.status()['engine']} engine: " in second


def test_the_daemon_is_detached_from_the_terminal(small: tuple[Growfs, Done]) -> None:
    growfs, _ = small
    pid = growfs.pid
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    terminals = [os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1, 2)]
    assert not any(name.startswith(("/dev/pts", "/dev/tty")) for name in terminals)
    assert terminals[1] == terminals[2] == str(growfs.cache / "log")


@pytest.mark.promise(15)
@pytest.mark.parametrize(("flags", "files"), [(("--wait-files", "3"), 3), (("--wait-bytes", "2kB"), 2)])
def test_mount_waits_for_the_requested_amount(growfs: Growfs, flags: tuple[str, ...], files: int) -> None:
    with blocking_server(TREE, *TREE) as server, start_mount(growfs, server.url, *flags, "--workers", "1") as mounting:
        for _ in range(files):
            path = until(lambda: next((path for path in server.requested if path in server.blocked), None))
            assert mounting.poll() is None, "mount returned too early"
            server.unblock(path)
        assert mounting.wait(30) == 0
        cache = growfs.status()["cache"]
        assert (cache["files"], cache["content_bytes"]) == (files, 1000 * files)


@pytest.mark.promise(5, 15)
def test_no_wait_returns_before_any_file_is_cached(growfs: Growfs) -> None:
    with blocking_server(TREE, *TREE) as server:
        assert "0 of 12 files" in growfs.mount(server.url, "--no-wait").stdout
        assert growfs.names() == set()
        assert growfs.status()["state"] in ("listing", "seeding", "filling")


@pytest.mark.parametrize("flags", [("--wait-files", "99"), ("--wait-bytes", "99MB")])
def test_mount_does_not_wait_for_more_than_there_is(growfs: Growfs, remote: Path, flags: tuple[str, ...]) -> None:
    assert "12 of 12 files" in growfs.mount(remote, *flags).stdout


def test_mount_does_not_wait_for_more_than_the_cache_holds_and_wait_fails(growfs: Growfs, remote: Path) -> None:
    growfs.mount(remote, "--cache-size", "50kB", "--wait-files", "12")
    files = growfs.status()["cache"]["files"]
    assert 0 < files < 12
    done = growfs.run("wait", growfs.mountpoint, "--all", check=False)
    assert_refused(done, "no more files will be fetched", f"{files} of 12 files cached")


def test_a_mount_that_lists_the_remote_is_listed_and_can_be_ended(growfs: Growfs, tmp_path: Path) -> None:
    with blocking_server(TREE, "") as server, start_mount(growfs, server.url) as mounting:
        until(lambda: "" in server.requested)
        until(lambda: (growfs.listed() or "").startswith("not mounted yet: "))
        assert f"{server.url}: 0 files" in growfs.run("status", growfs.mountpoint).stdout
        second = growfs.run("mount", server.url, growfs.mountpoint, "--cache-dir", tmp_path / "other", check=False)
        remedy = f"wait for it, or stop it: growfs umount {growfs.mountpoint}"
        assert_refused(second, f"another growfs is about to mount there; {remedy}")
        assert cache_folders(tmp_path / "other") == []
        growfs.run("umount", growfs.mountpoint)
        _, errors = mounting.communicate(timeout=30)
        assert mounting.returncode == 1
        assert f"{growfs.mountpoint}: the mount was stopped before it was ready" in errors
        assert growfs.listed() is None


def test_errors_name_the_variable_or_the_file_that_has_the_value(growfs: Growfs, remote: Path, tmp_path: Path) -> None:
    """The file may be the default one, and write a key as Python does."""
    config = tmp_path / "config/growfs/config.toml"
    config.parent.mkdir(parents=True)
    words = ("mount", remote, tmp_path / "new", "--cache-dir", growfs.cache_dir)
    growfs.env |= {"XDG_CONFIG_HOME": str(tmp_path / "config"), "GROWFS_CACHESIZE": "1GB", "GROWFS_X_SERVICE_HOST": "x"}
    config.write_text('cache_size = "lots"\n')
    done = growfs.run(*words, check=False)
    assert done.stderr == (
        "note: the environment variable GROWFS_CACHESIZE is not a growfs option; did you mean GROWFS_CACHE_SIZE?\n"
        f"growfs: --config {config}: cache-size: 'lots' is not a size; examples: 500GB, 20GiB\n"
    )
    del growfs.env["GROWFS_CACHESIZE"]
    growfs.env["GROWFS_CACHE_SIZE"] = "more"
    assert_refused(growfs.run(*words, check=False), "growfs: GROWFS_CACHE_SIZE: 'more' is not a size", exit_code=2)


def test_a_mount_that_fails_leaves_no_new_folder(growfs: Growfs, tmp_path: Path) -> None:
    """A program would find it empty, and train on nothing. One that was there stays."""
    for command in ("mount", "fill"):
        words = (command, tmp_path / "nothing", tmp_path / "new", "--cache-dir", growfs.cache_dir)
        assert_refused(growfs.run(*words, check=False), "no such file or folder")
        assert not (tmp_path / "new").exists()
    growfs.mountpoint.mkdir(exist_ok=True)
    assert_refused(growfs.mount(tmp_path / "nothing", check=False), "no such file or folder")
    assert growfs.mountpoint.exists()


def test_a_pipe_ends_when_mount_returns(growfs: Growfs, remote: Path) -> None:
    reading, writing = os.pipe()
    with open(reading) as ours:
        with open(writing, "w") as theirs:
            words = script(growfs.mount_words(f"file://{remote}"))
            mounting = FORKS.start(words, growfs.env, stdout=theirs, stderr=theirs)
        local, engine = ours.read().splitlines()
    assert mounting.wait(30) == 0
    assert local == f"{growfs.mountpoint}: 12 of 12 files cached, 120 KB of 120 KB"
    assert engine.startswith(f"{growfs.mountpoint}: ")
    assert mounted_at(growfs.mountpoint)


def test_a_mount_from_a_working_directory_that_was_deleted(growfs: Growfs, remote: Path, tmp_path: Path) -> None:
    for url, code in ((remote, 0), ("remote", 2)):
        gone = f"import os; path = {str(tmp_path / 'gone')!r}; os.mkdir(path); os.chdir(path); os.rmdir(path)"
        done = FORKS.run(script(growfs.mount_words(url), gone), growfs.env, COMMAND_S)
        assert done.returncode == code, done.stderr
    assert_refused(done, "remote: is relative to the working directory, which was deleted", exit_code=2)


@pytest.mark.promise(28)
def test_a_cache_that_is_larger_than_its_disk_is_told_at_once(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=600, size=100_000)
    growfs.cache_dir = tmp_path / "disk"
    with tmpfs(growfs.cache_dir, "size=50m", "mode=700"):
        try:
            flags = ("--cache-size", "1GB", "--min-free", "10MB", "--wait-files", "1", "--bandwidth", "100kB/s")
            output = growfs.mount(tmp_path / "remote", *flags).stdout
            disk, mount = os.statvfs(growfs.cache_dir), os.statvfs(growfs.mountpoint)
            assert "cannot grow to its size of 1 GB; delete something there, or pass --cache-size" in output
            assert mount.f_blocks * mount.f_frsize < 50 << 20
            assert mount.f_bavail * mount.f_frsize <= disk.f_bavail * disk.f_frsize - 10_000_000
            flag = re.search(r"--cache-size (\S+)$", output, re.MULTILINE)
            assert flag
            growfs.run("set", growfs.mountpoint, f"cache-size={flag[1]}")
            assert "cannot grow" not in growfs.run("status", growfs.mountpoint).stdout
        finally:
            growfs.umount()


def test_a_cache_that_is_not_on_a_local_disk_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "file_system", lambda _: ("nfs4", Path("/data")))
    warning = wiring._cache_warning(Path("/data/cache"))
    assert warning == "/data/cache: is on /data (nfs4), which is not a local disk; pass a --cache-dir on one"


def test_a_job_of_several_nodes_is_pointed_to_its_options(growfs: Growfs, remote: Path) -> None:
    growfs.env |= {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "4"}
    hint = "note: each of the 4 nodes fetches all files; --partition auto"
    assert hint in growfs.mount(remote).stdout
    growfs.umount()
    assert processes_of(growfs.mountpoint.parent) == [], "umount returns when nothing of the mount runs any more"
    assert "note: " not in growfs.mount(remote, "--partition", "auto").stdout


def test_few_descriptors_are_told_before_an_open_fails(growfs: Growfs, remote: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    done = FORKS.run(script(growfs.mount_words(remote), limit), growfs.env, COMMAND_S)
    warning = "readers can have 128 files open at a time, because the daemon may open 256 (ulimit -n)"
    assert f"warning: {warning}" in done.stdout
    assert warning in growfs.run("status", growfs.mountpoint).stdout


def test_the_title_of_the_daemon_may_be_cut_mid_character(growfs: Growfs) -> None:
    """The kernel takes the first 15 bytes of a title as the name of the process."""
    with tempfile.TemporaryDirectory(prefix="aé", dir="/tmp") as folder:
        make_tree(Path(folder), directories=1, files=1)
        growfs.mount(folder)
        assert Path(f"/proc/{growfs.pid}/comm").read_bytes() == b"growfs: /tmp/a\xc3\n"
        other = growfs.mountpoint.with_name("other")
        assert_refused(growfs.run("mount", folder, other, "--cache-dir", growfs.cache_dir, check=False), "in use")
        growfs.umount()


def test_mount_works_with_closed_standard_descriptors(growfs: Growfs, remote: Path) -> None:
    command = [sys.executable, "-m", "growfs", *growfs.mount_words(f"file://{remote}")]
    line = shlex.join(map(str, command))
    done = subprocess.run(["sh", "-c", f"{line} 0<&- 1>&- 2>&-"], env=growfs.env, timeout=60, check=False)
    assert done.returncode == 0
    assert len(growfs.names()) == 12


def test_a_terminal_gets_a_progress_bar(growfs: Growfs) -> None:
    growfs.env |= {"TERM": "xterm", "COLUMNS": "120"}
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        while True:
            try:
                shown.append(os.read(ours, 1 << 16))
            except OSError:  # EIO: the last writer is gone
                return

    with (
        blocking_server(TREE, *TREE) as server,
        start_mount(growfs, server.url, "--wait-files", "1", stderr=theirs) as mounting,
    ):
        os.close(theirs)
        reading = threading.Thread(target=read)
        reading.start()
        until(lambda: b"0 of 12 files" in b"".join(shown))
        server.unblock()
        output, _ = mounting.communicate(timeout=30)
        assert mounting.returncode == 0
        reading.join(30)
        assert not reading.is_alive(), "the daemon keeps the terminal open"
    os.close(ours)
    assert b"mounting" in b"".join(shown)
    first, engine, *notes = output.splitlines()
    assert "engine" in engine
    assert "files cached" in first
    if "12 of 12 files" not in first:
        assert notes.pop(0).startswith(f"{growfs.mountpoint}: waited for the requested files; now ")
    assert all(note.startswith("note: not every directory") for note in notes)  # the other files may be cached by then


@pytest.mark.parametrize(("number", "blocked"), [(signal.SIGINT, ""), (signal.SIGTERM, "a/0")])
def test_an_interrupted_mount_leaves_nothing(growfs: Growfs, blocked: str, number: signal.Signals) -> None:
    mark_environment(growfs)
    with blocking_server({"a/0": b"x"}, blocked) as server, start_mount(growfs, server.url) as mounting:
        until(lambda: blocked in server.requested)
        until(lambda: cache_folders(growfs.cache_dir))
        mounting.send_signal(number)
        output, errors = mounting.communicate(timeout=30)
        assert (mounting.returncode, output, errors) == (130, "", "growfs: interrupted\n")
        assert leftovers(growfs) == []


AS_FIRST_PROCESS = """
import ctypes, os
ctypes.CDLL(None).unshare(0x20000000)  # CLONE_NEWPID
if child := os.fork():
    os.waitpid(child, 0)
    os._exit(0)
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
"""


def test_the_first_process_of_a_container_ends_at_sigterm_while_it_mounts(growfs: Growfs) -> None:
    """The kernel drops a signal to pid 1 of a pid namespace that has no handler for it."""
    needs_root()
    mark_environment(growfs)
    with (
        blocking_server({"a": b"x"}, "a") as server,
        started(script(growfs.mount_words(server.url), AS_FIRST_PROCESS), growfs.env) as unshare,
    ):
        until(lambda: "a" in server.requested)
        (pid,) = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()
        os.kill(int(pid), signal.SIGTERM)
        assert unshare.communicate(timeout=10)[1] == "growfs: interrupted\n"
        assert leftovers(growfs) == []


GIVES_UP_ONCE_A_FILE_EXISTS = """
import os
from growfs.client import progress
from growfs.scheduler import refresh
from growfs.workers import messages

class Patience:
    def __le__(self, silent_s):
        return os.path.exists({path!r})

progress.LINE_EVERY_S = messages.HEARTBEAT_S = 0.2
refresh.FIRST_PAGE_S_MAX = Patience()
"""


def test_a_server_that_never_answers_is_named_meanwhile_and_given_up(growfs: Growfs, tmp_path: Path) -> None:
    """Nobody looks at the terminal of a batch job."""
    growfs.env[SETUP_VARIABLE] = GIVES_UP_ONCE_A_FILE_EXISTS.format(path=str(tmp_path / "enough"))
    with blocking_server({}, "") as server, start_mount(growfs, server.url) as mounting:
        assert mounting.stderr
        known = rf"growfs: mounting for \d+ s: (.*); nothing of {server.url} is known yet\n"
        for line in mounting.stderr:
            waits_for = re.fullmatch(known, line)
            assert waits_for, line
            if waits_for[1].startswith("the listing is slow: no page has arrived for"):
                break
            assert waits_for[1] == "listing the remote"
        (tmp_path / "enough").touch()
        *_, error = mounting.stderr
        assert mounting.wait(30) == 1
        assert re.match(
            rf"growfs: {server.url}: its server has not answered the listing request for \d+ s; check the net", error
        )


FAILS_DURING_A_REPORT = """
import trio
from growfs.client import progress
from growfs.daemon import server
from growfs.daemon.snapshot import StatusSource

snapshot = StatusSource.snapshot

async def after_the_failure(source):
    while source.sections["last_error"]() is None:
        await trio.sleep(0.01)
    return await snapshot(source)

StatusSource.snapshot = after_the_failure
server.PROGRESS_EVERY_S = progress.LINE_EVERY_S = 0
"""


def test_a_listing_that_fails_while_the_progress_is_reported_is_not_said_to_be_tried_again(growfs: Growfs) -> None:
    growfs.env[SETUP_VARIABLE] = FAILS_DURING_A_REPORT
    assert_refused(growfs.mount(growfs.mountpoint.parent / "none", check=False), "no such file or folder")


def test_a_foreground_mount_that_is_ended_before_it_is_ready_leaves_nothing(growfs: Growfs) -> None:
    mark_environment(growfs)
    with blocking_server({"a/0": b"x"}, "a/0") as server, start_mount(growfs, server.url, "--foreground") as mounting:
        until(lambda: mounted_at(growfs.mountpoint))
        mounting.send_signal(signal.SIGHUP)
        output, errors = mounting.communicate(timeout=30)
        assert (mounting.returncode, output) == (1, "")
        assert "the mount was stopped before it was ready" in errors
        assert leftovers(growfs) == []


def test_signals_that_are_ignored_stay_so(growfs: Growfs) -> None:
    """As by nohup(1), and in the background jobs of a shell script."""
    ignore = "import signal as s; s.signal(s.SIGINT, s.SIG_IGN); s.signal(s.SIGHUP, s.SIG_IGN)"
    with (
        blocking_server({"a/0": b"x"}, "a/0") as server,
        started(script([*growfs.mount_words(server.url), "--foreground"], ignore), growfs.env) as mounting,
    ):
        until(lambda: mounted_at(growfs.mountpoint))
        for number in (signal.SIGINT, signal.SIGHUP):
            os.killpg(mounting.pid, number)
            assert not signal_is_caught(mounting.pid, number)
        server.unblock()
        assert mounting.stdout
        assert "1 of 1 file" in mounting.stdout.readline()
        mounting.terminate()
        assert mounting.wait(30) == 0


def test_a_daemon_that_is_ended_before_it_has_its_request(growfs: Growfs, remote: Path) -> None:
    def end(daemon: subprocess.Popen[bytes]) -> None:
        daemon.terminate()
        daemon.wait()

    options = Options.parse({"cache_dir": str(growfs.cache_dir)})
    with pytest.raises(GrowfsError, match=f"^{growfs.mountpoint}: the mount was stopped before it was ready$"):
        launch.start(str(remote), growfs.mountpoint, options, on_daemon=end)


def test_an_interrupted_mount_keeps_what_an_earlier_one_cached(growfs: Growfs) -> None:
    with blocking_server({"a/0": b"x", "a/1": b"y"}, "a/1") as server:
        growfs.mount(server.url, "--wait-files", "1")
        growfs.umount()
        with start_mount(growfs, server.url, "--wait-files", "2") as mounting:
            until(lambda: mounted_at(growfs.mountpoint))
            mounting.send_signal(signal.SIGINT)
            assert mounting.wait(30) == 130
        assert not mounted_at(growfs.mountpoint)
        assert (growfs.cache / "files" / "a" / "0").read_bytes() == b"x"


@pytest.mark.promise(15)
def test_files_excluded_at_a_remount_are_gone_before_the_remote_is_listed(growfs: Growfs) -> None:
    with blocking_server({"a/0": b"x", "a/1": b"y", "b/1": b"z"}) as server:
        growfs.mount(server.url, "--wait-files", "3")
        growfs.umount()
        server.blocked.add("")
        growfs.mount(server.url, "--exclude", "1")
        assert growfs.names() == {"a/0"}
        assert os.listdir(growfs.mountpoint) == ["a"]
        assert not (growfs.mountpoint / "a/1").exists()
        assert not (growfs.cache / "files" / "a" / "1").exists()
        assert growfs.status()["cache"]["files"] == growfs.status()["remote"]["files"] == 1


AGAIN = "import os, signal\ndef again(*given):\n    os.kill(os.getpid(), signal.SIGTERM)\n    return end(*given)\n"
AFTER_READY = "from growfs.daemon import launch as at; end = at.run_in_foreground; at.run_in_foreground = again"
AT_THE_END = "from growfs.cache.store import Store as at; end = at.stop; at.stop = again"


@pytest.mark.parametrize(
    ("ended_by", "and_once_more"),
    [
        ("umount", ""),
        (signal.SIGINT, ""),
        (signal.SIGTERM, ""),
        pytest.param(signal.SIGTERM, AGAIN + AFTER_READY, id="between ready and the wait"),
        pytest.param(signal.SIGTERM, AGAIN + AT_THE_END, id="as it ends"),
    ],
)
def test_a_foreground_mount_runs_until_it_is_ended(
    growfs: Growfs, remote: Path, ended_by: signal.Signals | str, and_once_more: str
) -> None:
    growfs.env[SETUP_VARIABLE] = and_once_more
    mark_environment(growfs)
    with start_mount(growfs, remote, "--foreground") as mounting:
        assert mounting.stdout
        assert "12 of 12 files" in mounting.stdout.readline()
        assert mounting.poll() is None
        if isinstance(ended_by, signal.Signals):
            until(lambda: signal_is_caught(mounting.pid, signal.SIGTERM))  # Python always catches SIGINT
            mounting.send_signal(ended_by)
        else:
            growfs.umount()
        _, errors = mounting.communicate(timeout=30)
        assert (mounting.returncode, errors) == (0, "")
    assert not mounted_at(growfs.mountpoint)
    until(lambda: processes_of(growfs.mountpoint.parent) == [])
    assert not {"daemon.json", "control.sock"} & set(os.listdir(growfs.cache))
    assert len(list((growfs.cache / "files").glob("*/*"))) == 12


def test_a_foreground_mount_whose_output_nobody_reads_ends(growfs: Growfs, remote: Path) -> None:
    mark_environment(growfs)
    with start_mount(growfs, remote, "--foreground") as mounting:
        assert mounting.stdout
        mounting.stdout.close()
        assert mounting.wait(30) == 1
        assert not mounted_at(growfs.mountpoint)
    until(lambda: processes_of(growfs.mountpoint.parent) == [])


def signal_is_caught(pid: int, number: int) -> bool:
    """Whether the process has a handler (proc(5), SigCgt)."""
    caught = next(
        line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")
    )
    return bool(int(caught, 16) >> (number - 1) & 1)
