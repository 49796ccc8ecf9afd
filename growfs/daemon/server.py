"""The daemon process: opens the cache, runs the wiring of one mount, and leaves the cache in order.

Once it has mounted, it runs in its own session. It reads a pickled MountRequest from standard input, and ends if none
arrives. It writes lines of JSON to the file descriptor FD: {"note": ...} and {"progress": ...} any number of times,
then {"ready": ...} or {"error": ...}. If the reader closes the pipe before that, the daemon unmounts and ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pickle
import platform
import resource
import signal
import sqlite3
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from growfs import own_code
from growfs.cache.cache_folder import CacheFolder, CacheInUse, open_cache, other_format, unreadable
from growfs.cache.open_files import IDLE_MAX
from growfs.daemon.control_client import line_of
from growfs.daemon.log_file import LogFile
from growfs.daemon.options import MountRequest
from growfs.daemon.running import in_use
from growfs.daemon.spawn import TITLE
from growfs.daemon.status_text import printable
from growfs.daemon.supervisor import cause
from growfs.daemon.wiring import Wiring, build, requested_features
from growfs.errors import GrowfsError
from growfs.fuse.engine_choice import Engine
from growfs.fuse.mounting import (
    MountSpec,
    check_fuse,
    check_mountpoint,
    check_outside,
    create_mountpoint,
    raise_read_ahead,
)
from growfs.proc import not_ignored, set_title
from growfs.remote.names import redact
from growfs.syscalls import check_descriptors, check_kernel
from growfs.version import __version__
from growfs.workers import process
from growfs.workers.fork_server import ForkServer
from growfs.workers.guard import abort_switch
from growfs.workers.pool import WorkerPool

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

log = logging.getLogger(__name__)

PROGRESS_EVERY_S = 0.1
SWITCH_S = 2e-4
"""For sys.setswitchinterval: while another thread computes (to render a list of a million files, say), each system call
of an open may wait this long for the interpreter."""

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""Signals that end a daemon."""


class Launcher:
    """The process that started the daemon and waits until the mount is ready.

    It may be stopped (Ctrl-Z) and read nothing while readers use the mount. So only `ready`, which has its own task,
    and `fail`, at the end, wait for it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unsent = b""
        self.finished = False
        self.log: Path | None = None
        """The log that a failed mount has left."""
        os.set_blocking(fd, False)

    def report(self, **message: Any) -> None:
        """Send a message, unless an earlier one is still unread. Raises GrowfsError if the launcher is gone."""
        if self._flush():
            self._unsent = line_of(message)
            self._flush()

    async def ready(self, status: dict[str, Any]) -> None:
        """Send the last message. From then on, errors go to the log."""
        self.finished = True
        self._unsent += line_of({"ready": status})
        try:
            while not self._flush():
                await trio.lowlevel.wait_writable(self._fd)
        except GrowfsError:
            log.warning("the mount command has already exited")
        os.close(self._fd)

    def fail(self, **message: Any) -> None:
        """Send an error and the path of the log as the last message, unless the mount was ready."""
        if self.finished:
            log.error("%s", message["error"])
            return
        self.finished = True
        self._unsent += line_of(message | {"log": self.log and str(self.log)})
        os.set_blocking(self._fd, True)
        with suppress(GrowfsError):
            self._flush()

    def end_early(self, *_: object) -> None:
        """The signal handler until the mount is served. Raises GrowfsError, so that nothing is left behind."""
        if not self.finished:
            raise GrowfsError("the mount was stopped before it was ready")

    def _flush(self) -> bool:
        """Send the unsent bytes, as far as the pipe accepts them; returns whether that is all."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._fd, self._unsent) :]
        except BlockingIOError:
            return False
        except OSError:
            raise GrowfsError("the mount command exited before the mount was ready") from None
        return True


def _stopping() -> list[signal.Signals]:
    """Those of STOPPING that end this daemon. SIGTERM always does: growfs itself sends it."""
    return [signal.SIGTERM, *not_ignored(signal.SIGINT, signal.SIGQUIT)]


@contextmanager
def _folder_of(mountpoint: Path, launcher: Launcher) -> Iterator[None]:
    """Remove a folder that was created for a mount that failed: a program would find it empty, and train on nothing."""
    is_new = not os.path.lexists(mountpoint)
    try:
        yield
    finally:
        if is_new and not launcher.finished:
            with suppress(OSError):
                os.rmdir(mountpoint)


def run(fd: int, fork_server: ForkServer) -> None:
    """Serve one mount until it is unmounted. fd: see the module."""
    launcher = Launcher(fd)
    try:
        request: MountRequest = pickle.load(sys.stdin.buffer)
    except EOFError:  # the command line was wrong
        fork_server.stop()
        return
    for number in _stopping():
        signal.signal(number, launcher.end_early)
    url = redact(request.url)
    set_title(f"{TITLE}{url} on {request.mountpoint}")
    sys.setswitchinterval(SWITCH_S)
    process.tune_gc()
    try:
        with _folder_of(request.mountpoint, launcher):
            serve(request, url, launcher, fork_server)
    except GrowfsError as error:
        launcher.fail(error=str(error), exit_code=error.exit_code)
        sys.exit(error.exit_code)
    except BaseException as error:
        launcher.fail(
            error=f"a bug in growfs: {type(error).__name__}: {error}", exit_code=1, trace=traceback.format_exc()
        )
        raise
    finally:
        fork_server.stop()


def serve(request: MountRequest, url: str, launcher: Launcher, fork_server: ForkServer) -> None:
    """Open the cache and run the mount. url: without secrets."""
    _raise_limits()
    spec = request.remote()
    allow_other = request.options.allow_other or os.geteuid() == 0
    check_kernel()
    features = requested_features(request)
    for feature in features:
        feature.check(request)
    place = None if request.front_end else _check_mount(request, allow_other)
    confined = spec.maker.check(spec) if spec.maker else None
    try:
        folder = open_cache(request.options.cache_dir, spec, url)
    except CacheInUse as error:
        raise in_use(error.path) from None
    log_file: LogFile | None = None
    ended = threading.Event()
    try:
        if other := other_format(folder.path):
            other += "; it is emptied and refilled"
            launcher.report(note=other)
            folder.empty()
        log_file = LogFile(folder.log)
        logging.basicConfig(level=logging.INFO, handlers=[log_file])
        _log_mount(request, url, other, confined)
        folder.announce(url, request.mountpoint)
        threading.Thread(target=_end_if_deleted, args=(folder, ended), daemon=True).start()
        workers = WorkerPool(fork_server, replace(spec, cache=folder.path), log_file.output)
        mount = MountSpec(request.mountpoint, folder.path, allow_other, place)
        trio.run(_run, lambda: build(request, features, spec, url, folder, workers), mount, launcher)
        if not launcher.finished:
            raise GrowfsError(f"{request.mountpoint}: the mount was stopped before it was ready")
    except sqlite3.DatabaseError as error:
        raise unreadable(folder.database, error) from error
    except OSError as error:
        raise GrowfsError(
            f"{error.filename or folder.path}: {error.strerror or error}; check the cache's disk"
        ) from error
    finally:
        for number in STOPPING:  # a service manager may send it twice, which must not cut short the rest
            signal.signal(number, signal.SIG_IGN)
        ended.set()
        fork_server.stop()
        if log_file is not None:
            log_file.finish()  # along with the workers, which have the cache's files open
        if launcher.finished:
            folder.release()
        else:
            launcher.log = folder.undo(keeps_log=log_file is not None and log_file.has_trouble)


def _log_mount(request: MountRequest, url: str, other: str | None, confined: bool | None) -> None:
    """Log what is mounted. other: what became of a cache in another format. confined: whether a producer is, if any."""
    machine = f"Python {platform.python_version()}, Linux {platform.release()}"
    changed = "".join(f" {flag} {value}" for flag, value in request.options.changed().items())
    log.info("growfs %s, %s: %s", __version__, machine, printable(f"{url} on {request.mountpoint}{changed}"))
    if other:
        log.warning("%s", other)
    if confined is not None:
        log.info(
            "the kernel lets a producer write only to its own file and folder (Landlock)"
            if confined
            else "this kernel has no Landlock: nothing keeps a producer from writing elsewhere"
        )


def _end_if_deleted(folder: CacheFolder, ended: threading.Event) -> None:
    """End this process, and leave a dead mount, once others have deleted its cache. ended: the daemon ends by itself.

    An unmounted folder would look empty to readers, and nothing may be written where another daemon may be by now.
    """
    while folder.is_whole():
        if ended.wait(1.0):
            return
    if not ended.is_set():
        log.error("%s was deleted or moved", folder.path)
        os._exit(1)


async def _keep_own_code() -> None:
    """Read the code of growfs while the mount waits for its first files, or later."""
    await trio.sleep(1.0)  # it takes 30 ms, and the first file may need these
    await trio.to_thread.run_sync(own_code.keep)


def _check_mount(request: MountRequest, allow_other: bool) -> int:
    """A descriptor of the folder to mount on. Raises GrowfsError if the request cannot be mounted."""
    try:
        check_fuse(allow_other)
    except GrowfsError as error:
        raise GrowfsError(f"{error}; if nothing can be mounted here, growfs fill keeps a plain folder filled") from None
    create_mountpoint(request.mountpoint)
    folder = check_mountpoint(request.mountpoint)
    check_outside(request.mountpoint, "--cache-dir", request.options.cache_dir)
    # They name the folder for temporary files of Python, libraries, and SQLite.
    for variable in ("TMPDIR", "TEMP", "TMP", "SQLITE_TMPDIR"):
        if variable in os.environ:
            check_outside(request.mountpoint, variable, Path(os.environ[variable]))
    return folder


def _raise_limits() -> None:
    """Raise the limit of file descriptors to the hard limit: each open file takes one."""
    hard = check_descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Make the kernel grow the descriptor table now: once there are threads, each doubling waits for every core
    # (synchronize_rcu), for 10 ms or more (fs/file.c, expand_fdtable).
    os.close(fcntl.fcntl(sys.stdin.fileno(), fcntl.F_DUPFD, min(hard - 1, 2 * IDLE_MAX)))
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # sent when a lease is broken (cache/open_files.py); kills by default


async def _run(build: Callable[[], Wiring], mount: MountSpec, launcher: Launcher) -> None:
    """Serve the mount until it is unmounted or a signal ends the daemon."""
    wiring = build()
    ignored = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # they end a process by default
    with trio.open_signal_receiver(*_stopping(), *ignored) as signals:  # even while it ends
        await _serve_until_ended(wiring, mount, launcher, signals)


async def _serve_until_ended(wiring: Wiring, mount: MountSpec, launcher: Launcher, signals: AsyncIterator[int]) -> None:
    start, engine = wiring.start, wiring.engine
    try:
        with wiring.ending:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_signal, signals, nursery.cancel_scope)
                for service in wiring.services:
                    nursery.start_soon(wiring.supervisor.keep_running, service)
                await trio.lowlevel.checkpoint()  # all of them run before the first request arrives
                await _progress_until(wiring, launcher, start.is_anything_listed)
                engine.mount(mount)
                _guard(mount, wiring)
                nursery.start_soon(_keep_own_code)
                nursery.start_soon(_serve, engine, nursery.cancel_scope)
                await trio.to_thread.run_sync(raise_read_ahead, mount.mountpoint, abandon_on_cancel=True)
                os.setsid()  # nothing accesses the mountpoint from here on (see spawn.py)
                await _progress_until(wiring, launcher, start.is_possible)
                await engine.ready()
                start.open()
                await launcher.ready(await wiring.snapshot())
    except BaseExceptionGroup as group:
        raise cause(group) from group


def _guard(mount: MountSpec, wiring: Wiring) -> None:
    """Have all requests to the mount fail at once if this daemon is killed, whatever its threads wait for."""
    if row := mount.row():
        with suppress(OSError):  # an ordinary user, and no fusectl; `growfs umount` says what to do then
            wiring.workers.guard(abort_switch(row.device))


async def _progress_until(wiring: Wiring, launcher: Launcher, done: Callable[[], Awaitable[bool]]) -> None:
    began = reported = trio.current_time()
    while not await done():
        now = trio.current_time()
        if now - reported >= PROGRESS_EVERY_S:
            progress = await wiring.snapshot()
            await done()  # what has failed meanwhile is not tried again, although the snapshot would say so
            launcher.report(progress=progress)
            reported = now
        await trio.sleep(min(max(0.01, 0.01 * (now - began)), PROGRESS_EVERY_S))  # the longer it takes, the rarer


async def _serve(engine: Engine, daemon: trio.CancelScope) -> None:
    await engine.serve()
    log.info("unmounted")
    daemon.cancel()


async def _until_signal(signals: AsyncIterator[int], daemon: trio.CancelScope) -> None:
    """Return after a signal that asks the daemon to end. The others are ignored."""
    async for number in signals:
        name = signal.Signals(number).name
        if number in STOPPING:
            log.info("stopping after %s", name)
            daemon.cancel()
        else:
            log.info("ignoring %s: use growfs set to change options; the log rotates by itself", name)
