"""The libfuse engine: connects the vfs to the kernel through pyfuse3. Works on any kernel, for any user.

Reads are copied through the daemon. Data in the page cache is copied into one buffer on trio's thread; other data is
read on another thread, so that a slow disk does not delay other readers. pyfuse3 does not report interrupts, so the
signals of a reader whose open waits are polled.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pyfuse3
import trio

from growfs.disk import BLOCK
from growfs.errors import GrowfsError
from growfs.fuse.latency import CpuLatencyRequest
from growfs.fuse.mounting import MountRow, MountSpec, force_unmount
from growfs.proc import SIGNALS_EVERY_S, is_ending
from growfs.vfs.attributes import Attributes
from growfs.vfs.filesystem import NAME_MAX, Vfs

if TYPE_CHECKING:
    from growfs.cache.catalog import Removed

log = logging.getLogger(__name__)

Params = ParamSpec("Params")
Result = TypeVar("Result")


def with_errno(
    handler: Callable[Params, Coroutine[Any, Any, Result]],
) -> Callable[Params, Coroutine[Any, Any, Result]]:
    """Answer with the errno of an error that a handler raises; EIO if it is unexpected, since pyfuse3 would end the
    daemon."""

    @functools.wraps(handler)
    async def guarded(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return await handler(*args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except GrowfsError as error:
            raise pyfuse3.FUSEError(error.errno) from error
        except Exception as error:
            log.exception("a request failed: a bug in growfs, or a full disk")
            raise pyfuse3.FUSEError(errno.EIO) from error

    return guarded


class LibfuseEngine(pyfuse3.Operations):
    """Owns the session with the kernel. pyfuse3 keeps it in module globals, so there is one per process."""

    name = "libfuse"
    view: type[Vfs] = Vfs
    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, vfs: Vfs) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()  # empty: pyfuse3 does not report all requests
        self.warning: str | None = None
        self._vfs = vfs
        self._cpu_latency = CpuLatencyRequest()
        self._mounted: MountRow | None = None
        self._waiting: dict[trio.CancelScope, int] = {}
        # Notifications that are still queued when the file system is unmounted fail.
        logging.getLogger("pyfuse3").addFilter(lambda record: self._mounted is not None)

    def mount(self, spec: MountSpec) -> None:
        """Attach to the mountpoint. Raises GrowfsError."""
        pyfuse3.init(self, f"/dev/fd/{spec.attach()}", set())  # libfuse accepts an existing mount (mount.fuse3(8))
        self._mounted = spec.row()

    async def serve(self) -> None:
        """Answer the kernel until the file system is unmounted."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cpu_latency.run)
            nursery.start_soon(self._watch_signals)
            # Each waiting open counts as a task. Beyond the limit, the mount hangs.
            await pyfuse3.main(min_tasks=2, max_tasks=10_000)
            nursery.cancel_scope.cancel()

    async def _watch_signals(self) -> None:
        """Cancel the requests that a thread waits for when its process is about to end."""
        while True:
            await trio.sleep(SIGNALS_EVERY_S)
            for scope, tid in self._waiting.items():
                if is_ending(tid):
                    scope.cancel()

    async def _waited_for(self, tid: int, handle: Awaitable[int]) -> int:
        """The handle that a thread waits for, unless a signal ends its process meanwhile (EINTR)."""
        with trio.CancelScope() as scope:
            self._waiting[scope] = tid
            try:
                return await handle
            finally:
                del self._waiting[scope]
        raise pyfuse3.FUSEError(errno.EINTR)

    async def ready(self) -> None:
        """Return at once: the kernel asks when readers list."""

    def unmount(self) -> None:
        """Detach, even while files are open. Does nothing if nothing is mounted."""
        if mounted := self._mounted:
            self._mounted = None
            pyfuse3.close(unmount=True)
            force_unmount(mounted)  # libfuse does not find a mountpoint that was moved

    def forget_name(self, parent: int, name: str) -> None:
        """Make the kernel look up a name again. pyfuse3 does it on its own thread; on this one it would deadlock."""
        if self._mounted:
            pyfuse3.invalidate_entry_async(pyfuse3.InodeT(parent), name.encode(), ignore_enoent=True)

    def forget_files(self, removed: Sequence[Removed]) -> None:
        """Make the kernel ask again for the attributes of files that are gone."""
        for gone in removed if self._mounted else ():
            with suppress(FileNotFoundError):  # it does not know the file
                pyfuse3.invalidate_inode(pyfuse3.InodeT(gone.id), attr_only=True)

    def drop_descriptor(self, id: int) -> None:
        """Do nothing: the kernel has no files of the cache."""

    # Requests. `ctx.pid` is the id of the thread that makes the system call.

    @with_errno
    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return _entry(self._vfs.lookup(parent_inode, name))

    @with_errno
    async def getattr(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return _entry(self._vfs.attributes(inode))

    @with_errno
    async def readlink(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileNameT:
        return pyfuse3.FileNameT(self._vfs.generation_names.target(inode).encode())

    async def forget(self, inode_list: object) -> None:
        """Node ids are rows of the database, so there is nothing to free."""

    @with_errno
    async def opendir(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileHandleT:
        handle = self._vfs.try_open_directory(inode, ctx.pid)
        if handle is None:
            handle = await self._waited_for(ctx.pid, self._vfs.open_directory(inode, ctx.pid))
        return pyfuse3.FileHandleT(handle)

    @with_errno
    async def readdir(self, fh: pyfuse3.FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Waits for nothing but the database: see `PassthroughEngine`."""
        await self._vfs.scan(fh, start_id)
        count = 0
        for entry in self._vfs.entries(fh, start_id):
            name = pyfuse3.FileNameT(entry.name.encode())
            if not pyfuse3.readdir_reply(token, name, _entry(entry.attributes), entry.position):
                break
            count += 1
        self._vfs.mark_delivered(fh, count)

    @with_errno
    async def releasedir(self, fh: pyfuse3.FileHandleT) -> None:
        self._vfs.close_directory(fh)

    @with_errno
    async def open(self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        self._cpu_latency.count()
        handle = self._vfs.try_open(inode, ctx.pid)
        if handle is None:
            handle = await self._waited_for(ctx.pid, self._vfs.open(inode, ctx.pid))
        else:
            self._vfs.count_open(handle)
        virtual = self._vfs.is_virtual(handle)
        kept = not virtual and self._vfs.keeps_content(inode)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(handle), direct_io=virtual, keep_cache=kept)

    @with_errno
    async def read(  # type: ignore[override]  # pyfuse3 takes any buffer
        self, fh: pyfuse3.FileHandleT, off: int, size: int
    ) -> memoryview | bytes:
        self._cpu_latency.count()
        content = self._vfs.try_read(fh, off, size)
        if content is not None:
            return content  # pyfuse3 copies it into the reply before other code runs
        return await self._vfs.read(fh, off, size)

    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        raise pyfuse3.FUSEError(errno.ENOSYS)  # once: the kernel then stops asking at each close

    @with_errno
    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        self._vfs.close(fh)

    @with_errno
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        capacity, data = self._vfs.capacity(), pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = BLOCK
        data.f_blocks = capacity.blocks
        data.f_bfree = data.f_bavail = capacity.free
        data.f_namemax = NAME_MAX
        return data


def _entry(attributes: Attributes) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = pyfuse3.InodeT(attributes.id)
    entry.st_mode = pyfuse3.ModeT(attributes.mode)
    entry.st_nlink = 1
    entry.st_uid, entry.st_gid = _owner
    entry.st_size = attributes.size
    entry.st_blocks = attributes.blocks
    entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = attributes.mtime_ns
    entry.attr_timeout = entry.entry_timeout = attributes.timeout_s
    return entry


_owner = (os.getuid(), os.getgid())
