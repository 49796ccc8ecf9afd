"""A reverse proxy in front of a real S3 server, which misbehaves as it is told to.

`proxy.fault` decides for each request which fault the response has.

    with proxy_to(server.endpoint_url) as proxy:
        proxy.fault = lambda request: FAULTS["reset"] if request.is_fetch else None
        ...
        proxy.fault = none

`Mix` is a choice of several faults, each for a share of the requests.
"""

from __future__ import annotations

import http.client
import http.server
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email.message import Message
from urllib.parse import unquote, urlsplit

from tests.servers import QuietHandler, serving

_OWN_HEADERS = ("transfer-encoding", "connection", "date", "server", "content-length")


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

    @property
    def is_part(self) -> bool:
        """Whether it asks for another part of an object than the first."""
        return self.is_fetch and not self.headers.get("Range", "bytes=0-").startswith("bytes=0-")

    @property
    def is_later_page(self) -> bool:
        return self.is_listing and ("continuation-token" in self.target or "start-after" in self.target)

    @property
    def scope(self) -> list[str]:
        """Of its signature: access key, date, region, service; empty if it is not signed."""
        found = re.search(r"Credential=([^&,\s]+)", f"{self.target} {self.headers.get('Authorization', '')}")
        return found[1].split("/") if found else []


@dataclass(frozen=True)
class Response:
    """A response of the server, or one that is made up. headers: without those of the connection."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


Fault = Callable[["Exchange"], None]
"""What happens to a request instead of being passed on."""
Choice = Callable[[Request], Fault | None]
"""Which fault a request gets; None: it is passed on."""


def none(request: Request) -> None:
    """The choice of a proxy that is well."""


class Exchange:
    """One request, on which a fault acts: it may forward it, send a response or a part of one, and hang up."""

    def __init__(self, proxy: Proxy, request: Request, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.request = request
        self._proxy, self._handler = proxy, handler

    def forward(self) -> Response:
        """The response of the server to the request as it came."""
        connection = http.client.HTTPConnection(self._proxy.server, timeout=30)
        try:
            connection.putrequest(self.request.method, self._handler.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.request.headers.items():  # with Host, which is part of what is signed
                connection.putheader(name, value)
            connection.endheaders()
            got = connection.getresponse()
            body = got.read()
            kept = {name: value for name, value in got.getheaders() if name.lower() not in _OWN_HEADERS}
            if self.request.method == "HEAD":
                kept["Content-Length"] = got.headers.get("Content-Length", "0")
            return Response(got.status, kept, body)
        finally:
            connection.close()

    def send(self, response: Response, until: int | None = None, length: int | None = None) -> None:
        """Send a response: the body up to a byte. length: what Content-Length says, if it is not what the body has."""
        handler = self._handler
        handler.send_response(response.status)
        for name, value in response.headers.items():
            handler.send_header(name, value)
        if "Content-Length" not in response.headers:
            handler.send_header("Content-Length", str(len(response.body) if length is None else length))
        handler.end_headers()
        if self.request.method != "HEAD":
            handler.wfile.write(response.body[:until])

    def hang_up(self, reset: bool = False) -> None:
        """Close the connection after what was sent. reset: at once, by a TCP reset."""
        self._handler.close_connection = True
        if reset:
            line: socket.socket = self._handler.connection
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, or when the faults have changed."""
        self._proxy.wait(seconds)


# The faults.


def s3_error(status: int, code: str, **headers: str) -> Fault:
    """An error as S3 sends it. Underscores in the names of headers stand for dashes."""
    body = f"<Error><Code>{code}</Code><Message>an injected fault</Message></Error>".encode()
    sent = {"Content-Type": "application/xml", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return lambda exchange: exchange.send(Response(status, sent, b"" if exchange.request.method == "HEAD" else body))


def hang_up(exchange: Exchange) -> None:
    """Close the connection without an answer, as a server that is being stopped does."""
    exchange.hang_up()


def reset_at(byte: int | None = None) -> Fault:
    """Reset the connection at that byte of the body; None: in the middle."""

    def play(exchange: Exchange) -> None:
        response = exchange.forward()
        exchange.send(response, len(response.body) // 2 if byte is None else byte)
        exchange.hang_up(reset=True)

    return play


def truncate(exchange: Exchange) -> None:
    """Announce the whole body in Content-Length, send half of it, and close the connection in order."""
    response = exchange.forward()
    exchange.send(response, len(response.body) // 2)
    exchange.hang_up()


def stall(seconds: float, before_head: bool = False) -> Fault:
    """Fall silent in the middle of the body, or before the response, for so long or until the faults change."""

    def play(exchange: Exchange) -> None:
        response = exchange.forward()
        if before_head:
            exchange.wait(seconds)
            exchange.send(response)
        else:
            exchange.send(response, len(response.body) // 2)
            exchange.wait(seconds)
            exchange.hang_up()

    return play


def damage(exchange: Exchange) -> None:
    """Send another byte in the middle, with all headers as they are."""
    response = exchange.forward()
    body = bytearray(response.body)
    if body:
        body[len(body) // 2] ^= 0xFF
    exchange.send(replace(response, body=bytes(body)))


def shorten(exchange: Exchange) -> None:
    """Send half of the object as if it were all, with a Content-Length to match."""
    response = exchange.forward()
    exchange.send(replace(response, body=response.body[: len(response.body) // 2]))


def lengthen(exchange: Exchange) -> None:
    """Send more bytes than the object has, with a Content-Length to match."""
    response = exchange.forward()
    exchange.send(replace(response, body=response.body + b"more"))


def log_in(exchange: Exchange) -> None:
    """Answer as a network does that wants a log-in first."""
    exchange.send(Response(200, {"Content-Type": "text/html"}, b"<html><form>Log in, please.</form></html>"))


def shuffle_page(exchange: Exchange) -> None:
    """Send the names of a page of a listing in the reverse order."""
    response = exchange.forward()
    entries = re.findall(rb"<Contents>.*?</Contents>", response.body, re.DOTALL)
    head, _, rest = response.body.partition(b"<Contents>")
    tail = rest.rpartition(b"</Contents>")[2]
    exchange.send(replace(response, body=head + b"".join(reversed(entries)) + tail) if entries else response)


class repeat_page:  # noqa: N801 used as a function
    """Send the first page of a listing again, in the place of a later one that is not the last: once for each."""

    def __init__(self) -> None:
        self._pages: dict[str, Response] = {}

    def __call__(self, exchange: Exchange) -> None:
        place = exchange.request.target.partition("?")[0]
        response = exchange.forward()
        if not exchange.request.is_later_page:
            self._pages[place] = response
        earlier = self._pages.pop(place, response) if exchange.request.is_later_page else response
        exchange.send(earlier)


def wrong_region(region: str, status: int = 301) -> Fault:
    """As S3 treats a request for a bucket in another region: redirected, unless it is signed for that region."""
    code = "PermanentRedirect" if status == 301 else "TemporaryRedirect"
    refuse = s3_error(status, code, x_amz_bucket_region=region)

    def play(exchange: Exchange) -> None:
        if exchange.request.scope[2:3] == [region]:
            exchange.send(exchange.forward())
        else:
            refuse(exchange)

    return play


FAULTS: dict[str, Fault] = {
    "hang_up": hang_up,
    "reset": reset_at(),
    "reset_at_once": reset_at(0),
    "truncate": truncate,
    "stall": stall(600),
    "slow": stall(2, before_head=True),
    "damage": damage,
    "shorten": shorten,
    "lengthen": lengthen,
    "internal_error": s3_error(500, "InternalError"),
    "slow_down": s3_error(503, "SlowDown"),
    "too_many": s3_error(429, "TooManyRequests"),
    "expired": s3_error(403, "ExpiredToken"),
    "denied": s3_error(403, "AccessDenied"),
    "missing": s3_error(404, "NoSuchKey"),
    "no_bucket": s3_error(404, "NoSuchBucket"),
    "log_in": log_in,
    "shuffle_page": shuffle_page,
}
"""By name: those that need no state. damage shows only where the store sends a checksum (moto does, rclone does not);
the others are for every store. missing makes an object one that the remote has deleted."""
LISTING_FAULTS = frozenset({"shuffle_page"})
"""Those that only a listing can have."""
FETCH_FAULTS = frozenset({"damage", "shorten", "lengthen", "missing"})
"""Those that only an object may have: a listing has no checksum, and nobody could tell."""
REFUSED = "refused"
"""The name of a closed port (`is_away`): no connection gets an answer."""


class Proxy:
    """requests: all that were received, in order, unless it keeps none. fault: which fault a request gets."""

    def __init__(self, server_url: str, keeps_requests: bool = True) -> None:
        self.server = urlsplit(server_url).netloc
        self.url = ""
        self.requests: list[Request] = []
        self.received = 0
        self._keeps_requests = keeps_requests
        self._fault: Choice = none
        self._hold: Callable[[Request], bool] = lambda _: False
        self._changed = threading.Condition()
        self._changes = 0
        self._port = 0
        self._listener: serving | None = None

    @property
    def fault(self) -> Choice:
        return self._fault

    @fault.setter
    def fault(self, choice: Choice) -> None:
        with self._changed:
            self._fault = choice
            self._changes += 1
            self._changed.notify_all()

    @property
    def is_away(self) -> bool:
        """Whether the port is closed, as of a machine whose server is stopped."""
        return self._listener is None

    @is_away.setter
    def is_away(self, away: bool) -> None:
        if away and self._listener:
            listener, self._listener = self._listener, None
            listener.__exit__()
        elif not away and not self._listener:
            self._listener = serving(self._handler(), port=self._port)
            self.url = self._listener.__enter__().rstrip("/")
            self._port = urlsplit(self.url).port or 0

    def hold(self, which: Callable[[Request], bool]) -> None:
        """Hold back the requests for which `which` is true, until release."""
        self._hold = which

    def release(self) -> None:
        """Pass on all requests that are held, and all later ones."""
        with self._changed:
            self._hold = lambda _: False
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, or when the faults have changed."""
        with self._changed:
            before = self._changes
            self._changed.wait_for(lambda: self._changes != before, seconds)

    def close(self) -> None:
        """End all: what is held or stalled, and the server."""
        self.release()
        self.fault = none
        self.is_away = True

    def _handle(self, exchange: Exchange) -> None:
        with self._changed:
            self.received += 1
            if self._keeps_requests:
                self.requests.append(exchange.request)
            self._changed.wait_for(lambda: not self._hold(exchange.request))
        if self.is_away:
            exchange.hang_up()
        elif fault := self._fault(exchange.request):
            fault(exchange)
        else:
            exchange.send(exchange.forward())

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        proxy = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._handle(Exchange(proxy, Request(self.command, unquote(self.path), self.headers), self))

            do_HEAD = do_PROPFIND = do_GET  # noqa: N815

        return Handler


@contextmanager
def proxy_to(server_url: str) -> Iterator[Proxy]:
    """A proxy that runs for as long as the block lasts."""
    proxy = Proxy(server_url)
    proxy.is_away = False
    try:
        yield proxy
    finally:
        proxy.close()


class Mix:
    """A choice: each request gets one of several faults, by their shares of all requests, from a seeded generator.

    injected: how many requests got which fault. shares: by the name of the fault, 0 to 1; their sum is 1 at most.
    """

    def __init__(self, seed: int) -> None:
        self.injected: Counter[str] = Counter()
        self.shares: dict[str, float] = {}
        self._generator = random.Random(seed)
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Fault | None:
        with self._lock:
            drawn = self._generator.random()
            for name, share in self.shares.items():
                drawn -= share
                if drawn < 0:
                    wrong_kind = FETCH_FAULTS if request.is_listing else LISTING_FAULTS
                    if name in wrong_kind:
                        return None
                    self.injected[name] += 1
                    return FAULTS[name]
        return None
