"""Keeps a folder filled: begins generations, gives each a tree, and ends those that no process is reading.

Readers open plain files, so the daemon sees neither listings nor opens. A program asks when its next epoch begins
(`growfs.next_generation`), and holds its generation with a lock on the tree. For programs that never ask, the folder
grows by itself.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import trio

from growfs import disk, trust
from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.schema import Query
from growfs.cache.store import Store
from growfs.cache.usage import UsageCounters
from growfs.errors import GrowfsError, Unreadable
from growfs.extensions.fill import trees
from growfs.extensions.fill.front_end import LINK, name_of
from growfs.extensions.fill.trees import Tree
from growfs.proc import users_of
from growfs.rotation.generations import Generations, Planner
from growfs.rotation.jobs import EPOCH_SHARE
from growfs.rotation.rules import Generation
from growfs.signal import Signal
from growfs.trust import OpenFolder
from growfs.vfs.attributes import GENERATIONS
from growfs.vfs.open_counter import OpenCounter

log = logging.getLogger(__name__)

PROGRESS_S = 1.0
"""How often a client that waits for a tree is told that it is being made."""


class FolderEngine:
    """Owns the folder, by a lock, and the trees.

    Invariant: files that a tree shows are held, and `store.mirrors` has every tree with links. `released` notifies when
    a generation has ended, so that its files may be evicted. Raises GrowfsError if the folder is filled from another
    cache, or if another user could put links there.
    """

    name = "folder"

    def __init__(
        self,
        folder: Path,
        database: Database,
        catalog: Catalog,
        store: Store,
        usage: UsageCounters,
        generations: Generations,
        has_passes: bool,
    ) -> None:
        """has_passes: generations are parts of passes."""
        self._top = trees.open_top(folder)
        self.folder = self._top.path  # the path in /proc of files open there
        trees.claim(self._top, store.folder)  # before changing anything there
        self.requests: Counter[str] = Counter()
        self.warning: str | None = None
        self.released = Signal[[]]()
        self._db = database
        self._catalog = catalog
        self._store = store
        self._usage = usage
        self._generations = generations
        self._has_passes = has_passes
        has_hard_links = trees.has_hard_links(self._top, self._store.folder)
        self._target: str | None = None
        self.reason = "plain files, hard links to the cached ones"
        if not has_hard_links:
            self._target = f"../../{LINK}/files"
            self.reason = (
                "symbolic links to the cached files, because hard links cannot be made here; opens are not counted"
            )
        self._counter = OpenCounter(self._count_open, sees_opens=has_hard_links)
        self._spare: Path | None = None
        self._is_ready = False
        self._wanted = dict[Planner, set[int]]()
        """What plans the generations that processes wait for, and which generations these processes leave."""
        self._last_error = ""
        self._retry_at = 0.0
        self._rounds = 0
        self._woken, self._finished = trio.Event(), trio.Event()
        self._trees_folder: OpenFolder | None = None
        """The folder of the trees, once there is one."""
        self._trees = list(self._take_over())
        numbers = [tree.number for tree in self._trees]  # the cache may have been emptied since
        generations.last_number = max(generations.last_number, *numbers, 0)

    def _take_over(self) -> Iterator[Tree]:
        """The trees of an earlier daemon: the newest ones, and those that are being read. The others are removed."""
        try:
            self._trees_folder = trees.open_trees(self._top)
        except FileNotFoundError:
            return
        current = trees.current_number(self._top)
        rows = self._db.rows("SELECT ino FROM resident WHERE suffix IS NOT NULL")
        inodes = BitMap64(ino % (1 << 64) for (ino,) in rows)
        for name in trees.existing(self._trees_folder):
            path = self._trees_folder.here / name
            number = int(name)
            is_kept = current - self._generations.keep < number <= current
            if not (is_kept or trees.is_locked(path) or self._is_open(path)):
                disk.remove_tree("GENERATION", path)
                continue
            trees.keep_inodes(self._trees_folder, name, inodes)
            # Its row may be gone. Then the files that a later generation showed are held, which is more.
            row = self._db.row("SELECT last_seq FROM generation WHERE number >= ? ORDER BY number", number)
            last_seq = row[0] if row else self._store.last_seq
            shown = "SELECT seq FROM resident WHERE seq <= ? AND (delisted IS NULL OR delisted > ?)"
            listed = BitMap64(seq for (seq,) in self._db.rows(shown, last_seq, number))
            self._store.mirrors.append(path)
            yield Tree(path, Generation(number, last_seq, listed=listed))

    # As an engine.

    def mount(self, _: object) -> None:
        """Create the contents of the folder."""
        trees.prepare(self._top, self._store.folder, has_passes=self._has_passes)
        self._trees_folder = self._trees_folder or trees.open_trees(self._top, makes=True)

    async def ready(self) -> None:
        """Begin the first generation of this daemon: training can start. Raises GrowfsError if it cannot be made."""
        self._is_ready = True
        before = self._rounds
        self._want(self._generations.planner)
        while self._rounds == before:
            await self._finished.wait()
        if not self._trees:
            raise GrowfsError(f"{self.folder}: its first generation cannot be made; see {self._store.folder}/log")

    async def serve(self) -> None:
        """Begin and end generations until cancelled, or until the folder has been moved or is another user's."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._counter.run)
            while self._is_in_place():
                # To check the locks of older generations, and whether the folder may grow by itself.
                with trio.move_on_after(0.25):
                    await self._woken.wait()
                await self._step()
            nursery.cancel_scope.cancel()

    def _is_in_place(self) -> bool:
        """Whether the folder is still at its path, and of this user. It may have been renamed."""
        try:
            trust.check_open(self._top.path, self._top.fd, trees.REMEDY, shared=True)
            if os.path.samestat(os.stat(self.folder), os.fstat(self._top.fd)):
                return True
        except GrowfsError as error:
            log.warning("growfs fill stops: %s", error)
            return False
        except OSError:
            pass
        log.warning("%s: the folder was moved or removed, so growfs fill stops; run it on the new path", self.folder)
        return False

    def unmount(self) -> None:
        """Leave the folder as it is."""
        self._counter.close()
        for folder in filter(None, (self._trees_folder, self._top)):
            os.close(folder.fd)

    def holds(self) -> BitMap64:
        """The admissions of the files in the trees."""
        return BitMap64().union(*(tree.generation.listed for tree in self._trees))

    # The command.

    async def next(self, after: int | None = 0, number: int | None = None, holds: bool = True) -> AsyncIterator[Any]:
        """Return the number and path of the next generation; it begins if there is something new.

        after, number, holds: see FrontEnd.next. A generation with a number begins even if there is nothing new.
        """
        after = self._generations.last_number + 1 if after is None else after
        begins, before = self._is_ready and self._is_due(after, number), self._rounds
        if begins:
            self._want(self._generations.planner, after)
        while (begins and self._rounds == before) or not self._trees:
            with trio.move_on_after(PROGRESS_S):
                await self._finished.wait()
            yield {"generation": self._generations.number}
        tree = next((tree for tree in self._trees if tree.number == number), self._trees[-1])
        if number not in (None, tree.number):
            raise GrowfsError(f"generation {number} has ended, or is not the one after the newest, {tree.number}")
        if holds:
            self._claim(tree)
        yield {"generation": tree.number, "path": str(self._shown(tree.path))}

    async def show(self, name: str, planner: Planner) -> Path:
        """The path of the generation with a name, which begins if it has to. planner: of this generation.

        The caller is about to lock it. Raises GrowfsError.
        """
        while (tree := next((tree for tree in self._trees if tree.name == name), None)) is None:
            await planner.wait()
            self._want(planner)
            with trio.move_on_after(PROGRESS_S):  # its files may be gone by then
                await self._finished.wait()
            if self._last_error:
                raise GrowfsError(f"{self.folder}: part {name} cannot be shown: {self._last_error}")
        self._generations.planner.use(tree.generation)
        self._claim(tree)
        return self._shown(tree.path)

    @staticmethod
    def _claim(tree: Tree) -> None:
        """Note that a process is about to lock a tree."""
        until = trio.current_time() + 0.5  # it has the path, and has not locked it yet
        tree.is_claimed, tree.unused_at = True, max(tree.unused_at, until)

    def has_open_folder(self, generation: Generation) -> bool:
        """Whether a process has announced that it reads a generation."""
        return any(tree.generation is generation and trees.is_locked(tree.path) for tree in self._trees)

    def _is_due(self, after: int, number: int | None) -> bool:
        """Whether a generation has to begin for a process that asks for the next one; otherwise it joins the current
        one.
        """
        current = self._generations.current
        if not self._trees or current is None:
            return True
        if number and not (current.is_shown_once and current.reading.is_over):
            return number == self._trees[-1].number + 1
        current.reading.is_read = self._was_read()
        return self._lacks_tree() or self._generations.is_due_after(after)

    def _lacks_tree(self) -> bool:
        """Whether the tree of the current generation could not be made: the disk was full."""
        return self._generations.number not in (0, self._trees[-1].number)

    # Generations.

    def _want(self, planner: Planner, leaves: int = 0) -> None:
        self._wanted.setdefault(planner, set()).add(leaves)
        self._woken.set()

    async def _step(self) -> None:
        """Begin a generation, if one is wanted or the folder grows by itself, and end what no process is reading."""
        self._woken = trio.Event()
        try:
            for tree in [tree for tree in self._trees if not tree.path.is_dir()]:
                log.warning("%s: another program has removed it", self._shown(tree.path))
                await self._db.run_in_writer(partial(self._store.mirrors.remove, tree.path))
                self._trees.remove(tree)
            if ready := [each for each in self._wanted if each.is_ready()]:  # meanwhile, trees end and make room
                try:
                    await self._begin(ready[0])
                finally:
                    del self._wanted[ready[0]]  # of others that have asked meanwhile, too
                    self._rounds += 1
                    self._finished.set()
                    self._finished = trio.Event()
            elif self._grows_by_itself():
                await self._begin(self._generations.planner)
            for tree in self._ended():
                await self._end(tree)
            self._last_error = ""
        except (OSError, Unreadable) as error:
            if str(error) != self._last_error:  # it is retried again and again
                log.warning("%s: a generation cannot be made or ended, so the last one is kept: %s", self.folder, error)
            self._last_error = str(error)
            self._retry_at = trio.current_time() + 5.0  # a process that asks for a generation need not wait for it

    def _grows_by_itself(self) -> bool:
        """Whether to begin a generation although no process has asked: for programs that never do.

        A full cache changes only after the current generation was read, so that readers miss nothing that it showed.
        """
        current = self._generations.current
        if not self._trees or current is None or current.is_shown_once:
            return False
        tree, now = self._trees[-1], trio.current_time()
        due = max(tree.generation.reading.began_at + self._generations.settle_s, self._retry_at)
        if now < due or trees.is_locked(tree.path):
            return False
        is_filling = self._store.room.short(self._generations.demand().largest) <= 0
        return (is_filling or self._was_read()) and (self._lacks_tree() or self._generations.has_news())

    def _was_read(self) -> bool:
        generation = self._generations.current
        assert generation
        return not self._counter.is_counting or self._trees[-1].opens >= EPOCH_SHARE * generation.files

    async def _begin(self, planner: Planner) -> None:
        """Begin a generation and show its tree."""
        if planner is not self._generations.planner or not (self._trees and self._lacks_tree()):
            before = self._generations.number
            if not self._counter.is_counting and before:
                await self._count_all()
            left = self._wanted.get(planner, ())
            kept = (
                tree.generation.listed for tree in self._trees if tree.number not in left and trees.is_locked(tree.path)
            )
            await self._generations.begin(BitMap64().union(*kept), self._usage.recently_opened(), planner)
            if self._generations.number == before:
                return
        generation = self._generations.current
        async with self._generations.unchanged() as is_written:  # the tree is made from the rows
            if generation is None or not is_written:
                return
        assert self._trees_folder
        if os.fstat(self._trees_folder.fd).st_nlink == 0:  # another program has removed it
            await self._db.run_in_writer(self._make_trees_folder)
        tree = Tree(self._trees_folder.here / name_of(generation.number), generation)
        await self._db.run_in_writer(partial(self._place, tree.path))
        try:
            await self._db.query_in_thread(partial(self._fill, tree, generation))
            trees.publish(self._top, tree.path.name)
            if tree.name:
                trees.publish_part(self._top, tree.name, tree.path.name)
        except (OSError, Unreadable):
            await self._db.run_in_writer(partial(self._discard, tree.path))
            raise
        generation.reading.began_at = trio.current_time()
        self._trees.append(tree)

    def _place(self, path: Path) -> None:
        """Make the tree of the next generation from that of the last one that has ended, if it is there.

        Runs on the writing thread, which unlinks evicted files in all trees and finds each tree by a single name.
        """
        if self._spare and self._spare.is_dir():
            disk.rename("GENERATION", self._spare, path)
            self._forget_spare()
        self._store.mirrors.append(path)

    def _make_trees_folder(self) -> None:
        assert self._trees_folder
        made = trees.open_trees(self._top, makes=True)
        os.close(self._trees_folder.fd)
        self._trees_folder = made
        if self._spare:
            self._forget_spare()

    def _forget_spare(self) -> None:
        """Note that the spare tree is gone; on the writing thread."""
        assert self._spare
        self._store.mirrors.remove(self._spare)
        self._spare = None

    def _discard(self, path: Path) -> None:
        self._store.mirrors.remove(path)
        disk.remove_tree("GENERATION", path)

    def _fill(self, tree: Tree, generation: Generation, ask: Query) -> None:
        assert self._trees_folder
        shown = trees.shown_files(generation, ask)
        files = self._store.folder / "files"
        folders = trees.make_alike(self._trees_folder, tree.path.name, shown, files, self._target)
        self._counter.watch(tree.number, folders)

    # The end of a generation.

    def _ended(self) -> list[Tree]:
        """The generations without an announced reader that are not kept: older ones, and a part that makes room."""
        now = trio.current_time()
        is_past = self._trees and self._trees[-1].name and self._trees[-1].generation.reading.is_over
        ending = self._trees if is_past else self._trees[:-1]
        in_use = {generation.name for generation in self._generations.planner.in_use()}
        return [
            tree
            for place, tree in enumerate(ending)
            if (tree.is_claimed or len(self._trees) - place > self._generations.keep)
            and now >= tree.unused_at
            and tree.name not in in_use
            and not trees.is_locked(tree.path)
        ]

    async def _end(self, tree: Tree) -> None:
        """End a generation, unless a process has a file open there."""
        if await trio.to_thread.run_sync(self._is_open, tree.path):
            tree.unused_at = trio.current_time() + 2.0  # to search all processes takes a while
            return
        if self._spare:
            await trio.to_thread.run_sync(disk.remove_tree, "GENERATION", self._spare)
            await self._db.run_in_writer(self._forget_spare)
        if await self._db.run_in_writer(partial(self._set_aside, tree)):
            self._trees.remove(tree)
            if self._trees and self._trees[-1].number < tree.number:
                trees.publish(self._top, self._trees[-1].path.name)
            if tree.name and not any(other.name == tree.name for other in self._trees):
                trees.withdraw_part(self._top, tree.name)
            self.released.notify()

    def _set_aside(self, tree: Tree) -> bool:
        """Make a tree the spare one, unless a process has locked it; on the writing thread, as `_place`."""
        lock = trees.locked_alone(tree.path)
        if lock is None:
            return False
        spare = tree.path.with_name(".spare")  # it is reused for the next generation, which only adds missing links
        disk.rename("GENERATION", tree.path, spare)
        os.close(lock)
        self._store.mirrors[self._store.mirrors.index(tree.path)] = self._spare = spare
        return True

    def _shown(self, tree: Path) -> Path:
        """The path of a tree for other processes."""
        return self.folder / GENERATIONS / tree.name

    def _is_open(self, tree: Path) -> bool:
        """Whether a process has a file or folder of a tree open or mapped, or as its working directory."""
        return any(True for _ in users_of(self._shown(tree)))

    # Opens.

    def _count_open(self, number: int, directory: int, name: str, _: int) -> None:
        node = self._catalog.find(directory, name)
        if node is None:
            return
        self._usage.count_open(node.id, node.size or 0)
        for tree in self._trees:
            tree.opens += tree.number == number

    async def _count_all(self) -> None:
        """Count an open of every file that the current generation shows."""
        generation = self._generations.current
        assert generation
        query = "SELECT id, seq FROM resident WHERE suffix IS NOT NULL AND seq <= ?"
        ids = await self._db.query_in_thread(
            lambda ask: BitMap64(id for id, seq in ask(query, generation.last_seq) if seq in generation.listed)
        )
        for place, id in enumerate(ids):
            self._usage.assume_open(id)
            if place % 1000 == 0:
                await trio.lowlevel.checkpoint()
