"""A mount without a kernel, workers or time: all components as `wiring` connects them, driven through the vfs.

They run in one trio loop, on a clock that stands still unless it is moved. What they would run on threads, and what a
worker would do, happens in that loop, after a random number of switches between tasks. So all that happens depends on
what hypothesis draws, and can be repeated.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest import mock

import hypothesis
import trio
import trio._core._run
from trio.testing import MockClock, wait_all_tasks_blocked

from growfs import disk, proc
from growfs.cache.cache_folder import open_cache, read_only
from growfs.cache.catalog import Removed
from growfs.cache.listing_diff import Comparison, ListingDiff
from growfs.cache.schema import ROOT
from growfs.cache.store import Store
from growfs.daemon import wiring
from growfs.daemon.control import Command
from growfs.daemon.options import MountRequest, Options
from growfs.errors import GrowfsError, RemoteChanged, RemoteError, RemoteMissing, Stale
from growfs.extensions.history.history import History
from growfs.proc import Process
from growfs.remote import digest
from growfs.remote.filter import PathFilter
from growfs.remote.interface import Fetched
from growfs.remote.rate_limits import SharedLimits
from growfs.rotation import generations, readers, rules, turnover
from growfs.vfs import filesystem
from growfs.vfs.filesystem import Vfs
from growfs.workers.messages import (
    FetchFailed,
    FetchFiles,
    FetchProgress,
    FetchRequest,
    ListRemote,
    Probe,
    SizeExceeded,
)
from tests.model.remote import Remote

trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
hypothesis.register_random(trio._core._run._r)

T = TypeVar("T")
URL = "s3://model"
LIMITS = SharedLimits()
QUIET_STEP_S, QUIET_STEPS = 0.25, 24
"""The clock is moved by so much, so often, for the daemon to become quiet: it polls for space every 5 s."""
PAGE_FILES = 3
SWITCHES_MAX = 3
CALL_STEPS_MAX = 200


async def switch() -> None:
    """Let other tasks run, some number of times."""
    for _ in range(random.randrange(SWITCHES_MAX)):
        await trio.lowlevel.checkpoint()


async def run_here(
    function: Callable[..., T], *args: Any, limiter: trio.CapacityLimiter | None = None, **_: object
) -> T:
    """As trio.to_thread.run_sync, in this thread."""
    await trio.lowlevel.checkpoint_if_cancelled()
    with trio.CancelScope(shield=True):
        await (limiter.acquire() if limiter else switch())
        try:
            await switch()
            result = function(*args)
            await switch()
        finally:
            if limiter:
                limiter.release()
    return result


class Loop:
    """A trio loop on a thread of its own, which is used by one machine after the other."""

    def __init__(self) -> None:
        self.clock = MockClock()
        began = threading.Event()

        async def main() -> None:
            self._token = trio.lowlevel.current_trio_token()
            began.set()
            await trio.sleep_forever()

        threading.Thread(target=lambda: trio.run(main, clock=self.clock), daemon=True).start()
        began.wait()

    def run(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        return trio.from_thread.run(function, *args, trio_token=self._token)


_loop: list[Loop] = []


def loop() -> Loop:
    """The loop of this process, which is started when it is first needed."""
    if not _loop:
        _loop.append(Loop())
    return _loop[0]


class Workers:
    """A worker pool whose workers are tasks, and read from a Remote."""

    url = URL
    limits = LIMITS

    def __init__(self, remote: Remote, filter: PathFilter) -> None:
        self.remote = remote
        self.filter = filter

    def spawn(self) -> Worker:
        return Worker(self)


class Worker:
    """A worker, and its channel."""

    def __init__(self, pool: Workers) -> None:
        self._remote, self._filter = pool.remote, pool.filter
        self._requests, self._received = trio.open_memory_channel[FetchRequest](1000)

    async def call(self, request: Any, on_message: Callable[[Any], Awaitable[None]] | None = None) -> Any:
        await switch()
        if isinstance(request, ListRemote):
            assert on_message
            return await self._list(request, on_message)
        if isinstance(request, Probe):
            return None  # it is never away
        return request.function(lambda: None)

    async def _list(self, request: ListRemote, on_message: Callable[[Any], Awaitable[None]]) -> int:
        while self._remote.hangs:  # noqa: ASYNC110 - the machine sets it on its own thread
            await trio.sleep(1)
        connection = read_only(request.catalog)
        comparison = Comparison(connection)
        files = [file for file in self._remote.listing() if self._filter.matches(file.path)]
        for page, start in enumerate(range(0, len(files), PAGE_FILES)):
            if page == self._remote.pages:
                raise RemoteError("a page to log in")
            new, changed = comparison.compare(files[start : start + PAGE_FILES])
            await on_message(ListingDiff(request.listing, new=new, changed=changed, skipped=comparison.duplicates))
            await switch()
        if files:
            await on_message(ListingDiff(request.listing, gone=list(comparison.gone()), new=comparison.late))
        connection.close()
        return len(files)

    async def send(self, message: FetchFiles) -> None:
        for request in message.files:
            self._requests.send_nowait(request)

    async def receive(self) -> FetchProgress:
        request = await self._received.receive()
        await switch()
        result = self._fetch(request)
        size = result.size if isinstance(result, Fetched) else 0
        return FetchProgress(size, 0, [(request.id, result)], 0)

    def _fetch(self, request: FetchRequest) -> Fetched | FetchFailed:
        path, target = request.file.path, request.target
        found = self._remote.file(path)
        if found is None:
            return FetchFailed(RemoteMissing(f"{path}: gone"))
        if found.version != request.file.version:
            return FetchFailed(RemoteChanged(f"{path}: changed"), found)
        content = self._remote.content(path)
        if len(content) > request.size_max:
            return FetchFailed(SizeExceeded(f"{path}: larger than {request.size_max} bytes"))
        Path(target).write_bytes(content)
        mtime_ns = found.mtime_ns or 0
        os.utime(target, ns=(mtime_ns, mtime_ns))
        os.chmod(target, 0o444)
        return Fetched(len(content), found.mtime_ns, digest.of(target))

    async def aclose(self) -> None:
        pass


class Engine:
    """An engine without a kernel, and the choice of it."""

    name = "model"
    reason = "there is no kernel"
    view = Vfs

    def __init__(self, *_: object) -> None:
        self.requests: Counter[str] = Counter()
        self.warning: str | None = None
        self.vfs: Vfs

    def create(self, vfs: Vfs) -> Engine:
        self.vfs = vfs
        return self

    def forget_name(self, parent: int, name: str) -> None:
        pass

    def forget_files(self, removed: Sequence[Removed]) -> None:
        pass

    def drop_descriptor(self, id: int) -> None:
        pass

    def unmount(self) -> None:
        pass


class Control:
    """The commands, without a socket."""

    def __init__(self, _: Path, commands: Iterable[Command]) -> None:
        self.commands = {command.__name__: command for command in commands}

    async def run(self) -> None:
        pass


class ModelProcess(Process):
    """A process that /proc does not have. All run one program. A child was forked."""

    program = "/bin/reader"
    command_line = b""
    age_s = float("inf")


class Processes:
    """The processes of the machine, by pid. Each has a pipe in place of a pidfd."""

    def __init__(self) -> None:
        self._processes: dict[int, Process] = {}
        self._pipes: dict[int, int] = {}
        self._last = 1000

    def start(self, parent: int = 1, is_forked: bool = True) -> int:
        self._last += 1
        self._processes[self._last] = ModelProcess(
            self._last, parent, str(self._last), "reader", is_forked and parent > 1
        )
        return self._last

    def get(self, pid: int) -> Process | None:
        return self._processes.get(pid)

    def watch(self, pid: int) -> int:
        read, self._pipes[pid] = os.pipe()
        return read

    def end(self, pid: int) -> None:
        self._processes.pop(pid, None)
        if pid in self._pipes:
            os.close(self._pipes.pop(pid))

    def end_all(self) -> None:
        for pid in list(self._processes):
            self.end(pid)


class Reader:
    """A process that reads the mount."""

    def __init__(self, mount: InProcess, pid: int) -> None:
        self._mount = mount
        self.pid = pid

    def listing(self, directory: str) -> Callable[[], Awaitable[dict[str, int]]]:
        """What lists a directory: returns the size of each file, by path. For `together`."""
        return partial(self._mount.list_directory, self.pid, directory)

    def opening(self, path: str) -> Callable[[], Awaitable[int]]:
        """What opens a file, and returns a descriptor. For `together`."""
        return partial(self._mount.open_file, self.pid, path)

    def list(self, directory: str) -> dict[str, int]:
        """The size of each file in a directory, by path. Raises OSError."""
        return self._mount.call(self.listing(directory))

    def open(self, path: str) -> int:
        """Open a file; returns a descriptor. Raises OSError."""
        return self._mount.call(self.opening(path))

    def generation(self) -> int:
        """The number of the generation that it listed last."""
        return self._mount.generation_of(self.pid)

    def read(self, fd: int) -> bytes:
        """The content of an open file."""
        real, size = self._mount.content(fd)
        return os.pread(real, size, 0)

    def identity(self, fd: int) -> tuple[int, int]:
        """The inode number of the cached file, and how many links it has."""
        stat = os.fstat(self._mount.content(fd)[0])
        return stat.st_ino, stat.st_nlink

    def close(self, fd: int) -> None:
        self._mount.call(partial(self._mount.close_file, fd))

    def map(self, fd: int) -> mmap.mmap:
        real, size = self._mount.content(fd)
        again = os.open(f"/proc/self/fd/{real}", os.O_RDONLY)  # as the kernel opens it for a reader
        try:
            return mmap.mmap(again, size, prot=mmap.PROT_READ)
        finally:
            os.close(again)

    def fork(self) -> Reader:
        return Reader(self._mount, self._mount.processes.start(self.pid))

    def end(self) -> None:
        self._mount.processes.end(self.pid)
        self._mount.settle()


class InProcess:
    """A mount of a Remote. folder: the cache directory."""

    def __init__(self, folder: Path) -> None:
        self.remote = Remote()
        self._folder = folder
        self._loop = loop()
        self.processes = Processes()
        self.handles: dict[int, int] = {}  # of the vfs, by descriptor
        self._last_fd = 0
        self._stack = contextlib.ExitStack()
        for target, name, value in (
            (trio.to_thread, "run_sync", run_here),
            (wiring, "EngineChoice", Engine),
            (wiring, "Control", Control),
            (proc, "process", self.processes.get),
            (readers, "process", self.processes.get),
            (readers, "thread_group", lambda tid: tid),  # a process of this machine may have that number
            (filesystem, "thread_group", lambda tid: tid),
            (readers, "_watched", self.processes.watch),
            (readers, "time", SimpleNamespace(monotonic=self._loop.clock.current_time)),
            (disk, "room", self._disk_room),
            (generations, "keeps_last", self._keeps_last),
            (turnover, "keeps_last", self._keeps_last),
        ):
            self._stack.enter_context(mock.patch.object(target, name, value))
        self._error: BaseException | None = None
        self._disk_bytes = sys.maxsize
        self._has_kept_last = True

    # The mount.

    @property
    def cache(self) -> Path:
        return self._cache.path

    def mount(self, **options: Any) -> None:
        """Mount, and return when the daemon is quiet, or the listing hangs."""
        self.request = MountRequest(URL, Path("/mnt"), Options.parse(options), Path("/"))
        self._loop.run(self._start)
        self.settle()

    async def _start(self) -> None:
        options = self.request.options
        spec = self.request.remote()
        self._cache = open_cache(self._folder, spec, URL)
        workers: Any = Workers(self.remote, PathFilter(options.include, options.exclude))
        features = wiring.requested_features(self.request)
        self.components = wiring.build(self.request, features, spec, URL, self._cache, workers)
        engine = self.components.engine
        assert isinstance(engine, Engine)
        self.vfs = engine.vfs
        (control,) = (service for service in self.components.services if isinstance(service, Control))
        self.commands = control.commands
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        trio.lowlevel.spawn_system_task(self._serve)

    async def _serve(self) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for service in self.components.services:
                        if not isinstance(service, (History, Store)):
                            nursery.start_soon(service.run)
        except BaseException as error:  # noqa: BLE001 - the next call raises it
            self._error = error
        self._ended.set()

    async def _stop(self, clean: bool) -> None:
        self._scope.cancel()
        await self._ended.wait()
        status = self.components.status
        if clean:
            self.components.ending.close()
        else:
            status.database.close()
        opened = status.store.open_files
        for file in (*opened._files.values(), *opened._idle.values(), *opened._mapped.values()):
            os.close(file.fd)  # as the end of the process would
        if clean:
            self._cache.release()
        else:
            os.close(self._cache.lock)

    def unmount(self) -> None:
        self._loop.run(self._stop, True)
        self._check()

    def crash(self) -> None:
        """End the daemon as SIGKILL does."""
        self._loop.run(self._stop, False)
        self._check()

    def lose_power(self) -> None:
        """Have the next daemon find that the machine was started anew since the last one: after `crash`."""
        connection = sqlite3.connect(self._cache.database)
        with connection:
            connection.execute("UPDATE meta SET value = 'another' WHERE key = 'boot_id'")
        connection.close()

    def end(self) -> None:
        self.processes.end_all()
        with contextlib.suppress(AttributeError):
            if not self._ended.is_set():
                self._loop.run(self._stop, False)
        self._stack.close()

    # What readers and commands do.

    def reader(self) -> Reader:
        """A new process."""
        return Reader(self, self.processes.start())

    def command(self, name: str, **arguments: Any) -> Any:
        """Run a command of the control socket. Raises GrowfsError."""

        async def run() -> Any:
            results = [result async for result in self.commands[name](**arguments)]
            return results[-1]

        return self.call(run)

    def names(self) -> set[str]:
        """All files that can be opened."""
        return self._loop.run(self._names)

    async def _names(self) -> set[str]:
        catalog = self.components.status.catalog
        rows = self.components.status.database.rows("SELECT parent, name FROM node WHERE is_dir = 0")
        return {catalog.path_of(parent, name) for parent, name in rows}

    def cache_figures(self) -> dict[str, int]:
        """As `cache` in status.json."""

        async def figures() -> dict[str, int]:
            return self.components.status.store.status(0)

        return self._loop.run(figures)

    has_jobs = True
    can_fail = True

    def leave_free(self, size: int | None) -> None:
        """Let other programs take all but so many bytes of the disk, or give them back."""
        self._disk_bytes = sys.maxsize if size is None else self._written_bytes() + size

    def free_bytes(self) -> int:
        """The bytes that are free on the disk."""
        return max(0, self._disk_bytes - self._written_bytes())

    def _written_bytes(self) -> int:
        return sum(
            disk.allocated(stat) for name in ("files", "partial") for _, stat in disk.walk_files(self.cache / name)
        )

    def _disk_room(self, _: Path) -> tuple[int, int]:
        return self.free_bytes(), sys.maxsize

    @property
    def keeps_last(self) -> bool:
        """Whether directories keep their last files."""
        return self.components.status.generations.listed.keeps_last

    def has_kept_last(self) -> bool:
        """Whether directories have kept their last files since this was last asked."""
        has_kept, self._has_kept_last = self._has_kept_last, True
        return has_kept

    def _keeps_last(self, least_bytes: int, limit: int) -> bool:
        keeps = rules.keeps_last(least_bytes, limit)
        self._has_kept_last &= keeps
        return keeps

    def generation_of(self, pid: int) -> int:
        """The number of the generation that a process listed last."""
        reader = next(reader for reader in self.components.status.readers.active() if reader.pid == pid)
        return reader.view.number if reader.view else 0

    def generation(self) -> int:
        """The number of the newest generation."""
        return self.components.status.generations.number

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a function while the clock goes on as far as it waits for time; then wait until the daemon is quiet."""
        (result,) = self.together(function)
        if isinstance(result, BaseException):
            raise result
        return cast(T, result)

    def together(self, *functions: Callable[[], Awaitable[Any]]) -> list[Any]:
        """Run functions at the same time; returns their results, or what they raised."""
        results = self._loop.run(self._together, functions)
        self._check()
        return list(results)

    async def _together(self, functions: tuple[Callable[[], Awaitable[Any]], ...]) -> list[Any]:
        results: list[Any] = [None] * len(functions)
        left = set(range(len(functions)))

        async def run(number: int) -> None:
            try:
                results[number] = await functions[number]()
            except (GrowfsError, OSError) as error:
                results[number] = error
            left.discard(number)

        async with trio.open_nursery() as nursery:
            for number in range(len(functions)):
                nursery.start_soon(run, number)
            for _ in range(CALL_STEPS_MAX):
                await wait_all_tasks_blocked()
                if not left:
                    break
                self._loop.clock.jump(QUIET_STEP_S)
            else:
                nursery.cancel_scope.cancel()
                raise AssertionError("a call hangs")
        return results

    def settle(self, seconds: float = 0) -> None:
        """Let time pass, and wait until the daemon is quiet."""
        self._loop.run(self._settle, seconds)
        self._check()

    async def _settle(self, seconds: float) -> None:
        await wait_all_tasks_blocked()
        if seconds:
            await self._jump(seconds)
        for _ in range(QUIET_STEPS):
            await self._jump(QUIET_STEP_S)

    async def _jump(self, seconds: float) -> None:
        self._loop.clock.jump(seconds)
        await wait_all_tasks_blocked()

    def list_remote(self) -> None:
        """List the remote now."""
        self.command("set", options={"refresh": f"{QUIET_STEP_S}s"})
        self._loop.run(self._jump, QUIET_STEP_S)  # the last listing may have ended at this very moment
        self.command("set", options={"refresh": "0"})

    def _check(self) -> None:
        if self._error:
            raise self._error

    async def list_directory(self, pid: int, directory: str) -> dict[str, int]:
        with errors(directory):
            id = self._node(directory)
            handle = self.vfs.try_open_directory(id, pid) or await self.vfs.open_directory(id, pid)
            try:
                position, sizes = 0, dict[str, int]()
                while True:
                    await self.vfs.scan(handle, position)
                    entries = self.vfs.entries(handle, position)
                    delivered = self.vfs.mark_delivered(handle, random.randint(1, max(1, len(entries))))
                    for entry in delivered:
                        position = entry.position
                        if not entry.is_dir:
                            sizes[f"{directory}/{entry.name}".removeprefix("/")] = entry.size
                    if not delivered:
                        return sizes
            finally:
                self.vfs.close_directory(handle)

    async def open_file(self, pid: int, path: str) -> int:
        with errors(path):
            try:
                handle = await self._open_node(pid, self._node(path))
            except Stale:  # the kernel looks the path up again, once (fs/namei.c, do_filp_open)
                handle = await self._open_node(pid, self._node(path))
        self._last_fd += 1
        self.handles[self._last_fd] = handle
        return self._last_fd

    async def _open_node(self, pid: int, id: int) -> int:
        handle = self.vfs.try_open(id, pid)
        if handle is None:
            return await self.vfs.open(id, pid)
        self.vfs.count_open(handle)
        return handle

    def content(self, fd: int) -> tuple[int, int]:
        """(the descriptor of the cached file, its size) behind a reader's descriptor."""
        return self.vfs.content(self.handles[fd])

    async def close_file(self, fd: int) -> None:
        self.vfs.close(self.handles.pop(fd))

    def _node(self, path: str) -> int:
        id = ROOT
        for name in filter(None, path.split("/")):
            id = self.vfs.lookup(id, name.encode()).id
        return id


@contextlib.contextmanager
def errors(path: str) -> Iterator[None]:
    """Raise what a reader gets in place of a GrowfsError."""
    try:
        yield
    except GrowfsError as error:
        raise OSError(error.errno, str(error), path) from error
