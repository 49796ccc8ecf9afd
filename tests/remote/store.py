"""`Store`: a web server with one file, that misbehaves in the way that a test wants."""

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

from growfs.remote.protocol import FetchTask, RemoteFile, RemoteSpec
from growfs.remote.stores.s3.store import S3Remote
from tests.servers import serving

PART = 1000
DATA = random.Random(2).randbytes(10 * PART + 500)
SMALL = random.Random(3).randbytes(PART)
FILE = RemoteFile("x", None, None, "")
KEYS = {"key": "growfs-access", "secret": "growfs-secret-0123456789"}
MODIFIED = "Tue, 03 Nov 2020 10:00:00 GMT"

Show = Callable[..., str]
"""Shows a store, over TLS with a second argument, until the test ends; gives its URL."""


def s3(url: str, **options: Any) -> S3Remote:
    return S3Remote(RemoteSpec("s3://bucket", {**KEYS, **options}, url))


def fetched(remote: Any, tmp_path: Path, file: RemoteFile = FILE) -> bytes:
    """What fetch brings, of which progress tells each byte once."""
    told: list[int] = []
    found = remote.fetch(FetchTask(file, tmp_path / "target", told.append))
    data = (tmp_path / "target").read_bytes()
    assert found.size == sum(told) == len(data)
    return data


@dataclass(frozen=True)
class Asked:
    """A request, and the port that it came from: a kept connection has one."""

    method: str
    target: str
    headers: Message = field(repr=False)
    port: int

    @property
    def start(self) -> int | None:
        """Where the range begins that is asked for."""
        found = re.match(r"bytes=(\d+)-", self.headers["Range"] or "")
        return int(found[1]) if found else None


@dataclass
class Store:
    """`status`, where it gives one, is answered instead. `before` is called for each GET, and may change the rest.

    ranges: 'partial' (206), 'rclone' (200 with a Content-Range), 'ignored' (200 with all), 'first' (only of the first)
    body: 'plain', 'gzip', 'chunked', 'endless' (until the connection ends), 'cut' (half of it)
    """

    data: bytes
    etag: str | None = '"v1"'
    modified: str | None = MODIFIED
    ranges: str = "partial"
    body: str = "plain"
    keeps_alive: bool = True
    hangs_up: bool = False  # without a word
    heeds_if_match: bool = True
    location: str = ""
    more: dict[str, str] = field(default_factory=dict)
    more_of: Callable[[Asked], dict[str, str]] = lambda _: {}
    before: Callable[[Asked], object] = lambda _: None
    status: Callable[[Asked], int | None] = lambda _: None
    asked: list[Asked] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def gets(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "GET"]

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """As asked, but for what is wrong with this store."""
        asked = Asked(handler.command, handler.path, handler.headers, handler.client_address[1])
        with self.lock:
            self.asked.append(asked)
            if asked.method == "GET":
                self.before(asked)
            status = self.status(asked)
            data, etag, modified = self.data, self.etag, self.modified
        headers = self.more | self.more_of(asked)
        if self.location and not asked.target.endswith(self.location):
            headers["Location"] = self.location
            return self.reply(handler, 302, headers, b"moved")
        wanted = asked.headers["If-Match"]
        if status is None and self.heeds_if_match and wanted and wanted != etag:
            status = 412
        if status is not None:
            return self.reply(handler, status, headers, b"<Error><Code>Odd</Code></Error>")
        headers |= {name: value for name, value in (("ETag", etag), ("Last-Modified", modified)) if value is not None}
        start, code = asked.start, 200
        if self.ranges == "first" and start:
            start = None
        if start is not None and self.ranges != "ignored":
            end = int(asked.headers["Range"].partition("-")[2])
            if start >= len(data):
                return self.reply(handler, 416, headers | {"Content-Range": f"bytes */{len(data)}"}, b"")
            part = data[start : end + 1]
            headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
            data, code = part, 200 if self.ranges == "rclone" else 206
        return self.reply(handler, code, headers, data)

    def reply(self, handler: http.server.BaseHTTPRequestHandler, status: int, headers: Any, body: bytes) -> None:
        """Send it."""
        handler.send_response(status)
        if self.body == "gzip":
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        if self.body == "chunked":
            headers["Transfer-Encoding"] = "chunked"
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        elif self.body != "endless":
            headers["Content-Length"] = str(len(body))
        if self.body == "cut":
            body = body[: len(body) // 2]
        if not self.keeps_alive or self.body in ("cut", "endless"):
            headers["Connection"] = "close"
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)
        handler.close_connection |= self.hangs_up

    @contextmanager
    def shown(self, tls: ssl.SSLContext | None = None) -> Iterator[str]:
        """Its URL, with a slash at the end; over TLS with that context."""
        store = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                store.answer(self)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        with serving(Handler, tls) as url:
            yield url
