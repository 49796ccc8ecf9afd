"""The client that speaks HTTP/1.1 itself, against servers that misbehave: bytes by a socket, each answer as told."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from growfs.remote.http import connection as module
from growfs.remote.http.connection import Connection, ConnectionFailed, FallBack, HttpRequest, HttpResponse

BODY = bytes(range(256)) * 40
SECRET = "the-signature"
HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: "1"\r\n\r\n' % len(BODY)

KeyPage = Callable[[socket.socket, int], object]
"""Given the line, and the number of the request on it from 0; hangs up where that returns True."""


class Server:
    """Answers each request in the way of `answer`. heads: what was asked, for each line."""

    def __init__(self, family: socket.AddressFamily = socket.AF_INET, host: str = "127.0.0.1") -> None:
        self.answer: KeyPage = lambda line, _: line.sendall(HEAD + BODY)
        self.heads: list[list[bytes]] = []
        self.gate = threading.Event()
        self._listening = socket.socket(family)
        self._listening.bind((host, 0))
        self._listening.listen()
        self.port = self._listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/x?sig={SECRET}"
        self._lines: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                self._lines.append(line)
                self.heads.append([])
                threading.Thread(target=self._serve, args=[line, self.heads[-1]], daemon=True).start()

    def _serve(self, line: socket.socket, heads: list[bytes]) -> None:
        with suppress(OSError), line:
            got = b""
            while more := line.recv(1 << 16):
                got += more
                if b"\r\n\r\n" in got:
                    heads.append(got)
                    got = b""
                    if self.answer(line, len(heads) - 1) is True:
                        line.shutdown(socket.SHUT_RDWR)
                        return

    def close(self) -> None:
        self.gate.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        for line in [self._listening, *self._lines]:
            line.close()


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


def got(connection: Connection, url: str, target: int) -> bytes:
    """What a GET brings, of which each byte is told once."""
    told: list[int] = []
    os.ftruncate(target, 0)
    response = connection.send(HttpRequest(url), {})
    connection.copy(response, target, 0, lambda piece: told.append(len(piece)))
    assert sum(told) == response.length
    return os.pread(target, 1 << 20, 0)


def slowly(line: socket.socket, *pieces: bytes) -> None:
    """Each in a segment of its own."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for piece in pieces:
        line.sendall(piece)
        time.sleep(0.002)


def test_segments_may_end_anywhere(server: Server, connection: Connection, target: int) -> None:
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
        places = [0, *at, len(whole)]
        pieces = [whole[start:stop] for start, stop in pairwise(places)]
        server.answer = lambda line, _, pieces=pieces: slowly(line, *pieces)  # type: ignore[misc]
        assert got(connection, server.url, target) == BODY
    assert [len(heads) for heads in server.heads] == [len(cuts)], "one connection serves all"


@pytest.mark.parametrize("room", [0, 1, 5, 100])
def test_a_head_that_fills_the_buffer(server: Server, target: int, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(module, "BUFFER_BYTES", len(HEAD) + room)
    connection = Connection()
    assert got(connection, server.url, target) == BODY
    connection.close()


@pytest.mark.parametrize("ends", [True, False])
def test_a_head_without_an_end(server: Server, connection: Connection, ends: bool) -> None:
    fill = b"X: " + b"x" * module.HEAD_BYTES_MAX
    server.answer = lambda line, _: line.sendall(b"HTTP/1.1 200 OK\r\n" + fill + (b"\r\n\r\n" if ends else b""))
    with pytest.raises(FallBack, match="without an end"):
        connection.send(HttpRequest(server.url), {})


def test_a_long_head_is_read(server: Server, connection: Connection, target: int) -> None:
    more = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 100) for number in range(500))
    server.answer = lambda line, _: line.sendall(HEAD[:-2] + more + b"\r\n" + BODY)
    assert got(connection, server.url, target) == BODY


CLOSES = {
    "of HTTP/1.0": HEAD.replace(b"1.1", b"1.0"),
    "close": HEAD[:-2] + b"Connection: close\r\n\r\n",
    "Close": HEAD[:-2] + b"CONNECTION: Upgrade, Close\r\n\r\n",
    "close in a line of its own": HEAD[:-2] + b"Connection: x\r\nConnection: close\r\n\r\n",
}


@pytest.mark.parametrize("head", CLOSES.values(), ids=CLOSES.keys())
def test_a_connection_that_is_not_kept(server: Server, connection: Connection, target: int, head: bytes) -> None:
    server.answer = lambda line, _: line.sendall(head + BODY)
    for _ in range(2):
        assert got(connection, server.url, target) == BODY
    assert [len(heads) for heads in server.heads] == [1, 1]


@pytest.mark.parametrize("later", [False, True])
def test_more_than_was_told_is_not_taken_for_the_next_answer(
    server: Server, connection: Connection, target: int, later: bool
) -> None:
    forged = HEAD + b"F" * len(BODY)

    sent = threading.Event()

    def answer(line: socket.socket, _: int) -> None:
        slowly(line, HEAD + BODY, forged) if later else line.sendall(HEAD + BODY + forged)
        sent.set()

    server.answer = answer
    if later:
        response = connection.send(HttpRequest(server.url), {})
        connection.copy(response, target, 0, lambda _: None)
        sent.wait()
    else:
        assert got(connection, server.url, target) == BODY
    assert got(connection, server.url, target) == BODY
    assert len(server.heads) == 2


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


@pytest.mark.parametrize("line", LENGTHS.values(), ids=LENGTHS.keys())
def test_an_answer_whose_length_is_not_told(server: Server, connection: Connection, line: bytes) -> None:
    server.answer = lambda to, _: to.sendall(b"HTTP/1.1 200 OK\r\n" + line + b"\r\n\r\n")
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
def test_what_is_no_http(server: Server, connection: Connection, target: int, head: bytes) -> None:
    answer = server.answer
    server.answer = lambda line, _: line.sendall(head)
    with pytest.raises(FallBack):
        connection.send(HttpRequest(server.url), {})
    server.answer = answer
    assert got(connection, server.url, target) == BODY, "and it is over with that"


def test_how_a_head_is_read(server: Server, connection: Connection) -> None:
    lines = b"A: 1\r\nB:\t two words \r\na: 3\r\nEmpty:\r\nLatin: \xe9\r\nContent-Length: 0\r\n\r\n"
    server.answer = lambda line, _: line.sendall(b"HTTP/1.1 404 Not Found at all\r\n" + lines)
    response = connection.send(HttpRequest(server.url), {})
    headers = {"a": "1, 3", "b": "two words", "empty": "", "latin": "é", "content-length": "0"}
    assert response == HttpResponse(404, "Not Found at all", headers, 0, False, True)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200", HEAD, HEAD + BODY[:100]], ids=["-", "half", "head", "body"])
@pytest.mark.parametrize("ends", ["silence", "hang-up", "reset"])
def test_an_answer_that_does_not_end(
    server: Server,
    connection: Connection,
    target: int,
    sent: bytes,
    ends: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "READ_TIMEOUT_S", 1 if ends == "silence" else 30)

    def answer(line: socket.socket, _: int) -> bool:
        line.sendall(sent)
        if ends == "reset":
            time.sleep(0.02)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            line.close()
        elif ends == "silence":
            server.gate.wait()
        return True

    server.answer = answer
    with pytest.raises(ConnectionFailed) as caught:
        got(connection, server.url, target)
    if ends == "silence":
        assert "silent" in str(caught.value)
    elif ends == "hang-up" and sent.startswith(HEAD):
        assert f"{len(BODY) - len(sent) + len(HEAD)} bytes are missing" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert [len(heads) for heads in server.heads] == [1], "trying again is not its business"


def test_a_kept_connection_that_is_closed_is_opened_anew_once(
    server: Server, connection: Connection, target: int
) -> None:
    assert got(connection, server.url, target) == BODY
    server.answer = lambda *_: True
    with pytest.raises(ConnectionFailed, match="hung up"):
        connection.send(HttpRequest(server.url), {})
    assert [len(heads) for heads in server.heads] == [2, 1]
    server.answer = lambda line, number: line.sendall(HEAD + BODY)
    assert got(connection, server.url, target) == BODY
    assert got(connection, server.url, target) == BODY
    assert [len(heads) for heads in server.heads] == [2, 1, 2]


def test_a_kept_connection_that_falls_silent_is_not_asked_again(
    server: Server, connection: Connection, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_TIMEOUT_S", 1)
    assert got(connection, server.url, target) == BODY
    server.answer = lambda *_: server.gate.wait()
    with pytest.raises(ConnectionFailed, match="silent"):
        connection.send(HttpRequest(server.url), {})
    assert [len(heads) for heads in server.heads] == [2]


def test_what_is_left_of_an_answer_is_not_read_as_the_next(server: Server, connection: Connection, target: int) -> None:
    def fail(_: memoryview) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        connection.copy(connection.send(HttpRequest(server.url), {}), target, 0, fail)
    connection.send(HttpRequest(server.url), {})  # whose body nobody reads
    assert got(connection, server.url, target) == BODY
    assert [len(heads) for heads in server.heads] == [1, 1, 1]


def test_a_head_request_has_no_body(server: Server, connection: Connection, target: int) -> None:
    server.answer = lambda line, number: line.sendall(HEAD if number == 0 else HEAD + BODY)
    assert connection.send(HttpRequest(server.url, method="HEAD"), {}).length == len(BODY)
    assert got(connection, server.url, target) == BODY
    assert [[head.split()[0] for head in heads] for heads in server.heads] == [[b"HEAD", b"GET"]]


def test_any_address_of_a_host_will_do(
    server: Server, connection: Connection, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        ports = [closed.getsockname()[1]] * 3 + [server.port]
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        found = [(socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", ports[0], 0, 0))]
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda *_, **__: [*found, *((*kind, ("127.0.0.1", port)) for port in ports)]
        )
        for _ in range(3):
            assert got(connection, f"http://store.example/x?sig={SECRET}", target) == BODY
            connection.close()
        ports.pop()
        with pytest.raises(ConnectionFailed, match="refused"):
            connection.send(HttpRequest(server.url), {})
    assert server.heads[0][0].startswith(f"GET /x?sig={SECRET} HTTP/1.1\r\nHost: store.example\r\n".encode())


def test_work_is_spread_over_a_hosts_addresses(monkeypatch: pytest.MonkeyPatch, target: int) -> None:
    servers = [Server() for _ in range(3)]
    kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(*kind, ("127.0.0.1", server.port)) for server in servers]
    )
    for _ in range(40):
        connection = Connection()
        got(connection, "http://store.example/x", target)
        connection.close()
    counts = [len(server.heads) for server in servers]
    for server in servers:
        server.close()
    assert min(counts) > 0, counts


def test_an_address_of_ipv6(connection: Connection, target: int) -> None:
    try:
        server = Server(socket.AF_INET6, "::1")
    except OSError:
        pytest.skip("no IPv6 here")
    assert got(connection, server.url, target) == BODY
    server.close()
    assert re.search(rb"\r\nHost: \[::1\]:\d+\r\n", server.heads[0][0])


def test_another_server_is_another_connection(server: Server, connection: Connection, target: int) -> None:
    other = Server()
    other.answer = lambda line, _: line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother")
    for _ in range(2):
        assert got(connection, server.url, target) == BODY
        assert got(connection, other.url, target) == b"other"
    other.close()


def test_how_a_request_is_written(server: Server, connection: Connection) -> None:
    url = server.url.partition("/x")[0]
    for more, line in ((f"/a%20b?c=d&sig={SECRET}#part", f"/a%20b?c=d&sig={SECRET}"), ("", "/"), ("?q", "/?q")):
        connection.send(HttpRequest(url + more, {"X-Key": "k"}), {"Range": "bytes=0-9"})
        sent = server.heads[-1][-1]
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
def test_nothing_can_be_smuggled_into_a_request(
    server: Server, connection: Connection, target: str, headers: dict[str, str], more: bool
) -> None:
    url = server.url.partition("/x")[0] + target + f"&sig={SECRET}"
    secret = {"Authorization": SECRET}
    with pytest.raises(FallBack, match="cannot be sent") as caught:
        connection.send(
            HttpRequest(url, secret if more else secret | headers), headers if more else {"Range": "bytes=0-"}
        )
    assert server.heads == []
    assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


@pytest.mark.parametrize("url", ["http:///x", "http://h\r\nEvil: 1/x"])
def test_a_host_that_is_none(connection: Connection, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("it is not looked for"))
    with pytest.raises(FallBack):
        connection.send(HttpRequest(url + f"?sig={SECRET}"), {})


@pytest.mark.parametrize("failure", [socket.gaierror(-2, "Name or service not known"), ConnectionRefusedError("no")])
def test_no_failure_tells_a_secret(connection: Connection, failure: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    request = HttpRequest(f"http://store.example/x?sig={SECRET}", {"Authorization": SECRET})
    with pytest.raises(ConnectionFailed) as caught:
        connection.send(request, {})
    assert SECRET not in f"{caught.value!r} {caught.value} {request!r} {request}"


def test_a_read_can_be_ended_from_another_thread(server: Server, connection: Connection, target: int) -> None:
    asked = threading.Event()

    def answer(*_: object) -> None:
        asked.set()
        server.gate.wait()

    def interrupt() -> None:
        asked.wait()
        connection.interrupt()

    server.answer = answer
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(ConnectionFailed):
        connection.send(HttpRequest(server.url), {})
    connection.close()
    connection.interrupt()
    server.answer = lambda line, _: line.sendall(HEAD + BODY)
    assert got(connection, server.url, target) == BODY


def test_a_full_disk_is_no_servers_fault(
    server: Server, connection: Connection, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        got(connection, server.url, target)


def test_short_writes_go_on(
    server: Server, connection: Connection, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, piece, at: real(fd, piece[:100], at))
    assert got(connection, server.url, target) == BODY
