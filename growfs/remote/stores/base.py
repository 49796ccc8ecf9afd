"""`StoreRemote`: the base of all stores. A store is a place that has files: a remote without its wrappers.

Each store has a file (or folder) here, which holds everything that growfs knows about it, and a line in registry.py.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from growfs.errors import BucketMissing, GrowfsError, RemoteBusy, RemoteChanged, RemoteError, RemoteMissing
from growfs.remote import errors
from growfs.remote.client_choice import ClientChoice
from growfs.remote.http.connection import Headers
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import ByteRange, FetchTask, Page, RemoteFile, RemoteSpec, RemoteStream, Skipped
from growfs.remote.metadata import version_by_time
from growfs.remote.names import reason_to_skip

PAGE_FILES_MAX = 1000
_NO_WORDS: frozenset[str] = frozenset()

Entry = RemoteFile | Skipped | str
"""An entry of a folder. A string is another folder, by its path from the root."""
Read = Callable[[str], list[Entry]]


class Access(NamedTuple):
    """How a store is reached, as texts. It holds no secrets."""

    server: str = ""
    """The URL of the store's server, without a path; empty if unknown."""
    credentials: str = ""
    """The source of the credentials; empty if there are none but they are needed."""
    region: str = ""
    """Empty if the store has none."""
    path: str = ""
    """The path of the bucket on the server."""


class StoreRemote(ABC):
    """A remote in one store. Implements `growfs.remote.interface.Remote`.

    A store sets the class attributes that differ, and implements the abstract methods.
    """

    # How it is named by a URL and the options.

    name: ClassVar[str] = ""
    """The scheme of its URLs, in messages."""
    schemes: ClassVar[tuple[str, ...]] = ()
    """All schemes of its URLs, in lower case."""
    takes_endpoint: ClassVar[bool] = False
    """Whether it supports --endpoint-url and --anon."""
    public_options: ClassVar[frozenset[str]] = frozenset({"endpoint", "endpoint_url"})
    """The storage options that hold no secrets, so that messages may show them."""
    is_percent_encoded: ClassVar[bool] = False
    """Whether its URLs are percent-encoded, including those in a manifest."""
    has_inventories: ClassVar[bool] = False
    """Whether a manifest may be an S3 Inventory."""

    # How its errors are classified: names of exception classes of its libraries, and error codes of its server.

    login: ClassVar[str] = "see --storage-option"
    """Advice for missing or refused credentials."""
    secret_variables: ClassVar[frozenset[str]] = _NO_WORDS
    """The environment variables that may be set from a Kubernetes secret: the credentials themselves, no paths."""
    address_variables: ClassVar[frozenset[str]] = _NO_WORDS
    """Those of them that decide which server gets the requests."""
    credential_variables: ClassVar[tuple[str, ...]] = ()
    """Environment variables that it takes credentials from. If one is set, it looks nowhere else."""
    ca_variable: ClassVar[str] = "SSL_CERT_FILE"
    """The environment variable that names the certificates to trust."""
    no_credentials: ClassVar[frozenset[str]] = _NO_WORDS
    """There are no credentials, or they cannot be obtained."""
    wrong_credentials: ClassVar[frozenset[str]] = _NO_WORDS
    """The server does not know the credentials, or they have expired."""
    refused: ClassVar[frozenset[str]] = _NO_WORDS
    """The credentials are not sufficient."""
    busy_codes: ClassVar[frozenset[str]] = _NO_WORDS
    """The server cannot serve the request now, regardless of the status."""
    unreachable: ClassVar[frozenset[str]] = _NO_WORDS
    """There is no response, or only part of one."""

    def __init__(self, spec: RemoteSpec, threads: TransferThreads | None = None) -> None:
        """Raises UsageError if the URL or the options are wrong. Does not touch the network."""
        self.spec = spec
        self.client = self.choose_client(spec)
        self._threads = threads or TransferThreads()
        self._lists_other_etags = False
        """Whether its server was found to list different ETags from those it sends."""
        self._secrets = {
            *errors.secrets_in(spec.storage_options, self.public_options),
            *errors.secrets_in(errors.userinfo(spec.url)),
        }

    @classmethod
    def class_for(cls, url: str) -> type[StoreRemote]:
        """The class for one of its URLs."""
        return cls

    @classmethod
    def choose_client(cls, spec: RemoteSpec) -> ClientChoice:
        """The client for a store of this class. Does not touch the network. Raises UsageError if spec.client cannot
        read it.
        """
        return ClientChoice("", False, "the files are local")

    @classmethod  # noqa: B027 - most accept all
    def check_folder(cls, url: str) -> None:
        """Raise UsageError if it cannot be the URL of a folder of files."""

    def preload(self) -> None:  # noqa: B027 - most need nothing else
        """Import the modules for its first use, in a process that forks afterwards. Starts no threads."""

    def load_library(self) -> None:  # noqa: B027 - there may be none
        """Import the modules for `as_file`, in the same way. Raises UsageError if a package is missing."""

    # How its server is reached.

    def access(self) -> Access | None:
        """None if it has no server. May ask servers for credentials. Raises a RemoteError if there are none."""
        return None

    def head(self, url: str) -> Headers:
        """The headers of a server's response to a request without credentials, whatever its status.

        Empty if only the store's library can talk to it. Raises RemoteBusy.
        """
        return {}

    def region_in(self, headers: Headers) -> str | None:
        """The region of the data, from the headers of a response; None if they do not give it."""
        return None

    # The listing of a store that is read folder by folder.

    @property
    @abstractmethod
    def _is_thread_safe(self) -> bool:
        """Whether several threads may use its library at a time."""

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        return walk(self.read_folder, 16 if self._is_thread_safe else 1, cursor)

    def read_folder(self, folder: str) -> list[Entry]:
        """The entries of a folder, with names skipped that cannot be local. A folder that has disappeared is empty."""
        try:
            with self.translating(folder):
                found = self._list_folder(folder)
        except RemoteMissing:
            if folder:
                return []
            raise
        entries: list[Entry] = []
        for entry in found:
            path, size = (entry, None) if isinstance(entry, str) else (entry.path, getattr(entry, "size", None))
            reason = reason_to_skip(path, size)
            entries.append(Skipped(reason, path) if reason else entry)
        return entries

    @abstractmethod
    def _list_folder(self, folder: str) -> list[Entry]:
        """The files in a folder and, as strings, the folders in it: each with its path from the root."""

    # One file.

    @abstractmethod
    def stat(self, path: str, version: str = "") -> RemoteFile: ...

    def still_has(self, file: RemoteFile) -> bool:
        try:
            self.stat(file.path, file.version)
        except (RemoteBusy, BucketMissing):
            raise
        except RemoteError:
            return False
        return True

    @abstractmethod
    def fetch(self, task: FetchTask) -> RemoteFile: ...

    @abstractmethod
    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream: ...

    @abstractmethod
    def as_file(self, path: str = "", **options: Any) -> Any:
        """A seekable file object. Read it inside `translating`. options: for fsspec's `open`, if that opens it."""

    def _verified(self, file: RemoteFile, now: RemoteFile, written: int | None = None) -> RemoteFile:
        """`now` as it was listed, if it is that version and has arrived in full. written: the bytes that arrived."""
        has_other_size = file.size is not None and now.size is not None and file.size != now.size
        if has_other_size or not self._is_listed(file, now):
            raise RemoteChanged(f"{self.safe_url(file.path)}: is no longer the version that was listed; list again")
        mtime_ns = file.mtime_ns if file.version and now.version and file.mtime_ns is not None else now.mtime_ns
        size = file.size if now.size is None else now.size
        if written is not None and size is not None and written != size:
            raise RemoteBusy(f"{self.safe_url(file.path)}: cut short at {written} of {size} bytes; try again")
        return RemoteFile(file.path, size if written is None else written, mtime_ns, file.version or now.version)

    def _is_listed(self, file: RemoteFile, now: RemoteFile) -> bool:
        """Whether a response describes the listed version.

        Some servers do not list ETags, but send them: then the time and size decide, as in the listing.
        """
        by_time = version_by_time(now.size, now.mtime_ns)
        if not (file.version and now.version) or file.version in (now.version, by_time):
            return True
        return self._lists_other_etags and version_by_time(file.size, file.mtime_ns) == by_time != ""

    def _check_length(self, path: str, wanted: ByteRange, got: int) -> None:
        if got > wanted.size:
            raise self._sends_whole_files(path)
        if got < wanted.size:
            raise RemoteBusy(f"{self.safe_url(path)}: cut short at {got} of {wanted.size} bytes; try again")

    def _sends_whole_files(self, path: str) -> RemoteError:
        return RemoteError(
            f"{self.safe_url(path)}: its server sends only whole files; use one that supports byte ranges"
        )

    # Errors and what they show.

    def not_a_listing(self, why: str) -> RemoteBusy:
        """The error for a response that is not a part of a listing, though its status is 200."""
        return RemoteBusy(
            f"{self.safe_url()}: the server's answer is not a listing ({self.clean(why)}); growfs tries again; look for"
            f" a login page or a proxy in between, and check {self.server_option}"
        )

    def listing_without_end(self) -> RemoteError:
        """The error for a server that names a page it has sent before as the next one."""
        return RemoteError(f"{self.safe_url()}: the server lists the same page again and again; check the server")

    @contextmanager
    def translating(self, path: str = "") -> Iterator[None]:
        """Turn client errors into growfs's own. Errors of a full local disk are raised as they are."""
        try:
            yield
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
                raise
            raise self.translated(error, path) from None

    def translated(self, error: BaseException, path: str = "") -> GrowfsError:
        """The error as one of growfs's own, describing what happened to path."""
        return errors.translate(error, self._url(path), self)

    def own_error(self, problem: errors.Problem) -> GrowfsError | None:
        """The error for a problem that only this store has; None for those that all stores have."""
        return None

    def status_of(self, error: BaseException) -> int:
        """The HTTP status in an exception; 0 if there is none."""
        return errors.status_of(error)

    def code_of(self, error: BaseException) -> str:
        """The error code of the store's server in an exception; empty if there is none."""
        return ""

    def text_of(self, error: BaseException) -> str:
        """The message of an exception, without the URL and status if possible."""
        return str(error)

    def login_advice(self) -> str:
        """Advice for missing or refused credentials."""
        return self.login

    def known_credentials(self) -> str:
        """A description of the source of the credentials that were used; empty if unknown."""
        return ""

    @property
    def server_option(self) -> str:
        """The option that selects the server, and the current server, for messages."""
        return "--endpoint-url" if self.takes_endpoint else "the URL"

    def _url(self, path: str = "") -> str:
        return f"{self.spec.url.rstrip('/')}/{path}" if path else self.spec.url

    def safe_url(self, path: str = "") -> str:
        """The URL of path without secrets, for messages."""
        return self.clean(self._url(path))

    def clean(self, text: str) -> str:
        """The text as one line, without the store's secrets."""
        return errors.clean(text, self._secrets)


def walk(read: Read, parallel: int, cursor: Any = None) -> Iterator[Page]:
    """All files below the root, folder by folder.

    read: returns the entries of a folder. Called from `parallel` threads if that is more than 1. cursor: the folders
    still to read, and the last path returned from the last one. If a folder cannot be read, those before it are a page.
    """
    todo, after = (list(cursor[0]), cursor[1]) if cursor else ([""], "")
    files: list[RemoteFile] = []
    skipped: list[Skipped] = []
    at_last_page = tuple(todo)
    with _reading_ahead(read, parallel) as read_last:
        while todo:
            try:
                found = read_last(todo)
            except GrowfsError:
                if tuple(todo) != at_last_page:
                    yield Page(files, skipped, (tuple(todo), after))
                raise
            for entry in sorted((entry for entry in found if not isinstance(entry, str)), key=lambda entry: entry.path):
                if entry.path <= after:
                    continue
                if isinstance(entry, RemoteFile):
                    files.append(entry)
                else:
                    skipped.append(entry)
                if len(files) + len(skipped) >= PAGE_FILES_MAX:
                    yield Page(files, skipped, (at_last_page := tuple(todo), entry.path))
                    files, skipped = [], []
            todo[-1:] = [entry for entry in found if isinstance(entry, str)]
            after = ""
    if files or skipped:
        yield Page(files, skipped, ((), ""))


@contextmanager
def _reading_ahead(read: Read, parallel: int) -> Iterator[Callable[[list[str]], list[Entry]]]:
    """Yields a function that reads the last of some folders, and meanwhile reads ahead those before it."""
    if parallel == 1:
        yield lambda todo: read(todo[-1])
        return
    pending: dict[str, Future[list[Entry]]] = {}

    def read_last(todo: list[str]) -> list[Entry]:
        for folder in reversed(todo[-parallel:]):
            if folder not in pending and (len(pending) < parallel or folder is todo[-1]):
                pending[folder] = pool.submit(read, folder)
        return pending.pop(todo[-1]).result()

    pool = ThreadPoolExecutor(parallel)
    try:
        yield read_last
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
