"""A reverse proxy before a real server, that delays, refuses and counts what a test wants it to."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from urllib.parse import unquote, urlsplit

from tests.servers import serving


@dataclass(frozen=True)
class Asked:
    """A request. target: path and query, unquoted."""

    method: str
    target: str
    headers: Message = field(repr=False)

    @property
    def is_listing(self) -> bool:
        return "list-type=2" in self.target

    @property
    def is_fetch(self) -> bool:
        return self.method == "GET" and not self.is_listing


@dataclass(frozen=True)
class Fault:
    """What is answered instead of the server's own answer: an S3 error."""

    status: int
    code: str

    @property
    def body(self) -> bytes:
        return f"<Error><Code>{self.code}</Code><Message>as the test wants it</Message></Error>".encode()


class Proxy:
    """fault: gives what to answer instead, None to pass the request on. cut: which answers end half-way.

    hold: which requests wait to be let go.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.fault: Callable[[Asked], Fault | None] = lambda _: None
        self.cut: Callable[[Asked], bool] = lambda _: False
        self._hold: Callable[[Asked], bool] = lambda _: False
        self._changed = threading.Condition()

    def hold(self, which: Callable[[Asked], bool]) -> None:
        self._hold = which

    def let_go(self) -> None:
        """All that is held, and all that comes."""
        with self._changed:
            self._hold = lambda _: False
            self._changed.notify_all()

    def pass_through(self, asked: Asked) -> None:
        """Called by the server: note the request, and return when it may go on."""
        with self._changed:
            self.asked.append(asked)
            self._changed.wait_for(lambda: not self._hold(asked))


@contextmanager
def before(server_url: str) -> Iterator[Proxy]:
    """A proxy for as long as the block lasts."""
    proxy = Proxy()
    address = urlsplit(server_url).netloc

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = Asked(self.command, unquote(self.path), self.headers)
            proxy.pass_through(asked)
            if fault := proxy.fault(asked):
                self.reply(fault.status, {"Content-Type": "application/xml"}, fault.body)
                return
            connection = http.client.HTTPConnection(address, timeout=30)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():  # Host too: it is part of what is signed
                    connection.putheader(name, value)
                connection.endheaders()
                answer = connection.getresponse()
                body = answer.read()
                self.close_connection = proxy.cut(asked)
                self.reply(
                    answer.status, dict(answer.getheaders()), body, len(body) // (2 if self.close_connection else 1)
                )
            finally:
                connection.close()

        def do_HEAD(self) -> None:
            self.do_GET()

        def reply(self, status: int, headers: dict[str, str], body: bytes, sent: int | None = None) -> None:
            skipped = ("transfer-encoding", "connection", "date", "server")
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in skipped and (name.lower() != "content-length" or self.command == "HEAD"):
                    self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[:sent])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Handler) as url:
        proxy.url = url.rstrip("/")
        try:
            yield proxy
        finally:
            proxy.let_go()
