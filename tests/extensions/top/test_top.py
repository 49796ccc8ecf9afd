"""growfs top in a real terminal: a shell with job control on a pseudo terminal, whose screen an emulator keeps."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyte
import pytest

from tests.cli.support import assert_refused, closed
from tests.harness import GROWFS, Growfs, make_tree, until

PROMPT = "ready> "
TO_ALTERNATE, TO_NORMAL = b"\x1b[?1049h", b"\x1b[?1049l"
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


class Shell:
    """A shell in a terminal of 80 by 24. output: all that was printed."""

    def __init__(self, env: dict[str, str]) -> None:
        self._fd, self._terminal = pty.openpty()
        self._screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self._screen)
        self.resize(80, 24)
        self.output = b""
        env = {**env, "TERM": "xterm-256color", "PS1": PROMPT, "ENV": "", "PYTHONPATH": os.getcwd()}
        for name in ("COLUMNS", "LINES"):
            env.pop(name, None)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "sh", "-i"],
            stdin=self._terminal,
            stdout=self._terminal,
            stderr=self._terminal,
            env=env,
            close_fds=True,
        )
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.modes: Any = None
        until(lambda: PROMPT in self.text)

    def _read(self) -> None:
        while not self._ended.is_set():
            if select.select([self._fd], [], [], 0.1)[0]:
                with suppress(OSError):
                    part = os.read(self._fd, 1 << 16)
                    self.output += part
                    self._stream.feed(part)

    def close(self) -> None:
        """Close the window, which ends the shell and what runs in it."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._reader.join()
        os.close(self._fd)
        os.close(self._terminal)
        self.process.wait(30)

    @property
    def text(self) -> str:
        """What the screen shows."""
        return "\n".join(self._screen.display)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._fd, keys.encode())

    def type_and_see(self, keys: str) -> None:
        """Press keys, and wait until something is printed."""
        before = len(self.output)
        self.type(keys)
        until(lambda: len(self.output) > before)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the window."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        self._screen.resize(rows, columns)

    def shows(self, *texts: str) -> None:
        """Wait until the screen has all of these texts."""
        until(lambda: all(text in self.text for text in texts))

    def start_top(self, *arguments: object) -> None:
        """Run growfs top."""
        self.modes = termios.tcgetattr(self._terminal)
        self.type(shlex.join([*GROWFS, "top", *map(str, arguments)]) + "; echo ended with $?\n")
        self.shows("q quit")
        assert termios.tcgetattr(self._terminal) != self.modes

    def has_ended(self, code: int) -> None:
        """Wait for the end of growfs top; the terminal is as it was before."""
        until(lambda: f"ended with {code}\r\n".encode() in self.output)
        self.is_restored()

    def is_restored(self) -> None:
        """The modes are those of the shell, on the normal screen, with a cursor."""
        assert termios.tcgetattr(self._terminal) == self.modes
        assert self.output.rfind(TO_NORMAL) > self.output.rfind(TO_ALTERNATE) > 0
        assert self.output.rfind(SHOW_CURSOR) > self.output.rfind(HIDE_CURSOR) > 0


@pytest.fixture
def shell(growfs: Growfs) -> Iterator[Shell]:
    shell = Shell(growfs.env)
    yield shell
    shell.close()


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Growfs]:
    """A mount whose whole tree is cached, and which this process reads."""
    folder = tmp_path_factory.mktemp("complete")
    growfs = Growfs(folder)
    with closed(growfs):
        make_tree(folder / "remote", directories=2, files=3)
        growfs.mount(folder / "remote")
        until(lambda: growfs.status()["state"] == "complete")
        growfs.names()
        (growfs.mountpoint / "class0/0000.bin").read_bytes()
        yield growfs


def test_keys_change_the_page_and_q_leaves_the_terminal_as_it_was(complete: Growfs, shell: Shell) -> None:
    shell.start_top(complete.mountpoint)
    shell.shows("complete: every file of the remote is cached", "generation 1: 6 files listed", "60.0 kB, 6 files")
    shell.shows(f"{os.getpid()}", "1 of 6", "listed 6 files, 6 of them new")
    shell.type("d")
    shell.shows("directories 1 to 2 of 2", "class0", "class1", "100%")
    shell.type("e")
    shell.shows("listed 6 files, 6 of them new")
    shell.type("r")
    shell.shows("opened of listed", "1 of 6")
    shell.type("\x1b")
    shell.shows("fetched")
    shell.resize(120, 40)
    until(lambda: max(len(line.rstrip()) for line in shell.text.splitlines()) == 120)
    until(lambda: "q quit" in shell.text.splitlines()[39])
    shell.resize(20, 5)
    until(lambda: "q quit" not in shell.text)
    shell.resize(80, 24)
    shell.shows("q quit")
    shell.type("q")
    shell.has_ended(0)
    assert b"Traceback" not in shell.output


def test_ctrl_z_suspends_it_and_sigterm_ends_it(complete: Growfs, shell: Shell) -> None:
    shell.start_top(complete.mountpoint)
    shell.shows("complete")
    shell.type("\x1a")
    until(lambda: b"Stopped" in shell.output)
    shell.is_restored()
    began = shell.output.count(TO_ALTERNATE)
    shell.type("fg\n")
    until(lambda: shell.output.count(TO_ALTERNATE) > began)
    shell.shows("complete", "q quit")
    os.kill(pid_of_top(complete), signal.SIGTERM)
    until(lambda: pid_of_top(complete) is None)
    until(lambda: shell.output.rstrip().endswith(PROMPT.strip().encode()))
    shell.is_restored()


def pid_of_top(growfs: Growfs) -> Any:
    """The process that shows a mount."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"top" in words and os.fsencode(growfs.mountpoint) in words and b"growfs.cli" in words:
                return int(process.name)
    return None


SIGNALED_AT_EXIT = (
    "import atexit, os, runpy, signal; atexit.register(os.kill, os.getpid(), signal.SIGHUP);"
    " runpy.run_module('growfs.cli', run_name='__main__')"
)


def test_a_signal_while_it_ends_shows_no_traceback(complete: Growfs, shell: Shell, tmp_path: Path) -> None:
    """A closed window sends SIGHUP more than once."""
    command = shlex.join([sys.executable, "-c", SIGNALED_AT_EXIT, "top", str(complete.mountpoint)])
    shell.type(f"{command} 2> {tmp_path}/errors; touch {tmp_path}/ended\n")
    shell.shows("complete", "q quit")
    shell.type("q")
    until((tmp_path / "ended").exists)
    assert (tmp_path / "errors").read_text() == ""


def test_a_window_that_is_closed_ends_it(complete: Growfs, shell: Shell, tmp_path: Path) -> None:
    shell.type(f"{shlex.join([*GROWFS, 'top', str(complete.mountpoint)])} 2> {tmp_path}/errors\n")
    shell.shows("complete", "q quit")
    os.kill(pid_of_top(complete), signal.SIGCONT)  # as tmux does
    shell.close()
    until(lambda: pid_of_top(complete) is None)
    lines = (tmp_path / "errors").read_text().splitlines()
    assert [line for line in lines if not line.startswith("sh: ")] == []  # the shell, too, loses its terminal


def test_a_mount_that_goes_away_and_comes_back(growfs: Growfs, shell: Shell, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2)
    growfs.mount(tmp_path / "remote")
    shell.start_top(growfs.mountpoint)
    shell.shows("complete")
    growfs.umount()
    shell.shows("as of ", "2 files")
    growfs.mount(tmp_path / "remote")
    until(lambda: "as of " not in shell.text and "complete" in shell.text)
    growfs.kill()
    shell.shows("as of ")
    shell.type("\x03")
    shell.has_ended(0)


def test_without_a_mountpoint_all_mounts_are_shown(
    growfs: Growfs, complete: Growfs, shell: Shell, tmp_path: Path
) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2)
    shell.resize(250, 24)
    shell.start_top()
    growfs.mount(tmp_path / "remote")
    shell.shows("tab next mount")
    for mount, figures in ((complete, "60.0 kB, 6 files"), (growfs, "20.0 kB, 2 files")):
        while figures not in shell.text or str(mount.mountpoint) not in shell.text:  # there may be other mounts
            shell.type_and_see("\t")
    shell.type("q")
    shell.has_ended(0)


def test_without_a_terminal_one_frame_is_printed(complete: Growfs) -> None:
    done = complete.run("top", complete.mountpoint)
    assert "complete: every file of the remote is cached" in done.stdout
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 24
    other = complete.mountpoint.parent
    assert_refused(complete.run("top", other, check=False), str(other), "growfs list")
