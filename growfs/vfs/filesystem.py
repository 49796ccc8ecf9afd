"""What a reader sees: names, attributes, listings and open files. Knows nothing of any protocol to the kernel.

Owns the handles, and the names that are virtual. Everything is answered from memory or the local database at once;
only `open` may wait, for a miss.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import trio

from growfs.cache.catalog import Catalog, Node, Removed
from growfs.cache.schema import ROOT
from growfs.cache.store import Store
from growfs.cache.usage import UsageCounters
from growfs.disk import BLOCK
from growfs.errors import GrowfsError, NameTooLong, NoSuchName, NotHere, Stale, TooManyOpen, Unreadable
from growfs.events import Signal
from growfs.rotation.registry import NOTHING, ReaderRegistry, thread_group
from growfs.rotation.rules import EVERYWHERE, Generation
from growfs.vfs.attributes import DIRECTORY_TIMEOUT_S, FILE_TIMEOUT_S, Attributes, Capacity, Entry
from growfs.vfs.directory import Directory, listed

log = logging.getLogger(__name__)

CONTROL = ".growfs"
CONTROL_ID = 2
READER_SHIFT = 40
"""A file's handle is its node id and, from this bit on, the number of the reader who opened it."""
NODE_MASK = (1 << READER_SHIFT) - 1
VIRTUAL_HANDLES_FROM = 1 << 62
NAME_MAX = 255
"""Bytes of the longest name: a Linux file system's limit (limits.h), which the cache's files are under as well."""
LOOK_ENTRIES = 128
"""Of a directory that are looked at in one step: 1 to 2 ms, for which the requests of others wait."""
RENDERED_MAX = 128
"""Files of .growfs/ that are open at one time; each takes a descriptor, of which the daemon needs some for itself."""


@dataclass(frozen=True, slots=True)
class VirtualFile:
    """A file of .growfs/. render: writes the content, once for each open. lists: opening it is a listing."""

    name: str
    render: Callable[[IO[bytes], Generation | None], Awaitable[None]]
    lists: bool = False


@dataclass(slots=True)
class Misses:
    """Opens that had to wait, since the daemon started."""

    files: int = 0
    wait_s: float = 0.0


class Vfs:
    """Owns the handles. Methods raise GrowfsError with the errno for the reader.

    fetch: returns when a file is resident, given its node and path; raises GrowfsError.

    `dropped` tells of each file whose descriptor was closed; that may be long after its last close by a reader.
    `forgotten` tells of each name (directory id, name) that the kernel has to look up again.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        fetch: Callable[[Node, str], Awaitable[None]],
        readers: ReaderRegistry,
        usage: UsageCounters,
        virtual: list[VirtualFile],
        scratch: Path,
        wait_for_misses: bool,
    ) -> None:
        self.misses = Misses()
        self.dropped = store.dropped
        self.forgotten = Signal[[int, str]]()
        self._catalog = catalog
        self._store = store
        self._fetch_now = fetch
        self._readers = readers
        self._usage = usage
        self._virtual = {CONTROL_ID + 1 + place: file for place, file in enumerate(virtual)}
        self._scratch = scratch
        self._wait_for_misses = wait_for_misses
        self._rendered: dict[int, IO[bytes]] = {}
        self._directories: dict[int, Directory] = {}
        self._handles = itertools.count(VIRTUAL_HANDLES_FROM)
        self._started_ns = time.time_ns()

    # Names.

    def lookup(self, parent: int, name: bytes) -> Attributes:
        """The attributes of a name in a directory. Every name of the catalog is there, resident or not."""
        if len(name) > NAME_MAX:
            raise NameTooLong(f"a name of {len(name)} bytes; {NAME_MAX} are the most")
        try:
            return self._lookup(parent, name.decode())
        except UnicodeDecodeError:  # all names of the catalog are UTF-8
            raise NoSuchName(repr(name)) from None

    def _lookup(self, parent: int, name: str) -> Attributes:
        if parent == CONTROL_ID:
            for id, file in self._virtual.items():
                if file.name == name:
                    return self.attributes(id)
        elif parent == ROOT and name == CONTROL:
            return self.attributes(CONTROL_ID)
        elif node := self._catalog.find(parent, name):
            return self._of(node)
        raise NoSuchName(name)

    def attributes(self, id: int) -> Attributes:
        """The attributes of a node."""
        if id in (ROOT, CONTROL_ID):
            return Attributes(id, True, 0, self._started_ns, DIRECTORY_TIMEOUT_S)
        if id in self._virtual:
            return Attributes(id, False, 0, time.time_ns(), 0.0)
        if node := self._catalog.node(id):
            return self._of(node)
        if opened := self._store.opened(id):
            return self._file(id, opened.size, opened.mtime_ns)
        raise Stale(str(id))

    def _of(self, node: Node) -> Attributes:
        if node.is_dir:
            mtime_ns = self._started_ns if node.mtime_ns is None else node.mtime_ns
            return Attributes(node.id, True, 0, mtime_ns, DIRECTORY_TIMEOUT_S)
        return self._file(node.id, node.size, node.mtime_ns)

    def _file(self, id: int, size: int | None, mtime_ns: int | None) -> Attributes:
        mtime_ns = self._started_ns if mtime_ns is None else mtime_ns
        return Attributes(id, False, size or 0, mtime_ns, 0.0 if size is None else FILE_TIMEOUT_S)

    # Listings.

    def open_directory(self, id: int, tid: int) -> int:
        """A handle for a directory, opened by a thread."""
        handle = next(self._handles)
        self._directories[handle] = Directory(id, thread_group(tid))  # the thread may end before it is read
        return handle

    def begin_listing_now(self, handle: int, position: int = 0) -> bool:
        """Begin a listing of a directory, unless it is read on from a position; False where that has to wait.

        A first read may be from any position: seekdir(3).
        """
        directory = self._directories[handle]
        if directory.id == CONTROL_ID:
            return True
        if not (directory.looking or (position and directory.generation)):
            listing = self._readers.listing(directory.pid, directory.id)
            if listing is None:
                return False
            directory.begin(*listing)
        return self._look(directory, position)

    async def begin_listing(self, handle: int, position: int = 0) -> None:
        """As `begin_listing_now`. Waits where a new generation begins with it, or much is passed over."""
        directory = self._directories[handle]
        if not self.begin_listing_now(handle, position):
            if not directory.looking:
                directory.begin(*await self._readers.begin(directory.pid, directory.id))
            while not self._look(directory, position):
                await trio.lowlevel.checkpoint()

    def _look(self, directory: Directory, position: int) -> bool:
        """Look for what comes from a position on; False where all that was looked at is left out, and more comes."""
        if position != directory.position:
            directory.position = directory.passed = position
        elif directory.ahead:
            return True
        generation = directory.generation or NOTHING
        directory.ahead, passed = listed(
            self._store, directory.id, directory.passed, generation, LOOK_ENTRIES, self._started_ns
        )
        directory.looking = passed is not None
        directory.passed = passed or directory.passed
        return not directory.looking

    def entries(self, handle: int, position: int) -> list[Entry]:
        """Some of what comes from a position on, once the listing has begun there. None means that it is the end.

        `showed` tells how many of them the reader was given.
        """
        directory = self._directories[handle]
        if directory.id == CONTROL_ID:
            now_ns = time.time_ns()
            return [Entry(id, file.name, 0, 0, now_ns, id) for id, file in self._virtual.items() if id > position]
        return directory.ahead

    def showed(self, handle: int, count: int) -> list[Entry]:
        """Note that so many of the last `entries` were given to the reader; returns them."""
        directory = self._directories[handle]
        given, directory.ahead = directory.ahead[:count], directory.ahead[count:]
        if given:
            directory.position = directory.passed = given[-1].position
            if directory.reader:
                directory.reader.is_shown(directory.id, sum(not entry.is_dir for entry in given))
        return given

    def forget_names(self, removed: Sequence[Removed]) -> None:
        """Have the kernel look up names that are gone, and drop them from what was read ahead of open directories."""
        parents = {gone.parent for gone in removed}
        for directory in self._directories.values():
            if directory.id in parents:
                directory.ahead = []
        for gone in removed:
            self.forgotten.notify(gone.parent, gone.name)

    def close_directory(self, handle: int) -> None:
        """Let go of a handle."""
        del self._directories[handle]

    # Files.

    def open_now(self, id: int, tid: int) -> int | None:
        """As `open`, for a resident file; None where it would have to wait.

        To be counted by `opened`, before anything else is answered: the reader waits for the handle only.
        """
        if self._store.open(id) is None:
            return None
        return id | self._readers.opener(tid) << READER_SHIFT

    def opened(self, handle: int, waited: bool = False) -> None:
        """Count an open of a file. waited: for it to be fetched."""
        id = handle & NODE_MASK
        self._usage.opened(id)
        self._readers.opened(handle >> READER_SHIFT, id, waited)

    def open_ahead(self, id: int) -> bool:
        """Open a file that was listed, for who may come to read it; False where that is of no use. Counts nowhere."""
        return self._store.open_ahead(id)

    async def open(self, id: int, tid: int) -> int:
        """A handle for a file, opened by a thread, and counted. Waits where it has to be fetched first."""
        if id in self._virtual:
            return await self._open_virtual(self._virtual[id], tid)
        waited_from: float | None = None
        while (handle := self.open_now(id, tid)) is None:
            node = self._catalog.node(id)
            if node is None:
                raise Stale(str(id))
            if node.seq is not None:
                await self._store.recheck(id)
                continue
            if not self._wait_for_misses:
                raise NotHere(node.name)
            if waited_from is None:
                waited_from = trio.current_time()
                self.misses.files += 1
            await self._fetch(node)
        if waited_from is not None:
            self.misses.wait_s += trio.current_time() - waited_from
        self.opened(handle, waited_from is not None)
        return handle

    async def _fetch(self, node: Node) -> None:
        path = self._catalog.path(node)
        log.info("miss: %s", path)
        try:
            await self._fetch_now(node, path)
        except GrowfsError as error:
            log.warning("an open of %s failed: %s", path, error)
            if self._catalog.node(node.id) is None:
                raise Stale(path) from error
            raise

    async def _open_virtual(self, file: VirtualFile, tid: int) -> int:
        if len(self._rendered) >= RENDERED_MAX:
            raise TooManyOpen(f"{len(self._rendered)} files of {CONTROL}/ are open")
        generation = None
        if file.lists:
            _, generation = self._readers.listing(tid, EVERYWHERE) or await self._readers.begin(tid, EVERYWHERE)
        content = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115 - lives as long as its handle
        handle = next(self._handles)
        self._rendered[handle] = content
        try:
            await file.render(content, generation and generation.as_of_now())
        except BaseException:
            self.close(handle)
            raise
        content.flush()
        return handle

    def is_virtual(self, handle: int) -> bool:
        """Whether the content was made for this open, so that no page of it may be kept."""
        return handle >= VIRTUAL_HANDLES_FROM

    def content(self, handle: int) -> tuple[int, int]:
        """(the file descriptor that has the content, its size in bytes)."""
        if self.is_virtual(handle):
            content = self._rendered[handle]
            return content.fileno(), content.tell()
        opened = self._store.opened(handle & NODE_MASK)
        assert opened
        return opened.fd, opened.size

    def read_now(self, handle: int, offset: int, buffer: memoryview) -> int | None:
        """Fill buffer from offset on, or up to the end: the bytes read, or None where the disk has to be waited for."""
        fd, end = self.content(handle)
        size = max(0, min(len(buffer), end - offset))
        try:
            if os.preadv(fd, [buffer[:size]], offset, os.RWF_NOWAIT) == size:
                return size
        except OSError:  # EAGAIN: nothing of it is in the page cache; EOPNOTSUPP: a file system that cannot tell
            pass
        return None

    async def read(self, handle: int, offset: int, size: int) -> bytes:
        """As `read_now`, on a thread, so that a slow disk delays no other reader."""
        fd, end = self.content(handle)
        try:
            return await trio.to_thread.run_sync(os.pread, fd, max(0, min(size, end - offset)), offset)
        except OSError as error:
            log.error("the cache's disk cannot be read: %s", error)
            raise Unreadable(str(error)) from error

    def close(self, handle: int) -> None:
        """Let go of a file once."""
        if self.is_virtual(handle):
            self._rendered.pop(handle).close()
        else:
            self._store.close_file(handle & NODE_MASK)
            self._readers.closed(handle >> READER_SHIFT)

    # The whole.

    def capacity(self) -> Capacity:
        """How large the cache may be, and what of it is taken."""
        store = self._store
        free = max(0, store.limit_bytes - store.used_bytes) // BLOCK
        return Capacity(store.limit_bytes // BLOCK, free, store.resident_files)
