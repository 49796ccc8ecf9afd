"""`FsspecRemote`: everything else that fsspec opens, and the base of the stores that are read by a library of fsspec.

It owns the reading of files by plain GETs, and by the library if that is impossible. The filesystem instance and its
thread are created at the first call, so not in a process that forks later.
"""

from __future__ import annotations

import io
import os
import re
import ssl
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import IO, Any, ClassVar
from urllib.parse import urlsplit

from growfs.errors import GrowfsError, RemoteBusy, RemoteError, RemoteMissing, UsageError, pip_install
from growfs.remote.client_choice import OWN, ClientChoice
from growfs.remote.digest import Digest
from growfs.remote.errors import translate
from growfs.remote.http.connection import (
    TIMEOUTS,
    Connection,
    ConnectionFailed,
    FallBack,
    Headers,
    HttpRequest,
    RangeIgnored,
    write_at,
)
from growfs.remote.http.download import RangeDownloader
from growfs.remote.http.proxy import proxy_for
from growfs.remote.http.stream import FileStream, HttpStream
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import ByteRange, FetchTask, RemoteFile, RemoteSpec, RemoteStream, Skipped
from growfs.remote.metadata import file_from_info
from growfs.remote.stores.base import Access, Entry, StoreRemote

PAGE_READ_S = 300
"""How long a listing library waits for a page: a server may need minutes."""
SIGNED_S = 3600
LEFT_TO_LIBRARY = "left to the store's library"


class FsspecRemote(StoreRemote):
    """A remote at any URL that fsspec opens. Subclasses know more about a particular store.

    `fs` and `root` are created on first use.
    """

    package: ClassVar[str] = ""
    """The package to install with pip."""
    needs_library: ClassVar[bool] = True
    """Whether every use of it needs that package."""
    server: ClassVar[str] = ""
    """The URL of its server, if it is always the same one."""
    usual_server: ClassVar[str] = ""
    """The URL of one of its servers, to find the proxy by."""
    own_options: ClassVar[frozenset[str] | None] = None
    """The storage options with which growfs can request files itself; None for all."""
    default_credentials: ClassVar[str] = LEFT_TO_LIBRARY
    """The source of credentials if neither options nor variables provide them."""
    fresh_options: ClassVar[dict[str, Any]] = {"use_listings_cache": False}
    """Options with which its library shows each change."""
    sequential_options: ClassVar[dict[str, Any]] = {"block_size": 4 << 20}
    """Options for files that are read in order."""
    heads_useful: ClassVar[bool] = False
    """Whether it answers a HEAD with a checksum that the GET of a range lacks."""
    unreachable: ClassVar[frozenset[str]] = frozenset({"EOFError", "SSHException", "Socket is closed", "error_temp"})
    sends_as_stored: ClassVar[bool] = False
    """Whether it sends a file with an encoding as it is stored and listed, and encodes no other."""

    def __init__(self, spec: RemoteSpec, threads: TransferThreads | None = None) -> None:
        super().__init__(spec, threads)
        self._own = threading.local()
        self._has_ranges = True  # until the library returns more than the range that was requested
        if self.needs_library or self.client.uses_library:
            self.load_library()
        self._options = self._library_options()

    @classmethod
    def choose_client(cls, spec: RemoteSpec) -> ClientChoice:
        library = cls.package or scheme_of(spec.url)
        if spec.client == "library":
            return ClientChoice(library, True, "--client library")
        if reason := cls._why_library(spec):
            if spec.client == OWN:
                raise UsageError(f"--client growfs cannot be used: only {library} {reason}; leave it to auto")
            return ClientChoice(library, True, f"only it {reason}")
        return ClientChoice(library, False, "--client growfs" if spec.client == OWN else f"faster than {library}")

    @classmethod
    def _why_library(cls, spec: RemoteSpec) -> str:
        """The part of the request that only the library can do, after "only it"; empty if growfs can do it all."""
        if not cls.name and not _signs_urls(scheme_of(spec.url)):
            return f"reads {scheme_of(spec.url)}://"
        if cls.own_options is not None and (options := sorted(spec.storage_options.keys() - cls.own_options)):
            return f"knows the option {options[0]}"
        url = cls._given_server(spec) or cls.usual_server or cls.server or spec.url
        proxy = proxy_for(url) if url.startswith("http") else None
        return f"may know the proxy {proxy}" if proxy and not proxy.speaks_http else ""

    @classmethod
    def _given_server(cls, spec: RemoteSpec) -> str | None:
        """The URL of the server, if given by the options."""
        return spec.endpoint_url or spec.storage_options.get("endpoint_url")

    def load_library(self) -> None:
        from fsspec import get_filesystem_class

        scheme = scheme_of(self.spec.url)
        try:
            get_filesystem_class(self.name or scheme)
        except ImportError as error:
            what = self.package and pip_install(self.package)
            raise UsageError(f"{scheme}:// needs a package that is not installed: {what or error}") from None
        except ValueError:
            examples = (
                "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, hf://datasets/name,"
                " https://host/dir/, /dir"
            )
            raise UsageError(f"{scheme}:// is not a store that fsspec knows; examples: {examples}") from None

    def _library_options(self) -> dict[str, Any]:
        """The storage options, with --endpoint-url and --anon under the names used by the store's library."""
        return dict(self.spec.storage_options)

    # The library's filesystem.

    @property
    def fs(self) -> Any:
        """The library's filesystem: one for all threads, or one for each if they might disturb each other."""
        if self._is_thread_safe:
            return self._shared[0]
        if not hasattr(self._own, "fs"):
            self._own.fs = self._new_filesystem()[0]
        return self._own.fs

    @cached_property
    def root(self) -> str:
        """The prefix of all names in the store, without a trailing slash."""
        return str(self._shared[1]).rstrip("/")

    @property
    def _is_thread_safe(self) -> bool:
        """Libraries with an event loop can be used from any thread; for others, this is not known."""
        return bool(self._shared[0].async_impl)

    @cached_property
    def _shared(self) -> tuple[Any, str]:
        return self._new_filesystem()

    def _new_filesystem(self) -> tuple[Any, str]:
        """(a filesystem of the library, the prefix of all names)."""
        try:
            return self._open_library({"skip_instance_cache": True, **self.fresh_options, **self._options})
        except (TypeError, KeyError, ValueError) as error:
            raise UsageError(f"{self.translated(error)}; see --storage-option") from None
        except Exception as error:  # noqa: BLE001 - the libraries' exceptions have no common base
            raise self.translated(error) from None

    def _open_library(self, options: dict[str, Any]) -> tuple[Any, str]:
        """The same, with all options. A store makes sure that its library repeats no requests.

        Only RetryingRemote repeats them: the libraries would silently do so for half a minute or more.
        """
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(self.spec.url, **options)
        return fs, str(root)

    def _key(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    # Listing.

    def _list_folder(self, folder: str) -> list[Entry]:
        found: list[Entry] = []
        key = self._key(folder)
        for info in self.fs.ls(key or "/", detail=True):
            name, kind = str(info["name"]), info["type"]
            path = name[len(self.root) + 1 :]
            if name.rstrip("/") == key.rstrip("/"):
                if kind == "file" and not folder and not name.endswith("/"):
                    raise RemoteError(f"{self.safe_url()}: is a file; use the URL of its folder")
            elif not name.startswith(self.root + "/"):
                found.append(Skipped("name outside the remote", name))
            elif kind == "directory":
                found.append(path.rstrip("/") if not path.endswith("//") else path)
            elif kind != "file":
                found.append(Skipped("not a regular file", path))
            elif info.get("size") or not path.endswith("/"):  # otherwise a marker that stands for a folder
                found.append(file_from_info(path, info))
        return found

    def _parsed_listing(self, body: bytes, tag: str, child: str) -> ET.Element:
        """The XML of a page of a listing. Raises RemoteBusy if its root has another tag, or lacks this child."""
        try:
            root = ET.fromstring(body)
        except ET.ParseError as error:
            raise self.not_a_listing(str(error)) from None
        if root.tag != tag or root.find(child) is None:
            raise self.not_a_listing(f"<{root.tag}>")
        return root

    def stat(self, path: str, version: str = "") -> RemoteFile:
        with self.translating(path):
            self.fs.invalidate_cache()
            info = self.fs.info(self._key(path))
            if info["type"] == "directory":
                raise RemoteMissing(f"{self.safe_url(path)}: is a folder now; list again")
            return file_from_info(path, info)

    def _stat_listed(self, file: RemoteFile) -> RemoteFile:
        """The file's current state. Raises RemoteChanged if that is another version."""
        return self._verified(file, self.stat(file.path))

    # The content of a file.

    def fetch(self, task: FetchTask) -> RemoteFile:
        why = ""
        if self._requests_itself:
            try:
                found = self._fetch_by_get(task)
                self._threads.library.note_own()
                return found
            except RangeIgnored:
                self._stat_listed(task.file)
                raise self._sends_whole_files(task.file.path) from None
            except FallBack as reason:
                why = str(reason)
        if task.byte_range:  # the library may not report the version with a range
            self._stat_listed(task.file)

        def throttle(count: int) -> None:
            self._threads.throttle(count)
            task.progress(count)

        found = self._by_library(task._replace(progress=throttle))
        self._note_library(why if found.size else "", files=1)  # an empty file has no range
        if task.tries:
            task.tries.answered()
        return found

    @property
    def _requests_itself(self) -> bool:
        return not (self.client.uses_library or self._threads.library.gave_up)

    def _note_library(self, why: str, files: int = 0) -> None:
        """Note that the library has made a request. why: why growfs could not make it; empty if that does not count."""
        self._threads.library.note("" if self.spec.client == OWN else why, files)

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        def check(size: int, headers: Headers) -> RemoteFile:
            return self._checked(file, size, headers) or self._stat_listed(file)

        if self._requests_itself:
            to_error = partial(self.translated, path=file.path)
            with suppress(FallBack):
                return HttpStream(self._downloader, partial(self._sign, file), start, check, to_error)
        return self._open_by_library(file, start)

    def as_file(self, path: str = "", **options: Any) -> Any:
        fs = self.fs if self._is_thread_safe else self._new_filesystem()[0]  # another thread may read the file
        return fs.open(self._key(path), "rb", **options)

    # By plain GETs.

    def _fetch_by_get(self, task: FetchTask) -> RemoteFile:
        """Fetch by plain GETs. Raises FallBack if the library has to do it."""
        file = task.file
        check, to_error = partial(self._checked, file), partial(self.translated, path=file.path)
        size, now = self._downloader.fetch(task, partial(self._sign, file), check, to_error)
        return self._verified(file, now or self.stat(file.path), None if task.byte_range else size)

    def _sign(self, file: RemoteFile, method: str = "GET") -> HttpRequest:
        try:
            return self._request(file, method)
        except GrowfsError:
            raise  # the library would fail in the same way
        except Exception as error:
            raise FallBack("cannot be signed") from error

    def _request(self, file: RemoteFile, method: str) -> HttpRequest:
        """A freshly signed GET of a file, or HEAD with `heads_useful`.

        Raises a GrowfsError if the library cannot request the file either, and any other error if only the library can.
        """
        return self._get(self._key(file.path))

    def _get(self, key: str) -> HttpRequest:
        """A GET of the file with this name in the store."""
        return HttpRequest(self.fs.sign(key, expiration=SIGNED_S))

    def _checked(self, file: RemoteFile, size: int, headers: Headers) -> RemoteFile | None:
        """The same as _file_from_headers, if it is the listed version. Raises RemoteChanged, and FallBack."""
        encoding = headers.get("content-encoding", "identity")
        is_stored_encoded = encoding in ("gzip", "x-gzip") and file.path.endswith((".gz", ".tgz"))
        if not (self.sends_as_stored or encoding == "identity" or is_stored_encoded):
            raise FallBack("encoded")
        now = self._file_from_headers(file, size, headers)
        return now and self._verified(file, now)

    def _file_from_headers(self, file: RemoteFile, size: int, headers: Headers) -> RemoteFile | None:
        """The version of a file described by the headers of a GET; None if they lack what its listing has."""
        return None

    @cached_property
    def _downloader(self) -> RangeDownloader:
        return RangeDownloader(
            self._threads, lambda: self._tls, heads_useful=self.heads_useful, refused_code=self._refused_code
        )

    def _refused_code(self, body: bytes) -> str:
        """The code of a refusal, from its body, if the library would also be refused; otherwise an empty string."""
        return ""

    def _new_connection(self) -> Connection:
        return Connection(lambda: self._tls)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._trusted()

    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context()  # it honors SSL_CERT_FILE and SSL_CERT_DIR

    # By the library.

    def _open_by_library(self, file: RemoteFile, start: int) -> RemoteStream:
        now = self._stat_listed(file)
        translating = partial(self.translating, file.path)
        with translating():
            source = self.as_file(file.path, **self.sequential_options)
        return FileStream(source, now, start, partial(self._stat_listed, now), self._threads.throttle, translating)

    def _by_library(self, task: FetchTask) -> RemoteFile:
        """Fetch by the store's library. task.digest gets the bytes of a whole file only with FTP and SFTP."""
        file, target = task.file, task.target
        open(target, "wb").close()  # an empty file has no callback, and a bad target is not the remote's error
        if task.byte_range:
            return self._fetch_segments_by_library(task, task.byte_range)
        if self._is_thread_safe and self._has_ranges and (file.size or 0) > self._threads.segment_bytes(file.size):
            return self._fetch_segments_by_library(task, ByteRange(0, file.size or 0))
        with self._threads.unsplit(file.size):
            return self._fetch_whole_by_library(task)

    def _fetch_whole_by_library(self, task: FetchTask) -> RemoteFile:
        from fsspec.callbacks import Callback

        file, target, meter = task.file, os.fspath(task.target), _Meter(task)
        client = None if self._is_thread_safe else getattr(self.fs, "ftp", None)
        try:
            with self.translating(file.path), open(target, "wb") as meter.out:
                if client:  # fsspec reports no progress of FTP and SFTP, but both can write to a file object
                    getattr(client, "getfo", self.fs.get_file)(self._key(file.path), meter)
                else:
                    self.fs.get_file(self._key(file.path), target, callback=Callback(hooks={"growfs": meter.note}))
        except Exception as error:  # noqa: BLE001 - or that of progress, which the library may wrap
            vars(self._own).clear()  # its connection may be broken, and most libraries never open a new one
            raise meter.error or error from None
        now = self.stat(file.path)
        written = os.stat(target).st_size
        task.progress(written - meter.reported)
        return self._verified(file, now, written)

    def _fetch_segments_by_library(self, task: FetchTask, extent: ByteRange) -> RemoteFile:
        file = task.file
        now = file if task.byte_range else self._stat_listed(file)
        has_ranges = self._has_ranges  # for all segments, even those under way when the first turns out to be whole
        # A library keeps a segment in memory.
        step = min(self._threads.segment_bytes(extent.size), 8 << 20) if has_ranges else extent.size

        def read_once(start: int, end: int) -> bytes:
            with self.translating(file.path):
                return bytes(self.fs.cat_file(self._key(file.path), start, end))

        def read(start: int, end: int) -> bytes:
            once = partial(read_once, start, end)
            content = task.tries.repeat(once, start) if task.tries else once()
            if has_ranges and end - start < len(content) == extent.size:
                self._has_ranges = False
                raise RemoteBusy(f"{self.safe_url(file.path)}: was sent whole, though a part was requested; try again")
            self._check_length(file.path, ByteRange(start, end - start), len(content))
            return content

        write_segments(self._threads, task, extent, step, read)
        return self._verified(now, self.stat(file.path))

    def translated(self, error: BaseException, path: str = "") -> GrowfsError:
        if not isinstance(error, FileNotFoundError | RemoteMissing):
            vars(self._own).clear()  # as above
        return super().translated(error, path)

    def code_of(self, error: BaseException) -> str:
        return str(error) if type(error) is OSError else ""  # the library has no error codes, only this text

    # How its server is reached.

    def access(self) -> Access:
        url = urlsplit(self.spec.endpoint_url or self.server or self.spec.url)
        is_web = url.scheme in ("http", "https")
        server = f"{url.scheme}://{url.netloc.rpartition('@')[2]}" if is_web else ""
        if is_web and url.username:
            return Access(server, "in the URL")
        return Access(server, self._credentials_by_options() or self._credentials_by_environment())

    def _credentials_by_options(self) -> str:
        """The source of credentials according to the options; empty if they specify none."""
        if self.spec.anon:
            return "none, because of --anon"
        return "by --storage-option" if self.spec.storage_options.keys() - self.public_options else ""

    def _credentials_by_environment(self) -> str:
        found = [name for name in self.credential_variables if os.environ.get(name)]
        return f"{found[0]} in the environment" if found else self.default_credentials

    def known_credentials(self) -> str:
        found = self.access().credentials
        return "" if found == LEFT_TO_LIBRARY else found

    @property
    def server_option(self) -> str:
        return f"{super().server_option} {self.clean(self.spec.endpoint_url or '')}".strip()

    def head(self, url: str) -> Headers:
        connection = self._new_connection()
        try:
            return connection.send(HttpRequest(url, method="HEAD"), {}).headers
        except ConnectionFailed as error:
            raise translate(error, url, self) from None
        except FallBack:
            return {}
        finally:
            connection.close()


def write_segments(
    threads: TransferThreads, task: FetchTask, extent: ByteRange, segment_bytes: int, read: Callable[[int, int], bytes]
) -> None:
    """Write a range of a file to task.target, which exists, in segments that several threads read.

    read: returns the bytes between two offsets of the file. Raises its first error, and that of task.progress.
    """
    digest, lock, end = task.digest or Digest(), threading.Lock(), extent.offset + extent.size

    def copy(fd: int, start: int) -> None:
        content, at = memoryview(read(start, min(start + segment_bytes, end))), start - extent.offset
        digest.segment(at).update(content)
        write_at(fd, content, at)
        threads.throttle(len(content))
        with lock:
            task.progress(len(content))

    with open(task.target, "r+b", buffering=0) as out:
        threads.share([partial(copy, out.fileno(), start) for start in range(extent.offset, end, segment_bytes)])


def _signs_urls(scheme: str) -> bool:
    """Whether the library for a scheme makes URLs for plain GETs. Problems with the library surface later."""
    from fsspec import AbstractFileSystem, get_filesystem_class

    with suppress(ImportError, ValueError):
        return get_filesystem_class(scheme).sign is not AbstractFileSystem.sign
    return False


def aiohttp_timeout() -> Any:
    """A timeout for each read. aiohttp's default is for a whole response: a large file would never arrive."""
    from aiohttp import ClientTimeout

    return ClientTimeout(connect=PAGE_READ_S, sock_connect=TIMEOUTS.connect_s, sock_read=PAGE_READ_S)


def aiohttp_proxy(url: str) -> dict[str, str]:
    """The option of aiohttp's session for the proxy of a server.

    aiohttp can also read the environment (trust_env), but then it sends the contents of ~/.netrc.
    """
    proxy = proxy_for(url)
    return {"proxy": proxy.url} if proxy and proxy.speaks_http else {}


def scheme_of(url: str) -> str:
    """The scheme of a URL, in lower case; 'file' if it is a path."""
    return re.split("::|://", url, maxsplit=1)[0].lower() if "::" in url or "://" in url else "file"


class _Meter(io.RawIOBase):
    """Records a library's progress, either as its callback or as the file object that it writes to sequentially.

    reported: the bytes so far. error: the one that task.progress has raised.
    """

    out: IO[bytes]
    error: Exception | None = None

    def __init__(self, task: FetchTask) -> None:
        self._progress, self._digest = task.progress, task.digest.segment(0) if task.digest else None
        self._target, self.reported = task.target, 0

    def __fspath__(self) -> str:
        return os.fspath(self._target)  # fsspec looks whether it exists, if the file has become a folder

    def note(self, size: int | None, value: int, **_: Any) -> None:
        """Note that `value` bytes have arrived so far."""
        delta, self.reported = value - self.reported, value
        try:
            self._progress(delta)
        except Exception as error:
            self.error = error
            raise

    def write(self, piece: bytes, /) -> int:  # type: ignore[override]
        self.note(None, self.reported + len(piece))
        if self._digest:
            self._digest.update(memoryview(piece))
        return self.out.write(piece)
