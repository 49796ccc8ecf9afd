"""When `growfs mount` returns, what it leaves running, and what it takes back when it is broken off."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from growfs.fuse.mounting import mounted_at
from tests.cli.support import cache_folders, gated, left_over, mark, processes_of, started
from tests.harness import GROWFS, Growfs, make_tree, until

TREE = {f"{folder}/{number}": b"x" * 1000 for folder in "abc" for number in range(4)}


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    make_tree(tmp_path / "remote", directories=3, files=4)
    return tmp_path / "remote"


@pytest.mark.promise(7, 15)
def test_by_default_every_directory_has_a_file(growfs: Growfs) -> None:
    with gated(TREE, *TREE) as gate, started(growfs, *mount_arguments(growfs, gate.url)) as mounting:
        for _ in range(3):
            path = until(lambda: next((asked for asked in gate.asked if asked in gate.held), None))
            assert mounting.poll() is None, "it returned before every directory had a file"
            gate.let_go(path)
        # The sizes of what a web server lists are not known, so a tenth of the cache is the whole of what is.
        until(lambda: mounted_at(growfs.mountpoint))
        gate.let_go()
        assert mounting.wait(30) == 0
        assert {path.split("/")[0] for path in growfs.names()} == {"a", "b", "c"}


@pytest.mark.promise(15)
def test_by_default_a_tenth_of_the_cache_is_full(growfs: Growfs, remote: Path) -> None:
    growfs.mount(remote, "--cache-size", "1MB")  # of which the 120 kB of the remote are more than a tenth
    assert growfs.status()["cache"]["content_bytes"] >= 100_000


@pytest.mark.promise(15)
def test_by_default_the_whole_of_a_small_remote_is_there(growfs: Growfs, remote: Path) -> None:
    output = growfs.mount(remote).stdout
    assert output.splitlines()[0] == f"{growfs.mountpoint}: 12 of 12 files cached, 120 KB of 120 KB"
    assert len(growfs.names()) == 12


@pytest.mark.promise(15)
@pytest.mark.parametrize(("asked", "wanted"), [(("--wait-files", "3"), 3), (("--wait-bytes", "2kB"), 2)])
def test_wait_for_so_much(growfs: Growfs, asked: tuple[str, ...], wanted: int) -> None:
    """Files of 1 kB come one by one, in the order in which they were drawn."""
    with (
        gated(TREE, *TREE) as gate,
        started(growfs, *mount_arguments(growfs, gate.url), *asked, "--workers", "1") as mounting,
    ):
        for _ in range(wanted):
            path = until(lambda: next((path for path in gate.asked if path in gate.held), None))
            assert mounting.poll() is None, "it returned too early"
            gate.let_go(path)
        assert mounting.wait(30) == 0
        cache = growfs.status()["cache"]
        assert (cache["files"], cache["content_bytes"]) == (wanted, 1000 * wanted)


@pytest.mark.promise(5, 15)
def test_no_wait(growfs: Growfs) -> None:
    with gated(TREE, *TREE) as gate:
        assert "0 of 12 files" in growfs.mount(gate.url, "--no-wait").stdout
        assert growfs.names() == set()
        assert growfs.status()["state"] in ("seeding", "filling")


@pytest.mark.parametrize("asked", [("--wait-files", "99"), ("--wait-bytes", "99MB")])
def test_mount_does_not_wait_for_more_than_there_is(growfs: Growfs, remote: Path, asked: tuple[str, ...]) -> None:
    assert "12 of 12 files" in growfs.mount(remote, *asked).stdout


def test_a_full_cache_is_not_waited_for(growfs: Growfs, remote: Path) -> None:
    growfs.mount(remote, "--cache-size", "50kB", "--wait-files", "12")
    assert 0 < growfs.status()["cache"]["files"] < 12


@pytest.mark.parametrize("how", ["flag", "environment", "file"])
def test_options_come_from_flag_environment_or_file(growfs: Growfs, remote: Path, tmp_path: Path, how: str) -> None:
    flags: list[str] = []
    if how == "flag":
        flags = ["--seed", "7", "--cache-size", "77MB", "--include", "class0/", "--include", "class1/", "--no-wait"]
    elif how == "environment":
        growfs.env |= {"GROWFS_SEED": "7", "GROWFS_CACHE_SIZE": "77MB", "GROWFS_INCLUDE": "class0/ class1/"}
        growfs.env |= {"GROWFS_NO_WAIT": "1"}
    else:
        config = tmp_path / "growfs.toml"
        config.write_text('seed = 7\ncache-size = "77MB"\ninclude = ["class0/", "class1/"]\nno-wait = true\n')
        flags = ["--config", str(config)]
    growfs.run("mount", remote, growfs.mountpoint, "--cache-dir", growfs.cache_dir, *flags)
    growfs.run("wait", growfs.mountpoint, "--files", "8")
    status = growfs.status()
    assert (status["seed"], status["cache"]["limit_bytes"], status["remote"]["files"]) == (7, 77_000_000, 8)


def test_a_flag_wins_over_the_environment_and_that_over_the_file(growfs: Growfs, remote: Path, tmp_path: Path) -> None:
    config = tmp_path / "growfs.toml"
    config.write_text('seed = 1\nworkers = 1\ncache-size = "1MB"\n')
    growfs.env |= {"GROWFS_SEED": "2", "GROWFS_CACHE_SIZE": "2MB", "GROWFS_CONFIG": str(config)}
    growfs.run("mount", remote, growfs.mountpoint, "--cache-dir", growfs.cache_dir, "--seed", "3")
    status = growfs.status()
    assert (status["seed"], status["cache"]["limit_bytes"]) == (3, 2_000_000)


def test_one_pattern_in_a_file_needs_no_list(growfs: Growfs, remote: Path, tmp_path: Path) -> None:
    config = tmp_path / "growfs.toml"
    config.write_text('include = "class0/"\n')
    growfs.mount(remote, "--config", config)
    assert len(growfs.names()) == 4


def test_the_daemon_is_on_its_own(growfs: Growfs, remote: Path) -> None:
    growfs.mount(remote)
    pid = growfs.pid
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    terminals = [os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1, 2)]
    assert not any(name.startswith(("/dev/pts", "/dev/tty")) for name in terminals)
    assert terminals[1] == terminals[2] == str(growfs.cache / "log")


def test_a_pipe_ends_when_mount_returns(growfs: Growfs, remote: Path) -> None:
    flags = ["--cache-dir", str(growfs.cache_dir)]
    command = [*GROWFS, "mount", str(remote), str(growfs.mountpoint), *flags]
    line = " ".join(f"'{word}'" for word in command) + " 2>&1 | cat"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=growfs.env, timeout=60, check=True)
    local, engine = done.stdout.splitlines()
    assert local == f"{growfs.mountpoint}: 12 of 12 files cached, 120 KB of 120 KB"
    assert engine.startswith(f"{growfs.mountpoint}: ")
    assert mounted_at(growfs.mountpoint)


def test_a_bar_on_a_terminal(growfs: Growfs) -> None:
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
        gated(TREE, *TREE) as gate,
        started(growfs, *mount_arguments(growfs, gate.url), "--wait-files", "1", stderr=theirs) as mounting,
    ):
        os.close(theirs)
        reading = threading.Thread(target=read)
        reading.start()
        until(lambda: b"0 of 12 files" in b"".join(shown))
        gate.let_go()
        output, _ = mounting.communicate(timeout=30)
        assert mounting.returncode == 0
        reading.join(30)
        assert not reading.is_alive(), "the daemon keeps the terminal open"
    os.close(ours)
    assert b"mounting" in b"".join(shown)
    first, engine, *notes = output.splitlines()
    assert "engine" in engine
    assert "files cached" in first
    assert all(note.startswith("note: not every directory") for note in notes)  # the other may have come meanwhile


def test_no_bar_elsewhere(growfs: Growfs, remote: Path) -> None:
    done = growfs.mount(remote)
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    done = growfs.run("wait", growfs.mountpoint, "--all")
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("held", ["", "a/0"])
def test_a_mount_that_is_broken_off_leaves_nothing(growfs: Growfs, held: str, number: signal.Signals) -> None:
    mark(growfs)
    with gated({"a/0": b"x"}, held) as gate, started(growfs, *mount_arguments(growfs, gate.url)) as mounting:
        until(lambda: held in gate.asked)
        until(lambda: cache_folders(growfs.cache_dir))
        mounting.send_signal(number)
        output, errors = mounting.communicate(timeout=30)
        assert mounting.returncode != 0
        assert output == ""
        if number == signal.SIGINT:
            assert errors == "growfs: interrupted\n"
            assert left_over(growfs) == []
        until(lambda: left_over(growfs) == [])


def test_a_mount_that_is_broken_off_at_once_leaves_nothing(growfs: Growfs) -> None:
    mark(growfs)
    with gated({"a/0": b"x"}, "") as gate, started(growfs, *mount_arguments(growfs, gate.url)) as mounting:
        until(lambda: cache_folders(growfs.cache_dir))
        mounting.send_signal(signal.SIGINT)
        assert mounting.wait(30) != 0
        until(lambda: left_over(growfs) == [])


def test_a_mount_that_is_broken_off_keeps_what_an_earlier_one_cached(growfs: Growfs) -> None:
    with gated({"a/0": b"x", "a/1": b"y"}, "a/1") as gate:
        growfs.mount(gate.url, "--wait-files", "1")
        growfs.umount()
        with started(growfs, *mount_arguments(growfs, gate.url), "--wait-files", "2") as mounting:
            until(lambda: mounted_at(growfs.mountpoint))
            mounting.send_signal(signal.SIGINT)
            assert mounting.wait(30) == 1
        assert not mounted_at(growfs.mountpoint)
        assert (growfs.cache / "files" / "a" / "0").read_bytes() == b"x"


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGINT, "umount"])
def test_foreground(growfs: Growfs, remote: Path, ended_by: signal.Signals | str) -> None:
    mark(growfs)
    with started(growfs, *mount_arguments(growfs, remote), "--foreground") as mounting:
        assert mounting.stdout
        assert "12 of 12 files" in mounting.stdout.readline()
        assert mounting.poll() is None
        if isinstance(ended_by, signal.Signals):
            until(lambda: signal_is_caught(mounting.pid, signal.SIGTERM))  # Python always catches the other
            mounting.send_signal(ended_by)
        else:
            growfs.umount()
        _, errors = mounting.communicate(timeout=30)
        assert (mounting.returncode, errors) == (0, "")
    assert not mounted_at(growfs.mountpoint)
    until(lambda: processes_of(growfs.mountpoint.parent) == [])
    assert len(list((growfs.cache / "files").glob("*/*"))) == 12


def signal_is_caught(pid: int, number: int) -> bool:
    """Whether the process has a handler (proc(5), SigCgt)."""
    caught = next(
        line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")
    )
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_daemon_json_names_the_mount(growfs: Growfs, remote: Path) -> None:
    growfs.mount(remote)
    announced = json.loads((growfs.cache / "daemon.json").read_text())
    assert (announced["pid"], announced["mountpoint"], announced["url"]) == (
        growfs.pid,
        str(growfs.mountpoint),
        str(remote),
    )
    growfs.umount()
    assert not (growfs.cache / "daemon.json").exists()
    assert not (growfs.cache / "control.sock").exists()
    until(lambda: processes_of(growfs.mountpoint.parent) == [])


def mount_arguments(growfs: Growfs, url: object) -> tuple[object, ...]:
    return ("mount", url, growfs.mountpoint, "--cache-dir", growfs.cache_dir, "--cache-size", "1GB")
