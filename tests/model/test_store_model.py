"""Catalog and store against a dict, over any sequence of listings, admissions, evictions, opens and restarts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from growfs import disk
from growfs.disk import BLOCK
from growfs.rotation.rules import Holds
from tests.unit.local_cache import LocalCache, file, open_local_cache

pytestmark = pytest.mark.promise(28, 29)

PATHS = ["a/1.x", "a/2.x", "a/3.x", "a/1.y", "b/1.x", "b/2.x", "a/c/1.x"]
LIMIT_BLOCKS = 9
T = TypeVar("T")


def content_of(path: str, version: int) -> bytes:
    """The remote's content of a file. Sizes differ between files, and contents between versions."""
    return f"{path}-{version};".encode() * (1 + 300 * (len(path) % 3 + version % 2))


class StoreMachine(RuleBasedStateMachine):
    """model: the remote's files, as versions by path. resident: those that are cached."""

    opened = Bundle("opened")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.model: dict[str, int] = {}
        self.resident: dict[str, int] = {}
        self.pinned: set[str] = set()
        self.open: Counter[int] = Counter()
        self.version = 0
        self.cache = self.run(self._open)
        self.list(dict.fromkeys(PATHS, "put"))

    async def _open(self) -> LocalCache:
        return open_local_cache(self.folder, LIMIT_BLOCKS * BLOCK)

    def run(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        return trio.run(function, *args)

    def id(self, path: str) -> int:
        return self.cache.node(path).id

    # Changes of the remote.

    @rule(changes=st.dictionaries(st.sampled_from(PATHS), st.sampled_from(["put", "delete"]), max_size=4))
    def list(self, changes: dict[str, str]) -> None:
        for path, change in changes.items():
            if change == "put":
                self.version += 1
                self.model[path] = self.version
            else:
                self.model.pop(path, None)
        listing = [file(path, len(content_of(path, v)), f"v{v}") for path, v in self.model.items()]
        self.run(self.cache.list, listing, 3)
        self.resident = {path: v for path, v in self.resident.items() if self.model.get(path) == v}
        self.pinned &= set(self.model)

    # Admission and eviction.

    @precondition(lambda self: self.model.keys() - self.resident)
    @rule(data=st.data(), evict=st.booleans())
    def admit(self, data: st.DataObject, evict: bool) -> None:
        path = data.draw(st.sampled_from(sorted(self.model.keys() - self.resident)))
        content = content_of(path, self.model[path])
        if evict:
            reserved = self.run(self.cache.reserve_by_eviction, len(content), Holds())
            self.resident = {path: self.model[path] for path in self.cache.resident()}
            if reserved is None:
                return
            self.cache.store.unreserve(reserved)
        if self.cache.store.used_bytes + disk.allocation(len(content)) > LIMIT_BLOCKS * BLOCK:
            assert self.cache.store.reserve(len(content)) is None
            return

        async def admit() -> None:
            await self.cache.admit(path, content=content)

        self.run(admit)
        self.resident[path] = self.model[path]

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        paths = data.draw(st.sets(st.sampled_from(sorted(self.resident)), min_size=1, max_size=2))
        self.run(self.cache.store.evict, [self.id(path) for path in paths])
        self.resident = {path: v for path, v in self.resident.items() if path not in paths}

    @rule(blocks=st.integers(1, LIMIT_BLOCKS))
    def reserve_by_eviction(self, blocks: int) -> None:
        """Open files, pinned files, and the last of each kind in a directory survive any eviction."""
        kinds = {(str(Path(path).parent), Path(path).suffix) for path in self.resident}
        kept = {path for path in self.resident if path in self.pinned or self.cache.store.opened(self.id(path))}
        self.run(self.cache.reserve_by_eviction, blocks * BLOCK, Holds())
        self.cache.store.unreserve(self.cache.store.reserved_bytes)
        left = self.cache.resident()
        assert kept <= left
        assert {(str(Path(path).parent), Path(path).suffix) for path in left} == kinds
        self.resident = {path: self.resident[path] for path in left}

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.resident)))
        id = self.id(path)
        self.cache.database.write_now(lambda writer: writer.execute("UPDATE node SET pinned = 1 WHERE id = ?", (id,)))
        self.pinned.add(path)

    @rule()
    def list_for_a_reader(self) -> None:
        """A new generation lists only resident files, all pinned ones, and one of each kind in each directory."""
        before = self.cache.resident()
        generation = self.run(self.cache.begin)
        listed = self.cache.listed()
        assert generation
        assert len(listed) == generation.files == self.cache.totals()[0]
        assert listed <= before == self.cache.resident()
        assert self.pinned & before <= listed
        kinds = {(str(Path(path).parent), Path(path).suffix) for path in before}
        assert {(str(Path(path).parent), Path(path).suffix) for path in listed} == kinds

    @rule(blocks=st.integers(1, LIMIT_BLOCKS))
    def rotate(self, blocks: int) -> None:
        """Only delisted files that are not open are evicted, none that the current generation lists."""
        delisted = "SELECT id FROM resident WHERE left_out IS NOT NULL"
        evictable = {path for (id,) in self.cache.database.rows(delisted) if (path := self.path(id))}
        self.run(self.cache.reserve_by_rotation, blocks * BLOCK, Holds())
        self.cache.store.unreserve(self.cache.store.reserved_bytes)
        left = self.cache.resident()
        gone = self.resident.keys() - left
        assert gone <= evictable
        assert not any(self.open[self.id(path)] for path in gone)
        self.resident = {path: self.resident[path] for path in left}

    def current(self) -> set[str]:
        """The listed files."""
        return self.cache.listed() if self.cache.generations.current else set()

    def path(self, id: int) -> str | None:
        node = self.cache.catalog.node(id)
        return self.cache.catalog.path(node) if node else None

    # Readers.

    @precondition(lambda self: self.resident)
    @rule(target=opened, data=st.data())
    def open_file(self, data: st.DataObject) -> tuple[int, int, str, int]:
        path = data.draw(st.sampled_from(sorted(self.resident)))
        node = self.cache.node(path)
        handle = self.cache.store.open(node.id)
        assert handle
        self.open[node.id] += 1
        return node.id, handle.fd, path, self.model[path]

    @rule(which=consumes(opened))
    def close_file(self, which: tuple[int, int, str, int]) -> None:
        id, fd, path, version = which
        if self.open[id]:
            assert os.pread(fd, 1 << 20, 0) == content_of(path, version)
            self.cache.store.close_file(id)
            self.open[id] -= 1

    # Restarts and crashes.

    @rule()
    def restart(self) -> None:
        self._close_all()
        self.cache.close()
        self.cache = self.run(self._open)

    @rule(durable=st.booleans())
    def crash(self, durable: bool) -> None:
        """An unclean stop, with a staged file and a file without a row."""
        if durable:
            self.run(self.cache.store.make_durable)
        self._close_all()
        (self.folder / "partial/draft").write_bytes(b"half")
        stray = self.folder / "files/a/stray"
        stray.parent.mkdir(exist_ok=True)
        stray.write_bytes(b"no row")
        self.cache.database.close()
        self.cache = self.run(self._open)
        assert list((self.folder / "partial").iterdir()) == []

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def crash_and_lose(self, data: st.DataObject) -> None:
        """An unclean stop after which a cached file was altered: that file is not resident any more."""
        path = data.draw(st.sampled_from(sorted(self.resident)))
        self._close_all()
        self.cache.database.close()
        cached = self.folder / "files" / path
        cached.write_bytes(cached.read_bytes()[::-1])
        self.cache = self.run(self._open)
        del self.resident[path]

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def lose_power(self, data: st.DataObject) -> None:
        """Only files that a syncfs covered are left."""
        durable = data.draw(st.booleans())
        if durable:
            self.run(self.cache.store.make_durable)
        else:
            self.cache.database.write_now(lambda writer: writer.execute("UPDATE resident SET durable = 0"))
            self.resident = {}
        self.cache.database.write_now(
            lambda writer: writer.execute("UPDATE meta SET value = 'other' WHERE key = 'boot_id'")
        )
        self._close_all()
        self.cache.database.close()
        self.cache = self.run(self._open)

    def _close_all(self) -> None:
        for id, count in self.open.items():
            for _ in range(count):
                self.cache.store.close_file(id)
        self.open.clear()
        assert self.cache.store.orphan_bytes == 0
        idle = (
            self.cache.store._open._idle
        )  # as if the process ended: a descriptor left open would look like a reader's
        while idle:
            os.close(idle.popitem()[1].fd)

    # Invariants.

    @invariant()
    def the_cache_stays_within_its_limit(self) -> None:
        if not hasattr(self, "cache"):
            return
        store = self.cache.store
        assert 0 <= store.used_bytes <= store.limit_bytes
        assert store.reserved_bytes == 0

    @invariant()
    def rows_files_and_model_agree(self) -> None:
        if not hasattr(self, "cache"):
            return
        assert self.cache.resident() == set(self.resident)
        assert self.cache.cached() == {path: content_of(path, v) for path, v in self.resident.items()}
        assert {file.path: file.version for file in self.cache.catalog_files()} == {
            p: f"v{v}" for p, v in self.model.items()
        }

    @invariant()
    def totals_are_sums(self) -> None:
        if not hasattr(self, "cache"):
            return
        store, catalog = self.cache.store, self.cache.catalog
        contents = [len(content_of(path, version)) for path, version in self.resident.items()]
        assert store.resident_files == len(contents)
        assert store.resident_content_bytes == sum(contents)
        assert store.resident_bytes == sum(disk.allocated(s) for _, s in disk.walk_files(self.folder / "files"))
        assert catalog.files == len(self.model)
        assert catalog.bytes == sum(len(content_of(path, version)) for path, version in self.model.items())
        folders = {path[:at] for path in self.model for at, letter in enumerate(path) if letter == "/"}
        assert catalog.directories == 1 + len(folders)

    @invariant()
    def directories_of_resident_files_are_resident(self) -> None:
        """So a walk from the root finds every resident file."""
        if not hasattr(self, "cache"):
            return
        for path in self.resident:
            folder = path.rpartition("/")[0]
            assert self.cache.node(folder).seq is not None
            assert self.cache.node(path).seq is not None

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self._close_all()
            self.cache.database.close()
            shutil.rmtree(self.folder)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=25, stateful_step_count=30)
