"""`ArchiveRemote`: the members of archives as files. Each member is a range of bytes of a file of another remote.

A listing reads each archive with an index function and stores the result (member_index.py), so all names are known
before a member is fetched. The version of a member gives the position of its bytes, so fetching it takes one request.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from posixpath import splitext
from typing import Any
from urllib.parse import quote, unquote

from growfs.errors import RemoteBusy, RemoteChanged, RemoteError, RemoteMissing
from growfs.extensions.members.member_index import IndexCache, UnreadableArchive
from growfs.producers.archives import Member
from growfs.remote.file import open_seekable
from growfs.remote.interface import ByteRange, FetchTask, Page, Remote, RemoteFile, RemoteStream, Skipped
from growfs.remote.names import reason_to_skip
from growfs.remote.retries import TRIES_MAX
from growfs.remote.user_functions import Function

PAGE_FILES_MAX = 5000
BUSY_MAX = TRIES_MAX - 1
"""How often a busy store may keep an archive from being read, in a row; after that, the listing goes on without it if
the store answers otherwise. The listing itself is tried TRIES_MAX times."""
KEEPALIVE_S = 10.0
"""An empty page is yielded this often while archives arrive: a listing without pages waits for its server."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemberLocation:
    """The bytes of a member: a range of one version of an archive. As text it is the member's version."""

    byte_range: ByteRange
    archive: str
    archive_version: str

    @classmethod
    def parse(cls, version: str) -> MemberLocation:
        """The location in a member's version."""
        offset, size, path, archive_version = version.split(" ", 3)
        return cls(ByteRange(int(offset), int(size)), unquote(path, errors="surrogateescape"), archive_version)

    def __str__(self) -> str:
        path = quote(self.archive, errors="surrogateescape")
        return f"{self.byte_range.offset} {self.byte_range.size} {path} {self.archive_version}"


class ArchiveRemote:
    """Lists the members of every file of a remote. If a name appears twice, the catalog takes the first.

    A cursor holds the remote's cursor after the current page, the remaining archives of that page, and how many members
    of the first of them were listed.
    """

    def __init__(self, remote: Remote, function: Function, cache: Path) -> None:
        """function: finds the members of an archive. cache: the cache folder; indexes are kept in it."""
        self._remote = remote
        self._function = function
        self._cache = cache
        self._indexes_used: set[str] | None = None  # by a listing from its start
        self._listed: set[str] = set()  # paths of archives whose members are known
        self._still_there: dict[str, bool] = {}  # archives that were asked for by name
        self._under_way: dict[RemoteFile, Future[tuple[RemoteFile, Path]]] = {}
        self._busy: Counter[str] = Counter()  # by the path of an archive, see BUSY_MAX
        self._arrived_at = -math.inf  # when bytes of an archive last arrived
        self._stat_lock = threading.Lock()
        self._import_lock = threading.Lock()

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        if cursor is None:
            self._indexes_used = set()
            self._listed, self._still_there = set(), {}
        after, left, done = cursor or (None, (), 0)
        pool = ThreadPoolExecutor(8, "members")
        try:
            yield from self._member_pages(pool, after, left, done)
            for page in self._remote.pages(after):
                if page.skipped:
                    yield Page([], page.skipped, (page.cursor, tuple(page.files), 0))
                yield from self._member_pages(pool, page.cursor, page.files, 0)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        if self._indexes_used is not None:
            self._indexes.keep_only(self._indexes_used)

    def stat(self, path: str, version: str = "") -> RemoteFile:
        if not version:
            raise RemoteError(f"{path}: is a member of an unknown archive; list again")
        with self._stat_lock:  # otherwise every member being fetched would reread the whole archive
            archive, index = self._index(RemoteFile(MemberLocation.parse(version).archive, None, None, ""))
        try:
            for member in self._indexes.read(index):
                if path_of(archive.path, member.name) == path:
                    return _file(archive, member)
        except UnreadableArchive as reason:
            raise RemoteMissing(f"{path}: its archive, {archive.path}, is {reason}") from None
        raise RemoteMissing(f"{path}: its archive, {archive.path}, no longer contains it")

    def still_has(self, file: RemoteFile) -> bool:
        """Whether the remote has an archive of the member, but has not listed it. Each archive is asked for once."""
        archive = MemberLocation.parse(file.version).archive
        if archive in self._listed:
            return False  # it has no such member any more
        with self._stat_lock:
            if archive not in self._still_there:
                self._still_there[archive] = self._remote.still_has(RemoteFile(archive, None, None, ""))
            return self._still_there[archive]

    def fetch(self, task: FetchTask) -> RemoteFile:
        file, wanted = task.file, task.byte_range
        location = MemberLocation.parse(file.version)
        whole = location.byte_range
        if not whole.size:
            open(task.target, "wb").close()
            return file
        archive = RemoteFile(location.archive, None, None, location.archive_version)
        byte_range = ByteRange(whole.offset + wanted.offset, wanted.size) if wanted else whole
        now = self._remote.fetch(task._replace(file=archive, byte_range=byte_range))
        return RemoteFile(file.path, whole.size, now.mtime_ns, file.version)

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        raise RemoteError(f"{file.path}: is a member of an archive, and can only be fetched")

    def _member_pages(self, pool: Executor, after: Any, archives: Sequence[RemoteFile], done: int) -> Iterator[Page]:
        """Pages of the members of archives, without the first `done` members of the first archive."""
        to_read = iter(archives)
        ahead: deque[Future[tuple[RemoteFile, Path]]] = deque()
        for number, archive in enumerate(archives):
            # At most 16 are read ahead.
            ahead.extend(self._submit(pool, each) for each in islice(to_read, 16 - len(ahead)))
            left = tuple(archives[number:])
            self._listed.add(archive.path)
            while wait([ahead[0]], KEEPALIVE_S).not_done:
                if time.monotonic() - self._arrived_at < KEEPALIVE_S:
                    yield Page([], [], (after, left, done))
            self._under_way.pop(archive, None)
            try:
                now, index = ahead.popleft().result()
                if self._indexes_used is not None:
                    self._indexes_used.add(index.name)
                members = self._indexes.read(index, done)
                while batch := list(islice(members, PAGE_FILES_MAX)):
                    done += len(batch)
                    yield _page(now, batch, (after, left, done))
            except UnreadableArchive as reason:
                log.warning("%s: %s", archive.path, reason)
                yield Page([], [Skipped(str(reason), archive.path, unread=True)], (after, left[1:], 0))
            except RemoteError as error:
                if isinstance(error, RemoteBusy) and (self._busy[archive.path] < BUSY_MAX or not self._answers()):
                    raise
                log.warning("%s: its members cannot be found: %s", archive.path, error)
                skipped = Skipped(f"not readable ({type(error).__name__})", archive.path, unread=True)
                yield Page([], [skipped], (after, left[1:], 0))
            done = 0

    def _submit(self, pool: Executor, archive: RemoteFile) -> Future[tuple[RemoteFile, Path]]:
        """Submit the archive for indexing, unless a failed listing has left that under way."""
        future = self._under_way.get(archive)
        if future is None or future.done():
            future = self._under_way[archive] = pool.submit(self._index, archive)
        return future

    def _answers(self) -> bool:
        """Whether the store lists its files. If not, what has failed so far says nothing about an archive."""
        try:
            next(self._remote.pages(), None)
        except RemoteError:
            self._busy.clear()
            return False
        return True

    def _index(self, archive: RemoteFile) -> tuple[RemoteFile, Path]:
        """The archive in its current state, and its index, which is written if it does not exist yet."""
        try:
            found = self._index_once(archive)
        except RemoteBusy:
            self._busy[archive.path] += 1
            raise
        self._busy.pop(archive.path, None)
        return found

    def _index_once(self, archive: RemoteFile) -> tuple[RemoteFile, Path]:
        for _ in range(3):  # it may change while it is read
            if not archive.version or archive.size is None:
                archive = self._remote.stat(archive.path)
            index = self._indexes.path(archive.path, archive.version)
            try:
                if not archive.version or not index.exists():
                    self._indexes.write(index, self._find_members(archive))
                return archive, index
            except RemoteChanged:
                archive = self._remote.stat(archive.path)
        raise RemoteBusy(f"{archive.path}: keeps changing while it is read; list again later")

    def _find_members(self, archive: RemoteFile) -> Iterator[Member]:
        """The results of the index function. Raises UnreadableArchive if it fails, and RemoteErrors if reading does."""
        function = self._load()
        with open_seekable(self._remote, archive, self._note_arrival) as source:
            try:
                for member in map(_checked, function(source)):
                    if archive.size is not None and member.offset + member.size > archive.size:
                        raise ValueError(f"{member.name} extends past the end of the file")
                    yield member
            except Exception as error:  # noqa: BLE001 - any error of the user's function, or from a broken archive
                if not source.raw.error:
                    detail = " ".join(str(error).split()) or type(error).__name__
                    raise UnreadableArchive(f"not readable by {self._function}: {detail[:160]}") from None
            if source.raw.error:  # the function may have caught it
                raise source.raw.error from None
        if self._remote.stat(archive.path).version != archive.version:
            raise RemoteChanged(f"{archive.path}: changed while it was read")

    def _note_arrival(self) -> None:
        self._arrived_at = time.monotonic()

    def _load(self) -> Callable[..., Any]:
        """The index function. Several threads may ask for it, and its module is executed once."""
        with self._import_lock:
            return self._loaded_function

    @cached_property
    def _loaded_function(self) -> Callable[..., Any]:
        return self._function.load()

    @cached_property
    def _indexes(self) -> IndexCache:
        code = "" if self._function.is_growfs_own else code_of(self._load())
        return IndexCache(self._cache, f"{self._function} {code}")


def code_of(function: Callable[..., Any]) -> str:
    """The hash of the function's file, which changes with the function; empty if it is not in a Python file."""
    try:
        return hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()
    except (TypeError, OSError):
        return ""


def path_of(archive: str, name: str) -> str:
    """The path of a member: in a folder named like its archive, or from the root if the name begins with '/'."""
    if name.startswith("/"):
        return name[1:]
    return f"{splitext(archive)[0]}/{name}"


def _file(archive: RemoteFile, member: Member) -> RemoteFile:
    location = MemberLocation(ByteRange(member.offset, member.size), archive.path, archive.version)
    return RemoteFile(path_of(archive.path, member.name), member.size, archive.mtime_ns, str(location))


def _page(archive: RemoteFile, members: Iterable[Member], cursor: Any) -> Page:
    page = Page([], [], cursor)
    for member in members:
        file = _file(archive, member)
        if reason := reason_to_skip(file.path, file.size) if file.path else "empty path component":
            page.skipped.append(Skipped(reason, file.path or f"{archive.path}: {member.name}"))
        else:
            page.files.append(file)
    return page


def _checked(entry: Any) -> Member:
    """A result of an index function, as a Member. Raises ValueError or TypeError if it is not one."""
    name, offset, size = entry
    member = Member(name, int(offset), int(size))
    if not isinstance(name, str) or member.offset < 0 or member.size < 0:
        raise ValueError(f"{entry!r} is not a member: a name, an offset and a size")
    return member
