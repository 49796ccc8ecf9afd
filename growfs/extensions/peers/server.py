"""Serves the cached files and the position of this node to other nodes over HTTP (see `client`).

It runs in a worker process, so that the thread that answers the kernel sends no data. The daemon holds each file open
while it is sent.
"""

from __future__ import annotations

import hmac
import http.server
import itertools
import json
import os
import re
import select
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from io import FileIO
from queue import SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from growfs.errors import GrowfsError
from growfs.extensions.peers.client import FILES, MTIME_HEADER, POSITION, VERSION_HEADER, authorization
from growfs.extensions.peers.membership import Members, PeerPoll
from growfs.extensions.peers.messages import Announce, CachedOpened, CloseCached, OpenCached, ServedFile
from growfs.remote.http.connection import HEAD_BYTES_MAX
from growfs.remote.rate_limits import TokenBucket
from growfs.workers.messages import Receive, Send

NEW_MAX = 256
"""New connections that have not sent a request. For another one, the oldest is closed: peers send it at once."""
CONNECTIONS_MAX = 512
"""Further ones are closed at once; those peers read from the remote."""


def serve(address: tuple[str, int], token: str, bytes_per_s: float, node: str, send: Send, receive: Receive) -> None:
    """Serve cached files to other nodes at an address. node: the name of this node.

    token: what peers have to send. bytes_per_s: limit for all of them together; 0 for none. Raises GrowfsError if it
    cannot listen.
    """
    PeerServer(address, token, bytes_per_s, node, send).run(receive)


class PeerServer:
    """Owns the listening socket and the connections. See `serve`."""

    def __init__(self, address: tuple[str, int], token: str, bytes_per_s: float, node: str, send: Send) -> None:
        self.authorization = authorization(token).encode()
        self.bucket = TokenBucket(lambda: bytes_per_s)
        self.piece_bytes = max(1, int(bytes_per_s) // CONNECTIONS_MAX) if bytes_per_s else 1 << 20
        """Bytes sent before the limit is checked again: few, so that each of many connections gets some."""
        self.node = node
        self.announced = Announce(None, ())
        self._is_announced = threading.Event()
        self._poll = PeerPoll(node, token)
        self._send = send
        self._numbers = itertools.count()
        self._answers: dict[int, SimpleQueue[CachedOpened]] = {}
        try:
            self._server = _Server(address, self)
        except OSError as error:
            raise GrowfsError(f"the other nodes cannot be served: {error.strerror}") from None
        self._members = Members(address[1], self._server.address_family)

    def run(self, receive: Receive) -> None:
        """Serve forever."""
        for task in (self._server.serve_forever, self._look_around):
            threading.Thread(target=task, daemon=True).start()
        while True:
            message = receive()
            if isinstance(message, Announce):
                self.announced = message
                self._is_announced.set()
            else:
                self._answers[message.request].put(message)

    def open(self, path: str) -> ServedFile | None:
        """Make the daemon hold a file open."""
        number = next(self._numbers)
        answers = self._answers[number] = SimpleQueue()
        self._send(OpenCached(number, path))
        try:
            return answers.get().cached
        finally:
            del self._answers[number]

    def close(self, cached: ServedFile, sent: int) -> None:
        """Make the daemon close a file. sent: bytes of it that a peer received."""
        self._send(CloseCached(cached.id, sent))

    def _look_around(self) -> None:
        while self._is_announced.wait():
            self._is_announced.clear()  # a node that does not answer holds it up for longer than POLL_S
            announced = self.announced
            self._send(self._poll.look(self._members.addresses(announced.peers), announced.position))


class _NewConnection(NamedTuple):
    connection: socket.socket
    address: Any
    until: float
    """When the connection is closed, by time.monotonic."""


class _Server(socketserver.ThreadingTCPServer):
    """Owns the new connections, and a thread for each of the others.

    Anyone can connect. So data from a new connection stays in the kernel until it is the complete head of a request.
    Only then does it take a thread, which closes the connection if the token is wrong.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], owner: PeerServer) -> None:
        self.owner = owner
        self.free = threading.Semaphore(CONNECTIONS_MAX)
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        self._poll = select.epoll()
        self._new: dict[int, _NewConnection] = {}  # by descriptor, oldest first
        super().__init__(address, _Handler)

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        self.socket.setblocking(False)
        self._poll.register(self, select.EPOLLIN)
        while True:
            for descriptor, _ in self._poll.poll(poll_interval):
                if descriptor == self.fileno():
                    self._accept()
                elif descriptor in self._new:  # otherwise it was closed meanwhile
                    self._look_at(descriptor)
            while self._new and next(iter(self._new.values())).until < time.monotonic():
                self._close_oldest()

    def _accept(self) -> None:
        try:
            connection, address = self.get_request()
        except OSError:  # it hung up meanwhile
            return
        if len(self._new) >= NEW_MAX:
            self._close_oldest()
        connection.setblocking(False)
        until = time.monotonic() + 5.0  # by then, the head of its first request has arrived
        self._new[connection.fileno()] = _NewConnection(connection, address, until)
        self._poll.register(connection, select.EPOLLIN | select.EPOLLET)  # edge-triggered: when more data arrives

    def _look_at(self, descriptor: int) -> None:
        """Start a thread for a new connection that has sent a head, and close one that never will."""
        try:
            sent = self._new[descriptor].connection.recv(HEAD_BYTES_MAX, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            sent = b""
        is_whole = b"\r\n\r\n" in sent
        if sent and not is_whole and len(sent) < HEAD_BYTES_MAX:
            return
        connection, address, _ = self._take(descriptor)
        if is_whole and self.free.acquire(blocking=False):
            try:
                self.process_request(connection, address)
            except RuntimeError:  # the system allows no more threads
                self.free.release()
            else:
                return
        self.shutdown_request(connection)

    def _close_oldest(self) -> None:
        self.shutdown_request(self._take(next(iter(self._new))).connection)

    def _take(self, descriptor: int) -> _NewConnection:
        self._poll.unregister(descriptor)
        return self._new.pop(descriptor)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore peers that hang up: that is not an error of this node."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60.0  # of a connection that sends and receives nothing
    server: _Server

    def do_GET(self) -> None:
        owner = self.server.owner
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), owner.authorization):
            self._begin(HTTPStatus.FORBIDDEN, headers={"Connection": "close"})
        elif self.path == POSITION:
            position = owner.announced.position
            body = json.dumps({"node": owner.node, "position": position._asdict() if position else None}).encode()
            self._begin(HTTPStatus.OK, len(body))
            self.wfile.write(body)
        elif self.path.startswith(FILES) and (cached := owner.open(unquote(self.path.removeprefix(FILES)))):
            self._sent = 0
            try:
                self._answer(cached)
            finally:
                owner.close(cached, self._sent)
        else:
            self._begin(HTTPStatus.NOT_FOUND)

    def _answer(self, cached: ServedFile) -> None:
        if quote(cached.file.version) != self.headers.get(VERSION_HEADER):
            self._begin(HTTPStatus.NOT_FOUND)
            return
        try:
            file = cached.local.open("rb", buffering=0)
        except OSError:  # it was evicted meanwhile
            self._begin(HTTPStatus.NOT_FOUND)
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, end = (int(part[1]), min(int(part[2]) + 1, size)) if part else (0, size)
            if size != cached.file.size or (part and start >= end):
                self._begin(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                return
            headers = {
                "ETag": f'"{cached.digest}"',
                VERSION_HEADER: quote(cached.file.version),
                MTIME_HEADER: str(cached.file.mtime_ns or ""),
            }
            if part:
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
            self._begin(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK, end - start, headers)
            self._send_file(file, start, end)

    def _send_file(self, file: FileIO, start: int, end: int) -> None:
        while start < end:
            sent = self.connection.sendfile(file, start, min(self.server.owner.piece_bytes, end - start))
            if not sent:
                raise ConnectionError("the file is shorter than it was")
            start += sent
            self._sent += sent
            self.server.owner.bucket.consume(sent)

    def _begin(self, status: HTTPStatus, length: int = 0, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the daemon counts served files, and a line for each request would fill its log."""
