"""The daemon process: opens the cache, runs the components of one mount, and leaves the cache in order.

`python -m growfs.daemon.main FD` reads a pickled MountRequest from standard input, and runs in a session of its own. It
writes lines of JSON to the file descriptor FD: {"progress": ...} any number of times, then {"ready": ...} or
{"error": ...}. If the reader closes the pipe before that, the daemon unmounts and ends.
"""

from __future__ import annotations

import fcntl
import json
import logging
import logging.handlers
import os
import pickle
import resource
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import trio
from setproctitle import setproctitle

from growfs.cache.directory import CacheFolder, open_cache
from growfs.cache.open_files import IDLE_MAX
from growfs.cache.store import Store
from growfs.daemon.options import MountRequest
from growfs.daemon.virtual_files import RecentLog
from growfs.daemon.wiring import Components, build
from growfs.errors import GrowfsError
from growfs.fuse.engine import Engine
from growfs.fuse.mounting import MountSpec, check_fuse, check_mountpoint, raise_read_ahead
from growfs.remote.names import redact
from growfs.remote.rate_limits import SharedLimits
from growfs.remote.wrappers.producer_pool import check
from growfs.workers import process
from growfs.workers.pool import WorkerPool

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

log = logging.getLogger(__name__)

PROGRESS_EVERY_S = 0.1
DURABLE_EVERY_S = 30.0
LOG_BYTES_MAX = 4 << 20
DESCRIPTORS_MIN = 256
SWITCH_S = 2e-4
"""For sys.setswitchinterval: while another thread computes (to render a list of a million files, say), each system call
of an open may wait this long for the interpreter."""

CONFINED = "the kernel lets a producer write to its own file and folder only (Landlock)"
UNCONFINED = "this kernel has no Landlock: nothing keeps a producer from writing elsewhere"


class Launcher:
    """The process that started the daemon, which waits until the mount is ready."""

    def __init__(self, fd: int) -> None:
        self._pipe = os.fdopen(fd, "w")
        self.finished = False

    def report(self, **message: Any) -> None:
        """Send a message; raises GrowfsError if the launcher is gone."""
        try:
            self._pipe.write(json.dumps(message) + "\n")
            self._pipe.flush()
        except OSError:
            raise GrowfsError("the command that mounts ended before the mount was ready") from None

    def finish(self, **message: Any) -> None:
        """Send the last message. After that, errors go to the log."""
        if self.finished:
            log.error("%s", message.get("error"))
            return
        self.finished = True
        try:
            self.report(**message)
            self._pipe.close()
        except (GrowfsError, OSError):
            log.warning("the command that mounts has ended already")


def main() -> None:
    """Serve one mount until it is unmounted."""
    launcher = Launcher(int(sys.argv[1]))
    request: MountRequest = pickle.load(sys.stdin.buffer)
    url = redact(request.url)
    setproctitle(f"growfs: {url} on {request.mountpoint}")
    os.umask(0o077)
    sys.setswitchinterval(SWITCH_S)
    process.tune_gc()
    try:
        serve(request, url, launcher)
    except GrowfsError as error:
        launcher.finish(error=str(error), exit_code=error.exit_code)
        sys.exit(error.exit_code)
    except BaseException as error:
        launcher.finish(
            error=f"a bug in growfs: {type(error).__name__}: {error}", exit_code=1, trace=traceback.format_exc()
        )
        raise


def serve(request: MountRequest, url: str, launcher: Launcher) -> None:
    """Open the cache and run the mount. url: without secrets."""
    _raise_limits()
    spec = request.remote
    allow_other = request.options.allow_other or os.geteuid() == 0
    check_fuse(allow_other)
    check_mountpoint(request.mountpoint)
    confined = check(spec)
    folder = open_cache(request.options.cache_dir, spec, url)
    try:
        recent = _start_log(folder)
        if confined is not None:
            log.info(CONFINED if confined else UNCONFINED)
        folder.announce(url, request.mountpoint)
        workers = WorkerPool(replace(spec, cache=folder.path), SharedLimits())
        try:
            mount = MountSpec(request.mountpoint, folder.path, allow_other)
            trio.run(_run, lambda: build(request, url, folder, workers, recent), mount, launcher)
        finally:
            workers.stop()
    except sqlite3.DatabaseError as error:
        raise GrowfsError(
            f"{folder.database}: {error}; if it is damaged, delete {folder.path} and mount again"
        ) from error
    except OSError as error:
        raise GrowfsError(
            f"{error.filename or folder.path}: {error.strerror or error}; look at the cache's disk"
        ) from error
    finally:
        folder.release()
        if not launcher.finished:
            folder.undo()


def _start_log(folder: CacheFolder) -> RecentLog:
    to_file = logging.handlers.RotatingFileHandler(folder.log, maxBytes=LOG_BYTES_MAX, backupCount=1)
    recent = RecentLog()
    for handler in (to_file, recent):
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[to_file, recent])
    with folder.log.open("a") as log_file:
        for standard in (1, 2):  # for what a library prints, here or in a worker
            os.dup2(log_file.fileno(), standard)
    return recent


def _raise_limits() -> None:
    """Raise the limit of file descriptors to the hard limit: each open file takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < DESCRIPTORS_MIN:
        raise GrowfsError(f"this process may open {hard} files only; raise the limit: ulimit -n {DESCRIPTORS_MIN}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Make the kernel grow the descriptor table now: once there are threads, each doubling waits for every core
    # (synchronize_rcu), 10 ms and more (fs/file.c, expand_fdtable).
    os.close(fcntl.fcntl(sys.stdin.fileno(), fcntl.F_DUPFD, min(hard - 1, 2 * IDLE_MAX)))
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # sent when a lease is broken (cache/open_files.py); else it kills


async def _run(build: Callable[[], Components], mount: MountSpec, launcher: Launcher) -> None:
    """Serve the mount until it is unmounted or a signal ends the daemon."""
    components = build()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_signal, nursery.cancel_scope)
            nursery.start_soon(_keep_durable, components.store)
            for service in components.running:
                nursery.start_soon(service.run)
            await _progress_until(components, launcher, lambda: components.catalog.files > 0)
            components.engine.mount(mount)
            nursery.start_soon(_serve, components.engine, nursery.cancel_scope)
            await trio.to_thread.run_sync(raise_read_ahead, mount.mountpoint, abandon_on_cancel=True)
            await _progress_until(components, launcher, components.start.is_possible)
            launcher.finish(ready=await components.status.snapshot())
    except BaseExceptionGroup as group:
        raise _cause(group) from group
    finally:
        components.engine.unmount()
        components.usage.save_now()
        components.store.stop()
        components.database.close()


async def _progress_until(components: Components, launcher: Launcher, done: Callable[[], bool]) -> None:
    while not done():
        launcher.report(progress=await components.status.snapshot())
        await trio.sleep(PROGRESS_EVERY_S)


async def _serve(engine: Engine, daemon: trio.CancelScope) -> None:
    await engine.serve()
    log.info("unmounted")
    daemon.cancel()


async def _until_signal(daemon: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            log.info("stopping after %s", signal.Signals(number).name)
            daemon.cancel()


async def _keep_durable(store: Store) -> None:
    while True:
        await trio.sleep(DURABLE_EVERY_S)
        try:
            await store.make_durable()
        except (OSError, sqlite3.OperationalError) as error:
            log.warning("the cached files could not be synced to the disk, trying again: %s", error)


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to report: the first GrowfsError in the group, else the first error."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending.extend(reversed(error.exceptions))
        else:
            leaves.append(error)
    return next((error for error in leaves if isinstance(error, GrowfsError)), leaves[0])


if __name__ == "__main__":
    main()
