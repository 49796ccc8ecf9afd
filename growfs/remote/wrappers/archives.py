"""`Members`: the members of archives as files, each a range of bytes of a file of another remote.

Which members an archive has is found out when it is listed, by a function that reads it, and is written down in a book;
so names are known before anything is fetched. A member's version tells where it lies, so a fetch is one request.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from posixpath import splitext
from typing import Any
from urllib.parse import quote, unquote

from growfs.errors import GrowfsError, RemoteBusy, RemoteChanged, RemoteError, RemoteMissing
from growfs.producers.archives import Member
from growfs.remote.file import open_seekable
from growfs.remote.functions import Function
from growfs.remote.names import reason_to_skip
from growfs.remote.protocol import ByteRange, FetchTask, Page, Remote, RemoteFile, RemoteStream, Skipped

PAGE_FILES_MAX = 5000
AT_ONCE = 8
"""Archives that are read side by side."""
AHEAD = 16
"""Archives that are read before their turn."""
TRIES_MAX = 3
"""Of an archive that changes while it is read."""
TELL_EVERY_S = 10.0
"""While an archive is read; who is silent is given up."""
REASON_CHARS_MAX = 160

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemberLocation:
    """Where a member's bytes are: in which version of which file."""

    part: ByteRange
    path: str
    version: str

    @classmethod
    def of(cls, version: str) -> MemberLocation:
        """The place that a member's version tells."""
        offset, size, path, source = version.split(" ", 3)
        return cls(ByteRange(int(offset), int(size)), unquote(path, errors="surrogateescape"), source)

    def __str__(self) -> str:
        path = quote(self.path, errors="surrogateescape")
        return f"{self.part.offset} {self.part.size} {path} {self.version}"


class ArchiveRemote:
    """Lists the members of each file of a remote. Where a name comes twice the catalog takes the first.

    A cursor: that of the remote after its page, the archives of that page which are left, and how many members of the
    first of them were told.
    """

    def __init__(self, remote: Remote, function: Function, cache: Path) -> None:
        """cache: the folder that books are kept in."""
        self._remote = remote
        self._function = function
        self._cache = cache
        self._met: set[str] = set()
        self._reading: dict[RemoteFile, Future[tuple[RemoteFile, Path]]] = {}
        self._one_at_a_time = threading.Lock()
        self._loading = threading.Lock()

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        if cursor is None:
            self._met.clear()
        after, left, done = cursor or (None, (), 0)
        pool = ThreadPoolExecutor(AT_ONCE, "members")
        try:
            yield from self._pages_of(pool, after, left, done)
            for page in self._remote.pages(after):
                if page.skipped:
                    yield Page([], page.skipped, (page.cursor, tuple(page.files), 0))
                yield from self._pages_of(pool, page.cursor, page.files, 0)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        self._books.keep(self._met)

    def stat(self, path: str, version: str = "") -> RemoteFile:
        if not version:
            raise RemoteError(f"{path}: is a member of an archive, and it is not known of which; list again")
        with self._one_at_a_time:  # else each of its members that was on its way would have all of the archive read
            archive, book = self._read_through(RemoteFile(MemberLocation.of(version).path, None, None, ""))
        try:
            for member in self._books.read(book):
                if path_of(archive.path, member.name) == path:
                    return _file(archive, member)
        except UnreadableArchive as reason:
            raise RemoteMissing(f"{path}: its archive, {archive.path}, is {reason}") from None
        raise RemoteMissing(f"{path}: its archive, {archive.path}, has no such member any more")

    def fetch(self, task: FetchTask) -> RemoteFile:
        file, part = task.file, task.byte_range
        place = MemberLocation.of(file.version)
        if not place.part.size:
            task.target.open("wb").close()
            return file
        archive = RemoteFile(place.path, None, None, place.version)
        wanted = ByteRange(place.part.offset + part.offset, part.size) if part else place.part
        now = self._remote.fetch(replace(task, file=archive, byte_range=wanted))
        return RemoteFile(file.path, place.part.size, now.mtime_ns, file.version)

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        raise RemoteError(f"{file.path}: is a member of an archive, and can only be fetched")

    def _pages_of(self, pool: Executor, after: Any, archives: Sequence[RemoteFile], done: int) -> Iterator[Page]:
        """Pages of the members of archives, less the first few of the first."""
        to_read = iter(archives)
        ahead: deque[Future[tuple[RemoteFile, Path]]] = deque()
        for number, archive in enumerate(archives):
            ahead.extend(self._begun(pool, each) for each in islice(to_read, AHEAD - len(ahead)))
            left = tuple(archives[number:])
            while wait([ahead[0]], TELL_EVERY_S).not_done:
                yield Page([], [], (after, left, done))
            self._reading.pop(archive, None)
            try:
                now, book = ahead.popleft().result()
                self._met.add(book.name)
                members = self._books.read(book, done)
                while batch := list(islice(members, PAGE_FILES_MAX)):
                    done += len(batch)
                    yield _page(now, batch, (after, left, done))
            except UnreadableArchive as reason:
                log.warning("%s: %s", archive.path, reason)
                yield Page([], [Skipped(str(reason), archive.path, unread=True)], (after, left[1:], 0))
            except RemoteBusy:
                raise
            except RemoteError as error:
                log.warning("%s: its members cannot be found: %s", archive.path, error)
                skipped = Skipped(f"not readable ({type(error).__name__})", archive.path, unread=True)
                yield Page([], [skipped], (after, left[1:], 0))
            done = 0

    def _begun(self, pool: Executor, archive: RemoteFile) -> Future[tuple[RemoteFile, Path]]:
        """The reading through of an archive: a new one, or what a listing that failed has left under way."""
        open_seekable = self._reading.get(archive)
        if open_seekable is None or open_seekable.done():
            open_seekable = self._reading[archive] = pool.submit(self._read_through, archive)
        return open_seekable

    def _read_through(self, archive: RemoteFile) -> tuple[RemoteFile, Path]:
        """The archive as it is now, and its book."""
        for _ in range(TRIES_MAX):
            if not archive.version or archive.size is None:
                archive = self._remote.stat(archive.path)
            book = self._books.path(archive.path, archive.version)
            try:
                if not archive.version or not book.exists():
                    self._books.write(book, self._found(archive))
                return archive, book
            except RemoteChanged:
                archive = self._remote.stat(archive.path)
        raise RemoteBusy(f"{archive.path}: changes again and again while it is read; list again later")

    def _found(self, archive: RemoteFile) -> Iterator[Member]:
        """What the function finds. Raises Unfit where that fails, and RemoteErrors where reading does."""
        with self._loading:
            function = self._find
        with open_seekable(self._remote, archive) as source:
            try:
                for member in map(_checked, function(source)):
                    if archive.size is not None and member.offset + member.size > archive.size:
                        raise ValueError(f"{member.name} ends behind the end of the file")
                    yield member
            except GrowfsError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever the user's function, or a broken archive, does
                if failure := source.raw.error:
                    raise failure from None  # the remote's, which the function told in other words
                told = " ".join(str(error).split()) or type(error).__name__
                raise UnreadableArchive(f"not readable by {self._function}: {told[:REASON_CHARS_MAX]}") from None
        if self._remote.stat(archive.path).version != archive.version:
            raise RemoteChanged(f"{archive.path}: changed while it was read")

    @cached_property
    def _find(self) -> Callable[..., Any]:
        return self._function.load()

    @cached_property
    def _books(self) -> IndexCache:
        return IndexCache(self._cache, f"{self._function} {self._function.code()}")


def path_of(archive: str, name: str) -> str:
    """The path of a member: below a folder named like its archive, unless it is from the root on."""
    if name.startswith("/"):
        return name[1:]
    return f"{splitext(archive)[0]}/{name}"


def _file(archive: RemoteFile, member: Member) -> RemoteFile:
    place = MemberLocation(ByteRange(member.offset, member.size), archive.path, archive.version)
    return RemoteFile(path_of(archive.path, member.name), member.size, archive.mtime_ns, str(place))


def _page(archive: RemoteFile, members: Iterable[Member], cursor: Any) -> Page:
    page = Page([], [], cursor)
    for member in members:
        file = _file(archive, member)
        if reason := reason_to_skip(file.path) if file.path else "empty path component":
            page.skipped.append(Skipped(reason, file.path or f"{archive.path}: {member.name}"))
        else:
            page.files.append(file)
    return page


def _checked(told: Any) -> Member:
    name, offset, size = told
    member = Member(name, int(offset), int(size))
    if not isinstance(name, str) or member.offset < 0 or member.size < 0:
        raise ValueError(f"{told!r} is no member: a name, an offset and a size")
    return member


FORMAT = 1
"""Of a book, and of what growfs's own functions find."""


class UnreadableArchive(Exception):
    """A file of which no members can be shown; the text is a reason that can be counted."""


class IndexCache:
    """Owns a folder of books, below that of a cache. identity: of the function that finds members, as it is now."""

    def __init__(self, cache: Path, identity: str) -> None:
        self._folder = cache / "members"
        self._drafts = cache / "partial"
        self._identity = identity

    def path(self, path: str, version: str) -> Path:
        """Where the book of an archive is, or will be."""
        key = json.dumps([FORMAT, self._identity, path, version])
        return self._folder / hashlib.sha256(key.encode()).hexdigest()[:32]

    def write(self, book: Path, members: Iterable[Member]) -> None:
        """Make a book, of a reason alone where members raises Unfit. Raises OSError, and what else members does."""
        for folder in (self._folder, self._drafts):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=self._drafts, prefix="book-", delete=False) as draft:
            try:
                try:
                    for member in members:
                        draft.write(json.dumps(member) + "\n")
                except UnreadableArchive as reason:
                    draft.seek(0)
                    draft.truncate()
                    draft.write(json.dumps(str(reason)) + "\n")
                draft.flush()
                os.fsync(draft.fileno())  # else it may be there after a power loss, and be empty
                os.replace(draft.name, book)
            except BaseException:
                os.unlink(draft.name)
                raise

    def read(self, book: Path, after: int = 0) -> Iterator[Member]:
        """The members that a book has, but for the first few. Raises Unfit, and OSError where there is no such book."""
        with book.open() as lines:
            for line in islice(lines, after, None):
                told = json.loads(line)
                if isinstance(told, str):
                    raise UnreadableArchive(told)
                yield Member(*told)

    def keep(self, names: set[str]) -> None:
        """Throw all other books away."""
        if self._folder.exists():
            for book in self._folder.iterdir():
                if book.name not in names:
                    book.unlink(missing_ok=True)
