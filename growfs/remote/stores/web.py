"""`HttpRemote`: a folder that a web server shows as a page of links. Sizes are unknown until a file is requested."""

from __future__ import annotations

from base64 import b64encode
from html.parser import HTMLParser
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urljoin, urlsplit

from growfs.errors import RemoteError, UsageError
from growfs.remote.http.connection import FallBack, Headers, HttpRequest
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import RemoteFile, RemoteSpec
from growfs.remote.metadata import file_from_headers
from growfs.remote.stores.fsspec import FsspecRemote
from growfs.remote.walk import Entry

LISTING_BYTES_MAX = 64 << 20


class HttpRemote(FsspecRemote):
    """The files that a page links to below itself, and those of the folders' pages below it."""

    _sequential_options: ClassVar[dict[str, Any]] = {"block_size": 0}

    def __init__(self, spec: RemoteSpec, threads: TransferThreads | None = None) -> None:
        super().__init__(spec, threads)
        if "?" in spec.url or "#" in spec.url:
            raise UsageError(f"{self.safe_url()}: give a folder's URL, without ? and #")
        headers = {
            "Accept-Encoding": "identity",
            **self._options.get("headers", {}),
        }  # else sizes are of gzipped data
        self._options["headers"] = headers

    def _key(self, path: str) -> str:
        return f"{self.root}/{quote(path)}"

    def _request(self, path: str, method: str = "GET") -> HttpRequest:
        if method != "GET" or self._options.keys() - {"headers"}:
            raise FallBack("an option that only the library knows")
        url = self.fs.encode_url(self._key(path))
        headers = dict(self._options["headers"])
        if url.user is not None:
            password = f"{url.user}:{url.password or ''}".encode("latin-1")  # as aiohttp does
            headers["Authorization"] = f"Basic {b64encode(password).decode()}"
        return HttpRequest(str(url.with_user(None)), headers)

    def _file_from_headers(self, file: RemoteFile, size: int, headers: Headers) -> RemoteFile | None:
        super()._file_from_headers(file, size, headers)
        if "etag" not in headers and ("content-md5" in headers or "digest" in headers):
            return None  # a range has a version of its own
        return file_from_headers(file.path, size, headers)

    def _list_folder(self, folder: str) -> list[Entry]:
        page = self._key(folder and f"{folder}/")
        links = _LinkParser()
        links.feed(self._text(page))
        home = urlsplit(page)
        host, start = home.netloc.rpartition("@")[2], unquote(home.path)
        below: set[str] = set()
        for link in links.found:
            if "?" in link or "#" in link:
                continue  # a link that sorts the page, or to a place on it
            there = urlsplit(urljoin(page, link))
            path = unquote(there.path, errors="surrogateescape")
            if there.netloc.rpartition("@")[2] == host and path.startswith(start) and path != start:
                below.add(path[len(start) :])
        prefix = f"{folder}/" if folder else ""
        return [
            (prefix + path[:-1]) if path.endswith("/") else RemoteFile(prefix + path, None, None, "")
            for path in below
            if not any(path[: at + 1] in below for at, letter in enumerate(path[:-1]) if letter == "/")
        ]  # a file in a folder that has its own link is listed with that folder

    def _text(self, page: str) -> str:
        parts: list[bytes] = []
        with self.fs.open(page, block_size=0) as stream:
            while part := stream.read(1 << 20):
                parts.append(part)
                if sum(map(len, parts)) > LISTING_BYTES_MAX or b"\0" in part:
                    raise RemoteError(f"{self.safe_url()}: is no page of links; give a folder's URL, or a .txt or .csv")
        return b"".join(parts).decode(errors="replace")


class _LinkParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]
