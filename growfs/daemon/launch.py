"""Starts and stops daemons."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO

import click

from growfs.cache.cache_folder import daemon_of, is_in_use
from growfs.daemon.control_client import call, daemon_pid, status_of
from growfs.daemon.option_parsers import remote_url
from growfs.daemon.options import MountRequest, Options
from growfs.daemon.place import FrontEnd
from growfs.daemon.running import (
    abort_if_killed,
    abort_killed,
    daemon_with,
    find,
    find_living,
    is_dead,
    is_served,
)
from growfs.daemon.spawn import daemon_process
from growfs.daemon.status_text import brief, state_text
from growfs.errors import GrowfsError, UsageError
from growfs.fuse.mounting import InUse, MountRow, unmount
from growfs.fuse.users import other_mounts
from growfs.paths import absolute_path, working_folder
from growfs.proc import TERMINATING, name_of, not_ignored, set_title, users_of
from growfs.remote.names import redact
from growfs.status_and_metrics import MountStatus
from growfs.syscalls import pidfd_open
from growfs.trust import resolve

STATUS_EVERY_S = 10.0
"""How often systemd is notified of the state of a mount in the foreground."""

OnProgress = Callable[[MountStatus], None]
"""Called with the status from time to time."""


def start(
    url: str,
    mountpoint: Path,
    options: Options,
    on_progress: OnProgress | None = None,
    front_end: str | None = None,
    on_daemon: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> tuple[subprocess.Popen[bytes], MountStatus]:
    """Mount; returns (the daemon, its status) when training can start.

    A dead mount on the same mountpoint is removed first. Raises GrowfsError if the mount fails, and leaves nothing of
    it behind. front_end: see MountRequest. on_daemon: called with the daemon before it mounts.
    """
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        raise GrowfsError(f"this Python decodes file names as {encoding}; start it with PYTHONUTF8=1")
    url, mountpoint = remote_url(url), resolve(absolute_path(mountpoint))
    check_apart(url, mountpoint, options.cache_dir)
    for layer in options.remote(url, working_folder()).layers:
        layer.check()
    abort_killed()  # one may have the cache
    if is_dead(mountpoint):  # it is an empty folder from here on, so what can be checked already is checked above
        unmount(mountpoint, lazy=True)
    scheme = url.partition("://")[0] if "://" in url else "file"
    daemon = daemon_process(scheme)
    with closing(daemon):
        try:
            if on_daemon:
                on_daemon(daemon.process)
            daemon.send(pickle.dumps(MountRequest(url, mountpoint, options, working_folder(), front_end)))
            return daemon.process, _wait_until_ready(daemon.messages, on_progress, daemon.errors)
        except GrowfsError:
            if -daemon.process.wait() in TERMINATING:  # it could not report that yet
                raise GrowfsError(f"{mountpoint}: the mount was stopped before it was ready") from None
            raise
        except BaseException:
            daemon.process.terminate()
            daemon.process.wait()
            raise


def check_apart(url: str, *folders: Path) -> None:
    """Raise GrowfsError if a local remote contains the mount or its cache: it would list itself and grow forever."""
    if url.startswith(("/", "file://", "local://")):
        remote = Path(url.partition("://")[2] or url).resolve()
        for folder in folders:
            if remote in (real := folder.parent.resolve() / folder.name, *real.parents):
                raise GrowfsError(f"{folder}: is inside the remote, {remote}; choose a folder outside it")


def _wait_until_ready(pipe: Iterator[str], on_progress: OnProgress | None, errors: IO[str]) -> MountStatus:
    for line in pipe:
        message = json.loads(line)
        if "error" in message:
            text = f"{message['error']}; its log is {message['log']}" if message["log"] else message["error"]
            error = (UsageError if message["exit_code"] == 2 else GrowfsError)(text)
            error.__notes__ = [message["trace"]] if "trace" in message else []
            raise error
        if "ready" in message:
            return MountStatus.parse(message["ready"])
        if "note" in message:
            click.echo(f"note: {message['note']}", err=True)  # at once, because refilling the cache takes long
        elif on_progress:
            on_progress(MountStatus.parse(message["progress"]))
    errors.seek(0)
    printed = errors.read().strip()
    if printed:
        error = GrowfsError(
            f"the daemon died: {printed.splitlines()[-1]}; growfs --debug mount shows all of its output"
        )
    else:
        error = GrowfsError("the daemon died without an error message; check dmesg: it may have run out of memory")
    error.__notes__ = [printed]
    raise error


def stop(mountpoint: Path, lazy: bool = False) -> bool:
    """Unmount, and return when the daemon has ended; with lazy, at once. Returns whether the mount was dead.

    Raises GrowfsError, and leaves the mount as it is, if a process uses it, even in another mount namespace.
    """
    found = find(mountpoint)
    if os.geteuid() not in (0, found.owner):
        raise GrowfsError(f"{mountpoint}: belongs to another user; stop it as that user or as root")
    if isinstance(found, FrontEnd) and not is_served(found.cache):
        raise found.gone(mountpoint)
    pid = daemon_pid(found.cache) or daemon_with(found.cache)  # 0 if there is none, or it is not visible from here
    with _end_of(found.cache, pid) as ended:
        if found.starting:
            with suppress(GrowfsError):  # one that is already ending does not answer
                call(found.cache, "stop", answer_s=2.0)
        dead = _unmount(found.mounted, lazy) if found.mounted else False
        if lazy:
            return dead
        # A dead mount may have had the cache before.
        others = [] if isinstance(found, FrontEnd) else _lasting_mounts(found.cache, None)
        if others and not found.mounted:
            remedy = f"stop it, or the daemon: kill {pid}" if pid else "stop it"
            raise GrowfsError(f"{mountpoint}: unmounted already, but still in use by {', '.join(others)}; {remedy}")
        if not others and not ended(60.0):  # it saves its state
            raise GrowfsError(
                f"{mountpoint}: unmounted, but its daemon is still running after 60 s, because a file is open,"
                f" or a container uses the mount; see {found.cache}/log"
            )
        return dead


def stop_or_detach(mountpoint: Path) -> None:
    """As `stop`, but unmounts lazily if it fails, as when a file is open: the daemon ends when nothing uses the mount.

    Raises GrowfsError if that fails too.
    """
    try:
        stop(mountpoint)
    except (GrowfsError, RuntimeError):  # Python 3.12.0 to 3.12.2 start no thread while the interpreter exits
        stop(mountpoint, lazy=True)


def _unmount(mounted: MountRow, lazy: bool) -> bool:
    """Unmount unless another process uses the mount; returns whether it was dead."""
    path, cache = mounted.mountpoint, mounted.cache
    abort_if_killed(mounted)
    dead = not lazy and is_dead(path)
    anyway = "stop it, or unmount anyway: umount --lazy"
    is_bind_mount = daemon_of(cache).get("mountpoint") != str(path)
    if not (lazy or dead or is_bind_mount) and (others := _lasting_mounts(cache, path)):
        raise GrowfsError(f"{path}: in use by {', '.join(others)}; {anyway}")
    try:
        unmount(path, lazy or dead)
    except InUse:
        users = ", ".join(_names([*users_of(path), *_waiting(cache)])) or "a process that you cannot see"
        raise GrowfsError(f"{path}: in use by {users}; {anyway}") from None
    return dead


def _lasting_mounts(cache: Path, path: Path | None) -> list[str]:
    """As `other_mounts`, without those that vanish in a moment: a sandbox copies all mounts when it starts."""
    deadline = time.monotonic() + 2.0  # a new sandbox may still be dropping the mounts that it does not need
    while (others := other_mounts(cache, path)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return others


def _waiting(cache: Path) -> list[int]:
    """The processes that wait for a file, which they do not have open yet."""
    with suppress(GrowfsError):
        return list(call(cache, "waiting", answer_s=2.0)["pids"])
    return []


def _names(pids: Iterable[int]) -> Iterator[str]:
    for pid in pids:
        with suppress(OSError):  # it has ended
            yield name_of(pid)


@contextmanager
def _end_of(cache: Path, pid: int) -> Iterator[Callable[[float], bool]]:
    """A function that waits for a given number of seconds for the daemon to end, and returns whether it has ended.

    pid: of the daemon; 0 if unknown.
    """
    process: int | None = None
    if pid:
        with suppress(OSError):
            process = pidfd_open(pid)

    def wait(timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        if process is not None:
            return _has_ended(process, timeout_s)
        while is_in_use(cache):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    try:
        yield wait
    finally:
        if process is not None:
            os.close(process)


def _has_ended(process: int, timeout_s: float | None = None) -> bool:
    """Wait for the end of a process, by its pidfd. select(2) does not accept descriptors from 1024 on."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else 1000 * timeout_s))


def end_with_this_process(daemon: subprocess.Popen[bytes]) -> None:
    """From now on, a signal or a hangup that would end this process ends the daemon, whether or not it is ready."""

    def stop(*_: object) -> None:
        notify("STOPPING=1")
        daemon.terminate()

    for number in not_ignored(*TERMINATING):
        signal.signal(number, stop)


def run_in_foreground(daemon: subprocess.Popen[bytes], status: MountStatus) -> int:
    """Wait for a daemon to end; returns its exit code. Keeps systemd informed of its state. status: the first one."""
    notify("READY=1", f"STATUS={brief(status)}; {state_text(status)}")
    process = pidfd_open(daemon.pid)
    while not _has_ended(process, STATUS_EVERY_S if "NOTIFY_SOCKET" in os.environ else None):
        with suppress(GrowfsError):
            now = status_of(find_living(Path(status.mountpoint)).cache, STATUS_EVERY_S)
            notify(f"STATUS={brief(now)}; {state_text(now)}")
    return daemon.wait()


def notify(*assignments: str) -> None:
    """Send assignments, such as READY=1, to the service manager, if one is listening (sd_notify(3))."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        if address.startswith("@"):
            address = "\0" + address[1:]  # an abstract socket (unix(7))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending, suppress(OSError):
            sending.sendto("\n".join(assignments).encode(), address)


def hide_secrets() -> None:
    """Remove possible secrets from the command line of this process, which all users of the machine can read."""
    shown = [redact(argument) for argument in sys.argv]
    for index, argument in enumerate(shown):
        if argument.startswith("--storage-option="):
            shown[index] = "--storage-option=..."
        elif index and shown[index - 1] == "--storage-option":
            shown[index] = "..."
    set_title(" ".join(["growfs", *shown[1:]]))
