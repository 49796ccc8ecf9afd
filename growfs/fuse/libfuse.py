"""The libfuse engine: carries the vfs to the kernel through pyfuse3. Works on any kernel, for any user.

Reads are copied through the daemon: from the page cache straight into one buffer, without leaving trio's thread; what
is not in the page cache is read on a thread, so that a slow disk delays no other reader. An open that waits cannot be
interrupted here: pyfuse3 does not tell of interrupts. It ends at --miss-timeout.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from typing import NoReturn

import pyfuse3
import trio

from growfs.catalog import Removed
from growfs.database import NODES_FROM
from growfs.errors import GrowfsError
from growfs.fuse.mounting import Mounting, captured_stderr
from growfs.store import Store
from growfs.vfs import Attributes, Vfs

log = logging.getLogger(__name__)

TASKS_MAX = 10_000
"""Requests in work at one time. Each waiting open takes one, and with none left the mount stands still."""
READ_MAX = 1 << 20
"""Bytes of the largest READ that the kernel sends (fuse.h: FUSE_MAX_MAX_PAGES of 4 KiB)."""
BLOCK = 4096


class LibfuseEngine(pyfuse3.Operations):
    """Owns the session with the kernel. pyfuse3 keeps it in module globals: one for each process."""

    name = "libfuse"
    reason = "works on any kernel, for any user"
    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, vfs: Vfs, store: Store) -> None:
        super().__init__()
        self._vfs = vfs
        self._store = store
        self._buffer = memoryview(bytearray(READ_MAX))
        self._mounted = False

    def mount(self, mounting: Mounting) -> None:
        """Attach to the mountpoint. Raises GrowfsError with what libfuse says."""
        with captured_stderr() as said:
            try:
                pyfuse3.init(self, str(mounting.mountpoint), mounting.options())
                self._mounted = True
            except RuntimeError as error:
                raise GrowfsError(f"{mounting.mountpoint}: the kernel refuses the mount: {said() or error}") from None

    async def serve(self) -> None:
        """Answer the kernel until the mount is gone."""
        await pyfuse3.main(min_tasks=2, max_tasks=TASKS_MAX)

    def unmount(self) -> None:
        """Detach, also while files are open; nothing happens where nothing is mounted."""
        if self._mounted:
            self._mounted = False
            pyfuse3.close(unmount=True)

    def forget_names(self, removed: Iterable[Removed]) -> None:
        """Have the kernel look these names up again, on a thread of pyfuse3's: written here it would deadlock."""
        for gone in removed if self._mounted else ():
            pyfuse3.invalidate_entry_async(pyfuse3.InodeT(gone.parent), gone.name.encode(), ignore_enoent=True)

    # Requests. `ctx.pid` is the id of the thread that asks.

    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        try:
            return _entry(self._vfs.lookup(parent_inode, name.decode()))
        except UnicodeDecodeError:
            raise pyfuse3.FUSEError(errno.ENOENT) from None
        except GrowfsError as error:
            _refuse(error)

    async def getattr(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        try:
            return _entry(self._vfs.attributes(inode))
        except GrowfsError as error:
            _refuse(error)

    async def forget(self, inode_list: object) -> None:
        """Node ids are rows of the database: there is nothing to let go of."""

    async def opendir(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileHandleT:
        return pyfuse3.FileHandleT(self._vfs.open_directory(inode, ctx.pid))

    async def readdir(self, fh: pyfuse3.FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        for name, attributes, position in self._vfs.entries(fh, start_id):
            if not pyfuse3.readdir_reply(token, pyfuse3.FileNameT(name.encode()), _entry(attributes), position):
                return

    async def releasedir(self, fh: pyfuse3.FileHandleT) -> None:
        self._vfs.close_directory(fh)

    async def open(self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        try:
            handle = await self._vfs.open(inode, ctx.pid)
        except GrowfsError as error:
            _refuse(error)
        virtual = self._vfs.is_virtual(handle)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(handle), direct_io=virtual, keep_cache=not virtual)

    async def read(  # type: ignore[override]  # pyfuse3 takes any buffer
        self, fh: pyfuse3.FileHandleT, off: int, size: int
    ) -> memoryview | bytes:
        fd, end = self._vfs.content(fh)
        size = max(0, min(size, end - off))
        try:
            if os.preadv(fd, [self._buffer[:size]], off, os.RWF_NOWAIT) == size:
                return self._buffer[:size]  # pyfuse3 copies it into the reply before anything else runs
        except OSError:  # EAGAIN: nothing of it is in the page cache; EOPNOTSUPP: a file system that cannot tell
            pass
        try:
            return await trio.to_thread.run_sync(os.pread, fd, size, off)
        except OSError as error:
            log.error("the cache's disk cannot be read: %s", error)
            raise pyfuse3.FUSEError(errno.EIO) from error

    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        raise pyfuse3.FUSEError(errno.ENOSYS)  # once: the kernel then asks no more at a close

    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        self._vfs.close(fh)

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        store, data = self._store, pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = BLOCK
        data.f_blocks = store.limit_bytes // BLOCK
        data.f_bfree = data.f_bavail = max(0, store.limit_bytes - store.used_bytes) // BLOCK
        data.f_files = store.resident_files
        data.f_namemax = 255
        return data


def _refuse(error: GrowfsError) -> NoReturn:
    raise pyfuse3.FUSEError(error.errno) from error


def _entry(attributes: Attributes) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = pyfuse3.InodeT(attributes.id)
    entry.st_mode = pyfuse3.ModeT(attributes.mode)
    entry.st_nlink = 2 if attributes.is_dir else 1
    entry.st_uid, entry.st_gid = _owner
    entry.st_size = attributes.size
    entry.st_blocks = -(-attributes.size // 512)
    entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = attributes.mtime_ns
    entry.attr_timeout = attributes.timeout_s
    entry.entry_timeout = attributes.timeout_s if attributes.id >= NODES_FROM or attributes.is_dir else 0.0
    return entry


_owner = (os.getuid(), os.getgid())
