"""The view of a mount whose cached files are symbolic links to themselves in the cache."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from growfs.errors import Stale
from growfs.vfs.attributes import FILE_TIMEOUT_S, LINK_BIT, Attributes, Entry
from growfs.vfs.file_events import UNKNOWN
from growfs.vfs.filesystem import Vfs
from growfs.vfs.generation_names import number_bits

if TYPE_CHECKING:
    from growfs.cache.catalog import Node

OWN_OPEN_S = 1.0
"""Opens of a file by unknown processes this soon after the daemon has opened it are the daemon's own."""


class Link(NamedTuple):
    """A symbolic link to a cached file. directory: the id of the directory that lists it.

    is_current: whether the target is the file that was cached; others may have changed it.
    """

    directory: int
    target: str
    is_current: bool


class LinkedVfs(Vfs):
    """Owns the links that are not given out. Readers open the files without it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._without_links: Counter[int] = Counter()
        self._own_opens: dict[int, float] = {}
        """When the daemon last opened a file, by node id; the earliest first."""
        self._store.evicted.connect(self.forget_names)
        self._store.open_files.descriptor_opened.connect(self._note_own_open)

    def evict_within(self, block: Callable[[Sequence[int]], AbstractAsyncContextManager[None]]) -> None:
        """Have cached files, given by their ids, removed only within such a block."""
        self._store.keep_readers_away = block

    def _named(self, node: Node) -> Attributes:
        """The attributes of a file's name: a link's if the cached file is there, else to be looked up again."""
        if node.id not in self._without_links and self.is_unchanged(node):
            return self._link_attributes(node)
        return self._of(node)._replace(timeout_s=0.0)

    @contextmanager
    def without_links(self, ids: Sequence[int]) -> Iterator[None]:
        """Give out no links to these cached files within the block: their names are those of files."""
        self._without_links.update(ids)
        try:
            yield
        finally:
            self._without_links -= Counter(ids)

    def attributes(self, id: int) -> Attributes:
        """The attributes of a node."""
        if number_bits(id) or id in self._own_names or not id & LINK_BIT:  # `current` has that bit, too
            return super().attributes(id)
        node = self._catalog.node(id & ~LINK_BIT)
        if node is None or node.seq is None:  # it is no longer cached, so its name is not a link
            raise Stale(str(id))
        return self._link_attributes(node)

    def _link_attributes(self, node: Node) -> Attributes:
        length = len(os.fsencode(self._store.path_of(node.parent, node.name)))
        return self._attributes(node.id | LINK_BIT, False, length, node.mtime_ns, FILE_TIMEOUT_S)

    def link(self, id: int) -> Link:
        """The link to a cached file. Raises Stale if its name is not a link: it is not cached, or not for long."""
        node = id & ~LINK_BIT
        if node in self._without_links or (file := self._store.resident(node)) is None:
            raise Stale(str(id))
        return Link(file.parent, file.path, file.is_unchanged())

    async def settled_link(self, id: int) -> Link:
        """The same, after growfs has replaced the file. Raises Stale if others have changed it."""
        await self._store.settled()
        if not (link := self.link(id)).is_current:
            raise Stale(str(id))
        return link

    def is_unchanged(self, file: Node) -> bool:
        """Whether a file is cached, and nobody has changed it since."""
        resident = None if file.seq is None else self._store.resident(file.id)
        return resident is not None and resident.is_unchanged()

    def _shown(self, directory: int, entries: list[Entry]) -> list[Entry]:
        length = len(os.fsencode(self._store.path_of(directory, "")))
        return [
            entry if entry.is_dir else entry._replace(id=entry.id | LINK_BIT, size=length + len(entry.name.encode()))
            for entry in entries
        ]

    def find(self, directory: int, name: str) -> Node | None:
        """The file with that name in a directory."""
        return self._catalog.find(directory, name)

    def _note_own_open(self, id: int) -> None:
        now = trio.current_time()
        self._own_opens.pop(id, None)
        self._own_opens[id] = now
        while now - self._own_opens[first := next(iter(self._own_opens))] >= OWN_OPEN_S:
            del self._own_opens[first]

    def count_link_open(self, _: int, directory: int, name: str, pid: int) -> None:
        """Count an open of a cached file through its link, unless the daemon or its processes have opened it.

        pid: the process, or UNKNOWN.
        """
        if pid != os.getpid() and (file := self.find(directory, name)):
            is_own = pid == UNKNOWN and trio.current_time() - self._own_opens.get(file.id, -math.inf) < OWN_OPEN_S
            if not is_own and self._readers.opened_by(pid, file.id):
                self._usage.count_open(file.id, file.size or 0)

    def count_all(self) -> None:
        """From now on, assume that all listed files are opened: opens through links cannot be seen."""
        self._generations.counts_all = True

    async def recheck(self, id: int) -> None:
        """Verify a cached file that may have been changed; evict it if it was."""
        await self._store.verify(id)

    def note_stray(self, directory: int, name: str) -> None:
        """Note that others may have put a file beside the cached ones."""
        self._store.note_stray(directory, name)

    async def _fetch_missed(self, node: Node, fetch: Callable[[Node, str], Awaitable[None]]) -> None:
        await super()._fetch_missed(node, fetch)
        self.name_invalidated.notify(node.parent, node.name)  # its name is a link from now on
