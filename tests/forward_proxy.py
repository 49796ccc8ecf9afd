"""`ForwardProxy`: a proxy as HTTP_PROXY and HTTPS_PROXY name one. It records what it serves, and refuses as told."""

from __future__ import annotations

import http.client
import select
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.message import Message
from http import HTTPStatus
from socket import create_connection, socket
from urllib.parse import urlsplit

from tests.servers import QuietHandler, serving

AWAY = "127.0.0.1:1"
"""An address at which nothing listens: what is at it comes from the proxy alone."""
_OF_THE_HOP = {"connection", "keep-alive", "proxy-authorization", "transfer-encoding"}


class ForwardProxy:
    """Takes AWAY for the address of a server.

    password: `user:password`, without which it refuses. status: with which it refuses.
    """

    def __init__(self, server: str, password: str = "") -> None:
        self.server = server
        self.password = password
        self.status = 0
        self.url = ""
        self.tunnels: list[str] = []
        """The target of each CONNECT that it served."""
        self.requests: list[tuple[str, Message]] = []
        """The URL and the headers of each request in absolute form that it served."""

    @property
    def url_with_password(self) -> str:
        return self.url.replace("://", f"://{self.password}@")

    def env(self) -> dict[str, str]:
        """The environment of a process that uses it for all servers."""
        return {"no_proxy": ""} | dict.fromkeys(("http_proxy", "https_proxy"), self.url_with_password)

    def address(self, netloc: str) -> tuple[str, int]:
        host, _, port = (self.server if netloc == AWAY else netloc).rpartition(":")
        return host, int(port)

    def refusal(self, headers: Message) -> int:
        expected = f"Basic {b64encode(self.password.encode()).decode()}"
        return 407 if self.password and headers["Proxy-Authorization"] != expected else self.status


@contextmanager
def forward_proxy(server: str, password: str = "") -> Iterator[ForwardProxy]:
    """Runs one for the block. server: HOST:PORT, or a URL."""
    proxy = ForwardProxy(urlsplit(server).netloc or server, password)

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def refuses(self) -> bool:
            if status := proxy.refusal(self.headers):
                self.reply("refused", status, {"Connection": "close", "Proxy-Authenticate": "Basic"})
            return bool(status)

        def do_CONNECT(self) -> None:
            if self.refuses():
                return
            proxy.tunnels.append(self.path)
            self.close_connection = True
            with create_connection(proxy.address(self.path)) as server:
                self.send_response_only(HTTPStatus.OK)
                self.end_headers()
                with suppress(OSError):
                    _relay(self.connection, server)

        def do_GET(self) -> None:
            if self.refuses():
                return
            proxy.requests.append((self.path, self.headers))
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            sent = {name: value for name, value in self.headers.items() if name.lower() not in _OF_THE_HOP}
            server = http.client.HTTPConnection(*proxy.address(parts.netloc), timeout=30)
            server.request(self.command, self.path.partition(parts.netloc)[2], body, sent)
            response = server.getresponse()
            content = response.read()
            self.send_response_only(response.status, response.reason)
            for name, value in response.getheaders():
                if name.lower() not in _OF_THE_HOP:
                    self.send_header(name, value)
            if "Content-Length" not in response.headers:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            server.close()

        do_HEAD = do_POST = do_PROPFIND = do_GET  # noqa: N815

    with serving(Handler) as url:
        proxy.url = url.rstrip("/")
        yield proxy


def _relay(one: socket, other: socket) -> None:
    """Copy what each sends to the other, until one of them ends."""
    targets = {one.fileno(): (one, other), other.fileno(): (other, one)}
    poll = select.poll()  # select() has no descriptors above 1023, and a test run may
    for number in targets:
        poll.register(number, select.POLLIN)
    while True:
        for number, _ in poll.poll():
            source, target = targets[number]
            if not (received := source.recv(1 << 16)):
                return
            target.sendall(received)
