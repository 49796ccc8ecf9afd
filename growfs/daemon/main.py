"""The daemon: constructs every room, wires them, and serves one mount. Nothing else in growfs constructs a room.

`python -m growfs.daemon.main FD`, with a pickled Request on its standard input, in a session of its own. It tells its
progress, and at last {"ready": ...} or {"error": ...}, a line of JSON each, through the descriptor FD. When nobody
reads there any more before it is ready, the mount is taken back.
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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import trio
from setproctitle import setproctitle

from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.directory import CacheFolder, open_cache
from growfs.cache.open_files import IDLE_MAX
from growfs.cache.recovery import recover
from growfs.cache.store import Store
from growfs.cache.usage import Budget, UsageCounters
from growfs.daemon.commands import CommandHandlers, limit_bytes
from growfs.daemon.control import Control
from growfs.daemon.options import Request
from growfs.daemon.status import Mount, Status
from growfs.daemon.virtual_files import RecentLog, virtual_files
from growfs.errors import GrowfsError
from growfs.fuse.engine import Engine, EngineChoice
from growfs.fuse.mounting import Mounting, check_fuse, check_mountpoint, raise_read_ahead
from growfs.remote.limits import SharedLimits
from growfs.remote.names import redact
from growfs.remote.wrappers.producer_pool import check
from growfs.rotation.draw_order import Pass
from growfs.rotation.eviction import Evictor
from growfs.rotation.generations import Generations
from growfs.rotation.registry import ReaderRegistry
from growfs.scheduler.dispatcher import Dispatcher
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.order import Groups, plan_in_worker
from growfs.scheduler.prefetch import Prefetcher
from growfs.scheduler.readiness import StartCondition
from growfs.scheduler.refresh import CatalogSync, VersionUpdater
from growfs.scheduler.startup import StartGate
from growfs.vfs.filesystem import Vfs
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
"""After which another thread has to let go of the interpreter: each call to the kernel that an open takes may wait so
long for it, while a list of a million files is written out."""


CONFINED = "the kernel lets a producer write to its own file and folder only (Landlock)"
UNCONFINED = "this kernel has no Landlock: nothing keeps a producer from writing elsewhere"


class Launcher:
    """The one who started the daemon, until it is ready."""

    def __init__(self, fd: int) -> None:
        self._pipe = os.fdopen(fd, "w")
        self.left = False

    def tell(self, **message: Any) -> None:
        """Say something; raises GrowfsError when nobody listens any more."""
        try:
            self._pipe.write(json.dumps(message) + "\n")
            self._pipe.flush()
        except OSError:
            raise GrowfsError("the mount was given up before training could start") from None

    def leave(self, **message: Any) -> None:
        """Say the last thing; to the log where that was said already."""
        if self.left:
            log.error("%s", message.get("error"))
            return
        self.left = True
        try:
            self.tell(**message)
            self._pipe.close()
        except (GrowfsError, OSError):
            log.warning("nobody waits for the mount any more")


def main() -> None:
    """Serve one mount, until it is taken off."""
    launcher = Launcher(int(sys.argv[1]))
    request: Request = pickle.load(sys.stdin.buffer)
    url = redact(request.url)
    setproctitle(f"growfs: {url} on {request.mountpoint}")
    os.umask(0o077)
    sys.setswitchinterval(SWITCH_S)
    process.tune_gc()
    try:
        serve(request, url, launcher)
    except GrowfsError as error:
        launcher.leave(error=str(error), exit_code=error.exit_code)
        sys.exit(error.exit_code)
    except BaseException as error:
        launcher.leave(
            error=f"a bug in growfs: {type(error).__name__}: {error}", exit_code=1, trace=traceback.format_exc()
        )
        raise


def serve(request: Request, url: str, launcher: Launcher) -> None:
    """Open the cache, run the mount, and leave the cache so that it can be trusted."""
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
            mounting = Mounting(request.mountpoint, folder.path, allow_other)
            trio.run(_run, lambda: _build(request, url, folder, workers, recent), mounting, launcher)
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
        folder.withdraw()
        if not launcher.left:
            folder.undo()


def _start_log(folder: CacheFolder) -> RecentLog:
    to_file = logging.handlers.RotatingFileHandler(folder.log, maxBytes=LOG_BYTES_MAX, backupCount=1)
    recent = RecentLog()
    for handler in (to_file, recent):
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[to_file, recent])
    with folder.log.open("a") as log_file:
        for standard in (1, 2):  # what a library prints, here or in a worker
            os.dup2(log_file.fileno(), standard)
    return recent


def _raise_limits() -> None:
    """Have as many descriptors as this process may; each file that is open takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < DESCRIPTORS_MIN:
        raise GrowfsError(f"this process may open {hard} files only; raise the limit: ulimit -n {DESCRIPTORS_MIN}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Have room for them now: once there are threads, each doubling of the table waits for every core, for 10 ms and
    # more (fs/file.c, expand_fdtable).
    os.close(fcntl.fcntl(sys.stdin.fileno(), fcntl.F_DUPFD, min(hard - 1, 2 * IDLE_MAX)))
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # of a lease that somebody breaks (openfiles), and deadly by default


class Service(Protocol):
    """Does its work until it is cancelled."""

    async def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Components:
    """The rooms of a running mount that it needs by name. running: those with a task of their own."""

    database: Database
    catalog: Catalog
    store: Store
    usage: UsageCounters
    start: StartGate
    status: Status
    engine: Engine
    running: tuple[Service, ...]


def _build(request: Request, url: str, folder: CacheFolder, workers: WorkerPool, recent: RecentLog) -> Components:
    """Construct the rooms, from the bottom up."""
    options = request.options
    database = Database(folder.database)
    recover(database, folder.path)
    catalog = Catalog(database, options.freeze)
    store = Store(folder.path, database, catalog, options.min_free)
    store.limit_bytes = limit_bytes(options.cache_size, store)
    budget = Budget(database, options.remote_budget)
    usage = UsageCounters(database, budget)
    rotates = options.rotation != "never"
    decide = partial(plan_in_worker, workers, database.path)
    generations = Generations(database, catalog, store, rotates, options.turnover, options.show_files, decide)
    to_the_end = options.rotation == "always"
    readers = ReaderRegistry(generations, options.settle, options.hold_idle, to_the_end, usage.opened_lately)
    evictor = Evictor(database, store, generations, readers.holds)
    catalog_sync = CatalogSync(workers, catalog, store, options.refresh, request.remote.is_endless)
    groups = Groups(catalog, options.group)
    made = request.remote.producer is not None
    dispatcher = Dispatcher(workers, request.processes, options.bandwidth, made)
    fetcher = Fetcher(
        catalog, store, folder.partial, dispatcher, options.miss_timeout, catalog_sync.replace, evictor, groups, made
    )
    if made and (size := store.largest_resident()) is not None:
        fetcher.guess.learn(size)
    ask = StartCondition(options.wait_files, options.wait_bytes, options.no_wait, options.list_timeout)
    asked = Pass(options.seed, 1, options.partition, options.group)
    prefetcher = Prefetcher(
        workers, catalog, store, generations, evictor, fetcher, catalog_sync, budget, folder.partial, asked, ask
    )
    renewals = VersionUpdater(catalog, fetcher, catalog_sync, lambda: prefetcher.paused, prefetcher.changed)
    start = StartGate(ask, catalog, store, fetcher, catalog_sync, prefetcher, budget, options.show_files)
    store.admitted.connect(usage.admitted)
    store.to_draw_again.connect(prefetcher.draw_again)
    dispatcher.received.connect(budget.spend)
    for more_room in (readers.released, generations.written):
        more_room.connect(store.room.notify)
    rows = virtual_files(folder.database, lambda: status.snapshot(), recent)  # noqa: PLW0108 - bound below
    wait_for_misses = options.on_miss == "wait"
    vfs = Vfs(catalog, store, fetcher.ensure, readers, usage, rows, folder.partial, wait_for_misses)
    choice = EngineChoice(options.engine, folder.partial)
    engine = choice.engine(vfs)
    for gone in (catalog_sync.removed, store.renewed):
        gone.connect(vfs.forget_names)
    vfs.forgotten.connect(engine.forget_name)
    described = Mount(url, str(request.mountpoint), str(folder.path), os.getpid(), engine.name, choice.reason)
    status = Status(
        described,
        database,
        catalog,
        store,
        generations,
        dispatcher,
        fetcher,
        catalog_sync,
        prefetcher,
        readers,
        vfs,
        usage,
        budget,
        engine.requests,
    )
    verbs = CommandHandlers(
        database,
        catalog,
        store,
        evictor,
        dispatcher,
        fetcher,
        prefetcher,
        catalog_sync,
        readers,
        generations,
        budget,
        status.snapshot,
    )
    control = Control(folder.path, verbs.table())
    running = (catalog_sync, readers, generations, fetcher, prefetcher, renewals, usage, control)
    return Components(database, catalog, store, usage, start, status, engine, running)


async def _run(build: Callable[[], Components], mounting: Mounting, launcher: Launcher) -> None:
    """Serve the mount until it is taken off, or a signal asks for the end."""
    rooms = build()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_signal, nursery.cancel_scope)
            nursery.start_soon(_keep_durable, rooms.store)
            for room in rooms.running:
                nursery.start_soon(room.run)
            await _progress_until(rooms, launcher, lambda: rooms.catalog.files > 0)
            rooms.engine.mount(mounting)
            nursery.start_soon(_serve, rooms.engine, nursery.cancel_scope)
            await trio.to_thread.run_sync(raise_read_ahead, mounting.mountpoint, abandon_on_cancel=True)
            await _progress_until(rooms, launcher, rooms.start.is_possible)
            launcher.leave(ready=await rooms.status.snapshot())
    except BaseExceptionGroup as group:
        raise _cause(group) from group
    finally:
        rooms.engine.unmount()
        rooms.usage.save_now()
        rooms.store.stop()
        rooms.database.close()


async def _progress_until(rooms: Components, launcher: Launcher, done: Callable[[], bool]) -> None:
    while not done():
        launcher.tell(progress=await rooms.status.snapshot())
        await trio.sleep(PROGRESS_EVERY_S)


async def _serve(engine: Engine, whole: trio.CancelScope) -> None:
    await engine.serve()
    log.info("the mount was taken off")
    whole.cancel()


async def _until_signal(whole: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            log.info("ending, because of %s", signal.Signals(number).name)
            whole.cancel()


async def _keep_durable(store: Store) -> None:
    while True:
        await trio.sleep(DURABLE_EVERY_S)
        try:
            await store.make_durable()
        except (OSError, sqlite3.OperationalError) as error:
            log.warning("what is cached could not be made durable, trying again: %s", error)


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a person should hear of: the first error that is meant for people, else the first."""
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
