"""`Connection`: plain GETs over one keep-alive connection to a web server, straight from the socket into a file.

For a small file, http.client takes more CPU than everything else together (it parses heads like mail: 0.3 ms, compared
to 0.02 here). So the necessary part of HTTP/1.1 is implemented here (RFC 9112); everything else raises FallBack, and is
left to the store's library. Large reads, pwrite and TLS release the GIL, and no byte is copied twice in Python. A
request may hold secrets, so requests are never shown.
"""

from __future__ import annotations

import errno
import math
import os
import random
import re
import select
import socket
import ssl
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from growfs.remote.http.proxy import Proxy, proxy_for
from growfs.remote.names import join_address

WRITE_BYTES = 1 << 20
"""A file is written in aligned blocks of this size: the page cache then holds it in large folios, and reads of it are
half as fast again as if it were written in pieces as they arrive."""
PIECE_BYTES = 1 << 17
"""Received bytes are counted when they are so many, or after 0.03 s. The rate of slow connections is judged every half
second, and would seem to vary if they all delivered whole pieces at about the same times."""
HEAD_BYTES_MAX = 1 << 16
BUFFER_BYTES = HEAD_BYTES_MAX + WRITE_BYTES
"""For each connection; only the used part takes memory."""

Headers = dict[str, str]
"""Header values by name in lower case. The values of a repeated header are joined with commas."""
Origin = tuple[str, str]
"""(scheme, host and port) of a server."""

_SENDABLE = re.compile(r"[\x21-\x7e]+")
_AFTER_HOST = re.compile("[/?#]")
_STATUS = re.compile("[2-9][0-9]{2}")
_LENGTH = re.compile("[0-9]{1,19}")
_UNSENDABLE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")


class Timeouts(NamedTuple):
    """Seconds for connecting, for each read and write, and to wait for each PIECE_BYTES of a body that is copied."""

    connect_s: float
    read_s: float
    piece_s: float = math.inf


TIMEOUTS = Timeouts(connect_s=5, read_s=30)
IDLE_S_MAX = 15.0
"""A connection that was idle for longer is not reused: a NAT or a load balancer may have silently forgotten it, and a
request would wait for its timeout. Most forget after a minute or more, some after 20 s."""
NEXT_ADDRESS_S = 0.25
"""How long one address of a host is tried before the next is tried in parallel (RFC 8305, 5)."""
REDIRECTS_MAX = 10
_PUBLIC_HEADERS = {"accept", "accept-encoding", "user-agent"}
"""The headers that the target of a redirect to another server may see: any other header may hold a secret."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A GET or HEAD of a whole file. url and headers may hold a signature or a password."""

    url: str = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    method: str = "GET"
    redirects: int = 0
    """How many redirects are followed. Another server does not get the credentials, and refuses if it needs some."""

    def redirected(self, location: str) -> HttpRequest:
        """The request to send after a redirect (RFC 9110, 15.4). Raises FallBack."""
        try:
            url = urljoin(self.url, location)
            old, new = urlsplit(self.url), urlsplit(url)
        except ValueError:
            raise FallBack("an unreadable redirect") from None
        if "@" in new.netloc:
            raise FallBack("a redirect with a password")
        if (old.scheme, new.scheme) == ("https", "http"):
            raise FallBack("a redirect from https to http")
        headers = self.headers
        if new.netloc != old.netloc or new.scheme not in (old.scheme, "https"):
            headers = {name: value for name, value in headers.items() if name.lower() in _PUBLIC_HEADERS}
        return replace(self, url=url, headers=headers, redirects=self.redirects - 1)

    @property
    def origin(self) -> Origin:
        """The server that it is for."""
        scheme, _, rest = self.url.partition("://")
        return scheme, _AFTER_HOST.split(rest, maxsplit=1)[0]


class HttpResponse(NamedTuple):
    """The head of a response. length: bytes of the body; None if the head does not give it."""

    status: int
    reason: str
    headers: Headers
    length: int | None
    is_chunked: bool
    keep_alive: bool


class ConnectionFailed(Exception):
    """The server cannot be reached, fell silent, or ended its response early."""


class ConnectionTimedOut(ConnectionFailed):
    """The server cannot be reached, or fell silent, which was noticed late."""


class ProxyFailed(ConnectionFailed):
    """The proxy cannot be reached, or refuses. status: of its response; 0 if there is none."""

    def __init__(self, proxy: Proxy, what: str, status: int = 0) -> None:
        super().__init__(f"{proxy}: {what}")
        self.status = status


class FallBack(Exception):
    """The response is left to the store's library."""


class OddStatus(FallBack):
    """The response has a status that the store's library may understand."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class RangeIgnored(FallBack):
    """The server sent the whole file, although a range of it was requested."""


class _ServerClosed(Exception):
    """The server closed the connection before it responded, as servers do after a long idle time."""


@dataclass(slots=True, eq=False)
class _Channel:
    """A socket to a server."""

    origin: Origin = ("", "")
    proxy: Proxy | None = None
    sock: socket.socket | None = None
    keeps: bool = False
    """Whether the last response was read to its end, so that another may follow."""
    used_at: float = 0.0


class Connection:
    """A connection that is opened at the first request and kept from file to file; up to one to each of two servers.

    A redirect leads from one server to the other, and the next file back to the first. A request to a third server
    replaces the least recently used connection.

    timeouts: apply from the next time that it is opened. uses_proxies: as configured in the environment (`proxy_for`).
    """

    sent: HttpRequest
    """The last request that was sent: after a redirect, not the one passed to `send`."""

    def __init__(
        self,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        timeouts: Timeouts | None = None,
        uses_proxies: bool = True,
    ) -> None:
        self._tls = tls
        self.timeouts = timeouts or TIMEOUTS
        self._uses_proxies = uses_proxies
        self._channel, self._other = _Channel(), _Channel()  # the current one, and the one to the other server
        self._interrupted = False
        self.may_be_cut = False
        """Whether its request can be repeated by another connection if it is slow."""
        self.was_cut = False
        """Whether it was ended by `cut`."""
        self._received = 0
        self._waited_s = self._text_waited_s = 0.0
        self._waits_since: float | None = None
        self._piece_end, self._waited_s_max = 0, 0.0  # of the piece of a body that is being read
        self._sent_at: float | None = None  # until the head of the response has arrived
        self.head_s = 0.0
        """How long the head of the last response took."""
        self._bytes = bytearray(BUFFER_BYTES)
        self._buffer = memoryview(self._bytes)
        self._body = (0, 0)  # the slice of the buffer with the beginning of the body

    def send(self, request: HttpRequest, headers: Headers) -> HttpResponse:
        """Send a request; returns the head of the response; `copy` reads the body.

        If the server has closed a kept connection, it is opened again. Raises ConnectionFailed, and FallBack if the
        store's library may do better: it may trust another certificate.
        """
        response = self._exchange(request, headers)
        while request.redirects and response.status in (301, 302, 303, 307, 308) and "location" in response.headers:
            request = request.redirected(response.headers["location"])
            if request.method != "HEAD":  # whose response has no body
                with suppress(FallBack, ConnectionFailed):
                    self.read(response)  # to its end, as otherwise the connection cannot be reused
            response = self._exchange(request, headers)
        return response

    def _exchange(self, request: HttpRequest, headers: Headers) -> HttpResponse:
        origin = request.origin
        if origin != self._channel.origin:
            self._channel, self._other = self._other, self._channel
        channel = self._channel
        is_old = time.monotonic() - channel.used_at > IDLE_S_MAX
        if origin != channel.origin or not channel.keeps or is_old or (channel.sock and _has_unread(channel.sock)):
            self._hang_up(channel)
        if channel.sock is None and self._uses_proxies:
            channel.proxy = proxy_for(request.url)
        head = _serialized(request, origin, headers, channel.proxy)
        with _translating_errors:
            if channel.sock is not None:
                with suppress(ConnectionError, ssl.SSLError, _ServerClosed):
                    return self._send(channel, channel.sock, request, head)
                if self._interrupted:
                    raise ConnectionFailed("interrupted")
                self._hang_up(channel)
            channel.sock, channel.origin = _connect(request, self._tls, self.timeouts, channel.proxy), origin
            return self._send(channel, channel.sock, request, head)

    def _send(self, channel: _Channel, sock: socket.socket, request: HttpRequest, head: bytes) -> HttpResponse:
        channel.keeps = False
        self.sent = request
        self._piece_end = 0
        self._sent_at = time.monotonic()
        try:
            response = self._receive_head(sock, head)
            self.head_s = time.monotonic() - self._sent_at
        finally:
            self._sent_at = None
        start, end = self._body
        if channel.proxy and response.status == 407:
            raise ProxyFailed(channel.proxy, f"407 {response.reason}", 407)
        channel.keeps = request.method == "HEAD" and start == end and response.keep_alive
        channel.used_at = time.monotonic()
        return response

    def _receive_head(self, sock: socket.socket, head: bytes) -> HttpResponse:
        """It may be waited for as long as one read may take: a byte may always arrive just in time."""
        sock.sendall(head)
        end = received = 0
        waited_s_max = self._waited_s + self.timeouts.read_s
        while (end := self._bytes.find(b"\r\n\r\n", 0, min(received, HEAD_BYTES_MAX))) < 0:
            if received >= min(HEAD_BYTES_MAX, len(self._bytes)):
                raise FallBack("a response header that does not end")
            count = self._receive(sock, self._buffer[received:], waited_s_max)
            if not count:
                raise _ServerClosed("it hung up")
            received += count
        self._body = end + 4, received
        return _parse(bytes(self._buffer[:end]).decode("latin-1"))

    def _receive(self, sock: socket.socket, buffer: memoryview, waited_s_max: float) -> int:
        if self._waited_s > waited_s_max:
            raise TimeoutError("it is sending too slowly")
        began = self._waits_since = time.monotonic()
        try:
            count = sock.recv_into(buffer)
            self._received += count
            return count
        finally:
            self._waits_since = None
            self._waited_s += time.monotonic() - began

    def _receive_body(self, buffer: memoryview, waited_s_max: float, missing: int | None = None) -> int:
        """Receive at least one byte of a body. missing: how many it lacks, if known. Raises ConnectionFailed."""
        assert self._channel.sock is not None
        with _translating_errors:
            count = self._receive(self._channel.sock, buffer, waited_s_max)
        if not count:
            what = "" if missing is None else f", {missing} bytes are missing"
            raise ConnectionFailed(f"the answer was cut short{what}")
        return count

    def copy(self, response: HttpResponse, fd: int, at: int, on_piece: Callable[[memoryview], None]) -> None:
        """Write the body to fd from offset `at` on; on_piece gets each piece that arrives.

        Raises ConnectionFailed, and OSError of the local disk. Pieces passed to on_piece are written in any case.
        """
        left = response.length or 0
        start, end = self._body
        whole = end - start <= left
        if start == end:
            start, self._body = 0, (0, 0)
        while left:
            block = min(left, WRITE_BYTES - at % WRITE_BYTES, len(self._buffer) - start)
            counted = least = start
            try:
                while counted < start + block:
                    if counted >= least:
                        least = min(start + block, counted + PIECE_BYTES)
                        waited_s_max = self._waited_s + self.timeouts.piece_s
                    try:
                        self._receive_piece(counted, least, start + block, left, waited_s_max)
                    finally:  # the segment continues after the last byte that arrived
                        piece = self._buffer[counted : min(self._body[1], start + block)]
                        counted += len(piece)
                        if piece:
                            on_piece(piece)
            finally:
                write_at(fd, self._buffer[start:counted], at)
            at, left = at + block, left - block
            rest = self._buffer[counted : self._body[1]]
            self._buffer[: len(rest)] = rest
            start, self._body = 0, (0, len(rest))
        self._channel.keeps = whole and response.keep_alive
        self._channel.used_at = time.monotonic()

    def _receive_piece(self, counted: int, least: int, most: int, left: int, waited_s_max: float) -> None:
        """Receive the body up to `least`, a place in the buffer, or, after 0.03 s, some bytes beyond `counted`.

        most: the place up to which there is room. left: bytes of the body that follow its start in the buffer.
        """
        start, end = self._body
        due_at = time.monotonic() + 0.03
        while end < least and (end <= counted or time.monotonic() < due_at):
            end += self._receive_body(self._buffer[end:most], waited_s_max, left - (end - start))
            self._body = start, end

    def read_some(self, response: HttpResponse, buffer: memoryview, left: int) -> int:
        """Read the next bytes of the body, which has `left` bytes left. Raises ConnectionFailed.

        Each PIECE_BYTES may be waited for as long as one read may take: a byte may always arrive just in time.
        """
        start, end = self._body
        buffer = buffer[:left]
        count = min(len(buffer), end - start)
        if count:
            buffer[:count] = self._buffer[start : start + count]
            self._body = start + count, end
        else:
            if self._received >= self._piece_end:
                self._piece_end = self._received + PIECE_BYTES
                self._waited_s_max = self._waited_s + self.timeouts.read_s
            count = self._receive_body(buffer, self._waited_s_max, left)
        self._channel.keeps = count == left and start + count >= end and response.keep_alive
        self._channel.used_at = time.monotonic()
        return count

    def read(self, response: HttpResponse) -> bytes:
        """The whole body, which must be a short text. Raises ConnectionFailed, and FallBack if it is too long.

        It may be waited for as long as one read may take, for each PIECE_BYTES: a byte may always arrive just in time.
        """
        received = bytearray(self._buffer[slice(*self._body)])
        self._text_waited_s = self._waited_s
        if response.is_chunked:
            return self._read_chunks(response, received)
        if response.length is None:
            raise FallBack("no length")
        while len(received) < response.length:
            self._read_more(received)
        self._channel.keeps = response.keep_alive and len(received) == response.length
        return bytes(received[: response.length])

    def _read_chunks(self, response: HttpResponse, received: bytearray) -> bytes:
        """RFC 9112, 7.1: each chunk is preceded by its size. After an empty chunk, there may be more headers."""
        body, at, size = bytearray(), 0, 1
        while size:
            line, at = self._read_line(received, at)
            size_text = line.partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9a-fA-F]+", size_text):
                raise FallBack("a chunk without a size")
            size = int(size_text, 16)
            while len(received) < at + size:
                self._read_more(received)
            body += received[at : at + size]
            at += size
            if size:
                _, at = self._read_line(received, at)
        while line:
            line, at = self._read_line(received, at)
        self._channel.keeps = response.keep_alive and len(received) == at
        return bytes(body)

    def _read_line(self, received: bytearray, at: int) -> tuple[bytes, int]:
        while (end := received.find(b"\r\n", at)) < 0:
            self._read_more(received)
        return bytes(received[at:end]), end + 2

    def _read_more(self, received: bytearray) -> None:
        if len(received) > 64 << 20:
            raise FallBack("a response that is too long")
        patience_s = self.timeouts.read_s * (1 + len(received) // PIECE_BYTES)
        count = self._receive_body(self._buffer, self._text_waited_s + patience_s)
        received += self._buffer[:count]

    def interrupt(self) -> None:
        """End a read that is running on another thread."""
        self._interrupted = True
        if sock := self._channel.sock:
            with suppress(OSError):  # SSLSocket.shutdown would remove TLS under the reading thread
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def cut(self) -> None:
        """End a request from another thread so that it is repeated, unless it cannot be."""
        if self.may_be_cut:
            self.was_cut = True
            self.interrupt()

    def totals(self) -> tuple[int, float]:
        """(bytes received, seconds spent waiting for them). Thread-safe."""
        since = self._waits_since
        return self._received, self._waited_s + (time.monotonic() - since if since is not None else 0.0)

    def head_waited_s(self) -> float:
        """How long it has been waiting for the head of a response; 0 if it is not. Thread-safe."""
        since = self._sent_at
        return 0.0 if since is None else time.monotonic() - since

    def is_for(self, origin: Origin | None) -> bool:
        """Whether this is one of the two servers that it was last used for, so that it may still be open."""
        return origin in (self._channel.origin, self._other.origin)

    def close(self) -> None:
        """Close it. The next request opens it again."""
        for channel in (self._channel, self._other):
            self._hang_up(channel)

    def _hang_up(self, channel: _Channel) -> None:
        self._interrupted = self.was_cut = False
        if sock := channel.sock:
            channel.sock = None
            sock.close()

    def __del__(self) -> None:
        self.close()


def write_at(fd: int, data: memoryview, at: int) -> None:
    """Write all of the data at an offset of a file, also if a single pwrite(2) writes less."""
    while data:
        written = os.pwrite(fd, data, at)
        at, data = at + written, data[written:]


def _has_unread(sock: socket.socket) -> bool:
    """Whether there is data to read: the end of the connection, or more than the last response."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _serialized(request: HttpRequest, origin: Origin, more: Headers, proxy: Proxy | None) -> bytes:
    scheme, host = origin
    target = request.url[len(scheme) + 3 + len(host) :].partition("#")[0] or "/"
    if not target.startswith("/"):
        target = f"/{target}"
    headers = {"Host": host, "User-Agent": "growfs", "Accept-Encoding": "identity", **request.headers, **more}
    if proxy and scheme == "http":  # RFC 9112, 3.2.2
        target = f"http://{host}{target}"
        headers |= _authorization(proxy)
    names_fit = all(headers) and _SENDABLE.fullmatch("".join([target, *headers]))
    if not names_fit or _UNSENDABLE.search("".join(headers.values())):
        raise FallBack("a request that cannot be sent")
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return f"{request.method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


def _parse(head: str) -> HttpResponse:
    first, *lines = head.split("\r\n")
    version, _, status = first.partition(" ")
    code, _, reason = status.partition(" ")
    if not version.startswith("HTTP/1.") or not _STATUS.fullmatch(code):
        raise FallBack("a response that is not HTTP/1.1")
    headers: Headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or " " in name or "\t" in name:
            raise FallBack("an unreadable header")
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    length = headers.get("content-length", "")
    encoding = headers.get("transfer-encoding", "").lower()
    known = _LENGTH.fullmatch(length) is not None and not encoding
    keep_alive = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    return HttpResponse(int(code), reason, headers, int(length) if known else None, encoding == "chunked", keep_alive)


def _authorization(proxy: Proxy) -> Headers:
    return {"Proxy-Authorization": proxy.authorization} if proxy.authorization else {}


def _connect(
    request: HttpRequest, tls: Callable[[], ssl.SSLContext], timeouts: Timeouts, proxy: Proxy | None
) -> socket.socket:
    """A socket on which the server receives the data. With a proxy and without TLS, the proxy receives it."""
    url = urlsplit(request.url)
    is_tls = url.scheme == "https"
    if not url.hostname or url.scheme not in ("http", "https"):
        raise FallBack("a URL that is not a web server's")
    port = url.port or (443 if is_tls else 80)
    if proxy is None:
        sock = _open(url.hostname, port, timeouts)
    elif proxy.speaks_http:
        try:
            sock = _open(proxy.host, proxy.port, timeouts)
        except OSError as error:
            raise ProxyFailed(proxy, str(error)) from None
    else:
        raise FallBack("a proxy that the library may know")
    try:
        if proxy and is_tls:
            _tunnel(sock, proxy, join_address(url.hostname, port), timeouts)
        return _wrap_tls(sock, url.hostname, tls, timeouts) if is_tls else _with_kernel_timeout(sock, timeouts)
    except BaseException:
        sock.close()
        raise


def _tunnel(sock: socket.socket, proxy: Proxy, address: str, timeouts: Timeouts) -> None:
    """Make a proxy connect a socket to HOST:PORT (RFC 9110, 9.3.6). Raises ProxyFailed."""
    sock.settimeout(timeouts.read_s)  # it connects meanwhile
    lines = [f"{name}: {value}\r\n" for name, value in {"Host": address, **_authorization(proxy)}.items()]
    head = b""
    ends_at = time.monotonic() + timeouts.read_s
    try:
        sock.sendall(f"CONNECT {address} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("latin-1"))
        while b"\r\n\r\n" not in head:
            if time.monotonic() > ends_at:
                raise TimeoutError("it is sending too slowly")
            if len(head) > HEAD_BYTES_MAX or not (received := sock.recv(HEAD_BYTES_MAX)):
                raise ProxyFailed(proxy, f"it does not answer CONNECT {address}")
            head += received
    except OSError as error:
        raise ProxyFailed(proxy, str(error)) from None
    response = _parse(head.partition(b"\r\n\r\n")[0].decode("latin-1"))
    if response.status >= 300:
        raise ProxyFailed(proxy, f"{response.status} {response.reason} for {address}", response.status)
    sock.settimeout(timeouts.connect_s)


def _open(host: str, port: int, timeouts: Timeouts) -> socket.socket:
    """A socket to a host, at the first of its addresses that answers.

    Addresses are tried in random order, because stores give many of them to spread the load, alternating between IPv6
    and IPv4.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    preferred = found[0][0]  # IPv6 or IPv4, whichever this machine prefers (gai.conf(5))
    random.shuffle(found)
    families = [[entry for entry in found if (entry[0] == preferred) is first] for first in (True, False)]
    addresses = [entry for pair in zip_longest(*families) for entry in pair if entry]
    silent_since = time.monotonic() - 600  # later, it is tried in its turn again
    addresses.sort(key=lambda entry: _silent_at.get(entry[4], -math.inf) > silent_since)
    sock = _race([(family, address) for family, _, _, _, address in addresses], timeouts.connect_s)
    sock.settimeout(timeouts.connect_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        # Sent data may stay unacknowledged for this long, in ms (tcp(7)).
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20 * 1000)
    return sock


class _Attempt(NamedTuple):
    """A connection that is being made. until: when it is given up."""

    sock: socket.socket
    address: Any
    until: float


_silent_at: dict[Any, float] = {}
"""When an address did not answer, although another one that was tried after it did."""


def _race(addresses: list[tuple[int, Any]], timeout_s: float) -> socket.socket:
    """A socket to the first address that answers: each is tried NEXT_ADDRESS_S after the previous one (RFC 8305).

    Raises OSError if none does, each within timeout_s.
    """
    left = deque(addresses)
    trying: dict[int, _Attempt] = {}
    poll = select.poll()
    error: OSError = OSError("it has no address")
    next_at = time.monotonic()
    try:
        while left or trying:
            now = time.monotonic()
            if left and (now >= next_at or not trying):
                family, address = left.popleft()
                try:
                    sock = socket.socket(family, socket.SOCK_STREAM)
                except OSError as failure:  # the machine has no IPv6, or no descriptors
                    error = failure
                    continue
                sock.setblocking(False)
                if (code := sock.connect_ex(address)) not in (0, errno.EINPROGRESS):  # it is unreachable
                    sock.close()
                    error = OSError(code, os.strerror(code))
                    continue
                trying[sock.fileno()] = _Attempt(sock, address, now + timeout_s)
                next_at = now + NEXT_ADDRESS_S
                poll.register(sock, select.POLLOUT)
            wakes_at = min([attempt.until for attempt in trying.values()] + ([next_at] if left else []))
            ready = [number for number, _ in poll.poll(1000 * max(0.0, wakes_at - now))]
            for number in ready or [number for number, it in trying.items() if time.monotonic() >= it.until]:
                attempt = trying.pop(number)
                if ready and not (code := attempt.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
                    silent = [earlier for earlier in trying.values() if earlier.until < attempt.until]
                    _silent_at.update((earlier.address, now) for earlier in silent)
                    return attempt.sock
                error = OSError(code, os.strerror(code)) if ready else TimeoutError("timed out")
                poll.unregister(number)
                attempt.sock.close()
                next_at = now
    finally:
        for attempt in trying.values():
            attempt.sock.close()
    raise error


def _wrap_tls(sock: socket.socket, host: str, tls: Callable[[], ssl.SSLContext], timeouts: Timeouts) -> socket.socket:
    try:
        context = tls()
    except OSError as error:
        raise FallBack(f"unreadable certificates: {error.strerror}") from None
    try:
        secured = context.wrap_socket(sock, server_hostname=host)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # as a load balancer does that is overloaded, or being replaced
        raise ConnectionFailed("the connection was closed during the TLS handshake") from None
    except ssl.SSLError as error:
        raise FallBack(f"TLS: {error.reason}") from None
    secured.settimeout(timeouts.read_s)
    return secured


def _with_kernel_timeout(sock: socket.socket, timeouts: Timeouts) -> socket.socket:
    """Make the kernel time out reads and writes: Python's own timeout costs a poll(2) for each read."""
    sock.settimeout(None)
    seconds, fraction = divmod(timeouts.read_s, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(seconds), int(fraction * 1e6)))
    return sock


class _TranslatingErrors:
    """A context manager. It is a class because `contextmanager` costs 2 us a use, and each file uses it three times."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BlockingIOError):
            raise ConnectionTimedOut("it stopped sending") from None
        if isinstance(error, TimeoutError):
            raise ConnectionTimedOut(str(error)) from None
        if isinstance(error, (OSError, _ServerClosed)):
            raise ConnectionFailed(str(error) or type(error).__name__) from None
        if isinstance(error, ValueError):
            raise FallBack("an invalid host or port") from None


_translating_errors = _TranslatingErrors()
