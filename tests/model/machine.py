"""A mount against a dictionary: any sequence of what readers, users and the remote do, and what must hold after each.

The machine knows no component of growfs. It sees listings, contents, errors, the files on the disk, and the status. Its
driver is `InProcess` or `Mounted`. What the machine expects comes from SEMANTICS.md alone.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from growfs import disk
from growfs.disk import BLOCK
from growfs.errors import GrowfsError
from growfs.remote.filter import PathFilter
from growfs.scheduler.admission import LATE_S

DIRECTORIES = ("", "a", "b", "a/c")
PATHS = [
    *(f"a/{number}.x" for number in range(5)),
    *(f"b/{number}.x" for number in range(4)),
    *(f"a/c/{number}.x" for number in range(3)),
    "a/1.y", "b/1.u", "b/2.u", "top.x",
]  # fmt: skip
LIMITS = (6, 9, 9, 14, 40)
"""Sizes of the cache, in blocks. The remote has some 20 to 30."""
SIZES = (1, 1, 1, 1, 1, 1, 2, 2, 3, 12)
"""Sizes of files, in blocks."""
FILTERS: tuple[dict[str, list[str]], ...] = ({}, {"exclude": ["b/"]}, {"exclude": ["1.*"]}, {"include": ["a/"]})
MEMORY = Path("/dev/shm")
"""A file system in memory, where a sync takes no time."""
SETTLE_S = 10_000.0
HOLD_IDLE_S = 100_000.0
MISS_TIMEOUT_S = 3.0
RETRIES_S = 100.0
"""What the daemon may wait until it looks again: after a file that failed, say."""

SAMPLES_MIN = 4
"""Files of a view in which one is less than half of those that are left."""
REQUEUED_MAX = 2
"""A file that nobody opened before was put behind those that were cached then, which so many generations show first."""

Identity = tuple[int, int]
"""Of a cached file: inode number and change time."""

figures: Counter[str] = Counter()
"""What all machines of this process did."""


def kind(path: str) -> tuple[str, str]:
    return os.path.dirname(path), os.path.splitext(path)[1]


class Seen(NamedTuple):
    """A file as it was listed."""

    identity: Identity
    version: int


@dataclass(eq=False)
class ReaderState:
    """What a process has seen and has open.

    holds: by directory, the files of its last listing there. files: descriptors, with path and content. maps: path,
    inode number and mapping.
    """

    process: Any
    holds: dict[str, dict[str, Seen]] = field(default_factory=dict)
    files: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    maps: list[tuple[str, int, Any]] = field(default_factory=list)


class Machine(RuleBasedStateMachine):
    """catalog: what the daemon knows of the remote: (version, blocks) by path. generation: of the last listing. shown:
    by generation and directory, what was listed. kinds: those that were listed, each with its cached files. limit: of
    the cache, in bytes."""

    driver: Any
    new_driver: Callable[[Path], Any]

    @initialize(limit=st.sampled_from(LIMITS), files=st.sets(st.sampled_from(PATHS), min_size=9), data=st.data())
    def begin(self, limit: int, files: set[str], data: st.DataObject) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="model", dir=MEMORY if MEMORY.exists() else None))
        self.driver = type(self).new_driver(self.folder)
        for path in sorted(files):
            self.driver.remote.put(path, data.draw(st.sampled_from(SIZES)))
        self.limit = limit * BLOCK
        self.filter: dict[str, list[str]] = {}
        self.readers: list[ReaderState] = []
        self.pinned: set[str] = set()
        self.ever_pinned: set[str] = set()
        self.evicted: set[str] = set()
        self.excess = False
        self.paused = False
        self.catalog: dict[str, tuple[int, int]] = {}
        self.kinds: dict[tuple[str, str], set[str]] = {}
        self.generation = 0
        self.shown: dict[int, dict[str, dict[str, Identity]]] = {}
        self._mount()

    # What the disk has.

    def cached(self) -> dict[str, Identity]:
        """The files that are cached, as the disk has them."""
        found = {}
        folder = self.driver.cache / "files"
        for path, stat in disk.walk_files(folder):
            found[str(path.relative_to(folder))] = (stat.st_ino, stat.st_ctime_ns)
        return found

    def _cached_version(self, path: str) -> int:
        """The version that a cached file is; 0 where it is none."""
        return int(self.driver.remote.version_of(path, (self.driver.cache / "files" / path).read_bytes()) or 0)

    def allocated(self, path: str) -> int:
        """What a cached file takes on the disk."""
        return disk.allocated((self.driver.cache / "files" / path).stat())

    def in_use(self) -> set[int]:
        """The inode numbers of the files that are open or mapped."""
        inodes = {reader.process.identity(fd)[0] for reader in self.readers for fd in reader.files}
        return inodes | {inode for reader in self.readers for _, inode, _ in reader.maps}

    def evictable(self, cached: dict[str, Identity]) -> int:
        """At least so many bytes may be evicted: what is not in use or pinned, but one of each kind."""
        used = self.in_use()
        sizes: dict[tuple[str, str], list[int]] = {}
        for path, (inode, _) in cached.items():
            if inode not in used and path not in self.pinned:
                sizes.setdefault(kind(path), []).append(self.allocated(path))
        return sum(sum(of_kind) - max(of_kind) for of_kind in sizes.values())

    def _room(self, cached: dict[str, Identity]) -> int:
        """At least so many bytes fit, if all goes that may."""
        return min(self.limit - self._used(), int(self.driver.free_bytes())) + self.evictable(cached)

    def matches(self, path: str) -> bool:
        """Whether --include and --exclude let a path in."""
        return PathFilter(**self.filter).matches(path)

    # Mounting and ending.

    def _mount(self) -> None:
        figures["mounts"] += 1
        before = set(self.catalog)
        self.driver.mount(
            cache_size=str(self.limit),
            min_free="0",
            settle=f"{SETTLE_S}s",
            hold_idle=f"{HOLD_IDLE_S}s",
            miss_timeout=f"{MISS_TIMEOUT_S}s",
            refresh="0",
            **self.filter,
        )
        if not self.driver.remote.hangs:
            self._remote_listed()
        else:
            self.catalog = {path: file for path, file in self.catalog.items() if self.matches(path)}
        self.shown, self.generation = {}, 0
        self.paused = False
        for path in before - set(self.catalog):
            self.kinds.pop(kind(path), None)

    def _end_readers(self) -> None:
        while self.readers:
            self._end(self.readers[-1])

    def _end(self, reader: ReaderState) -> None:
        for fd in list(reader.files):
            self._close(reader, fd)
        for _, _, mapping in reader.maps:
            mapping.close()
        self.readers.remove(reader)
        reader.process.end()

    @rule(filters=st.sampled_from(FILTERS), how=st.sampled_from(["clean", "crash", "power"]), hangs=st.booleans())
    def remount(self, filters: dict[str, list[str]], how: str, hangs: bool) -> None:
        """The daemon ends or dies, and the mount is made again, perhaps with other filters."""
        self._end_readers()
        hangs = hangs and bool(self.catalog)
        if how == "clean":
            self.driver.unmount()
        else:
            self.driver.crash()
            stray = self.driver.cache / "files/a/stray"
            stray.parent.mkdir(exist_ok=True)
            stray.write_bytes(b"no row")
        if how == "power":
            self.driver.lose_power()
            self.kinds = {}
        self.filter = filters
        if not any(self.matches(path) for path in self.driver.remote.files):
            self.driver.remote.put("a/0.x", 1)
        if not any(self.matches(path) for path in self.catalog):
            hangs = False  # there would be nothing to mount
        self.driver.remote.hangs = hangs
        self._mount()
        if hangs:
            self.visible_files_match_the_filter()
            self.driver.remote.hangs = False
            self.driver.settle(1)
            self._remote_listed()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            for reader in self.readers:
                for _, _, mapping in reader.maps:
                    mapping.close()
            self.driver.end()
            shutil.rmtree(self.folder)

    # The remote.

    def _remote_listed(self) -> None:
        now = {path: file for path, file in self.driver.remote.files.items() if self.matches(path)}
        if not now:
            return  # an empty listing changes nothing
        self.pinned &= set(now)
        self.catalog = now

    def _may_go(self, path: str) -> bool:
        """Whether the daemon may drop a cached file at any time, as it may learn of what has happened to it."""
        file = self.driver.remote.files.get(path)
        return file is None or file[1] * BLOCK > self.limit

    def _forgive_drops(self) -> None:
        """Expect nothing of files that may go, nor of their kinds, until they are listed again."""
        doubtful = {kind(path) for path in self.cached() if self._may_go(path)}
        doubtful |= {known for known, paths in self.kinds.items() if any(map(self._may_go, paths))}
        self.kinds = {known: paths for known, paths in self.kinds.items() if known not in doubtful}
        for reader in self.readers:
            for held in reader.holds.values():
                for path in list(filter(self._may_go, held)):
                    del held[path]

    @rule(path=st.sampled_from(PATHS), blocks=st.sampled_from(SIZES))
    def put(self, path: str, blocks: int) -> None:
        """The remote gets a file, or a new version of it. It is noticed with the next listing, or by a fetch."""
        self._put(path, blocks)

    def _put(self, path: str, blocks: int) -> None:
        self._forgive_drops()
        self.driver.remote.put(path, blocks)
        self._forgive_drops()

    @precondition(lambda self: len(self.driver.remote.files) > 1)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.driver.remote.delete(data.draw(st.sampled_from(sorted(self.driver.remote.files))))
        self._forgive_drops()

    @rule()
    def list_remote(self) -> None:
        """The daemon lists the remote, and takes over what changed."""
        figures["remote listings"] += 1
        self.driver.list_remote()
        self._remote_listed()
        self.driver.settle()

    @precondition(lambda self: self.driver.can_fail)
    @rule(pages=st.integers(0, 3))
    def list_remote_in_vain(self, pages: int) -> None:
        """A page of the listing is none: nothing is lost by that."""
        known = self.driver.names()
        self._forgive_drops()
        self.driver.remote.pages = pages
        self.driver.list_remote()
        self.driver.remote.pages = None
        lost = {path for path in known - self.driver.names() if not self._may_go(path)}
        assert not lost, f"{lost}: forgotten, because a listing failed"
        self.driver.settle(RETRIES_S)
        self.list_remote()

    # Readers.

    @precondition(lambda self: len(self.readers) < 4)
    @rule()
    def start(self) -> None:
        self._start()

    def _start(self) -> ReaderState:
        reader = ReaderState(self.driver.reader())
        self.readers.append(reader)
        return reader

    def _start_job(self) -> ReaderState:
        """Start a process whose job has listed nothing: after --settle, a twentieth of its view is an epoch."""
        if not self.driver.has_jobs:
            self._end_readers()
        return self._start()

    def _some_reader(self, data: st.DataObject) -> ReaderState:
        if not self.readers:
            return self._start()
        return self.readers[data.draw(st.integers(0, len(self.readers) - 1))]

    @precondition(lambda self: self.readers and len(self.readers) < 4)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """A process has a child."""
        parent = self._some_reader(data)
        child = ReaderState(parent.process.fork())
        self.readers.append(child)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def end_reader(self, data: st.DataObject) -> None:
        """A process ends, and what it had open is closed."""
        self._end(self._some_reader(data))
        self.driver.settle()

    @rule(data=st.data(), directory=st.sampled_from(DIRECTORIES))
    def list_directory(self, data: st.DataObject, directory: str) -> None:
        """A process lists a directory."""
        self._list(self._some_reader(data), directory)

    def _list(self, reader: ReaderState, directory: str) -> dict[str, int]:
        try:
            listing = reader.process.list(directory)
        except OSError as error:
            below = [path for path in self.catalog if path.startswith(f"{directory}/")]
            if error.errno != errno.ENOENT or not all(map(self._may_go, below)):
                raise
            return {}
        self._check_listing(reader, directory, listing)
        return dict(listing)

    def _check_listing(self, reader: ReaderState, directory: str, listing: dict[str, int]) -> None:
        figures["listings"] += 1
        self.generation = generation = reader.process.generation()
        cached = self.cached()
        figures["generations"] += generation not in self.shown
        listed: dict[str, Identity] = {}
        for path, size in listing.items():
            assert self.matches(path), f"{path} is listed, and excluded"
            assert path in cached, f"{path} is listed, and not cached"
            assert path in self.catalog, f"{path} is listed, and not on the remote"
            length = (self.driver.cache / "files" / path).stat().st_size
            assert length == size, f"{path}: a listing says {size} bytes, the file has {length}"
            assert self._cached_version(path), f"{path} is not whole"
            listed[path] = cached[path]
        shown = self.shown.setdefault(generation, {}).setdefault(directory, listed)
        for path, identity in shown.items():
            assert path in listed or cached.get(path) != identity, f"{path}: not in all listings of {generation}"
        assert listed.keys() <= shown.keys(), f"generation {generation} grew: {listed.keys() - shown.keys()}"
        self._forgive_drops()
        reader.holds[directory] = {path: Seen(listed[path], self._cached_version(path)) for path in listed}
        if not (self.driver.has_kept_last() and self.driver.keeps_last):
            self.kinds = {}
            # A folder that comes and goes may not be shown any more, and then its reader cannot list it again.
            for below in [held for held in reader.holds if held.startswith(f"{directory}/" if directory else "")]:
                if below != directory:
                    del reader.holds[below]
        if not self.driver.keeps_last or generation != self.driver.generation():
            return
        kinds = {kind(path) for path in listed}
        for known in self.kinds:
            assert known[0] != directory or known in kinds, f"{known} was listed, and has no file any more"
        for path in cached:  # what is not listed yet may stand for its kind in the next generation
            if kind(path) in kinds:
                self.kinds.setdefault(kind(path), set()).add(path)

    @rule(data=st.data(), path=st.sampled_from(PATHS), keep=st.sampled_from(["no", "open", "map"]))
    def open(self, data: st.DataObject, path: str, keep: str) -> None:
        """A process opens and reads a file, cached or not, and may keep it open or mapped."""
        self._open(self._some_reader(data), path, keep)

    def _open(self, reader: ReaderState, path: str, keep: str = "no") -> None:
        before = self.cached()
        room = self._room(before)
        try:
            fd = reader.process.open(path)
        except OSError as error:
            self._check_refusal(path, error, room)
            return
        self._check_open(reader, path, fd, before)
        if keep == "map":
            mapping = reader.process.map(fd)
            reader.maps.append((path, reader.process.identity(fd)[0], mapping))
        if keep != "open":
            self._close(reader, fd)

    def _check_open(self, reader: ReaderState, path: str, fd: int, before: dict[str, Identity]) -> None:
        figures["opens"] += 1
        self.evicted.discard(path)
        content = reader.process.read(fd)
        assert self.matches(path), f"{path} can be opened, and is excluded"
        version = self.driver.remote.version_of(path, content)
        assert version, f"{path}: what was read is no version of it"
        reader.files[fd] = (path, content)
        if path not in before:
            figures["misses"] += 1
            self._note_found(path)
            self._forgive_evictions()
            assert version == self.driver.remote.files[path][0], f"{path} was fetched, and is of an old version"

    def _check_refusal(self, path: str, error: OSError, room: int) -> None:
        figures[f"{errno.errorcode[error.errno or 0]}"] += 1
        # The daemon may know an old version only: of a file that was evicted while a newer one waited for room.
        sizes = self.driver.remote.versions.get(path, {}).values()
        is_stale = self.catalog.get(path) != self.driver.remote.files.get(path)
        if is_stale:  # a fetch may have found that, or not
            self.driver.list_remote()
            self._remote_listed()
        self._forgive_evictions()
        if error.errno in (errno.ENOENT, errno.ESTALE):
            assert is_stale or path not in self.catalog, f"{path}: {error}"
            return
        need = max(sizes) * BLOCK
        if error.errno == errno.EFBIG:
            assert need > self.limit, f"{path} has {need} bytes, the cache {self.limit}: {error}"
        elif error.errno == errno.ENOSPC:
            need = self._need(path)
            assert need > room, f"{path} has {need} bytes, and there is room for {room}: {error}"
        else:
            raise AssertionError(f"{path}: {error}")

    def _need(self, path: str) -> int:
        """The bytes that a file may need: of any of its versions, as the daemon may know an old one only."""
        size = max(self.driver.remote.versions[path].values()) * BLOCK
        # Where the size is not known, a quarter more than what was too little is tried.
        return disk.allocation(size * 5 // 4) if path.endswith(".u") else size

    def _note_found(self, path: str) -> None:
        """A fetch has found what the remote has of a file."""
        if path in self.driver.remote.files:
            self.catalog[path] = self.driver.remote.files[path]
        else:
            self.catalog.pop(path, None)

    def _forgive_evictions(self) -> None:
        """A miss, or a user, may have evicted what is held."""
        cached = self.cached()
        for reader in self.readers:
            for held in reader.holds.values():
                for path, seen in list(held.items()):
                    if cached.get(path) != seen.identity:
                        del held[path]

    @precondition(lambda self: any(reader.files for reader in self.readers))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        files = [(reader, fd) for reader in self.readers for fd in sorted(reader.files)]
        self._close(*files[data.draw(st.integers(0, len(files) - 1))])
        self.driver.settle()

    def _close(self, reader: ReaderState, fd: int) -> None:
        path, content = reader.files.pop(fd)
        assert reader.process.read(fd) == content, f"{path} has changed while it was open"
        reader.process.close(fd)

    # Patterns of training jobs.

    @precondition(lambda self: len(self.readers) < 4)
    @rule(epochs=st.integers(2, 9), opens_first=st.booleans(), alone=st.booleans(), data=st.data())
    def train(self, epochs: int, opens_first: bool, alone: bool, data: st.DataObject) -> None:
        """A job lists everything and reads it, again and again, perhaps alone."""
        if alone:
            self._end_readers()
        reader = self._start()
        if opens_first and self.catalog:
            self._open(reader, data.draw(st.sampled_from(sorted(self.catalog))))
            self.driver.settle()
        first: dict[tuple[str, Identity], int] = {}
        for _ in range(epochs):
            before = self._listed()
            listed = self._walk(reader)
            if alone:
                self._check_order(first, before)
            for path in listed:
                self._open(reader, path)
            self.driver.settle()

    def _listed(self) -> dict[str, Identity]:
        shown = self.shown.get(self.generation, {}).values()
        return {path: identity for files in shown for path, identity in files.items()}

    def _check_order(self, first: dict[tuple[str, Identity], int], before: dict[str, Identity]) -> None:
        """A job that is alone, and opens all it is shown: what was listed for longest is delisted first.

        first: the generation of this job that first showed each file. before: what its last generation listed. Not so
        for pinned files, and the last of a kind.
        """
        now = self._listed()
        for path, identity in now.items():
            first.setdefault((path, identity), self.generation)
        kinds = Counter(map(kind, now))
        same = {path for path, versions in self.driver.remote.versions.items() if len(versions) == 1}
        same &= self.driver.remote.files.keys()
        gone = [
            first[path, before[path]] for path in same & before.keys() - now.keys() if (path, before[path]) in first
        ]
        for path in same & now.keys() - self.pinned:
            since = first[path, now[path]]
            assert kinds[kind(path)] == 1 or since >= max(gone, default=0) - REQUEUED_MAX, (
                f"{path} is listed since generation {since}, and stays; one of generation {max(gone)} goes"
            )

    def _walk(self, reader: ReaderState) -> list[str]:
        return [path for directory in DIRECTORIES for path in self._list(reader, directory)]

    @precondition(lambda self: len(self.readers) < 4)
    @rule()
    def look_at_a_batch(self) -> None:
        """Keras lists, may read a few files, and lists again: it has to find the same."""
        reader = self._start_job()
        listed = sorted(self._moving(self._walk(reader)))
        generation = self.generation
        for path in listed[: (len(listed) - 1) // 2]:
            self._open(reader, path)
        self._walk(reader)
        assert self.generation == generation, "a look at a batch has begun a generation"

    @precondition(lambda self: len(self.readers) < 3 and self.driver.has_jobs)
    @rule()
    def a_rank_that_is_late(self) -> None:
        """It sees what its job sees, although another one has had an epoch meanwhile."""
        first, other = self._start(), self._start()
        self._walk(first)
        generation = self.generation
        late = ReaderState(first.process.fork())
        self.readers.append(late)
        for path in self._walk(other):
            self._open(other, path)
        self._walk(other)
        self._walk(late)
        assert self.generation == generation, "ranks see different generations"

    def _fork(self, parent: ReaderState) -> ReaderState:
        self.readers.append(ReaderState(parent.process.fork()))
        return self.readers[-1]

    def _moving(self, listed: Iterable[str]) -> set[str]:
        """The files of a listing that are not in every generation: none was pinned when this one began."""
        return set(listed) - self.ever_pinned

    @precondition(lambda self: len(self.readers) < 3)
    @rule(seed=st.integers(0, 1000), works=st.booleans())
    def list_at_each_sample(self, seed: int, works: bool) -> None:
        """A program, or a worker of it, lists before it opens each file: it sees one generation in an epoch."""
        program, other = self._start_job(), self._start()
        listed = self._walk(program)
        generation = self.generation
        reader = self._fork(program) if works and self.driver.has_jobs else program
        samples, chance = sorted(self._moving(listed)), random.Random(seed)
        if len(samples) < SAMPLES_MIN:
            return
        for path in chance.sample(samples, len(samples)):
            self._list(reader, os.path.dirname(path))
            assert self.generation == generation, "it lists in the middle of an epoch, and sees another generation"
            self._open(reader, path)
            if chance.random() < 0.5:
                self._open(other, path)
                self._walk(other)

    @precondition(lambda self: len(self.readers) < 2 and self.driver.has_jobs)
    @rule(epochs=st.integers(1, 3))
    def rank_0_lists(self, epochs: int) -> None:
        """What the others open counts for the job: it sees something new in each epoch."""
        launcher = self._start()
        ranks = [self._fork(launcher) for _ in range(2)]
        listed = self._walk(ranks[0])
        for _ in range(epochs):
            generation = self.generation
            if not self._moving(listed):
                return
            for path in listed:
                self._open(ranks[1], path)
            listed = self._walk(ranks[0])
            assert self.generation > generation or not self._moving(self.cached()), "the job sees nothing new"

    @precondition(lambda self: len(self.readers) < 3)
    @rule(data=st.data(), times=st.integers(1, 3))
    def monitor(self, data: st.DataObject, times: int) -> None:
        """A process lists everything again and again, and opens nothing."""
        reader = self._some_reader(data)
        for _ in range(times):
            self._walk(reader)
            self.driver.settle(SETTLE_S / 2)

    @precondition(lambda self: len(self.readers) < 3)
    @rule()
    def two_ranks(self) -> None:
        """The processes of a job list at the same time."""
        ranks = self._start(), self._start()
        for directory in DIRECTORIES:
            results = self.driver.together(*(rank.process.listing(directory) for rank in ranks))
            for rank, result in zip(ranks, results, strict=True):
                if not isinstance(result, BaseException):
                    self._check_listing(rank, directory, result)

    @precondition(lambda self: len(self.readers) < 4)
    @rule(data=st.data(), files=st.integers(1, 3), blocks=st.sampled_from([1, 2, 3]))
    def replace_what_is_held(self, data: st.DataObject, files: int, blocks: int) -> None:
        """A process has seen everything, and the remote gets new versions."""
        listed = self._walk(self._some_reader(data))
        for path in listed[:files]:
            self._put(path, blocks)
        self.list_remote()

    @precondition(lambda self: self.catalog)
    @rule(data=st.data(), alone=st.booleans())
    def list_while_opening(self, data: st.DataObject, alone: bool) -> None:
        """One process begins a listing while another one waits for a file."""
        if alone:
            self._end_readers()
        reader, other = self._some_reader(data), self._start()
        for path in list(self._walk(reader)):
            self._open(reader, path)
        directory = data.draw(st.sampled_from(DIRECTORIES))
        missing = sorted(set(self.catalog) - set(self.cached()))
        if not missing:
            return
        path = data.draw(st.sampled_from(missing))
        before = self.cached()
        room = self._room(before)
        listing, fd = self.driver.together(reader.process.listing(directory), other.process.opening(path))
        if isinstance(fd, OSError):
            self._check_refusal(path, fd, room)
        elif not isinstance(fd, int):
            raise fd
        else:
            self._check_open(other, path, fd, before)
            self._close(other, fd)
        self.shown = {}
        del listing
        self._walk(reader)

    # Users.

    @rule(path=st.sampled_from(PATHS))
    def evict(self, path: str) -> None:
        """A user evicts a file."""
        before, pinned = self.cached(), self.pinned & set(self.cached())
        self._command("evict", globs=[f"/{path}"])
        self.evicted |= set(before) - set(self.cached())
        self._forgive_evictions()
        self._check_kept(before, pinned)

    def _command(self, name: str, **arguments: Any) -> bool:
        try:
            self.driver.command(name, **arguments)
        except GrowfsError:
            return False
        return True

    def _check_kept(self, before: dict[str, Identity], pinned: set[str]) -> None:
        cached = self.cached()
        used = self.in_use()
        for path, (inode, _) in before.items():
            assert path in cached or inode not in used, f"{path} was evicted while it was open"
        assert pinned <= set(cached), f"{pinned - set(cached)}: evicted, and pinned"
        lost = {kind(path) for path in before} - {kind(path) for path in cached}
        assert not (lost and self.driver.keeps_last), f"the last file of {lost} was evicted"

    @precondition(lambda self: self.catalog)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        """A user pins a file."""
        path = data.draw(st.sampled_from(sorted(self.catalog)))
        before = self.cached()
        if self._command("pin", globs=[f"/{path}"]):
            self._pinned(path, before)

    def _pinned(self, path: str, before: dict[str, Identity]) -> None:
        self.pinned.add(path)
        self.ever_pinned.add(path)
        self._forgive_evictions()
        if path not in before:
            self._note_found(path)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        """A user lets it go."""
        path = data.draw(st.sampled_from(sorted(self.pinned)))
        if self._command("unpin", globs=[f"/{path}"]):
            self.pinned.discard(path)

    @rule(limit=st.sampled_from(LIMITS))
    def resize(self, limit: int) -> None:
        """The cache gets another size, even if not all that is too much can go."""
        before, pinned = self.cached(), self.pinned & set(self.cached())
        self._forgive_drops()
        self._command("set", options={"cache_size": str(limit * BLOCK)})
        self.limit = limit * BLOCK
        self._forgive_drops()
        self.excess = True
        self._forgive_evictions()
        self._check_kept(before, pinned)
        self.driver.settle()

    @precondition(lambda self: len(self.readers) < 4)
    @rule(limit=st.sampled_from(LIMITS))
    def resize_while_open(self, limit: int) -> None:
        """The cache gets another size while a process has all that it was shown open, which it then closes."""
        reader = self._start()
        for path in self._walk(reader):
            self._open(reader, path, "open")
        self.resize(limit)
        self._end(reader)
        self.driver.settle()

    @precondition(lambda self: len(self.readers) < 4 and self.driver.can_fail)
    @rule(blocks=st.integers(0, 3), epochs=st.integers(1, 3))
    def others_fill_the_disk(self, blocks: int, epochs: int) -> None:
        """Other programs leave a few blocks of the disk free, for some epochs: all that is listed can be read."""
        reader = self._start()
        self.driver.leave_free(blocks * BLOCK)
        for _ in range(epochs):
            for path in self._walk(reader):
                self._open(reader, path)
            self.driver.settle()
        self.driver.leave_free(None)
        self.driver.settle(RETRIES_S)

    @rule()
    def pause(self) -> None:
        """A user stops the filling, or lets it go on."""
        self.paused = not self.paused
        self._command("pause" if self.paused else "resume")

    @rule()
    def release(self) -> None:
        """A user ends all holds."""
        self._command("release")
        for reader in self.readers:
            reader.holds.clear()

    @rule(seconds=st.sampled_from([SETTLE_S + 1, HOLD_IDLE_S + 10]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        if seconds > HOLD_IDLE_S:
            for reader in self.readers:
                if not reader.files:
                    reader.holds.clear()
        self.driver.settle(seconds)

    # Invariants.

    def _used(self) -> int:
        cache = self.driver.cache_figures()
        return int(cache["bytes"] + cache["orphan_bytes"] + cache["in_flight_bytes"])

    @invariant()
    def the_daemon_counts_what_the_disk_has(self) -> None:
        figures["steps"] += 1
        if self.driver.cache_figures()["in_flight_bytes"]:
            self.driver.settle(LATE_S)  # a file that has outgrown its estimate waits for room for so long
        cached = self.cached()
        cache = self.driver.cache_figures()
        assert cache["in_flight_bytes"] == 0, "something is in flight for ever"
        assert cache["files"] == len(cached)
        assert cache["bytes"] == sum(self.allocated(path) for path in cached)
        orphans = {
            inode: disk.allocation(len(content))
            for reader in self.readers
            for fd, (_, content) in reader.files.items()
            for inode, links in [reader.process.identity(fd)]
            if not links
        }
        mapped = {inode for reader in self.readers for _, inode, _ in reader.maps}
        if not mapped:
            assert cache["orphan_bytes"] == sum(orphans.values())

    @invariant()
    def the_cache_is_within_its_limit(self) -> None:
        """Unless it was lowered, and nothing more can go."""
        used = self._used()
        if used > self.limit:
            self.driver.settle(5)
            used = self._used()
        if used > self.limit:
            cached = self.cached()
            assert self.evictable(cached) == 0, (
                f"{used} of {self.limit} bytes are used, and more could go: of {sorted(cached)}, all but"
                f" {sorted(self.pinned)}, which are pinned"
            )

    @invariant()
    def cached_files_are_whole(self) -> None:
        if set(self.cached()) - set(self.catalog):
            self.list_remote()  # what is replaced while it is deleted is found by the next listing
        for path in self.cached():
            assert path in self.catalog, f"{path} is cached, and not on the remote"
            assert self._cached_version(path), f"{path} is cached, and not whole"

    @invariant()
    def what_is_held_is_there(self) -> None:
        """Unless the cache was made smaller: what exceeds that goes as soon as it can."""
        if self.excess:
            self._forgive_evictions()
        self.excess = self._used() > self.limit
        self._forgive_drops()
        cached = self.cached()
        for reader in self.readers:
            for held in reader.holds.values():
                for path, seen in held.items():
                    now = cached.get(path)
                    is_replaced = now and self._cached_version(path) > seen.version
                    assert now == seen.identity or is_replaced, f"{path}: evicted, and held"

    @invariant()
    def open_files_do_not_change(self) -> None:
        for reader in self.readers:
            for fd, (path, content) in reader.files.items():
                assert reader.process.read(fd) == content, f"{path} has changed while it was open"

    @invariant()
    def visible_files_match_the_filter(self) -> None:
        for path in self.driver.names():
            assert self.matches(path), f"{path} can be opened, and is excluded"

    @invariant()
    def everything_comes_if_there_is_room(self) -> None:
        """A file that is missing, or old, comes as long as there is room for all of them."""
        if self.paused:
            return
        for _ in range(6):
            missing = {path for path in self.catalog if not self._is_current(path)}
            # The daemon may wait for the room of a file that is smaller by now, or gone: nothing overtakes it.
            sizes = [self._need(path) for path in missing]
            missing.intersection_update(self._current())
            if not missing or self._used() + sum(sizes) > self.limit:
                return
            self.driver.settle(RETRIES_S)
            self.list_remote()  # what changes while it is fetched is found by the next listing
        raise AssertionError(f"{sorted(missing)} do not come, and there is room")

    def _current(self) -> Iterable[str]:
        remote = self.driver.remote.files
        return [path for path, file in self.catalog.items() if remote.get(path) == file and path not in self.evicted]

    def _is_current(self, path: str) -> bool:
        version, _ = self.driver.remote.files.get(path, (None, 0))
        return path in self.cached() and bool(self._cached_version(path) == version)
