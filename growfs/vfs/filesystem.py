"""The view that readers get: names, attributes, listings and open files. Knows no kernel protocol.

Owns the handles of directories and cached files; `VirtualFolder` owns those of .growfs/. Every answer comes from memory
or the local database at once. Only opens may wait: `open` for a miss, and `open_directory` for a new generation. The
kernel holds no lock meanwhile, as it does for a directory that is read or in which a name is looked up.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from growfs.cache.catalog import Catalog, Node, Removed
from growfs.cache.schema import ROOT
from growfs.cache.store import Store
from growfs.cache.usage import UsageCounters
from growfs.disk import BLOCK
from growfs.errors import GrowfsError, NameTooLong, NoSuchName, NotHere, Stale, Unreadable
from growfs.proc import thread_group
from growfs.rotation.generations import Generations
from growfs.rotation.reader import Reader
from growfs.rotation.readers import Readers
from growfs.rotation.rules import EVERYWHERE, Generation
from growfs.signal import Signal
from growfs.status_and_metrics import MissStatus
from growfs.syscalls import read_page_cache
from growfs.vfs.attributes import (
    DIRECTORY_TIMEOUT_S,
    FILE_TIMEOUT_S,
    FOLDER_NAME,
    PASS_BIT,
    Attributes,
    Capacity,
    Entry,
)
from growfs.vfs.generation_names import GenerationNames, node_of, number_bits
from growfs.vfs.virtual import FOLDER_ID, Names, VirtualFolder

log = logging.getLogger(__name__)

READER_SHIFT = 40
"""A file's handle is its node id plus, from this bit on, the number of the reader that opened it."""
NODE_MASK = (1 << READER_SHIFT) - 1
NAME_MAX = 255
"""Bytes of the longest name: the limit of Linux file systems (limits.h), which also applies to the cached files."""


@dataclass(slots=True)
class Misses:
    """Opens that had to wait, since the daemon started: there are none without a vfs, which counts them. waiting: how
    many of each thread are waiting now; all processes of other pid namespaces count as one thread.
    """

    files: int = 0
    wait_s: float = 0.0
    waiting: Counter[int] = field(default_factory=Counter)

    def processes(self) -> list[int]:
        """The processes that are waiting now."""
        return sorted({thread_group(tid) for tid in self.waiting})

    def status(self) -> MissStatus:
        """The miss section of the status."""
        return MissStatus(files_total=self.files, wait_s_total=self.wait_s, waiting=self.waiting.total())


@dataclass(slots=True)
class OpenDirectory:
    """An open directory. It shows a single generation, also when it is rewound."""

    id: int
    reader: Reader | None = None
    """The process that opened it, and to which it shows a generation of its choice; None below .growfs/."""
    generation: Generation | None = None
    """The generation that it shows; None before its first page, and if it shows virtual files."""
    holds_all: bool = False
    """Whether all of that is held because it is open: until it was listed to its end, or below .growfs/, is closed."""
    position: int = 0
    """The position of the last delivered entry."""
    pending: list[Entry] = field(default_factory=list)
    """The entries after `position` that were read from the database and not yet delivered."""
    files: int = 0
    """How many files were delivered."""
    scanned: int = 0
    """The position up to which the database was searched."""


class Vfs:
    """Owns the handles. Methods raise GrowfsError with the errno for the reader.

    fetch: given a node and its path, returns when the file is resident; raises GrowfsError. Without it, a miss fails at
    once. passes: the names of passes, with --exact.

    `name_invalidated` notifies of each name that the kernel has to look up again (directory id, name).
    """

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        generations: Generations,
        readers: Readers,
        usage: UsageCounters,
        misses: Misses,
        virtual: VirtualFolder,
        fetch: Callable[[Node, str], Awaitable[None]] | None,
        passes: Names | None = None,
    ) -> None:
        self.name_invalidated = Signal[[int, str]]()
        self._damaged: set[int] = set()
        self._catalog = catalog
        self._store = store
        self._generations = generations
        self._readers = readers
        self._usage = usage
        self._misses = misses
        self._virtual = virtual
        self.generation_names = GenerationNames(generations, readers)
        self._names: list[Names] = [self.generation_names, *filter(None, [passes])]
        self._own_names = {id: names for names in self._names for id in names.own}
        self._fetch = fetch
        self._directories: dict[int, OpenDirectory] = {}
        self._directory_handles = itertools.count(1)
        self._buffer = memoryview(bytearray(1 << 20))  # as much as the kernel's read-ahead requests at once
        self._started_ns = time.time_ns()

    # Names.

    def lookup(self, parent: int, name: bytes) -> Attributes:
        """The attributes of a name in a directory. Every name of the catalog is found, resident or not."""
        if len(name) > NAME_MAX:
            raise NameTooLong(f"the name is {len(name)} bytes long; at most {NAME_MAX} are allowed")
        try:
            return self._lookup(parent, name.decode())
        except UnicodeDecodeError:  # all names in the catalog are UTF-8
            raise NoSuchName(repr(name)) from None

    def _lookup(self, parent: int, name: str) -> Attributes:
        if parent == FOLDER_ID:
            for entry in self._in_folder():
                if entry.name == name:
                    return entry.attributes
        elif owner := self._own_names.get(node_of(parent)):
            return owner.lookup(parent, name)
        elif parent == ROOT and name == FOLDER_NAME:
            return self.attributes(FOLDER_ID)
        elif node := self._catalog.find(node_of(parent), name):
            if node.is_dir:
                return self._of(node)._replace(id=number_bits(parent) | node.id)
            return self._named(node)
        raise NoSuchName(name)

    def _named(self, node: Node) -> Attributes:
        """The attributes of a file's name."""
        return self._of(node)

    def attributes(self, id: int) -> Attributes:
        """The attributes of a node."""
        if names := self._own_names.get(node_of(id)):
            return names.attributes(id)
        if number_bits(id):
            return self.attributes(node_of(id))._replace(id=id)
        if id in (ROOT, FOLDER_ID):
            return self._attributes(id, True, 0, None, DIRECTORY_TIMEOUT_S)
        if self._virtual.get(id):
            return self._virtual.attributes(id)
        if node := self._catalog.node(id):
            return self._of(node)
        if opened := self._store.open_files.get(id):
            # It is gone once it is closed. With a timeout of 0, libfuse would ask before each read from the page cache.
            return self._attributes(id, False, opened.size, opened.mtime_ns, DIRECTORY_TIMEOUT_S)
        raise Stale(str(id))

    def _of(self, node: Node) -> Attributes:
        if node.is_dir:
            return self._attributes(node.id, True, 0, node.mtime_ns, DIRECTORY_TIMEOUT_S)
        # Not every listing has the size and the time; they become known with the content.
        timeout_s = 0.0 if node.seq is None and None in (node.size, node.mtime_ns) else FILE_TIMEOUT_S
        return self._attributes(node.id, False, node.size or 0, node.mtime_ns, timeout_s)

    def _attributes(self, id: int, is_dir: bool, size: int, mtime_ns: int | None, timeout_s: float) -> Attributes:
        """Attributes, with the time of the mount in place of an unknown one."""
        return Attributes(id, is_dir, size, self._started_ns if mtime_ns is None else mtime_ns, timeout_s)

    # Listings.

    def try_open_directory(self, id: int, tid: int) -> int | None:
        """A handle for a directory that a thread opens; None if `open_directory` has to wait for a generation."""
        if id == FOLDER_ID or node_of(id) in self._own_names:
            return self._new_directory(OpenDirectory(id))
        if number_bits(id):
            generation = self._names_of(id).generation(id)
            return self._open_named(id, generation, tid) if generation else None
        reader = self._readers.reader_of(tid)
        return None if self._readers.is_due(reader, id) else self._new_directory(OpenDirectory(id, reader))

    def _names_of(self, id: int) -> Names:
        """The names in whose trees a directory with such an id is."""
        return self._names[-1 if id & PASS_BIT else 0]

    def _open_named(self, id: int, generation: Generation, tid: int) -> int:
        self._readers.open_generation(generation, tid)
        return self._new_directory(OpenDirectory(id, generation=generation, holds_all=True))

    async def open_directory(self, id: int, tid: int) -> int:
        """As `try_open_directory`, but waits for the generation that its listing will show.

        The listing begins when the directory is first read: a program may open it for other reasons.
        """
        if number_bits(id):
            return self._open_named(id, await self._names_of(id).begin(id), tid)
        reader = self._readers.reader_of(tid)
        await self._readers.begin(reader, id)
        return self._new_directory(OpenDirectory(id, reader))

    def _new_directory(self, directory: OpenDirectory) -> int:
        handle = next(self._directory_handles)
        self._directories[handle] = directory
        return handle

    def try_scan(self, handle: int, position: int) -> bool:
        """Find the next entries of a directory after a position. The first call begins its listing, at any position:
        seekdir(3).

        Returns False if all rows that were read are delisted, and more follow; then call it again.
        """
        directory = self._directories[handle]
        if directory.generation is None:
            if directory.reader is None:
                return True
            directory.generation = self._readers.listing(directory.reader, directory.id)
            directory.holds_all = True
        if position != directory.position:
            directory.position = directory.scanned = position
        elif directory.pending:
            return True
        generation = directory.generation
        find = chosen_entries if generation.contents else visible_entries
        node, bits = node_of(directory.id), number_bits(directory.id)
        # 128 rows take 1 to 2 ms, during which no other request is answered.
        directory.pending, seqs, scanned = find(self._store, node, directory.scanned, generation, 128, self._started_ns)
        if directory.reader:
            directory.reader.is_shown(seqs, generation)
        directory.pending = self._shown(node, directory.pending)
        if bits:
            directory.pending = [
                entry._replace(id=bits | entry.id) if entry.is_dir else entry for entry in directory.pending
            ]
        directory.scanned = scanned or directory.scanned
        return scanned is None

    def _shown(self, directory: int, entries: list[Entry]) -> list[Entry]:
        """Entries of a directory as readers see them."""
        return entries

    async def scan(self, handle: int, position: int) -> None:
        """As `try_scan`, until entries are found, or none are left."""
        while not self.try_scan(handle, position):  # even at the end: the kernel holds a lock until it is answered
            await trio.lowlevel.cancel_shielded_checkpoint()

    def entries(self, handle: int, position: int) -> list[Entry]:
        """Some of the entries after a position that was scanned. An empty list is the end.

        The engine calls `mark_delivered` with the number of entries that it gave to the reader.
        """
        directory = self._directories[handle]
        if directory.generation:
            return directory.pending
        if names := self._own_names.get(node_of(directory.id)):
            return names.entries(directory.id, position)
        return self._in_folder(position)

    def _in_folder(self, position: int = 0) -> list[Entry]:
        """The entries of .growfs/, after a position."""
        named = [entry for names in self._names for entry in names.in_folder(position)]
        return named + self._virtual.entries(position)

    def mark_delivered(self, handle: int, count: int) -> list[Entry]:
        """Note that the first `count` of the last `entries` were given to the reader; returns them."""
        directory = self._directories[handle]
        given, directory.pending = directory.pending[:count], directory.pending[count:]
        if given:
            directory.position = directory.scanned = given[-1].position
            directory.files += sum(not entry.is_dir for entry in given)
        elif directory.reader and directory.generation and not directory.pending:
            directory.reader.job.is_shown(directory.id, directory.generation, directory.files)
            self._end_hold(directory)
        return given

    def forget_names(self, removed: Sequence[Removed]) -> None:
        """Make the kernel look up names that are gone, and listings under way read their next entries again."""
        parents = {gone.parent for gone in removed}
        for directory in self._directories.values():
            if node_of(directory.id) in parents:
                directory.pending = []
        all_bits = [0, *(bits for names in self._names for bits in names.all_bits())]
        for gone in removed:
            for bits in all_bits:
                self.name_invalidated.notify(bits | gone.parent, gone.name)

    def close_directory(self, handle: int) -> None:
        """Release a directory's handle."""
        self._end_hold(self._directories.pop(handle))

    def _end_hold(self, directory: OpenDirectory) -> None:
        if directory.holds_all and directory.generation:
            directory.holds_all = False
            self._readers.close_generation(directory.generation)

    # Files.

    def try_open(self, id: int, tid: int) -> int | None:
        """As `open`, for a resident file; None if it would have to wait.

        The caller then calls `count_open` before it answers any other request, but after the reply: the reader waits
        for the handle only.
        """
        if self._store.open(id) is None:
            return None
        try:
            return id | self._readers.opener(tid) << READER_SHIFT
        except BaseException:
            self._store.close_file(id)
            raise

    def count_open(self, handle: int, missed: bool = False) -> None:
        """Count an open of a cached file. missed: it had to be fetched first."""
        id = handle & NODE_MASK
        opened = self._store.open_files.get(id)
        self._usage.count_open(id, opened.size if opened else 0)
        self._readers.opened(handle >> READER_SHIFT, id, missed)

    def open_ahead(self, id: int) -> bool:
        """Open a listed file before a reader does; False if that would not help. This is not counted as an open."""
        return self._store.open_ahead(id)

    async def open(self, id: int, tid: int) -> int:
        """A handle for a file that a thread opens; the open is counted. Waits if the file has to be fetched first."""
        if virtual := self._virtual.get(id):
            return await self._virtual.open(virtual, partial(self._list_everything, tid))
        if names := self._own_names.get(node_of(id)):
            return await self._virtual.open(*names.file(id))
        missed = False
        while (handle := self.try_open(id, tid)) is None:
            node = self._catalog.node(id)
            if node is None:
                raise Stale(str(id))
            if node.seq is not None:
                await self._store.recheck(id)
                continue
            if self._fetch is None:
                raise NotHere(node.name)
            self._misses.files += not missed
            missed, waits_from = True, trio.current_time()
            self._misses.waiting[tid] += 1
            try:
                await self._fetch_missed(node, self._fetch)
            finally:
                self._misses.waiting -= Counter([tid])
                self._misses.wait_s += trio.current_time() - waits_from
        self.count_open(handle, missed)
        return handle

    def note_damaged(self, id: int) -> None:
        """Note that a file was evicted because its content was wrong."""
        self._damaged.add(id)

    def keeps_content(self, id: int) -> bool:
        """Whether the kernel may keep a file's pages for the next open: not if the file was damaged once.

        Dropping them once is not enough, because a reader that has the file open brings the old content back.
        """
        return id not in self._damaged

    async def _fetch_missed(self, node: Node, fetch: Callable[[Node, str], Awaitable[None]]) -> None:
        path = self._catalog.path(node)
        log.info("miss: %s", path)
        try:
            await fetch(node, path)
        except GrowfsError as error:
            log.warning("an open of %s failed: %s", path, error)
            if self._catalog.node(node.id) is None:
                raise Stale(path) from error
            raise

    async def _list_everything(self, tid: int) -> Generation:
        """Begin a listing of all directories for a thread; returns the generation that it sees."""
        reader = self._readers.reader_of(tid)
        await self._readers.begin(reader, EVERYWHERE)
        return self._readers.listing(reader, EVERYWHERE)

    def is_virtual(self, handle: int) -> bool:
        """Whether the content was rendered for this open, so that the kernel must not keep any page of it."""
        return self._virtual.has_handle(handle)

    def content(self, handle: int) -> tuple[int, int]:
        """(file descriptor of the content, its size in bytes)."""
        if self.is_virtual(handle):
            return self._virtual.content(handle)
        opened = self._store.open_files.get(handle & NODE_MASK)
        assert opened
        return opened.fd, opened.size

    def try_read(self, handle: int, offset: int, size: int) -> memoryview | None:
        """The content from offset on, of that size or up to the end; None if it has to be read from disk.

        Reads only from the page cache. The result is valid until the next call.
        """
        fd, end = self.content(handle)
        size = max(0, min(size, end - offset))
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        buffer = self._buffer[:size]
        try:
            if read_page_cache(fd, buffer, offset) == size:
                return buffer
        except OSError:  # EAGAIN: not in the page cache at all; EOPNOTSUPP: the file system cannot tell
            pass
        return None

    async def read(self, handle: int, offset: int, size: int) -> bytes:
        """As `try_read`, on a thread, so that a slow disk delays no other reader."""
        fd, end = self.content(handle)
        try:
            return await trio.to_thread.run_sync(os.pread, fd, max(0, min(size, end - offset)), offset)
        except OSError as error:
            log.error("the cache's disk cannot be read: %s", error)
            raise Unreadable(str(error)) from error

    def close(self, handle: int) -> None:
        """Close a file once."""
        if self.is_virtual(handle):
            self._virtual.close(handle)
        else:
            self._store.close_file(handle & NODE_MASK)
            self._readers.closed(handle >> READER_SHIFT)

    # Capacity.

    def capacity(self) -> Capacity:
        """How large the cache can become, and how much of that is free."""
        size = self._store.room.reachable_bytes
        return Capacity(size // BLOCK, max(0, size - self._store.room.used_bytes) // BLOCK)


def visible_entries(
    store: Store, parent: int, after_seq: int, generation: Generation, limit: int, mtime_ns: int
) -> tuple[list[Entry], Sequence[int], int | None]:
    """Entries of a directory that a generation shows, admitted after after_seq, in the order of admission.

    Reads at most `limit` rows; the second value has their admissions. If the generation shows none of them, the third
    value is the admission to continue after; otherwise it is None. mtime_ns: for files and directories without a time
    from the remote.
    """
    rows = store.entries(parent, after_seq, generation.last_seq, limit, mtime_ns)
    entries = [entry for entry in map(Entry._make, rows) if entry.position in generation.listed]
    return entries, [row[-1] for row in rows], rows[-1][-1] if len(rows) == limit and not entries else None


def chosen_entries(
    store: Store, parent: int, after: int, generation: Generation, limit: int, mtime_ns: int
) -> tuple[list[Entry], Sequence[int], int | None]:
    """As `visible_entries`, for a generation with contents of its own. Positions count the entries of the directory."""
    assert generation.contents
    seqs = generation.contents.folders.get(parent, ())[after : after + limit]
    rows = {row[-1]: row for row in store.entries_at(seqs, mtime_ns)}
    positions = enumerate(seqs, after + 1)
    entries = [Entry._make((*rows[seq][:-1], position)) for position, seq in positions if seq in rows]
    return entries, seqs, after + len(seqs) if len(seqs) == limit and not entries else None
