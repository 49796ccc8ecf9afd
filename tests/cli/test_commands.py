"""Each command on a real mount: its effect, its output and its errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from growfs import cli
from growfs.daemon import launch
from growfs.daemon import running as daemons
from growfs.daemon.options import GROUPS
from growfs.daemon.running import find
from growfs.fuse import mounting
from growfs.version import __version__
from tests.blocking_server import blocking_server
from tests.cli.support import NOBODY, assert_refused, closed, namespace, script, start_growfs, start_mount
from tests.crash.scene import alive
from tests.forkserver import SETUP_VARIABLE
from tests.harness import COMMAND_S, FORKS, GROWFS, Growfs, files_below, make_tree, until

COMMANDS = {
    *("mount", "wait", "next", "status", "log", "list", "umount", "set", "pause", "resume", "release"),
    *("fetch", "pin", "unpin", "evict", "verify", "fill", "stop", "cache", "plan", "doctor", "report", "top"),
    *("csi", "completion"),
}


@pytest.fixture
def tree(tmp_path: Path) -> dict[str, bytes]:
    return make_tree(tmp_path / "remote", directories=2, files=3)


@pytest.fixture
def mounted(growfs: Growfs, tmp_path: Path, tree: dict[str, bytes]) -> Growfs:
    """A mount whose whole tree is cached."""
    growfs.mount(tmp_path / "remote", "--wait-files", len(tree), "--settle", "0")
    until(lambda: growfs.status()["state"] == "complete")
    return growfs


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Growfs]:
    """A mount whose whole tree is cached, shared by the tests that change nothing."""
    folder = tmp_path_factory.mktemp("complete")
    growfs = Growfs(folder)
    with closed(growfs):
        make_tree(folder / "remote", directories=2, files=3)
        growfs.mount(folder / "remote")
        until(lambda: growfs.status()["state"] == "complete")
        yield growfs


def test_help_names_and_describes_every_command() -> None:
    sections = CliRunner().invoke(cli.main, ["--help"]).output.partition("Mount:")[2]
    names = re.findall(r"^  (\w+) ", sections, re.MULTILINE)
    assert set(names) == COMMANDS
    assert len(names) == len(COMMANDS)
    assert "..." not in sections, "a summary is cut off"
    for command in COMMANDS:
        text = CliRunner().invoke(cli.main, [command, "-h"]).output
        assert f" {command} [OPTIONS]" in text.splitlines()[0]
        assert len(text.split("\n\n")[1].strip()) > 10, "no description"
        if command in ("mount", "fill", "doctor"):
            assert re.findall(r"^(\w.*):$", text, re.MULTILINE) == ["Options", *GROUPS]


def test_it_runs_as_a_module(growfs: Growfs) -> None:
    """For example where a package's commands are not on the PATH."""
    done = subprocess.check_output([sys.executable, "-m", "growfs", "--version"], text=True)
    assert __version__ in done
    assert done == growfs.run("--version").stdout


@pytest.mark.parametrize(
    ("home", "caches", "shown"),
    [
        ("/", None, "/.cache/growfs"),  # as of most users of a container
        ("/home/me", None, "~/.cache/growfs"),
        ("/home/me", "/disk/home/me", "/disk/home/me/growfs"),
    ],
)
def test_the_default_folder_of_the_caches(growfs: Growfs, home: str, caches: str | None, shown: str) -> None:
    growfs.starts_python = True
    growfs.env |= {"HOME": home} | ({"XDG_CACHE_HOME": caches} if caches else {})
    assert f"[{shown}]" in growfs.run("mount", "--help").stdout
    sizes = ("--data-size", "2GB", "--files", "20", "--cache-size", "1GB")
    growfs.run("plan", *sizes, "--bandwidth", "1GB/s", "--read-rate", "1GB/s", "--epochs", "4")


def test_a_wrong_command_or_one_without_a_mount_is_refused(growfs: Growfs) -> None:
    for wrong in (["mout"], ["mount", "--no-such-option"]):
        assert_refused(growfs.run(*wrong, check=False), wrong[-1], exit_code=2)
    for command in ("status", "umount", "pause", "resume"):
        for folder in (growfs.mountpoint, growfs.mountpoint / "no/such"):
            assert_refused(growfs.run(command, folder, check=False), str(folder), "growfs list")


def test_relative_paths_are_resolved_in_the_working_directory(
    growfs: Growfs, tmp_path: Path, tree: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.txt").write_text("class0/0001.bin\n")
    growfs.run("mount", "remote", "mnt", "--cache-dir", "cache", "--cache-size", "1GB", "--manifest", "some.txt")
    assert growfs.names() == {"class0/0001.bin"}
    assert growfs.status()["url"] == str(tmp_path / "remote")
    assert growfs.cache.is_dir()
    growfs.run("umount", "mnt/")
    assert files_below(growfs.mountpoint) == set()


def test_paths_need_not_be_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    tree = make_tree(folder / "remote", directories=1, files=1)
    growfs = Growfs(folder)
    growfs.starts_python = True
    growfs.env["LC_ALL"] = "C.UTF-8"
    with closed(growfs):
        command = [*GROWFS, *map(str, growfs.mount_words(folder / "remote"))]
        output = subprocess.check_output(command, env=growfs.env)
        assert output.startswith(os.fsencode(growfs.mountpoint) + b": 1 of 1 file cached")
        assert growfs.content() == tree
        assert f"{tmp_path}/\N{REPLACEMENT CHARACTER}/mnt  " in growfs.run("list").stdout
        growfs.run("umount", growfs.mountpoint)


def test_names_are_utf_8_in_any_locale(growfs: Growfs, tmp_path: Path) -> None:
    remote = tmp_path / "rémote"
    remote.mkdir()
    (remote / "ünï").write_text("content")
    env = growfs.env | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}  # as any that is not of UTF-8
    command = [sys.executable, "-m", "growfs", *map(str, growfs.mount_words(remote))]
    subprocess.run(command, env=env, check=True, capture_output=True)
    assert growfs.content() == {"ünï": b"content"}
    growfs.umount()
    program = "import growfs, sys; growfs.mount(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(remote)], env=env, capture_output=True, text=True, check=False
    )
    assert "GrowfsError: this Python decodes file names as ascii; start it with PYTHONUTF8=1" in done.stderr


def test_what_list_and_log_show(complete: Growfs) -> None:
    assert complete.run("log", complete.mountpoint).stdout == complete.log()
    head, *lines = complete.run("list").stdout.splitlines()
    assert head.split() == ["MOUNTPOINT", "CACHE", "STATE"]
    (line,) = [line for line in lines if str(complete.mountpoint) in line]
    assert line.index(str(complete.cache)) == head.index("CACHE")
    assert "6 of 6 files cached" in line
    rows = json.loads(complete.run("list", "--json").stdout)
    assert [row["cache"] for row in rows if row["mountpoint"] == str(complete.mountpoint)] == [str(complete.cache)]


def test_without_a_mountpoint_a_command_goes_to_the_only_mount_of_its_user(
    complete: Growfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = find(complete.mountpoint)
    of_another, second = replace(own, owner=NOBODY), replace(own, mountpoint=tmp_path)
    found = [of_another, own]
    monkeypatch.setattr(daemons, "running", lambda: found)  # without the mounts of other tests
    for command in ("status", "wait", "pause", "resume", "release"):
        assert str(own.mountpoint) in CliRunner().invoke(cli.main, [command]).stdout
    found.append(second)
    refused = CliRunner().invoke(cli.main, ["pause"])
    assert refused.exit_code == 2
    assert f"2 mounts are running; name one: {own.mountpoint}, {tmp_path}" in refused.stderr
    found[:] = [of_another]
    assert "no mount of this user is running" in CliRunner().invoke(cli.main, ["status"]).stderr


def test_umount_names_who_waits_for_a_file(growfs: Growfs) -> None:
    with blocking_server({"a/0": b"x", "a/1": b"y"}, "a/1") as server:
        growfs.mount(server.url, "--wait-files", "1")
        with subprocess.Popen(["cat", growfs.mountpoint / "a/1"], stdout=subprocess.DEVNULL) as reader:
            until(lambda: growfs.status()["miss"]["files_total"])
            refused = growfs.run("umount", growfs.mountpoint, check=False)
            assert_refused(refused, f"in use by cat ({reader.pid})", "--lazy")
            server.unblock()


@pytest.mark.promise(11)
def test_a_mount_in_another_mount_namespace_is_in_use(mounted: Growfs, tree: dict[str, bytes], tmp_path: Path) -> None:
    """As in a container that was started with `docker -v`."""
    pid = mounted.pid
    with namespace("true", keep=mounted.mountpoint):
        refused = mounted.run("umount", mounted.mountpoint, check=False)
        assert_refused(refused, "in use by the mount namespace of sh (", "umount --lazy")
        assert mounted.names() == set(tree), "the mount was left as it is"
        mounted.run("umount", "--lazy", mounted.mountpoint)
        assert mounted.names() == set()
        (line,) = [line for line in mounted.run("list").stdout.splitlines() if str(mounted.mountpoint) in line]
        assert "unmounted, but still in use: 6 of 6 files cached" in line
        refused = mounted.run("umount", mounted.mountpoint, check=False)
        assert_refused(refused, "unmounted already", "the mount namespace of sh (", f"kill {pid}")
    until(lambda: not alive(pid))
    mounted.mount(tmp_path / "remote")


@pytest.mark.promise(11)
def test_umount_waits_for_the_daemon_although_a_sandbox_has_just_copied_the_mount(
    mounted: Growfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is made after umount has looked for others, and dropped a moment after it has unmounted."""
    pid = mounted.pid
    with ExitStack() as sandbox:

        def unmount(path: Path, lazy: bool) -> None:
            sandbox.enter_context(namespace(f"(sleep 0.5; umount -l {path}) &", keep=path))
            mounting.unmount(path, lazy)

        monkeypatch.setattr(launch, "unmount", unmount)
        launch.stop(mounted.mountpoint)
        assert not alive(pid)


def test_a_cache_whose_mount_a_file_keeps_is_refused_until_it_is_closed(
    mounted: Growfs, tree: dict[str, bytes], tmp_path: Path
) -> None:
    with subprocess.Popen(["tail", "-f", mounted.mountpoint / "class0/0000.bin"], stdout=subprocess.DEVNULL) as reader:
        until(lambda: mounted.status()["readers"])
        mounted.run("umount", "--lazy", mounted.mountpoint)
        refused = mounted.mount(tmp_path / "remote", check=False)
        expected = f"in use by growfs (pid {mounted.pid}), unmounted from {mounted.mountpoint}, but still in use"
        assert_refused(refused, expected, f"tail ({reader.pid}), which has read it", f"kill {mounted.pid}")
        assert "mount --bind" not in refused.stderr
        reader.kill()
    mounted.mount(tmp_path / "remote")


@pytest.mark.promise(11)
def test_a_mount_whose_daemon_hangs_can_be_unmounted_lazily(
    mounted: Growfs, tree: dict[str, bytes], tmp_path: Path
) -> None:
    mounted.env[SETUP_VARIABLE] = "from growfs.fuse import mounting; mounting.ANSWER_S = 0.3"
    with (mounted.mountpoint / "class0/0000.bin").open("rb") as file:
        daemon = mounted.pid
        os.kill(daemon, signal.SIGSTOP)
        time.sleep(1.1)  # the kernel keeps attributes for a second
        try:
            for refused in (
                mounted.mount(tmp_path / "remote", check=False),
                mounted.run("umount", mounted.mountpoint, check=False),
            ):
                assert_refused(refused, "has not answered for 0.3 s", f"umount --lazy {mounted.mountpoint}")
            mounted.run("umount", "--lazy", mounted.mountpoint)
        finally:
            os.kill(daemon, signal.SIGCONT)
        assert files_below(mounted.mountpoint) == set()
        assert file.read() == tree["class0/0000.bin"]
    until(lambda: not (mounted.cache / "daemon.json").exists())


@pytest.mark.promise(3, 14)
def test_evict_fetch_pin_unpin(mounted: Growfs) -> None:
    path = "class0/0000.bin"
    cached = mounted.cache / "files" / path
    assert mounted.run("evict", mounted.mountpoint, path).stdout.startswith("1 file evicted")
    assert not cached.exists()
    assert "state      not every file is cached; the rest are" in mounted.run("status", mounted.mountpoint).stdout
    assert mounted.run("fetch", mounted.mountpoint, path).stdout == "1 file matched, 1 fetched\n"
    assert cached.exists()
    mounted.run("pin", mounted.mountpoint, path)
    assert "1 kept" in mounted.run("evict", mounted.mountpoint, path).stdout
    assert cached.exists()
    assert mounted.run("unpin", mounted.mountpoint, path).stdout == "1 file unpinned\n"
    mounted.run("evict", mounted.mountpoint, path)
    assert not cached.exists()
    mounted.run("pin", mounted.mountpoint, "*.bin")
    assert mounted.run("evict", mounted.mountpoint, "*").stdout.startswith("0 files evicted")


@pytest.mark.parametrize("command", ["fetch", "pin"])
def test_a_command_that_fetches_waits_longer_than_a_reader(growfs: Growfs, command: str) -> None:
    with blocking_server({"a": b"a", "b": b"b"}) as server:
        growfs.mount(server.url, "--wait-files", "2", "--miss-timeout", "0.3s")
        growfs.run("evict", growfs.mountpoint, "b")
        server.blocked.add("b")
        with start_growfs(growfs, command, growfs.mountpoint, "b") as fetching:
            until(lambda: server.requests["b"] == 2)
            with pytest.raises(TimeoutError):  # this reader came after the command
                (growfs.mountpoint / "b").read_bytes()
            server.unblock()
            assert fetching.communicate(30) == ("1 file matched, 1 fetched\n", "")
            assert fetching.returncode == 0


def test_a_pattern_may_be_a_path_below_the_mountpoint(complete: Growfs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        "1 file matched" in complete.run("fetch", complete.mountpoint, complete.mountpoint / "class0/0000.bin").stdout
    )
    monkeypatch.chdir(complete.mountpoint.parent)
    name = complete.mountpoint.name
    assert "1 file unpinned" in complete.run("unpin", name, f"{name}/class0/0000.bin").stdout
    assert_refused(complete.run("pin", name, f"{name}/**", check=False), "no file matches")
    monkeypatch.chdir(complete.mountpoint)
    for pattern, files in {"*0.bin": 2, "class0/": 3, "class1/0000.bin": 1, "./class1": 3}.items():
        assert f"{files} file" in complete.run("fetch", ".", pattern).stdout
    monkeypatch.chdir("/")
    for command in ("pin", "unpin", "fetch", "evict"):
        assert_refused(complete.run(command, complete.mountpoint, "*.jpg", check=False), "*.jpg", ".gitignore")


@pytest.mark.promise(3)
def test_pause_and_resume(growfs: Growfs) -> None:
    growfs.env[SETUP_VARIABLE] = (
        "from growfs.scheduler import stream_count; stream_count.AHEAD_FILES, stream_count.IN_FLIGHT_FILES = 100, 300"
    )
    files = {f"f{number}": b"x" * 100 for number in range(340)}  # more than may be in flight
    with blocking_server(files, *files) as server:
        with start_mount(growfs, server.url, "--wait-files", "1", "--workers", "1") as mounting:
            first = until(lambda: next((path for path in server.requested if path), None))
            server.unblock(first)
            assert mounting.wait(30) == 0
        paused = growfs.run("pause", growfs.mountpoint).stdout
        assert paused == f"{growfs.mountpoint}: paused; to continue: growfs resume {growfs.mountpoint}\n"
        assert growfs.status()["state"] == "paused"
        server.unblock()
        assert (growfs.mountpoint / "f39").read_bytes() == files["f39"], "a miss is served while paused"
        until(lambda: not growfs.status()["cache"]["in_flight_bytes"])
        assert growfs.status()["cache"]["files"] < len(files)
        server.blocked.add(next(name for name in files if name not in server.requested))
        assert growfs.run("resume", growfs.mountpoint).stdout.startswith(f"{growfs.mountpoint}: resumed; filling")
        server.unblock()
        growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "30s")
        assert growfs.status()["cache"]["files"] == len(files)


def test_set_changes_options_of_a_live_mount_and_says_what_cannot_be_evicted(mounted: Growfs) -> None:
    given = "cache-size=2GB", "min-free=1MB", "refresh=0", "settle=5m", "miss-timeout=9"
    done = mounted.run("set", mounted.mountpoint, *given)
    assert done.stdout == f"{mounted.mountpoint}: set {', '.join(given)}\n"
    assert mounted.status()["cache"]["limit_bytes"] == 2_000_000_000
    mounted.run("pin", mounted.mountpoint, "**")
    done = mounted.run("set", mounted.mountpoint, "cache-size=4kB", check=False)
    assert_refused(done, "cannot be evicted", "pinned files")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("seed=1", "these can: cache-size"),
        ("cash-size=1GB", "cash-size: cannot be set while mounted; did you mean cache-size? "),
        ("cache-size", "NAME=VALUE"),
        ("settle=soon", "is not a time"),
        ("peers=node1:7070", "mounted without --peers; mount again with it"),
    ],
)
def test_set_refuses_invalid_options_and_changes_nothing(complete: Growfs, option: str, expected: str) -> None:
    exit_code = 1 if "peers" in option else 2
    done = complete.run("set", complete.mountpoint, "cache-size=2GB", option, check=False)
    assert_refused(done, expected, exit_code=exit_code)
    assert complete.status()["cache"]["limit_bytes"] == 1_000_000_000


def test_wait_returns_at_once_for_what_is_cached(complete: Growfs) -> None:
    for condition in (("--files", "6"), ("--bytes", "60kB"), ("--fraction", "100%"), ("--all", "--timeout", "10s"), ()):
        assert "6 of 6 files cached" in complete.run("wait", complete.mountpoint, *condition).stdout


@pytest.mark.parametrize(
    ("condition", "exit_code", "expected"),
    [
        (("--files", "7"), 1, "no more files will be fetched"),
        (("--bytes", "1GB"), 1, "no more files will be fetched"),
        (("--all", "--files", "1"), 2, "one of"),
        (("--files", "some"), 2, "not a whole number"),
        (("--bytes", "much"), 2, "not a size"),
        (("--fraction", "2"), 2, "not a fraction"),
        (("--all", "--timeout", "soon"), 2, "not a time"),
    ],
)
def test_wait_refuses_at_once_what_is_invalid_or_more_than_there_is(
    complete: Growfs, condition: tuple[str, ...], exit_code: int, expected: str
) -> None:
    assert_refused(complete.run("wait", complete.mountpoint, *condition, check=False), expected, exit_code=exit_code)


@pytest.mark.parametrize("closed", ["stdin", "stdout", "stderr"])
def test_a_command_whose_standard_descriptors_are_closed(complete: Growfs, closed: str) -> None:
    """Python itself then has None for the stream."""
    close = f"import os, sys; os.close(sys.{closed}.fileno()); sys.{closed} = None"
    for command in ("top", "status"):
        done = FORKS.run(script([command, complete.mountpoint], close), complete.env, COMMAND_S)
        assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_during_the_imports_is_no_traceback() -> None:
    script = """
import sys, growfs
class Interrupt:
    def find_spec(self, name, *_):
        if name == "growfs.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
growfs.main()
"""
    done = subprocess.run([sys.executable, "-c", script, "list"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_wait_ends_after_its_timeout_and_when_there_is_enough_or_no_more_will_come(growfs: Growfs) -> None:
    with blocking_server({"a": b"a", "b": b"b"}, "b") as server:
        growfs.mount(server.url, "--wait-files", "1")
        until(lambda: "b" in server.requested)
        done = growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "0.1s", check=False)
        assert_refused(done, "timed out after 0.1s", "1 of 2 files cached")
        growfs.run("pause", growfs.mountpoint)
        with start_growfs(growfs, "wait", growfs.mountpoint, "--files", "2") as waiting:
            server.unblock()  # the file that is on its way arrives
            assert waiting.wait(30) == 0
        done = growfs.run("wait", growfs.mountpoint, "--files", "3", "--timeout", "5s", check=False)
        assert_refused(done, "no more files will be fetched; paused", "2 of 2 files cached")


def test_wait_gives_up_after_its_timeout_although_the_daemon_hangs(complete: Growfs) -> None:
    os.kill(complete.pid, signal.SIGSTOP)
    try:
        done = complete.run("wait", complete.mountpoint, "--timeout", "0.1s", check=False, timeout_s=30)
    finally:
        os.kill(complete.pid, signal.SIGCONT)
    assert_refused(done, f"the daemon of {complete.cache} does not answer (timed out)")


def test_wait_waits_for_the_start_as_mount_does(growfs: Growfs) -> None:
    with blocking_server({"a": b"a"}, "a") as server, start_mount(growfs, server.url) as mounting:
        until(growfs.mountpoint.is_mount)
        done = growfs.run("wait", growfs.mountpoint, "--timeout", "0.1s", check=False)
        assert_refused(done, "timed out after 0.1s", "0 of 1 file cached")
        server.unblock()
        growfs.run("wait", growfs.mountpoint)
        assert mounting.wait(30) == 0


@pytest.mark.parametrize("on_terminal", [True, False])
def test_an_error_is_one_line_and_on_a_terminal_one_for_each_part(
    on_terminal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: on_terminal)
    between = "\n        " if on_terminal else "; "
    done = CliRunner().invoke(cli.main, ["status", str(tmp_path)])
    assert done.stderr == f"growfs: {tmp_path}: growfs is not mounted there{between}growfs list shows all mounts\n"
    assert done.exit_code == 1
    done = CliRunner().invoke(cli.main, ["set"], prog_name="growfs")
    assert done.stderr == f"growfs: Missing argument 'MOUNTPOINT'{between}see growfs set --help\n"
    assert done.exit_code == 2
