"""`HttpRemote`: a folder that a web server shows as a page of links. Sizes are unknown until a file is requested."""

from __future__ import annotations

from base64 import b64encode
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from growfs.errors import RemoteError, UsageError
from growfs.remote.http.connection import REDIRECTS_MAX, Headers, HttpRequest
from growfs.remote.interface import RemoteFile
from growfs.remote.metadata import file_from_headers
from growfs.remote.names import redact
from growfs.remote.stores.base import Entry
from growfs.remote.stores.fsspec import FsspecRemote, aiohttp_proxy, aiohttp_timeout


class HttpRemote(FsspecRemote):
    """The files below a page that it links to, and those on the pages of the folders below it."""

    name = "http"
    schemes = ("https", "http")
    package = "aiohttp"
    is_percent_encoded = True
    default_credentials = "none"
    login = "with a password the URL is https://user:password@host/folder/"
    own_options = frozenset({"headers"})
    sequential_options = {"block_size": 0}  # noqa: RUF012

    @classmethod
    def check_folder(cls, url: str) -> None:
        if "?" in url or "#" in url:
            raise UsageError(f"{redact(url)}: use the URL of a folder, without ? or #")

    def _library_options(self) -> dict[str, Any]:
        options = super()._library_options()
        options["headers"] = {
            "Accept-Encoding": "identity",
            **options.get("headers", {}),
        }  # else sizes are of gzip
        return options

    def _open_library(self, options: dict[str, Any]) -> tuple[Any, str]:
        session = {"timeout": aiohttp_timeout(), **aiohttp_proxy(self.spec.url), **options.get("client_kwargs", {})}
        return super()._open_library({**options, "client_kwargs": session})

    def _key(self, path: str) -> str:
        return f"{self.root}/{quote(path)}" if path else self.root

    def _request(self, file: RemoteFile, method: str) -> HttpRequest:
        url = self.fs.encode_url(self._key(file.path))
        headers = dict(self._options["headers"])
        if url.user is not None:
            password = f"{url.user}:{url.password or ''}".encode("latin-1")  # as aiohttp does
            headers["Authorization"] = f"Basic {b64encode(password).decode()}"
        return HttpRequest(str(url.with_user(None)), headers, redirects=REDIRECTS_MAX)

    def _file_from_headers(self, file: RemoteFile, size: int, headers: Headers) -> RemoteFile | None:
        if "etag" not in headers and ("content-md5" in headers or "digest" in headers):
            return None  # a range has a version of its own
        return file_from_headers(file.path, size, headers)

    def text_of(self, error: BaseException) -> str:
        is_response = type(error).__name__ == "ClientResponseError"  # of aiohttp: its text has the URL and the status
        return str(getattr(error, "message", error) if is_response else error)

    def _list_folder(self, folder: str) -> list[Entry]:
        page = f"{self._key(folder)}/"
        links = _LinkParser()
        links.feed(self._text(page))
        if links.is_cut:
            raise self.not_a_listing("the page is cut short")
        home = urlsplit(page)
        host, start = home.netloc.rpartition("@")[2], unquote(home.path)
        below: set[str] = set()
        for link in links.found:
            if "?" in link or "#" in link:
                continue  # a link that sorts the page, or leads to a place on it
            try:
                there = urlsplit(urljoin(page, link))
            except ValueError:  # it is not a URL
                continue
            path = unquote(there.path, errors="surrogateescape")
            if there.netloc.rpartition("@")[2] == host and path.startswith(start) and path != start:
                below.add(path[len(start) :])
        if not below and not links.names(start):
            raise self.not_a_listing("a page without links")
        prefix = f"{folder}/" if folder else ""
        return [
            (prefix + path[:-1]) if path.endswith("/") else RemoteFile(prefix + path, None, None, "")
            for path in below
            if not any(path[: at + 1] in below for at, letter in enumerate(path[:-1]) if letter == "/")
        ]  # a file in a folder that has its own link is listed with that folder

    def _text(self, page: str) -> str:
        pieces: list[bytes] = []
        with self.fs.open(page, block_size=0) as stream:
            while piece := stream.read(1 << 20):
                pieces.append(piece)
                if sum(map(len, pieces)) > 64 << 20 or b"\0" in piece:
                    raise RemoteError(
                        f"{self.safe_url()}: is not a page of links; use the URL of a folder, or of a .txt or .csv file"
                    )
        return b"".join(pieces).decode(errors="replace")


class _LinkParser(HTMLParser):
    """Finds the links of a page. is_cut: whether the page begins, but does not end."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.is_cut = False
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]
        self.is_cut |= tag == "html"

    def handle_endtag(self, tag: str) -> None:
        self.is_cut &= tag != "html"

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    def names(self, folder: str) -> bool:
        """Whether the page is about a folder: that of an empty one links to its parent, or has its name."""
        return not {"..", "../"}.isdisjoint(self.found) or folder.rstrip("/") in "".join(self._text)
