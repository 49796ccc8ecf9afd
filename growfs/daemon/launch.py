"""Starting and ending a daemon, for the command line and for Python alike."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from growfs.cache.directory import daemon_of, is_in_use
from growfs.daemon.options import Options, Request
from growfs.daemon.parsers import absolute
from growfs.errors import GrowfsError, UsageError
from growfs.fuse.mounting import Mounted, is_dead, mounted_at, mounts, resolved, unmount
from growfs.remote.functions import Function
from growfs.remote.names import redact

END_S = 60.0
"""How long a daemon may take to leave its cache in order."""
POLL_S = 0.02


def start(
    url: str, mountpoint: Path, options: Options, told: Callable[[dict[str, Any]], None] | None = None
) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Mount; returns (the daemon, its status) when training can start.

    told: given the status while that takes. Raises GrowfsError, after everything that was made is removed again.
    A dead mount on the same mountpoint is cleaned up first.
    """
    url, mountpoint = absolute(url), resolved(mountpoint.expanduser().absolute())
    _check_apart(url, mountpoint, options.cache_dir)
    _check_function(options.members)
    if is_dead(mountpoint):
        unmount(mountpoint, lazy=True)
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe, tempfile.TemporaryFile("w+") as said:
        try:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "growfs.daemon.main", str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=[writing],
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(writing)
        assert daemon.stdin
        with daemon.stdin:
            daemon.stdin.write(pickle.dumps(Request(url, mountpoint, options, Path.cwd())))
        try:
            return daemon, _hear(pipe, told, said)
        except BaseException:
            pipe.close()  # the daemon hears that and takes all back, where a signal may come too early to be caught
            daemon.wait()
            raise


def _check_apart(url: str, *folders: Path) -> None:
    """Raise GrowfsError where a remote in a folder would list its own mount or cache, and so grow without end."""
    if url.startswith(("/", "file://", "local://")):
        remote = Path(url.partition("://")[2] or url).resolve()
        for folder in folders:
            if remote in (real := folder.parent.resolve() / folder.name, *real.parents):
                raise GrowfsError(f"{folder}: lies within the remote, {remote}; name a folder outside it")


def _check_function(function: Function | None) -> None:
    """Raise UsageError where a worker could not import it; found out in a process as workers are."""
    if function:
        command = [sys.executable, "-m", "growfs.remote.functions", str(function), function.folder]
        done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"{function}: importing it ended Python ({done.returncode})"]
            raise UsageError(said[-1])


def _hear(pipe: Iterator[str], told: Callable[[dict[str, Any]], None] | None, said: IO[str]) -> dict[str, Any]:
    for line in pipe:
        message = json.loads(line)
        if "error" in message:
            error = (UsageError if message["exit_code"] == 2 else GrowfsError)(message["error"])
            error.__notes__ = [message["trace"]] if "trace" in message else []
            raise error
        if "ready" in message:
            return dict(message["ready"])
        if told:
            told(message["progress"])
    raise GrowfsError(
        "the daemon died before it could say why; run it again with --debug, and look at the kernel's log"
    )


def running() -> list[Mounted]:
    """The growfs mounts of this machine; a daemon may be gone (see `living`)."""
    return mounts()


def living(mounted: Mounted) -> bool:
    """Whether the daemon of a mount runs."""
    return is_in_use(mounted.cache)


def find(mountpoint: Path) -> Mounted:
    """The growfs mount on a mountpoint. Raises GrowfsError where there is none."""
    mountpoint = resolved(mountpoint.expanduser().absolute())
    mounted = mounted_at(mountpoint)
    if mounted is None:
        raise GrowfsError(f"{mountpoint}: no growfs is mounted there; growfs list shows where there are")
    return mounted


def find_living(mountpoint: Path) -> Mounted:
    """As `find`, where the daemon runs."""
    mounted = find(mountpoint)
    if not living(mounted):
        raise GrowfsError(f"{mountpoint}: its daemon is gone; growfs umount {mountpoint} takes the dead mount off")
    return mounted


def stop(mountpoint: Path, lazy: bool = False) -> bool:
    """Unmount, and return when the cache is in order. True: the mount was dead, and was cleaned up."""
    mounted = find(mountpoint)
    dead = is_dead(mounted.mountpoint)
    unmount(mounted.mountpoint, lazy or dead)
    deadline = time.monotonic() + END_S
    while (
        not lazy and is_in_use(mounted.cache) and daemon_of(mounted.cache).get("mountpoint") == str(mounted.mountpoint)
    ):
        if time.monotonic() > deadline:
            raise GrowfsError(
                f"{mountpoint}: unmounted, but its daemon still runs after {END_S:g} s; see {mounted.cache}/log"
            )
        time.sleep(POLL_S)
    return dead


@contextmanager
def mounted(
    url: str, mountpoint: str | os.PathLike[str] | None, storage_options: dict[str, Any] | None, given: dict[str, Any]
) -> Iterator[Path]:
    """What `growfs.mount` does. given: options by field name."""
    if storage_options:
        given = dict(given)
        given["storage_option"] = [f"{name}={json.dumps(value)}" for name, value in storage_options.items()]
    options = Options.parse(given)
    with contextlib.ExitStack() as stack:
        if mountpoint is None:
            mountpoint = stack.enter_context(tempfile.TemporaryDirectory(prefix="growfs-"))
        path = resolved(Path(mountpoint).expanduser().absolute())
        daemon, _ = start(url, path, options)
        try:
            yield path
        finally:
            if mounted_at(path):
                try:
                    stop(path)
                except GrowfsError:  # a file is open, as in a traceback: it stays readable, and the daemon ends with it
                    stop(path, lazy=True)
            threading.Thread(target=daemon.wait, daemon=True).start()


def run_in_foreground(daemon: subprocess.Popen[bytes]) -> int:
    """Wait for a daemon to end, handing it SIGINT and SIGTERM; returns its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: daemon.terminate())
    return daemon.wait()


def hide_secrets() -> None:
    """Take what may be secret out of this process's command line, which every user of the machine can read."""
    from setproctitle import setproctitle

    shown = [redact(argument) for argument in sys.argv]
    for place, argument in enumerate(shown):
        if argument.startswith("--storage-option="):
            shown[place] = "--storage-option=..."
        elif place and shown[place - 1] == "--storage-option":
            shown[place] = "..."
    setproctitle(" ".join(["growfs", *shown[1:]]))
