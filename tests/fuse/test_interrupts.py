"""Signals to a process that waits in an open: a fatal signal ends the wait at once.

With passthrough and links, the kernel reports a signal; with libfuse, the daemon looks for it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from growfs.proc import SIGNALS_EVERY_S
from tests.blocking_server import BlockingServer
from tests.cli.support import assert_refused, fuse_device, needs_root, other_user
from tests.cli.support import namespace as mount_namespace
from tests.fuse.conftest import only
from tests.fuse.rotation_helpers import mounted_in_a_pid_namespace
from tests.fuse.test_misses import error_of, mount_blocked
from tests.harness import Growfs, descendants, until

HANDLES = """
import signal, sys

for number in (signal.SIGCHLD, signal.SIGWINCH, signal.SIGUSR1):
    signal.signal(number, lambda *_: None)
sys.stdout.write(open(sys.argv[1]).read())
"""
NAMED = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, bytes.fromhex("636166c3"))  # PR_SET_NAME: half a character at the end
open(sys.argv[1])
"""
"""The kernel keeps 15 bytes of a name, so that it may be cut in the middle of a character."""
CAT = ("cat",)
PYTHON = (sys.executable, "-S", "-c", "import sys; print(open(sys.argv[1]).read())")
HANDLING = (sys.executable, "-S", "-c", HANDLES)


@contextmanager
def waiting(growfs: Growfs, path: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A process that waits in an open."""
    before = growfs.status()["miss"]["files_total"]
    with subprocess.Popen([*command, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            until(lambda: growfs.status()["miss"]["files_total"] == before + 1)
            yield process
        finally:
            process.kill()


@pytest.mark.promise(3, 10)
def test_a_fatal_signal_ends_the_wait_of_its_process(growfs: Growfs, server: BlockingServer) -> None:
    (path,) = mount_blocked(server, 1, growfs)
    with waiting(growfs, path, *CAT) as other:
        for command, number in (
            (CAT, signal.SIGKILL), (CAT, signal.SIGINT), (PYTHON, signal.SIGINT), (PYTHON, signal.SIGTERM)
        ):  # fmt: skip
            with waiting(growfs, path, *command) as process:
                process.send_signal(number)
                assert process.wait(30) == -number
        with waiting(growfs, path, sys.executable, "-S", "-c", NAMED) as process:
            refused = growfs.run("umount", growfs.mountpoint, check=False)
            assert_refused(refused, f"caf\N{REPLACEMENT CHARACTER} ({process.pid})")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == -signal.SIGTERM
        assert "0000.bin" in server.blocked
        server.unblock()
        assert other.communicate(timeout=30)[0] == "0000"
    growfs.umount()  # no process uses it any more


PID_NAMESPACE = ("--pid", "--fork", "--kill-child")
NAMESPACES = {
    "pid": PID_NAMESPACE,
    "mount": ("--mount",),
    "user": ("--user", "--map-root-user"),
    "all": ("--user", "--map-root-user", "--mount", *PID_NAMESPACE),
}
"""Those of a reader, as containers have them: what unshare(1) is given."""


@pytest.mark.promise(3, 21)
@pytest.mark.parametrize(
    ("engine", "namespaces"), [("passthrough", NAMESPACES), ("libfuse", ["all"])], indirect=["engine"]
)
def test_a_fatal_signal_ends_the_wait_in_other_namespaces(
    growfs: Growfs, server: BlockingServer, namespaces: Iterable[str]
) -> None:
    """The signal is sent from outside, as `docker kill` does, to a process that is not the first of its namespace."""
    needs_root()
    (path,) = mount_blocked(server, 1, growfs)
    program = 'cat "$0"; echo "ended by $(($? - 128))"'
    for namespace in namespaces:
        words = NAMESPACES[namespace]
        with ExitStack() as stack:
            prefix = stack.enter_context(mount_namespace("", growfs.mountpoint)) if "--mount" in words else ()
            outer = stack.enter_context(waiting(growfs, path, *prefix, "unshare", *words, "sh", "-c", program))
            assert outer.stdout
            (reader,) = (pid for pid in descendants(outer.pid) if Path(f"/proc/{pid}/comm").read_text() == "cat\n")
            number = signal.SIGKILL if "--mount" in words else signal.SIGINT
            os.kill(reader, number)
            assert outer.stdout.readline() == f"ended by {number.value}\n"
    assert "0000.bin" in server.blocked
    growfs.umount()  # no process uses it any more


HIDING = """
mount -t proc -o hidepid=2 proc /proc
echo user_allow_other > "$0"
mount --bind "$0" /etc/fuse.conf
"""


@pytest.mark.promise(3)
def test_a_reader_that_the_daemon_may_not_see_goes_on_waiting(server: BlockingServer) -> None:
    """/proc shows each user their own processes only (proc(5)), and the reader is not of the daemon's user."""
    server.files = {"blocked.bin": b"1"}
    server.blocked = {"blocked.bin"}
    with other_user() as user, fuse_device() as user.before, ExitStack() as stack:
        mountpoint = user.folder / "mnt"
        if (done := user.run_as_root("sh", "-ec", HIDING, user.folder / "fuse.conf")).returncode:
            pytest.skip(f"this machine hides no processes: {done.stderr}")
        flags = ("--cache-dir", user.folder / "cache", "--engine", "libfuse", "--allow-other", "--no-wait")
        assert user.run_program("mkdir", mountpoint).returncode == 0
        done = user.run("mount", server.manifest, mountpoint, *flags, "--cache-size", "1GB")
        assert done.returncode == 0, done.stderr
        stack.callback(user.run, "umount", mountpoint)
        third = [*user.before, "setpriv", "--reuid=4711", "--regid=4711", "--clear-groups", "--"]
        path = str(mountpoint / "blocked.bin")
        until(lambda: subprocess.run([*third, "test", "-e", path], check=False).returncode == 0)
        with subprocess.Popen([*third, "cat", path], stdout=subprocess.PIPE, text=True) as reader:
            try:
                until(lambda: json.loads(user.run("status", "--json", mountpoint).stdout)["miss"]["files_total"])
                with pytest.raises(subprocess.TimeoutExpired):
                    reader.wait(5 * SIGNALS_EVERY_S)
            finally:
                server.unblock()
            assert reader.communicate(timeout=30)[0] == "1"


@pytest.mark.promise(3)
def test_a_handled_signal_does_not_end_the_wait_and_a_fatal_one_after_it_does(
    growfs: Growfs, server: BlockingServer
) -> None:
    """The kernel reports only the first signal (fs/fuse/dev.c, request_wait_answer)."""
    (path,) = mount_blocked(server, 1, growfs)
    for end in (signal.SIGKILL, signal.SIGTERM, None):
        with waiting(growfs, path, *HANDLING) as process:
            before = growfs.status()["miss"]["files_total"]
            for number in (signal.SIGCHLD, signal.SIGWINCH, signal.SIGUSR1):
                process.send_signal(number)
                growfs.status()  # by now the daemon has read the interrupt
            assert growfs.status()["miss"]["files_total"] == before, "it has not opened the file again"
            assert process.poll() is None
            if end:
                process.send_signal(end)
                assert process.wait(30) == -end
            else:
                server.unblock()
                assert process.communicate(timeout=30)[0] == "0000"
    assert process.returncode == 0


@pytest.mark.promise(3)
def test_many_waiting_opens_can_all_be_killed(growfs: Growfs, server: BlockingServer) -> None:
    paths = mount_blocked(server, 70, growfs)
    with subprocess.Popen(
        ["sh", "-c", 'for path; do cat "$path" & done; wait', "sh", *paths], start_new_session=True
    ) as shell:
        until(lambda: growfs.status()["miss"]["files_total"] == len(paths) + 1)
        os.killpg(shell.pid, signal.SIGKILL)
    until(lambda: growfs.run("umount", growfs.mountpoint, check=False).returncode == 0)
    assert server.blocked


@pytest.mark.promise(3)
@only("either")
def test_a_fetch_continues_after_its_reader_was_killed_or_has_given_up(growfs: Growfs, server: BlockingServer) -> None:
    (path,) = mount_blocked(server, 1, growfs)
    growfs.run("set", growfs.mountpoint, "miss-timeout=0.2")
    assert error_of(path) == errno.ETIMEDOUT
    assert "--miss-timeout" in growfs.log()
    growfs.run("set", growfs.mountpoint, "miss-timeout=60")
    with waiting(growfs, path, *CAT) as process:
        process.kill()
    server.unblock()
    assert path.read_bytes() == b"0000"
    assert server.requests["0000.bin"] == 1


@pytest.mark.promise(3)
@only("passthrough")
def test_an_interrupt_read_together_with_its_open_ends_the_wait(growfs: Growfs, server: BlockingServer) -> None:
    (path,) = mount_blocked(server, 1, growfs)
    program = "import sys; print('ready', flush=True); open(sys.argv[1])"
    command = [sys.executable, "-S", "-c", program, str(path)]
    for number in (signal.SIGINT, signal.SIGKILL):
        os.kill(growfs.pid, signal.SIGSTOP)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout
                assert process.stdout.readline() == "ready\n"
                until(lambda: "request_wait_answer" in Path(f"/proc/{process.pid}/wchan").read_text())
                process.send_signal(number)
            finally:
                os.kill(growfs.pid, signal.SIGCONT)
            assert process.wait(30) == -number


@pytest.mark.long  # it takes 10 s
@pytest.mark.promise(3)
@only("passthrough", "links")
def test_a_signal_ends_the_wait_of_a_reader_that_the_daemon_cannot_see(growfs: Growfs, server: BlockingServer) -> None:
    server.files = {"first.bin": b"1", "second.bin": b"2"}
    server.blocked = {"second.bin"}
    with mounted_in_a_pid_namespace(growfs, server.manifest, "--no-wait"):
        until((growfs.mountpoint / "first.bin").exists)
        with waiting(growfs, growfs.mountpoint / "second.bin", *CAT) as process:
            process.kill()
            assert process.wait(30) == -signal.SIGKILL
        assert server.blocked


@only("passthrough")
def test_each_waiting_open_of_readers_that_the_daemon_cannot_see_counts(growfs: Growfs, server: BlockingServer) -> None:
    server.files = {f"{name}.bin": b"1" for name in ("first", "second", "third")}
    server.blocked = {"second.bin", "third.bin"}
    with mounted_in_a_pid_namespace(growfs, server.manifest, "--no-wait"):
        until((growfs.mountpoint / "first.bin").exists)
        with (
            waiting(growfs, growfs.mountpoint / "second.bin", *CAT) as process,
            waiting(growfs, growfs.mountpoint / "third.bin", *CAT),
        ):
            assert growfs.status()["miss"]["waiting"] == 2
            server.unblock("second.bin")
            assert process.wait(30) == 0
            until(lambda: growfs.status()["miss"]["waiting"] == 1)
            server.unblock()
