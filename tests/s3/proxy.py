"""A reverse proxy in front of a real server. Tests have it delay, refuse and record requests."""

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
class Request:
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
    """An S3 error that replaces the server's response."""

    status: int
    code: str

    @property
    def body(self) -> bytes:
        return f"<Error><Code>{self.code}</Code><Message>an injected fault</Message></Error>".encode()


class Proxy:
    """requests: all that were received, in order.

    fault: returns the error to answer a request with, None to pass it on. cut: which responses end half-way. is_away:
    whether it hangs up on every request, as a server that is stopped.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.is_away = False
        self.fault: Callable[[Request], Fault | None] = lambda _: None
        self.cut: Callable[[Request], bool] = lambda _: False
        self._hold: Callable[[Request], bool] = lambda _: False
        self._changed = threading.Condition()

    def hold(self, which: Callable[[Request], bool]) -> None:
        """Hold back the requests for which `which` is true, until release."""
        self._hold = which

    def release(self) -> None:
        """Pass on all requests that are held, and all later ones."""
        with self._changed:
            self._hold = lambda _: False
            self._changed.notify_all()

    def admit(self, request: Request) -> None:
        """Called by the server: record the request, and return when it may be passed on."""
        with self._changed:
            self.requests.append(request)
            self._changed.wait_for(lambda: not self._hold(request))


@contextmanager
def proxy_to(server_url: str) -> Iterator[Proxy]:
    """A proxy that runs for as long as the block lasts."""
    proxy = Proxy()
    address = urlsplit(server_url).netloc

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            request = Request(self.command, unquote(self.path), self.headers)
            proxy.admit(request)
            if proxy.is_away:
                self.close_connection = True
                return
            if fault := proxy.fault(request):
                self.reply(fault.status, {"Content-Type": "application/xml"}, fault.body)
                return
            connection = http.client.HTTPConnection(address, timeout=30)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():  # with Host, which is part of what is signed
                    connection.putheader(name, value)
                connection.endheaders()
                answer = connection.getresponse()
                body = answer.read()
                self.close_connection = proxy.cut(request)
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
            proxy.release()
