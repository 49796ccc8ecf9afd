"""The libfuse engine: connects the vfs to the kernel through pyfuse3. Works on any kernel, for any user.

Reads are copied through the daemon. Data in the page cache is copied into one buffer on trio's thread; other data is
read on another thread, so that a slow disk does not delay other readers. An open that waits cannot be interrupted,
because pyfuse3 does not report interrupts. It ends at --miss-timeout.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, ParamSpec, TypeVar

import pyfuse3
import trio

from growfs.disk import BLOCK
from growfs.errors import GrowfsError
from growfs.fuse.latency import CpuLatencyRequest
from growfs.fuse.mounting import Mounted, MountSpec, captured_stderr, force_unmount, mounted_at
from growfs.vfs.attributes import Attributes
from growfs.vfs.filesystem import NAME_MAX, Vfs

log = logging.getLogger(__name__)

Params = ParamSpec("Params")
Result = TypeVar("Result")

TASKS_MAX = 10_000
"""Requests that are handled at one time. Each waiting open counts as one; beyond the limit the mount hangs."""


def eio_on_error(
    handler: Callable[Params, Coroutine[Any, Any, Result]],
) -> Callable[Params, Coroutine[Any, Any, Result]]:
    """Answer EIO if a handler raises an unexpected error, for example on a full disk: pyfuse3 would end the daemon."""

    @functools.wraps(handler)
    async def guarded(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return await handler(*args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:
            log.exception("a request failed: a bug in growfs, or a full disk")
            raise pyfuse3.FUSEError(errno.EIO) from error

    return guarded


class LibfuseEngine(pyfuse3.Operations):
    """Owns the session with the kernel. pyfuse3 keeps it in module globals, so there is one per process."""

    name = "libfuse"
    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, vfs: Vfs) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()  # empty: pyfuse3 does not report all requests
        self._vfs = vfs
        self._cpu_latency = CpuLatencyRequest()
        self._mounted: Mounted | None = None

    def mount(self, spec: MountSpec) -> None:
        """Attach to the mountpoint. Raises GrowfsError with libfuse's message."""
        with captured_stderr() as stderr:
            try:
                pyfuse3.init(self, str(spec.mountpoint), spec.options())
            except RuntimeError as error:
                raise GrowfsError(f"{spec.mountpoint}: the kernel refuses the mount: {stderr() or error}") from None
        self._mounted = mounted_at(spec.mountpoint)

    async def serve(self) -> None:
        """Answer the kernel until the file system is unmounted."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cpu_latency.run)
            await pyfuse3.main(min_tasks=2, max_tasks=TASKS_MAX)
            nursery.cancel_scope.cancel()

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

    def drop_descriptor(self, id: int) -> None:
        """Do nothing: the kernel has no file of the cache."""

    # Requests. `ctx.pid` is the id of the thread that makes the system call.

    @eio_on_error
    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        try:
            return _entry(self._vfs.lookup(parent_inode, name))
        except GrowfsError as error:
            _refuse(error)

    @eio_on_error
    async def getattr(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        try:
            return _entry(self._vfs.attributes(inode))
        except GrowfsError as error:
            _refuse(error)

    async def forget(self, inode_list: object) -> None:
        """Node ids are rows of the database, so there is nothing to free."""

    @eio_on_error
    async def opendir(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileHandleT:
        return pyfuse3.FileHandleT(self._vfs.open_directory(inode, ctx.pid))

    @eio_on_error
    async def readdir(self, fh: pyfuse3.FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        try:
            await self._vfs.begin_listing(fh, start_id)
        except GrowfsError as error:
            _refuse(error)
        count = 0
        for entry in self._vfs.entries(fh, start_id):
            name = pyfuse3.FileNameT(entry.name.encode())
            if not pyfuse3.readdir_reply(token, name, _entry(entry.attributes), entry.position):
                break
            count += 1
        self._vfs.mark_delivered(fh, count)

    @eio_on_error
    async def releasedir(self, fh: pyfuse3.FileHandleT) -> None:
        self._vfs.close_directory(fh)

    @eio_on_error
    async def open(self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        self._cpu_latency.count()
        try:
            handle = await self._vfs.open(inode, ctx.pid)
        except GrowfsError as error:
            _refuse(error)
        virtual = self._vfs.is_virtual(handle)
        kept = not virtual and self._vfs.keeps_content(inode)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(handle), direct_io=virtual, keep_cache=kept)

    @eio_on_error
    async def read(  # type: ignore[override]  # pyfuse3 takes any buffer
        self, fh: pyfuse3.FileHandleT, off: int, size: int
    ) -> memoryview | bytes:
        self._cpu_latency.count()
        content = self._vfs.try_read(fh, off, size)
        if content is not None:
            return content  # pyfuse3 copies it into the reply before anything else runs
        try:
            return await self._vfs.read(fh, off, size)
        except GrowfsError as error:
            _refuse(error)

    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        raise pyfuse3.FUSEError(errno.ENOSYS)  # once: the kernel then asks no more at a close

    @eio_on_error
    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        self._vfs.close(fh)

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        capacity, data = self._vfs.capacity(), pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = BLOCK
        data.f_blocks = capacity.blocks
        data.f_bfree = data.f_bavail = capacity.free
        data.f_namemax = NAME_MAX
        return data


def _refuse(error: GrowfsError) -> NoReturn:
    raise pyfuse3.FUSEError(error.errno) from error


def _entry(attributes: Attributes) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = pyfuse3.InodeT(attributes.id)
    entry.st_mode = pyfuse3.ModeT(attributes.mode)
    entry.st_nlink = attributes.links
    entry.st_uid, entry.st_gid = _owner
    entry.st_size = attributes.size
    entry.st_blocks = attributes.blocks
    entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = attributes.mtime_ns
    entry.attr_timeout = attributes.timeout_s
    entry.entry_timeout = attributes.name_timeout_s
    return entry


_owner = (os.getuid(), os.getgid())
