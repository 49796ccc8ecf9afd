"""Starts, finds and stops daemons, for the command line and for `growfs.mount`."""

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
from growfs.daemon.option_parsers import absolute
from growfs.daemon.options import MountRequest, Options
from growfs.errors import GrowfsError, UsageError
from growfs.fuse.mounting import Mounted, is_dead, mounted_at, mounts, resolved, unmount
from growfs.remote.names import redact
from growfs.remote.user_functions import Function

END_S = 60.0
"""How long a daemon may take to save its state after the unmount."""
POLL_S = 0.02

OnProgress = Callable[[dict[str, Any]], None]
"""Called with the status from time to time."""


def start(
    url: str, mountpoint: Path, options: Options, on_progress: OnProgress | None = None
) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Mount; returns (the daemon, its status) when training can start.

    A dead mount on the same mountpoint is removed first. Raises GrowfsError if the mount fails; nothing of it is left.
    """
    url, mountpoint = absolute(url), resolved(mountpoint.expanduser().absolute())
    _check_apart(url, mountpoint, options.cache_dir)
    _check_function(options.members)
    if is_dead(mountpoint):
        unmount(mountpoint, lazy=True)
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe, tempfile.TemporaryFile("w+") as errors:
        try:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "growfs.daemon.main", str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[writing],
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(writing)
        assert daemon.stdin
        with daemon.stdin:
            daemon.stdin.write(pickle.dumps(MountRequest(url, mountpoint, options, Path.cwd())))
        try:
            return daemon, _wait_until_ready(pipe, on_progress, errors)
        except BaseException:
            pipe.close()  # the daemon notices and unmounts; a signal might come before its handler is installed
            daemon.wait()
            raise


def _check_apart(url: str, *folders: Path) -> None:
    """Raise GrowfsError if a local remote contains the mount or its cache: it would list itself and grow for ever."""
    if url.startswith(("/", "file://", "local://")):
        remote = Path(url.partition("://")[2] or url).resolve()
        for folder in folders:
            if remote in (real := folder.parent.resolve() / folder.name, *real.parents):
                raise GrowfsError(f"{folder}: lies within the remote, {remote}; name a folder outside it")


def _check_function(function: Function | None) -> None:
    """Raise UsageError if a worker could not import it; tried in a process of its own, as workers are."""
    if function:
        command = [sys.executable, "-m", "growfs.remote.user_functions", str(function), function.folder]
        done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise UsageError(lines[-1] if lines else f"{function}: importing it ended Python ({done.returncode})")


def _wait_until_ready(pipe: Iterator[str], on_progress: OnProgress | None, errors: IO[str]) -> dict[str, Any]:
    for line in pipe:
        message = json.loads(line)
        if "error" in message:
            error = (UsageError if message["exit_code"] == 2 else GrowfsError)(message["error"])
            error.__notes__ = [message["trace"]] if "trace" in message else []
            raise error
        if "ready" in message:
            return dict(message["ready"])
        if on_progress:
            on_progress(message["progress"])
    errors.seek(0)
    error = GrowfsError("the daemon died without an error message; try growfs --debug mount, and look at dmesg")
    error.__notes__ = [errors.read()]
    raise error


def running() -> list[Mounted]:
    """The growfs mounts of this machine, including dead ones (see `living`)."""
    return mounts()


def living(mounted: Mounted) -> bool:
    """Whether the daemon of a mount is running."""
    return is_in_use(mounted.cache)


def find(mountpoint: Path) -> Mounted:
    """The growfs mount on a mountpoint. Raises GrowfsError if there is none."""
    mountpoint = resolved(mountpoint.expanduser().absolute())
    mounted = mounted_at(mountpoint)
    if mounted is None:
        raise GrowfsError(f"{mountpoint}: growfs is not mounted there; growfs list shows all mounts")
    return mounted


def find_living(mountpoint: Path) -> Mounted:
    """As `find`; raises GrowfsError if the daemon is gone, too."""
    mounted = find(mountpoint)
    if not living(mounted):
        raise GrowfsError(f"{mountpoint}: its daemon is gone; remove the dead mount: growfs umount {mountpoint}")
    return mounted


def stop(mountpoint: Path, lazy: bool = False) -> bool:
    """Unmount, and return when the daemon has ended; with lazy, at once. Returns whether the mount was dead."""
    mounted = find(mountpoint)
    dead = is_dead(mounted.mountpoint)
    unmount(mounted.mountpoint, lazy or dead)
    deadline = time.monotonic() + END_S
    while (
        not lazy and is_in_use(mounted.cache) and daemon_of(mounted.cache).get("mountpoint") == str(mounted.mountpoint)
    ):
        if time.monotonic() > deadline:
            raise GrowfsError(
                f"{mountpoint}: unmounted, but its daemon is still running after {END_S:g} s; see {mounted.cache}/log"
            )
        time.sleep(POLL_S)
    return dead


@contextmanager
def mounted(
    url: str, mountpoint: str | os.PathLike[str] | None, storage_options: dict[str, Any] | None, values: dict[str, Any]
) -> Iterator[Path]:
    """See `growfs.mount`. values: options by field name, as text."""
    if storage_options:
        values = dict(values)
        values["storage_option"] = [f"{name}={json.dumps(value)}" for name, value in storage_options.items()]
    options = Options.parse(values)
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
                except GrowfsError:  # a file is still open, in a traceback perhaps: the daemon ends when it is closed
                    stop(path, lazy=True)
            threading.Thread(target=daemon.wait, daemon=True).start()


def run_in_foreground(daemon: subprocess.Popen[bytes]) -> int:
    """Wait for a daemon to end, and pass SIGINT and SIGTERM on to it; returns its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: daemon.terminate())
    return daemon.wait()


def hide_secrets() -> None:
    """Remove possible secrets from the command line of this process, which every user of the machine can read."""
    from setproctitle import setproctitle

    shown = [redact(argument) for argument in sys.argv]
    for index, argument in enumerate(shown):
        if argument.startswith("--storage-option="):
            shown[index] = "--storage-option=..."
        elif index and shown[index - 1] == "--storage-option":
            shown[index] = "..."
    setproctitle(" ".join(["growfs", *shown[1:]]))
