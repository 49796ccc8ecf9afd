"""Which pending signals end a process. The signals of a stopped process stay pending (signal(7))."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from growfs.proc import is_ending, name_of, sees

SLEEPER = """
import signal, sys

for name, how in zip(sys.argv[1::2], sys.argv[2::2]):
    number = getattr(signal, name)
    if how == "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    else:
        signal.signal(number, signal.SIG_IGN if how == "ignored" else lambda *_: None)
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def stopped(*handling: str) -> Iterator[int]:
    """The pid of a stopped process. handling: pairs of a signal and how the process handles it."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", SLEEPER, *handling], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("name", "handling", "ends"),
    [
        ("SIGTERM", "", True),
        ("SIGINT", "", True),  # Python's own handler, which raises KeyboardInterrupt
        ("SIGINT", "handled", True),
        ("SIGHUP", "handled", True),
        ("SIGUSR1", "", True),
        ("SIGALRM", "", True),
        ("SIGUSR1", "handled", False),
        ("SIGALRM", "handled", False),
        ("SIGTERM", "ignored", False),
        ("SIGTERM", "blocked", False),
        ("SIGCHLD", "", False),
        ("SIGCHLD", "handled", False),
        ("SIGWINCH", "", False),
        ("SIGURG", "", False),
        ("SIGTSTP", "", False),
    ],
)
def test_is_ending_with_a_pending_signal(name: str, handling: str, ends: bool) -> None:
    with stopped(*((name, handling) if handling else ())) as pid:
        assert not is_ending(pid)
        os.kill(pid, getattr(signal, name))
        assert is_ending(pid) == ends
        os.kill(pid, signal.SIGINT)
        assert is_ending(pid), "a harmless signal hides no other"


@pytest.mark.promise(3)
def test_a_thread_of_another_pid_namespace_is_not_ending() -> None:
    assert not is_ending(0)


@pytest.mark.promise(3)
@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_thread_that_this_user_may_not_see_is_not_ending(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    """Which of the errors depends on how /proc is mounted: hidepid=2 or 1 (proc(5))."""

    def refuse(_: str) -> str:
        raise error

    monkeypatch.setattr("growfs.proc.read_text", refuse)
    assert not is_ending(4711)


def test_a_name_that_the_kernel_has_cut_within_a_letter_can_be_read() -> None:
    program = "printf тренировка > /proc/$$/comm; echo; read line"
    with subprocess.Popen(["sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert name_of(process.pid) == f"трениро\N{REPLACEMENT CHARACTER} ({process.pid})"
        assert not is_ending(process.pid)


def test_a_process_that_has_just_ended_is_taken_to_see_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It ends after its root directory was looked at, and before the folder is."""
    process, stat = subprocess.Popen(["cat"], stdin=subprocess.PIPE), os.stat

    def stat_and_end(path: str | Path) -> os.stat_result:
        found = stat(path)
        process.communicate()
        return found

    monkeypatch.setattr("os.stat", stat_and_end)
    assert sees(process.pid, tmp_path)
