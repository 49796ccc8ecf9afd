"""`FakeStore`: a web server with one file that misbehaves as a test configures it."""

from __future__ import annotations

import gzip
import http.server
import random
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

from growfs.remote.interface import FetchTask, RemoteFile, RemoteSpec
from growfs.remote.stores.s3.bucket import S3Remote
from growfs.remote.stores.web import HttpRemote
from tests.servers import QuietHandler, serving

PART = 1000
DATA = random.Random(2).randbytes(10 * PART + 500)
SMALL = random.Random(3).randbytes(PART)


def part_starts(size: int, first: int = 0) -> range:
    """Where the parts of a file, or of a range, begin: of equal size, and of at most PART bytes."""
    return range(first, first + size, -(-size // -(-size // PART)))


FILE = RemoteFile("x", None, None, "")
KEYS = {"key": "growfs-access", "secret": "growfs-secret-0123456789"}
MODIFIED = "Tue, 03 Nov 2020 10:00:00 GMT"

Serve = Callable[..., str]
"""Runs a FakeStore until the test ends, over TLS if given a second argument; returns its URL."""


def s3(url: str, **options: Any) -> S3Remote:
    return S3Remote(RemoteSpec("s3://bucket", {**KEYS, **options}, url))


def fetched(remote: Any, folder: Path, file: RemoteFile = FILE) -> bytes:
    """The content of a file after fetch; progress must report each byte once, unless the file begins anew."""
    reported: list[int] = []
    found = remote.fetch(FetchTask(file, folder / "target", reported.append, restart=reported.clear))
    data = (folder / "target").read_bytes()
    assert found.size == sum(reported) == len(data)
    return data


@dataclass(frozen=True)
class Request:
    """A request, and the client port: requests on one connection share it."""

    method: str
    target: str
    headers: Message = field(repr=False)
    port: int

    @property
    def start(self) -> int | None:
        """The first byte of the requested range."""
        found = re.match(r"bytes=(\d+)-", self.headers["Range"] or "")
        return int(found[1]) if found else None


@dataclass
class FakeStore:
    """The server's content and behaviour.

    status: a status to answer with instead, if any. on_get: called for each GET; it may change the other attributes.

    ranges: 'partial' (206), 'rclone' (200 with a Content-Range), 'ignored' (200 with the whole file), 'first' (only a
        range from 0 is served)
    body: 'plain', 'gzip', 'chunked', 'endless' (until the connection ends), 'cut' (half of it)
    """

    data: bytes
    etag: str | None = '"v1"'
    modified: str | None = MODIFIED
    ranges: str = "partial"
    body: str = "plain"
    keeps_alive: bool = True
    hangs_up: bool = False  # after each response, without a Connection: close
    honors_if_match: bool = True
    location: str = ""
    extra_headers: dict[str, str] = field(default_factory=dict)
    headers_for: Callable[[Request], dict[str, str]] = lambda _: {}
    on_get: Callable[[Request], object] = lambda _: None
    status: Callable[[Request], int | None] = lambda _: None
    requests: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def gets(self) -> list[Request]:
        return [request for request in self.requests if request.method == "GET"]

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """Answer the request, with the faults that this store has."""
        request = Request(handler.command, handler.path, handler.headers, handler.client_address[1])
        with self.lock:
            self.requests.append(request)
            if request.method == "GET":
                self.on_get(request)
            status = self.status(request)
            data, etag, modified, how = self.data, self.etag, self.modified, self.body
            ranges, honors_if_match = self.ranges, self.honors_if_match
        headers = self.extra_headers | self.headers_for(request)
        if self.location and not request.target.endswith(self.location):
            headers["Location"] = self.location
            return self.reply(handler, 302, headers, b"moved", how)
        wanted = request.headers["If-Match"]
        if status is None and honors_if_match and wanted and wanted != etag:
            status = 412
        if status is not None:
            return self.reply(handler, status, headers, b"<Error><Code>Odd</Code></Error>", how)
        headers |= {name: value for name, value in (("ETag", etag), ("Last-Modified", modified)) if value is not None}
        start, code = request.start, 200
        if ranges == "first" and start:
            start = None
        if start is not None and ranges != "ignored":
            end = int(request.headers["Range"].partition("-")[2])
            if start >= len(data):
                return self.reply(handler, 416, headers | {"Content-Range": f"bytes */{len(data)}"}, b"", how)
            part = data[start : end + 1]
            headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
            data, code = part, 200 if ranges == "rclone" else 206
        return self.reply(handler, code, headers, data, how)

    def reply(
        self, handler: http.server.BaseHTTPRequestHandler, status: int, headers: Any, body: bytes, how: str
    ) -> None:
        """Send a response. how: `body` at the time of the request."""
        handler.send_response(status)
        if how == "gzip":
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        if how == "chunked":
            headers["Transfer-Encoding"] = "chunked"
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        elif how != "endless":
            headers["Content-Length"] = str(len(body))
        if how == "cut":
            body = body[: len(body) // 2]
        if not self.keeps_alive or how in ("cut", "endless"):
            headers["Connection"] = "close"
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)
        handler.close_connection |= self.hangs_up

    @contextmanager
    def serving(self, tls: ssl.SSLContext | None = None) -> Iterator[str]:
        """Runs the server, over TLS with that context if given; gives its URL, with a slash at the end."""
        store = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                store.answer(self)

            do_HEAD = do_GET  # noqa: N815

        with serving(Handler, tls) as url:
            yield url


@dataclass(frozen=True)
class Scene:
    """Runs stores, and fetches their files to a folder. by_library: the paths of those that a library fetched."""

    serve: Serve
    folder: Path
    by_library: list[str]

    def s3(self, store: FakeStore, **options: Any) -> S3Remote:
        return s3(self.serve(store), **options)

    def web(self, store: FakeStore) -> HttpRemote:
        return HttpRemote(RemoteSpec(self.serve(store)))

    def fetched(self, remote: Any, file: RemoteFile = FILE) -> bytes:
        return fetched(remote, self.folder, file)
