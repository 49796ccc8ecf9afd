"""The HTTP/1.1 client against servers that misbehave: tests write the bytes of each response to a socket."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from growfs.remote.http import connection as module
from growfs.remote.http.connection import (
    Connection,
    ConnectionFailed,
    ConnectionTimedOut,
    FallBack,
    HttpRequest,
    HttpResponse,
    ProxyFailed,
    Timeouts,
)

BODY = bytes(range(256)) * 40
SECRET = "the-signature"
HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: "1"\r\n\r\n' % len(BODY)

Answer = Callable[[socket.socket, int], object]
"""Answers request number N (from 0) of a connection. The server closes the connection if it returns True."""


class Server:
    """Answers each request by `answer`. requests: the heads of the requests, by connection."""

    def __init__(self, family: socket.AddressFamily = socket.AF_INET, host: str = "127.0.0.1") -> None:
        self.answer: Answer = lambda client, _: client.sendall(HEAD + BODY)
        self.requests: list[list[bytes]] = []
        self.gate = threading.Event()
        self._listening = socket.socket(family)
        self._listening.bind((host, 0))
        self._listening.listen()
        self.port = self._listening.getsockname()[1]
        netloc = f"[{host}]" if ":" in host else host
        self.url = f"http://{netloc}:{self.port}/x?sig={SECRET}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._sockets.append(client)
                self.requests.append([])
                threading.Thread(target=self._serve, args=[client, self.requests[-1]], daemon=True).start()

    def _serve(self, client: socket.socket, heads: list[bytes]) -> None:
        with suppress(OSError), client:
            received = b""
            while data := client.recv(1 << 16):
                received += data
                if b"\r\n\r\n" in received:
                    heads.append(received)
                    received = b""
                    if self.answer(client, len(heads) - 1) is True:
                        client.shutdown(socket.SHUT_RDWR)
                        return

    def close(self) -> None:
        self.gate.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        for each in [self._listening, *self._sockets]:
            each.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def connection() -> Iterator[Connection]:
    connection = Connection()
    yield connection
    connection.close()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def fetched(connection: Connection, url: str, target: int) -> bytes:
    """The body of a GET; the callback must report each byte once."""
    reported: list[int] = []
    os.ftruncate(target, 0)
    response = connection.send(HttpRequest(url), {})
    connection.copy(response, target, 0, lambda piece: reported.append(len(piece)))
    assert sum(reported) == response.length
    return os.pread(target, 1 << 20, 0)


Get = Callable[..., bytes]
"""Returns the body of a GET by the connection, by default from the server."""


@pytest.fixture
def get(server: Server, connection: Connection, target: int) -> Get:
    return lambda url=server.url: fetched(connection, url, target)


def send_segments(client: socket.socket, *pieces: bytes) -> None:
    """Send each piece as a TCP segment of its own."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for piece in pieces:
        client.sendall(piece)
        time.sleep(0.002)


def test_responses_may_be_split_into_segments_anywhere(server: Server, get: Get, connection: Connection) -> None:
    whole = HEAD + BODY
    end = len(HEAD)
    cuts = [
        list(range(1, 20)),
        list(range(end - 6, end + 6)),
        [end - 2],
        [end],
        [end + 1],
        [end + len(BODY) // 2],
        [len(whole) - 1],
    ]
    for at in cuts:
        bounds = [0, *at, len(whole)]
        pieces = [whole[start:stop] for start, stop in pairwise(bounds)]
        server.answer = lambda client, _, pieces=pieces: send_segments(client, *pieces)  # type: ignore[misc]
        assert get() == BODY
    assert [len(heads) for heads in server.requests] == [len(cuts)], "one connection is used for all"


def test_a_head_that_almost_fills_the_buffer_is_read(
    server: Server, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for extra in (0, 1, 5, 100):
        monkeypatch.setattr(module, "BUFFER_BYTES", len(HEAD) + extra)
        with closing(Connection()) as connection:
            assert fetched(connection, server.url, target) == BODY


@pytest.mark.parametrize("ends", [True, False])
def test_a_head_over_the_size_limit_is_refused(server: Server, connection: Connection, ends: bool) -> None:
    fill = b"X: " + b"x" * module.HEAD_BYTES_MAX
    server.answer = lambda client, _: client.sendall(b"HTTP/1.1 200 OK\r\n" + fill + (b"\r\n\r\n" if ends else b""))
    with pytest.raises(FallBack, match="does not end"):
        connection.send(HttpRequest(server.url), {})


CLOSES = {
    "of HTTP/1.0": HEAD.replace(b"1.1", b"1.0"),
    "close": HEAD[:-2] + b"Connection: close\r\n\r\n",
    "Close": HEAD[:-2] + b"CONNECTION: Upgrade, Close\r\n\r\n",
    "second header": HEAD[:-2] + b"Connection: x\r\nConnection: close\r\n\r\n",
}


@pytest.mark.parametrize("head", CLOSES.values(), ids=CLOSES.keys())
def test_a_connection_that_the_server_will_close_is_not_reused(server: Server, get: Get, head: bytes) -> None:
    server.answer = lambda client, _: client.sendall(head + BODY)
    for _ in range(2):
        assert get() == BODY
    assert [len(heads) for heads in server.requests] == [1, 1]


@pytest.mark.parametrize("later", [False, True])
def test_bytes_beyond_the_length_are_not_read_as_the_next_response(
    server: Server, get: Get, connection: Connection, target: int, later: bool
) -> None:
    forged = HEAD + b"F" * len(BODY)

    sent = threading.Event()

    def answer(client: socket.socket, _: int) -> None:
        send_segments(client, HEAD + BODY, forged) if later else client.sendall(HEAD + BODY + forged)
        sent.set()

    server.answer = answer
    if later:
        response = connection.send(HttpRequest(server.url), {})
        connection.copy(response, target, 0, lambda _: None)
        sent.wait()
    else:
        assert get() == BODY
    assert get() == BODY
    assert len(server.requests) == 2


LENGTHS = {
    "none": b"X: y",
    "chunked": b"Transfer-Encoding: chunked",
    "both": b"Content-Length: 5\r\nTransfer-Encoding: chunked",
    "two that differ": b"Content-Length: 5\r\nContent-Length: 6",
    "negative": b"Content-Length: -5",
    "signed": b"Content-Length: +5",
    "no number": b"Content-Length: 5x",
    "too long for a number": b"Content-Length: " + b"9" * 5000,
    "empty": b"Content-Length:",
}


@pytest.mark.parametrize("size", [b"-4", b"0x4", b"1_0", b"", b"x"])
def test_a_chunk_without_a_valid_size_is_refused(server: Server, connection: Connection, size: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.answer = lambda client, _: client.sendall(head + size + b"\r\nabcd\r\n0\r\n\r\n")
    response = connection.send(HttpRequest(server.url), {})
    with pytest.raises(FallBack, match="a chunk without a size"):
        connection.read(response)


@pytest.mark.parametrize("line", LENGTHS.values(), ids=LENGTHS.keys())
def test_a_response_without_a_valid_length_has_length_none(server: Server, connection: Connection, line: bytes) -> None:
    server.answer = lambda client, _: client.sendall(b"HTTP/1.1 200 OK\r\n" + line + b"\r\n\r\n")
    response = connection.send(HttpRequest(server.url), {})
    assert (response.status, response.length) == (200, None)


HEADS = [
    b"HTTP/2 200 OK\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 20 OK\r\n\r\n",
    b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n",
    b"HTTP/1.1 abc\r\n\r\n",
    b"<html>\r\n\r\n",
    b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nA: 1\r\n folded: 2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n: 3\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
]


@pytest.mark.parametrize("head", HEADS, ids=range(len(HEADS)))
def test_a_response_that_is_not_http_is_refused(server: Server, get: Get, connection: Connection, head: bytes) -> None:
    answer = server.answer
    server.answer = lambda client, _: client.sendall(head)
    with pytest.raises(FallBack):
        connection.send(HttpRequest(server.url), {})
    server.answer = answer
    assert get() == BODY, "the next request works"


def test_status_and_headers_are_parsed(server: Server, connection: Connection) -> None:
    lines = b"A: 1\r\nB:\t two words \r\na: 3\r\nEmpty:\r\nLatin: \xe9\r\nContent-Length: 0\r\n\r\n"
    server.answer = lambda client, _: client.sendall(b"HTTP/1.1 404 Not Found at all\r\n" + lines)
    response = connection.send(HttpRequest(server.url), {})
    headers = {"a": "1, 3", "b": "two words", "empty": "", "latin": "é", "content-length": "0"}
    assert response == HttpResponse(404, "Not Found at all", headers, 0, False, True)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200", HEAD, HEAD + BODY[:100]], ids=["-", "half", "head", "body"])
@pytest.mark.parametrize("ends", ["silence", "hang-up", "reset"])
def test_an_incomplete_response_fails_without_a_retry(
    server: Server, get: Get, connection: Connection, sent: bytes, ends: str
) -> None:
    connection.timeouts = Timeouts(5, 0.2 if ends == "silence" else 30)

    def answer(client: socket.socket, _: int) -> bool:
        client.sendall(sent)
        if ends == "reset":
            time.sleep(0.02)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
        elif ends == "silence":
            server.gate.wait()
        return True

    server.answer = answer
    with pytest.raises(ConnectionFailed) as caught:
        get()
    if ends == "silence":
        assert "stopped sending" in str(caught.value)
    elif ends == "hang-up" and sent.startswith(HEAD):
        assert f"{len(BODY) - len(sent) + len(HEAD)} bytes are missing" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert [len(heads) for heads in server.requests] == [1], "retries are left to the caller"


def test_a_kept_connection_that_the_server_closed_is_reopened_once(
    server: Server, get: Get, connection: Connection
) -> None:
    assert get() == BODY
    server.answer = lambda *_: True
    with pytest.raises(ConnectionFailed, match="hung up"):
        connection.send(HttpRequest(server.url), {})
    assert [len(heads) for heads in server.requests] == [2, 1]
    server.answer = lambda client, number: client.sendall(HEAD + BODY)
    assert get() == BODY
    assert get() == BODY
    assert [len(heads) for heads in server.requests] == [2, 1, 2]


def test_a_kept_connection_that_falls_silent_is_not_retried(server: Server, get: Get, connection: Connection) -> None:
    connection.timeouts = Timeouts(5, 0.2)
    assert get() == BODY
    server.answer = lambda *_: server.gate.wait()
    with pytest.raises(ConnectionFailed, match="stopped sending"):
        connection.send(HttpRequest(server.url), {})
    assert [len(heads) for heads in server.requests] == [2]


def trickle(server: Server, head: bytes) -> None:
    """Have the server send a head, and then a byte at a time."""

    def answer(client: socket.socket, _: int) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\n" + head)
        while not server.gate.wait(0.02):
            client.sendall(b"x")

    server.answer = answer


@pytest.mark.parametrize("head", [b"Transfer-Encoding: chunked\r\n\r\nffff\r\n", b"Content-Length: 65535\r\n\r\n"])
@pytest.mark.parametrize("how", ["as a text", "as a stream"])
def test_a_body_that_comes_a_byte_at_a_time_is_not_waited_for(
    server: Server, connection: Connection, head: bytes, how: str
) -> None:
    """Each byte is in time for the timeout of a read, so the page of a listing would take days."""
    trickle(server, head)
    connection.timeouts = Timeouts(5, 0.5)
    response = connection.send(HttpRequest(server.url), {})
    received = 0

    def read_all() -> None:
        nonlocal received
        if how == "as a text" or response.length is None:
            connection.read(response)
        while True:
            received += connection.read_some(response, memoryview(bytearray(100)), 65535 - received)

    with pytest.raises(ConnectionTimedOut, match="too slowly"):
        read_all()


@pytest.mark.parametrize("proxied", [False, True])
def test_a_head_that_comes_a_byte_at_a_time_is_not_waited_for(
    server: Server, connection: Connection, proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trickle(server, b"X: ")
    connection.timeouts = Timeouts(5, 0.5)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.port}")
    url = "https://example.com/x" if proxied else server.url
    with pytest.raises(ConnectionFailed, match="too slowly") as failure:
        connection.send(HttpRequest(url), {})
    assert isinstance(failure.value, ProxyFailed if proxied else ConnectionTimedOut)


def test_the_rest_of_a_response_is_not_read_as_the_next_one(
    server: Server, get: Get, connection: Connection, target: int
) -> None:
    def fail(_: memoryview) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        connection.copy(connection.send(HttpRequest(server.url), {}), target, 0, fail)
    connection.send(HttpRequest(server.url), {})  # its body is not read
    assert get() == BODY
    assert [len(heads) for heads in server.requests] == [1, 1, 1]


def test_a_head_request_has_no_body(server: Server, get: Get, connection: Connection) -> None:
    server.answer = lambda client, number: client.sendall(HEAD if number == 0 else HEAD + BODY)
    assert connection.send(HttpRequest(server.url, method="HEAD"), {}).length == len(BODY)
    assert get() == BODY
    assert [[head.split()[0] for head in heads] for heads in server.requests] == [[b"HEAD", b"GET"]]


def test_the_head_of_a_redirect_is_not_waited_for_beyond_its_end(
    server: Server, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = HEAD.replace(b"200 OK", b"302 Found").replace(b"ETag", b"Location: /y\r\nETag")
    server.answer = lambda client, number: client.sendall(HEAD if number else moved)
    monkeypatch.setattr(connection, "read", lambda _: pytest.fail("there is no body"))
    assert connection.send(HttpRequest(server.url, method="HEAD", redirects=1), {}).status == 200
    assert [[head.split()[1] for head in heads] for heads in server.requests] == [[b"/x?sig=the-signature", b"/y"]]


STORE = f"http://store.example/x?sig={SECRET}"
Resolve = Callable[..., None]
"""Has a host resolve to these addresses; a number is a port here."""


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    def resolve_to(*addresses: int | tuple[str, int]) -> None:
        found = [("127.0.0.1", each) if isinstance(each, int) else each for each in addresses]
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        infos = [(families[":" in address[0]], socket.SOCK_STREAM, 0, "", address) for address in found]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: infos)

    return resolve_to


@pytest.mark.parametrize("why", ["refused", "unreachable|denied"])
def test_addresses_of_a_host_are_tried_until_one_connects(
    server: Server, get: Get, connection: Connection, resolve: Resolve, why: str
) -> None:
    """Those of IPv6 are unreachable on a machine that has IPv4 only: connect(2) fails at once, as for this one."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # but does not listen
        bad: int | tuple[str, int] = closed.getsockname()[1] if why == "refused" else ("255.255.255.255", 80)
        resolve(("::1", 9), *[bad] * 5, server.port)
        for _ in range(3):
            assert get(STORE) == BODY
            connection.close()
        resolve(*[bad] * 5)
        with pytest.raises(ConnectionFailed, match=why):
            connection.send(HttpRequest(STORE), {})
    assert server.requests[0][0].startswith(f"GET /x?sig={SECRET} HTTP/1.1\r\nHost: store.example\r\n".encode())


def test_an_address_that_does_not_answer_is_not_waited_for(
    server: Server, target: int, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of a socket that accepts nothing is full, so the kernel drops what comes; it would take 100 s each."""
    with ExitStack() as stack:
        silent = []
        for _ in range(4):
            full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            stack.enter_context(socket.create_connection(full.getsockname()))
            silent.append(full.getsockname())
        resolve(*silent, server.port)
        connection = stack.enter_context(closing(Connection(timeouts=Timeouts(connect_s=100, read_s=10))))
        # At last, each has been tried, and the good one comes first.
        for next_address_s in [module.NEXT_ADDRESS_S, *[0.001] * 40, *[100] * 5]:
            monkeypatch.setattr(module, "NEXT_ADDRESS_S", next_address_s)
            assert fetched(connection, STORE, target) == BODY
            connection.close()
        resolve(*silent)
        connection.timeouts = Timeouts(connect_s=0.3, read_s=10)
        with pytest.raises(ConnectionTimedOut):
            connection.send(HttpRequest(STORE), {})


def test_a_connection_that_was_idle_is_not_used_again(
    server: Server, get: Get, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert get() == BODY
    monkeypatch.setattr("growfs.remote.http.connection.IDLE_S_MAX", 0.1)
    time.sleep(0.15)
    assert get() == BODY
    assert [len(heads) for heads in server.requests] == [2, 1]


def test_connections_are_spread_over_the_addresses_of_a_host(target: int, resolve: Resolve) -> None:
    servers = [Server() for _ in range(3)]
    resolve(*(server.port for server in servers))
    for _ in range(40):
        with closing(Connection()) as connection:
            fetched(connection, STORE, target)
    for server in servers:
        server.close()
    assert all(server.requests for server in servers)


def test_an_ipv6_address_works(get: Get) -> None:
    try:
        server = Server(socket.AF_INET6, "::1")
    except OSError:
        pytest.skip("no IPv6 here")
    assert get(server.url) == BODY
    server.close()
    assert re.search(rb"\r\nHost: \[::1\]:\d+\r\n", server.requests[0][0])


def test_a_connection_switches_between_servers(server: Server, get: Get) -> None:
    other = Server()
    other.answer = lambda client, _: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother")
    for _ in range(2):
        assert get() == BODY
        assert get(other.url) == b"other"
    other.close()


def test_a_request_is_written_with_its_headers(server: Server, connection: Connection) -> None:
    url = server.url.partition("/x")[0]
    for more, line in ((f"/a%20b?c=d&sig={SECRET}#part", f"/a%20b?c=d&sig={SECRET}"), ("", "/"), ("?q", "/?q")):
        connection.send(HttpRequest(url + more, {"X-Key": "k"}), {"Range": "bytes=0-9"})
        sent = server.requests[-1][-1]
        assert sent.startswith(f"GET {line} HTTP/1.1\r\n".encode())
        assert b"\r\nX-Key: k\r\n" in sent
        assert b"\r\nRange: bytes=0-9\r\n" in sent
        assert b"\r\nAccept-Encoding: identity\r\n" in sent
        assert sent.count(b"\r\n\r\n") == 1


INJECTED = [
    ("/x\r\nEvil: 1", {}),
    ("/x HTTP/1.1\r\n\r\nGET /evil", {}),
    ("/x\ny", {}),
    ("/x y", {}),
    ("/x\0y", {}),
    ("/ü", {}),
    ("/x", {"A": "1\r\nEvil: 1"}),
    ("/x", {"A": "1\n"}),
    ("/x", {"A": "\0"}),
    ("/x", {"A": "中"}),
    ("/x", {"A: 1\r\nEvil": "1"}),
    ("/x", {"A\n": "1"}),
    ("/x", {"": "1"}),
    ("/x", {"中": "1"}),
]


@pytest.mark.parametrize(("target", "headers"), INJECTED, ids=range(len(INJECTED)))
@pytest.mark.parametrize("more", [False, True])
def test_urls_and_headers_cannot_inject_into_a_request(
    server: Server, connection: Connection, target: str, headers: dict[str, str], more: bool
) -> None:
    url = server.url.partition("/x")[0] + target + f"&sig={SECRET}"
    secret = {"Authorization": SECRET}
    with pytest.raises(FallBack, match="cannot be sent") as caught:
        connection.send(
            HttpRequest(url, secret if more else secret | headers), headers if more else {"Range": "bytes=0-"}
        )
    assert server.requests == []
    assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


@pytest.mark.parametrize("url", ["http:///x", "http://h\r\nEvil: 1/x"])
def test_an_invalid_host_is_refused_without_a_lookup(
    connection: Connection, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("the host was looked up"))
    with pytest.raises(FallBack):
        connection.send(HttpRequest(url + f"?sig={SECRET}"), {})


@pytest.mark.parametrize("failure", [socket.gaierror(-2, "Name or service not known"), ConnectionRefusedError("no")])
def test_errors_contain_no_secret(connection: Connection, failure: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    request = HttpRequest(STORE, {"Authorization": SECRET})
    with pytest.raises(ConnectionFailed) as caught:
        connection.send(request, {})
    assert SECRET not in f"{caught.value!r} {caught.value} {request!r} {request}"


def test_another_thread_can_interrupt_a_read(server: Server, get: Get, connection: Connection, target: int) -> None:
    requested = threading.Event()

    def answer(*_: object) -> None:
        requested.set()
        server.gate.wait()

    def interrupt() -> None:
        requested.wait()
        connection.interrupt()

    server.answer = answer
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(ConnectionFailed):
        connection.send(HttpRequest(server.url), {})
    connection.close()
    connection.interrupt()
    server.answer = lambda client, _: client.sendall(HEAD + BODY)
    assert get() == BODY


def test_short_writes_are_continued(server: Server, get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, piece, at: real(fd, piece[:100], at))
    assert get() == BODY
