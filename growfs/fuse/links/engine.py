"""The links engine: shows each cached file as a symbolic link to itself in the cache, which the kernel keeps.

A reader therefore opens, reads and maps cached files without the daemon, at the speed of the disk, for any user and on
any kernel since Linux 4.20. An uncached file is a file of the mount: its open waits, and it is read through the daemon.
Opens are counted with fanotify(7) or inotify(7), and a lease tells whether a file is open when it is to be evicted.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from growfs import proc
from growfs.bitmaps import BitMap64
from growfs.errors import GrowfsError
from growfs.fuse import protocol
from growfs.fuse.links.view import LinkedVfs
from growfs.fuse.mounting import MountSpec
from growfs.fuse.passthrough import PassthroughEngine
from growfs.fuse.protocol import FuseRequest
from growfs.vfs.attributes import LINK_BIT
from growfs.vfs.generation_names import number_bits
from growfs.vfs.open_counter import OpenCounter

if TYPE_CHECKING:
    from growfs.cache.catalog import Removed

log = logging.getLogger(__name__)


class LinksEngine(PassthroughEngine):
    """Owns the counter of opens. The session is the same as with passthrough, but without backing ids."""

    name = "links"
    view = LinkedVfs
    needs = protocol.InitFlag.CACHE_SYMLINKS

    _vfs: LinkedVfs

    def __init__(self, vfs: LinkedVfs) -> None:
        super().__init__(vfs, stack_depth=0)
        vfs.evict_within(self.without_links)
        self._cache: Path
        # Once for each thread: each file has a link.
        self._check = lru_cache(1000)(lambda tid: self._nursery.start_soon(self._warn_of, tid))
        self._checks = trio.CapacityLimiter(1)
        self._counter: OpenCounter
        self._to_recheck: set[int] = set()
        self._followed = BitMap64()
        """The ids of the files whose links the kernel may have read."""

    def mount(self, spec: MountSpec) -> None:
        """Attach to the mountpoint, for this user alone, and begin the session. Raises GrowfsError."""
        self._cache = spec.cache
        self._counter = OpenCounter(self._vfs.count_link_open, self._recheck, processes_in=spec.cache)
        try:
            super().mount(spec._replace(allow_other=False))
        except protocol.KernelTooOld as error:
            raise GrowfsError(
                f"--engine links: the kernel ({error}) does not cache links; that needs Linux 4.20; use --engine"
                " libfuse"
            ) from None

    async def serve(self) -> None:
        """Answer the kernel until the file system is unmounted."""
        try:
            await super().serve()
        finally:
            self._followed.clear()
            self._counter.close()

    def _services(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (*super()._services(), self._counter.run)  # it starts tasks in the same nursery

    @asynccontextmanager
    async def without_links(self, ids: Sequence[int]) -> AsyncIterator[None]:
        """Within the block, no process is about to open one of these files through a link, so they may be deleted.

        The daemon refuses to read their links, and the kernel drops what it has read. Their names may be those of links
        for a while; whoever follows one makes the kernel look it up again, as the name of a file.
        """
        with self._vfs.without_links(ids):
            if followed := self._followed & BitMap64(ids):
                # Wait until the kernel has dropped the links. Earlier notifications may wait for a listing's answer.
                with trio.move_on_after(1.0) as waiting:
                    await self._session.notify_all(protocol.inval_inode(id | LINK_BIT, 0, 0) for id in followed)
                # Those that have read a link open its path meanwhile. trio's timers may be late: latency.POLL_S_MAX.
                await trio.to_thread.run_sync(time.sleep, 0.01)
                if not waiting.cancelled_caught:
                    self._followed -= followed
            yield

    def forget_files(self, removed: Sequence[Removed]) -> None:
        """Make the kernel read the links to files that are gone again, and then look up their names.

        A new version's link has another id, but the same target: whoever has read the old link opens the new version.
        """
        super().forget_files(removed)
        if self._mounted:
            for gone in removed:
                if gone.id in self._followed and (new := self._vfs.find(gone.parent, gone.name)):
                    self._followed.add(new.id)
                self._followed.discard(gone.id)
                self._session.notify(protocol.inval_inode(gone.id | LINK_BIT, 0, 0))

    def _recheck(self, _: int, directory: int, name: str) -> None:
        """Verify a cached file that was written to, replaced or deleted, unless growfs itself did so."""
        file = self._vfs.find(directory, name)
        if file is None:
            self._vfs.note_stray(directory, name)
        elif file.seq is not None and file.id not in self._to_recheck and not self._vfs.is_unchanged(file):
            self._to_recheck.add(file.id)
            self._nursery.start_soon(self._recheck_later, file.id)

    async def _recheck_later(self, id: int) -> None:
        try:
            await self._vfs.recheck(id)
        except (GrowfsError, OSError, sqlite3.DatabaseError) as error:  # the disk fails, which ends no mount
            log.warning("a cached file was changed, and cannot be verified: %s", error)
        finally:
            self._to_recheck.discard(id)

    # Requests.

    def _opendir(self, request: FuseRequest) -> None:
        """First count the files that the reader has opened: they decide what it is shown."""
        self._check(request.tid)
        self._counter.count_now()
        if not self._counter.is_counting:
            self._vfs.count_all()
        super()._opendir(request)

    def _open(self, request: FuseRequest) -> None:
        """Open a file that is not cached, or one in .growfs/, which may report how often files were opened."""
        self._counter.count_now()
        super()._open(request)

    def _read_link(self, request: FuseRequest) -> None:
        """Watch the folder first, so that the open that follows is counted, and later changes to the file are noticed.

        If others have changed it, the kernel looks its name up again, which is then that of a file whose open waits.
        """
        if number_bits(request.nodeid):  # it is `current`
            super()._read_link(request)
            return
        self._check(request.tid)
        link = self._vfs.link(request.nodeid)
        if self._counter.is_counting and not self._counter.is_watched(number=0, id=link.directory):
            self._counter.watch(0, {link.directory: Path(link.target).parent})
            link = self._vfs.link(request.nodeid)  # others may have changed it until now
        if link.is_current:
            self._reply_link(request, link.target)
        else:
            self._start_task(request, partial(self._read_link_later, request))

    async def _read_link_later(self, request: FuseRequest) -> None:
        self._reply_link(request, (await self._vfs.settled_link(request.nodeid)).target)

    def _reply_link(self, request: FuseRequest, target: str) -> None:
        self._followed.add(request.nodeid & ~LINK_BIT)
        self._reply(request, os.fsencode(target))

    async def _warn_of(self, tid: int) -> None:
        """Warn, once, if a thread does not see the cache: it cannot follow links, even those that the kernel keeps.

        The check runs in a thread of its own, because in a container the path may lead into this mount, or to a server
        that is gone.
        """
        with suppress(OSError, RuntimeError):  # it has ended, or the system allows no more threads
            look = partial(trio.to_thread.run_sync, abandon_on_cancel=True, limiter=self._checks)
            if self.warning is None and not await look(proc.sees, tid, self._cache):
                self.warning = (
                    f"{proc.name_of(tid)} does not see {self._cache}, so its links lead nowhere; make that folder"
                    " visible in its container under the same path, read-only, or mount with --engine libfuse"
                )
                log.warning("%s", self.warning)

    def _backing_id(self, id: int, handle: int) -> int:
        """None: the reader of this file has waited for it, and next time its name is a link."""
        return 0

    def _open_ahead(self) -> bool:
        return False
