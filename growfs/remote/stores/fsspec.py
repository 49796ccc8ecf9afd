"""`FsspecRemote`: a remote at any fsspec URL, and the base of S3Remote, HttpRemote and LocalRemote.

It owns how options reach a store, the walk over folders, and the checks after a transfer. The filesystem instance and
its thread are created at the first call, so not in a process that forks later.
"""

from __future__ import annotations

import os
import re
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from types import MethodType
from typing import Any, ClassVar
from urllib.parse import urlsplit

from growfs.errors import GrowfsError, RemoteBusy, RemoteChanged, RemoteError, RemoteMissing, UsageError
from growfs.remote import walk
from growfs.remote.errors import DISK_ERRNOS, clean, secrets_in, translate, userinfo
from growfs.remote.http.connection import (
    TIMEOUTS,
    Connection,
    ConnectionFailed,
    FallBack,
    Headers,
    HttpRequest,
)
from growfs.remote.http.download import ChecksumMismatch, HttpError, RangeDownloader
from growfs.remote.http.stream import FileStream, HttpStream
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import ByteRange, FetchTask, Page, RemoteFile, RemoteSpec, RemoteStream, Skipped
from growfs.remote.metadata import file_from_headers, file_from_info, to_ns
from growfs.remote.names import reason_to_skip
from growfs.remote.stores.access import SERVERS, Access, credentials_of
from growfs.remote.stores.library_transfer import LibraryTransfer
from growfs.remote.stores.plain_gets import PLAIN_GETS, SIGNED_S
from growfs.remote.walk import Entry

FOLDERS_PARALLEL_MAX = 16
LIBRARY_PART_BYTES_MAX = 8 << 20  # a library keeps a part in memory
PAGE_READ_S = 300
"""How long a library that lists waits for a page: a server may need minutes. Those of gs and http do so too."""
EXAMPLES = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, hf://datasets/name, https://host/dir/, /dir"

AZURE_ACCOUNT = ("account_name", "connection_string")
"""Options of az:// and, in capitals after AZURE_STORAGE_, variables that say which storage account it is."""

_STORES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "https": "http", "local": "file"}
_ANON: dict[str, dict[str, Any]] = {"gs": {"token": "anon"}, "hf": {"token": False}}
_PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "az": "adlfs",
    "hf": "huggingface_hub",
    "http": "aiohttp",
    "webdav": "webdav4",
}


class FsspecRemote:
    """A remote at any URL that fsspec opens. Subclasses know more of one store.

    `store` is the name of the store ('s3' for s3a:// too). `fs` and `root` are made at their first use.
    """

    _sequential_options: ClassVar[dict[str, Any]] = {"block_size": 4 << 20}  # for files that are read in order

    def __init__(self, spec: RemoteSpec, threads: TransferThreads | None = None) -> None:
        """Raises UsageError if the URL or the options are wrong. Does not touch the network."""
        self.spec = spec
        self._threads = threads or TransferThreads()
        self._own = threading.local()
        self._has_ranges = True  # until the library returns more than the range that was requested
        self.store = store_of(spec.url)
        self._secrets = {*secrets_in(spec.storage_options), *secrets_in(userinfo(spec.url))}
        self._options = self._store_options()

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        parallel = FOLDERS_PARALLEL_MAX if self._is_thread_safe else 1
        return walk.pages(self._read_folder, parallel, cursor)

    def stat(self, path: str, version: str = "") -> RemoteFile:
        with self.translating(path):
            self.fs.invalidate_cache()
            info = self.fs.info(self._key(path))
            if info["type"] == "directory":
                raise RemoteMissing(f"{self.safe_url(path)}: is a folder now; list again")
            return file_from_info(path, info)

    def fetch(self, task: FetchTask) -> RemoteFile:
        if found := self._fetch_by_get(task):
            return found
        if task.byte_range:  # the library may not give the version with a range
            self._verified(task.file, self.stat(task.file.path))

        def throttle(count: int) -> None:
            self._threads.throttle(count)
            task.progress(count)

        return self._by_library(replace(task, progress=throttle))

    def as_file(self, path: str = "", **options: Any) -> Any:
        """A seekable file object, opened with fsspec's options. Read it inside `translating`."""
        fs = self.fs if self._is_thread_safe else self._new_filesystem()[0]  # another thread may read the file
        return fs.open(self._key(path), "rb", **options)

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        def check(size: int, headers: Headers) -> RemoteFile:
            return self._verified(file, self._file_from_headers(file, size, headers) or self.stat(file.path))

        if self._downloader.usable:
            to_error = partial(self._translated, path=file.path)
            with suppress(FallBack):
                return HttpStream(self._downloader, partial(self._sign, file), start, check, to_error)
        return self._open_by_library(file, start)

    def _open_by_library(self, file: RemoteFile, start: int) -> RemoteStream:
        now = self._verified(file, self.stat(file.path))
        translating = partial(self.translating, file.path)
        with translating():
            source = self.as_file(file.path, **self._sequential_options)
        return FileStream(source, now, start, partial(self.stat, file.path), self._threads.throttle, translating)

    def access(self) -> Access:
        """How the store is reached. May ask servers for credentials. Raises a RemoteError if there are none."""
        parts = urlsplit(self.spec.endpoint_url or SERVERS.get(self.store) or self.spec.url)
        is_web = parts.scheme in ("http", "https")
        server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if is_web else ""
        if is_web and parts.username:
            return Access(server, "in the URL")
        has_options = bool(self.spec.storage_options.keys() - {"base_url"})
        return Access(server, credentials_of(self.store, has_options, self.spec.anon))

    def is_proxied(self, server: str) -> bool:
        """Whether requests to the URL of a server go through a proxy (HTTPS_PROXY and others)."""
        return self._downloader.is_proxied(*HttpRequest(server).origin)

    def head(self, url: str) -> Headers:
        """The headers with which a server of the store answers a request without credentials, whatever its status.

        Empty where only the store's library can talk to it. Raises RemoteBusy.
        """
        connection = Connection(lambda: self._tls)
        try:
            return connection.send(HttpRequest(url, method="HEAD"), {}).headers
        except ConnectionFailed as error:
            raise translate(error, url, self.store, self._secrets) from None
        except FallBack:
            return {}
        finally:
            connection.close()

    @property
    def _is_thread_safe(self) -> bool:
        """Libraries with an event loop can be used from any thread; of others that is not known."""
        return bool(self._shared[0].async_impl)

    def _fetch_by_get(self, task: FetchTask) -> RemoteFile | None:
        """Fetch by plain GETs; None if the library has to do it."""
        file = task.file
        if not self._downloader.usable:
            return None

        def check(size: int, headers: Headers) -> RemoteFile | None:
            now = self._file_from_headers(file, size, headers)
            return now and self._verified(file, now)

        try:
            found = self._downloader.fetch(task, partial(self._sign, file), check)
        except (HttpError, ChecksumMismatch, ConnectionFailed) as error:
            raise self._translated(error, file.path) from None
        return found and self._verified(file, found[1] or self.stat(file.path), None if task.byte_range else found[0])

    def _sign(self, file: RemoteFile, method: str = "GET") -> HttpRequest:
        try:
            return self._request_of(file, method)
        except Exception as error:
            raise FallBack("cannot be signed") from error

    def _request_of(self, file: RemoteFile, method: str) -> HttpRequest:
        """As `_request`, for stores where it depends on what was listed."""
        return self._request(file.path, method)

    def _request(self, path: str, method: str = "GET") -> HttpRequest:
        """A freshly signed GET or HEAD of path. Raises any error if there cannot be one."""
        if method != "GET":
            raise FallBack("no HEAD", counts=False)
        fs = self._shared[0] if self.store in PLAIN_GETS else self.fs  # these only read what it holds
        return self._signed(fs, self._key(path))

    @cached_property
    def _signed(self) -> Callable[[Any, str], HttpRequest]:
        return PLAIN_GETS.get(self.store, lambda fs, key: HttpRequest(fs.sign(key, expiration=SIGNED_S)))

    def _file_from_headers(self, file: RemoteFile, size: int, headers: Headers) -> RemoteFile | None:
        """The version of a file that the headers of a GET describe; None if they lack what its listing has."""
        if headers.get("content-encoding", "identity") != "identity":
            raise FallBack("encoded")
        if generation := headers.get("x-goog-generation"):
            return RemoteFile(file.path, size, to_ns(headers.get("last-modified")), generation)
        if self.store not in ("az", "webdav"):
            return None
        now = file_from_headers(file.path, size, headers)
        if self.store == "az" or now.version == file.version:
            return now
        now = file_from_headers(file.path, size, {**headers, "etag": ""})  # some servers list no ETags, but send them
        return now if now.version == file.version else None

    @cached_property
    def _downloader(self) -> RangeDownloader:
        return RangeDownloader(self._threads, lambda: self._tls)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._trusted()

    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context()  # it honors SSL_CERT_FILE and SSL_CERT_DIR

    def _by_library(self, task: FetchTask) -> RemoteFile:
        """Fetch by the store's library. task.digest gets no bytes of a file that is read as a whole."""
        file, target = task.file, task.target
        target.open("wb").close()  # an empty file has no callback; and a bad target is no error of the remote
        if task.byte_range:
            return self._fetch_parts_by_library(task, task.byte_range)
        if self._is_thread_safe and self._has_ranges and (file.size or 0) > self._threads.part_bytes(file.size):
            return self._fetch_parts_by_library(task, ByteRange(0, file.size or 0))
        with self._threads.unsplit(file.size):
            return self._fetch_whole_by_library(task)

    def _fetch_whole_by_library(self, task: FetchTask) -> RemoteFile:
        from fsspec.callbacks import Callback

        file, target, progress = task.file, task.target, task.progress
        reported = 0
        raised: Exception | None = None

        def meter(size: int | None, value: int, **_: Any) -> None:
            nonlocal reported, raised
            delta, reported = value - reported, value
            try:
                progress(delta)
            except Exception as error:
                raised = error  # the library may wrap it
                raise

        with self.translating(file.path, lambda: raised):
            self.fs.get_file(self._key(file.path), str(target), callback=Callback(hooks={"growfs": meter}))
        now = self.stat(file.path)
        written = target.stat().st_size
        progress(written - reported)
        return self._verified(file, now, written)

    def _fetch_parts_by_library(self, task: FetchTask, extent: ByteRange) -> RemoteFile:
        file = task.file
        now = file if task.byte_range else self._verified(file, self.stat(file.path))
        part_bytes = min(self._threads.part_bytes(extent.size), LIBRARY_PART_BYTES_MAX)

        def read(start: int, end: int) -> bytes:
            with self.translating(file.path):
                content: bytes = self.fs.cat_file(self._key(file.path), start, end)
            if len(content) > end - start and self._has_ranges:
                self._has_ranges = False
                raise RemoteBusy(f"{self.safe_url(file.path)}: was sent whole, though a part was requested; try again")
            self._check_length(file.path, ByteRange(start, end - start), len(content))
            return content

        LibraryTransfer(self._threads, task, extent, part_bytes if self._has_ranges else extent.size, read).run()
        return self._verified(now, self.stat(file.path))

    def _check_length(self, path: str, part: ByteRange, got: int) -> None:
        if got > part.size:
            raise RemoteError(f"{self.safe_url(path)}: its server sends whole files only; use one that has ranges")
        if got < part.size:
            raise RemoteBusy(f"{self.safe_url(path)}: cut short at {got} of {part.size} bytes; try again")

    @property
    def fs(self) -> Any:
        """The library's filesystem: one for all threads, or one for each where they might disturb each other."""
        if self._is_thread_safe:
            return self._shared[0]
        if not hasattr(self._own, "fs"):
            self._own.fs = self._new_filesystem()[0]
        return self._own.fs

    @cached_property
    def root(self) -> str:
        """The prefix of all names in the store, without a slash at the end."""
        return str(self._shared[1]).rstrip("/")

    @cached_property
    def _shared(self) -> tuple[Any, str]:
        return self._new_filesystem()

    def _new_filesystem(self) -> tuple[Any, str]:
        """(a filesystem of the library, the prefix of all names)."""
        if self.store == "az" and not _names_account(self.spec.url, self._options):
            raise UsageError(
                f"{self.safe_url()}: names no storage account;"
                " set AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING"
            )
        fresh = {"skip_instance_cache": True}
        if self.store != "webdav":  # it has no such cache, and takes the option for one of its HTTP client
            fresh["use_listings_cache"] = False
        try:
            fs, root = _url_to_fs(self.store, self.spec.url, {**fresh, **self._options})
        except (TypeError, KeyError, ValueError) as error:
            raise UsageError(f"{self._translated(error)}; see --storage-option") from None
        except Exception as error:  # noqa: BLE001 - the libraries' exceptions have no common base
            raise self._translated(error) from None
        _retry_nothing(self.store, fs)
        return fs, root

    def _store_options(self) -> dict[str, Any]:
        """The storage options, with --endpoint-url and --anon as the store's library names them."""
        options, url = dict(self.spec.storage_options), self.spec.endpoint_url
        if url and self.store not in ("s3", "gs", "az", "hf"):
            raise UsageError(f"--endpoint-url makes no sense for {self.store}://; it is for s3, gs, az and hf")
        if self.spec.anon and self.store not in ("s3", "gs", "az", "hf"):
            raise UsageError(f"--anon makes no sense for {self.store}://; it is for s3, gs, az and hf")
        if self.store == "s3":
            config = {"connect_timeout": TIMEOUTS.connect_s, "read_timeout": TIMEOUTS.read_s}
            signed = {"signature_version": "s3v4"}  # botocore's default for a signed URL is v2
            once = {"retries": {"total_max_attempts": 1}}  # botocore's own
            options["config_kwargs"] = {**config, **signed, **once, **options.get("config_kwargs", {})}
        if url and self.store == "s3":
            options.pop("endpoint_url", None)
            options["client_kwargs"] = {**options.get("client_kwargs", {}), "endpoint_url": url}
        elif url and self.store == "az":
            if not url.startswith("https://"):
                raise UsageError("--endpoint-url of az:// begins with https://; else use the option connection_string")
            options["account_host"] = url[len("https://") :].rstrip("/")
        elif url:
            options["endpoint_url" if self.store == "gs" else "endpoint"] = url
        if self.store == "webdav" and not options.get("base_url"):
            raise UsageError(
                f"{clean(self.spec.url, self._secrets)}: needs its server: --storage-option base_url=https://host/dav/"
            )
        if self.store == "webdav":
            options.setdefault(
                "timeout", (TIMEOUTS.connect_s, PAGE_READ_S, PAGE_READ_S, TIMEOUTS.connect_s)
            )  # of httpx
        if self.store == "az":
            options.setdefault("read_timeout", PAGE_READ_S)
        if self.store == "webdav" and isinstance(options.get("auth"), list):
            options["auth"] = tuple(options["auth"])  # as JSON, it is a list
        if self.spec.anon:
            options |= _ANON.get(self.store, {"anon": True})
        return options

    def _key(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def _url(self, path: str = "") -> str:
        return f"{self.spec.url.rstrip('/')}/{path}" if path else self.spec.url

    @contextmanager
    def translating(self, path: str = "", raised: Callable[[], Exception | None] = lambda: None) -> Iterator[None]:
        """Turn client errors into growfs's own. What progress raised, and a full local disk, are raised as they are.

        raised: returns the error that progress raised, which the library may have wrapped.
        """
        try:
            yield
        except Exception as error:
            if (callback_error := raised()) is not None:
                raise callback_error from None
            if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
                raise
            raise self._translated(error, path) from None

    def _translated(self, error: BaseException, path: str = "") -> GrowfsError:
        server = self.spec.endpoint_url or str(self._options.get("base_url", ""))
        return translate(error, self._url(path), self.store, self._secrets, server, self._known_credentials)

    def _known_credentials(self) -> str:
        """Where the credentials that were used come from, in words; empty where that is not known."""
        found = self.access().credentials
        return "" if found.startswith("left to") else found

    def _read_folder(self, folder: str) -> list[Entry]:
        """_list_folder, with names that cannot be local skipped. A folder that has disappeared meanwhile is empty."""
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

    def _list_folder(self, folder: str) -> list[Entry]:
        """The files in a folder and, as strings, the folders in it: each with its path from the root."""
        found: list[Entry] = []
        key = self._key(folder)
        for info in self.fs.ls(key or "/", detail=True):
            name, kind = str(info["name"]), info["type"]
            path = name[len(self.root) + 1 :]
            if name.rstrip("/") == key.rstrip("/"):
                if kind == "file" and not folder and not name.endswith("/"):
                    raise RemoteError(f"{self.safe_url()}: is a file; give the URL of its folder")
            elif not name.startswith(self.root + "/"):
                found.append(Skipped("name outside the remote", name))
            elif kind == "directory":
                found.append(path.rstrip("/") if not path.endswith("//") else path)
            elif kind != "file":
                found.append(Skipped("not a regular file", path))
            elif info.get("size") or not path.endswith("/"):  # else a marker that stands for a folder
                found.append(file_from_info(path, info))
        return found

    def _verified(self, file: RemoteFile, now: RemoteFile, written: int | None = None) -> RemoteFile:
        """`now`, if it is the version that was requested, and all of it arrived. written: the bytes that arrived."""
        if (file.version and now.version and file.version != now.version) or (
            file.size is not None and now.size is not None and file.size != now.size
        ):
            raise RemoteChanged(f"{self.safe_url(file.path)}: is no longer the version that was listed; list again")
        mtime_ns = now.mtime_ns
        if file.version and file.version == now.version and file.mtime_ns is not None:
            mtime_ns = file.mtime_ns  # headers have whole seconds only
        size = file.size if now.size is None else now.size
        if written is not None and size is not None and written != size:
            raise RemoteBusy(f"{self.safe_url(file.path)}: cut short at {written} of {size} bytes; try again")
        return RemoteFile(file.path, size if written is None else written, mtime_ns, now.version or file.version)

    def safe_url(self, path: str = "") -> str:
        """The URL of path without its secrets, for messages."""
        return clean(self._url(path), self._secrets)


def _url_to_fs(store: str, url: str, options: dict[str, Any]) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    if store == "gs" and (options.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST")):
        from gcsfs.core import GCSFileSystem

        # The class that gcsfs registers asks Google by gRPC what each bucket is, for a minute where that cannot be.
        return GCSFileSystem(**options), GCSFileSystem._strip_protocol(url)
    fs, root = url_to_fs(url, **options)
    if store == "webdav":
        weakref.finalize(fs, fs.client.http.close)
    return fs, root


def _names_account(url: str, options: dict[str, Any]) -> bool:
    known = any(options.get(name) or os.environ.get(f"AZURE_STORAGE_{name.upper()}") for name in AZURE_ACCOUNT)
    return known or ".core.windows.net" in url


def _retry_nothing(store: str, fs: Any) -> None:
    """Only RetryingRemote repeats requests: the libraries would do so for half a minute and more, in silence."""
    fs.retries = 1  # of s3fs
    if store == "az":
        fs.service_client._config.retry_policy.total_retries = 0
    elif store == "gs" and (request := getattr(type(fs)._request, "__wrapped__", None)):
        fs._request = MethodType(request, fs)


def store_of(url: str) -> str:
    """The store of a URL ('s3', 'gs', 'az', 'hf', 'http', 'file', 'memory', ...)."""
    protocol = re.split("::|://", url, maxsplit=1)[0].lower() if "::" in url or "://" in url else "file"
    return _STORES.get(protocol, protocol)


def import_store(url: str) -> None:
    """Import what a URL needs. Raises UsageError if its store is unknown or its package is not installed."""
    from fsspec import get_filesystem_class

    store = store_of(url)
    try:
        get_filesystem_class(store)
    except ImportError as error:
        if package := _PACKAGES.get(store):
            raise UsageError(f"{store}:// needs a package that is not installed: pip install {package}") from None
        raise UsageError(f"{store}:// needs a package that is not installed: {error}") from None
    except ValueError:
        raise UsageError(f"{store}:// is no store that fsspec knows; examples: {EXAMPLES}") from None
