"""`Connection`: plain GETs over one kept-alive connection to a web server, straight from the socket into a file.

Large reads, pwrite and TLS release the GIL, and no byte is copied twice in Python. A request holds secrets: none is
ever shown.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from urllib.parse import urlsplit

BUFFER_BYTES = 1 << 20  # of each connection; 256 KiB and 4 MiB are as fast
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30

Headers = Message  # of an answer


@dataclass(frozen=True, slots=True)
class Request:
    """A GET of the whole of a file; url and headers may hold a signature or a password."""

    url: str = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    tls: Callable[[], ssl.SSLContext] = field(default=ssl.create_default_context, repr=False)

    @property
    def origin(self) -> tuple[str, str]:
        """(scheme, host and port)."""
        parts = urlsplit(self.url)
        return parts.scheme, parts.netloc


class Unreached(Exception):
    """The server cannot be reached, fell silent, or ended its answer early."""


class Odd(Exception):
    """The server answers in a way that is left to the store's library. counts: the next answer may well be the same."""

    def __init__(self, why: str, counts: bool = True) -> None:
        super().__init__(why)
        self.counts = counts


class Connection:
    """Opened at the first request, kept from file to file, opened anew where another server is asked."""

    def __init__(self) -> None:
        self._origin = ("", "")
        self._http: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None  # http.client forgets these two while the last answer is read
        self._response: http.client.HTTPResponse | None = None
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    def ask(self, request: Request, headers: dict[str, str]) -> http.client.HTTPResponse:
        """The head of the answer. A kept connection that the server has closed since is opened anew, once.

        Raises Unreached, and Odd where the store's library may do better: it may trust another certificate.
        """
        if request.origin != self._origin:
            self.drop()
        kept = self._http is not None and self._http.sock is not None
        with _reaching():
            try:
                return self._ask(request, headers)
            except (ValueError, http.client.InvalidURL):  # which quotes it
                raise Odd("a request that cannot be sent") from None
            except (ConnectionError, http.client.BadStatusLine, ssl.SSLError):
                self.drop()
                if not kept:
                    raise
                return self._ask(request, headers)

    def _ask(self, request: Request, headers: dict[str, str]) -> http.client.HTTPResponse:
        parts = urlsplit(request.url)
        if self._http is None:
            scheme, host = self._origin = request.origin
            try:
                self._http = _Tls(host, request.tls()) if scheme == "https" else _Plain(host)
            except OSError as error:
                raise Odd(f"certificates that cannot be read: {error.strerror}") from None
        if self._http.sock is None:
            try:
                self._http.connect()
            except ssl.SSLError as error:
                raise Odd(f"TLS: {error.reason}") from None
        self._socket = self._http.sock
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._http.request("GET", target, headers={"User-Agent": "growfs", **request.headers, **headers})
        self._response = self._http.getresponse()
        return self._response

    def copy(self, response: http.client.HTTPResponse, fd: int, at: int, told: Callable[[memoryview], None]) -> None:
        """Write the body to fd from offset `at` on; told gets each piece that was written.

        Raises Unreached, and OSError of the local disk.
        """
        left = response.length or 0
        while left:
            with _reaching():
                count = response.readinto(self._buffer)
            if not count:
                raise Unreached(f"the answer was cut short, {left} bytes are missing")
            piece = self._buffer[:count]
            while piece:
                written = os.pwrite(fd, piece, at)
                at, piece = at + written, piece[written:]
            left -= count
            told(self._buffer[:count])
        response.close()  # only then does http.client take the next request

    def interrupt(self) -> None:
        """End what another thread reads here."""
        if self._socket:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # a TLS socket's own takes TLS from its reader

    def drop(self) -> None:
        """Close it; the next request opens it anew."""
        for part in (self._response, self._http):
            if part is not None:
                part.close()
        self._response = self._http = self._socket = None


def drop_all(connections: Iterable[Connection]) -> None:
    """Close them all."""
    for connection in connections:
        connection.drop()


class _Plain(http.client.HTTPConnection):
    def __init__(self, host: str) -> None:
        super().__init__(host, timeout=CONNECT_TIMEOUT_S)

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(READ_TIMEOUT_S)


class _Tls(http.client.HTTPSConnection):
    def __init__(self, host: str, tls: ssl.SSLContext) -> None:
        super().__init__(host, timeout=CONNECT_TIMEOUT_S, context=tls)

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(READ_TIMEOUT_S)


@contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise Unreached(str(error) or type(error).__name__) from None
