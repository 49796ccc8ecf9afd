"""Fetches from other nodes that misbehave: the file is right, or the next node, or the remote, has to give it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from growfs.extensions.peers import client as peers
from growfs.extensions.peers.client import FILES, PeerClient
from growfs.extensions.peers.messages import CachedOpened, OpenCached, ServedFile
from growfs.extensions.peers.server import PeerServer
from growfs.remote import digest
from growfs.remote.digest import Digest
from growfs.remote.http.connection import Timeouts
from growfs.remote.http.threads import THREADS_DEFAULT, TransferJob, TransferThreads
from growfs.remote.interface import FetchTask, RemoteFile
from growfs.remote.names import join_address
from tests.servers import QuietHandler, serving

DATA = bytes(range(256)) * 400
FILE = RemoteFile("a folder/ü.bin", len(DATA), 5, "v 1")
TOKEN = "the-secret"
FAILURES = "lies", "lies without a digest", "hangs", "drips", "hangs up", "fails"
"""After which a node is left alone for a while."""


Serve = Callable[["Node"], str]
"""Serves as this node; returns its address."""


class Node:
    """A node with one file. how: what is wrong with it."""

    def __init__(self, how: str = "") -> None:
        self.how = how
        self.requests = 0
        self.ended = threading.Event()

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.requests += 1
        how = self.how
        headers = dict(handler.headers)
        is_asked = handler.path == f"{FILES}a%20folder/%C3%BC.bin" and headers["x-growfs-version"] == "v%201"
        if how == "hangs":
            self.ended.wait(10)
        if how in ("has it not", "hangs") or not is_asked or headers["Authorization"] != f"Bearer {TOKEN}":
            handler.send_response(404 if is_asked else 403)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        body = DATA[:-1] + b"!" if how.startswith("lies") else DATA[:-1] if how == "has another size" else DATA
        digest = Digest()
        digest.segment(0).update(memoryview(DATA))
        handler.send_response(500 if how == "fails" else 200)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("x-growfs-version", "v2" if how == "has another version" else "v%201")
        if how != "lies without a digest":
            handler.send_header("ETag", f'"{digest.text()}"')
        handler.end_headers()
        sent = 0
        while how == "drips" and not self.ended.wait(0.05):
            handler.wfile.write(body[sent : sent + 1])
            sent += 1
        handler.wfile.write(body[sent:1000] if how == "hangs up" else body[sent:])
        if how == "hangs up":
            handler.close_connection = True
            handler.connection.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    nodes: list[Node] = []
    with ExitStack() as stack:

        def start(node: Node) -> str:
            class Handler(QuietHandler):
                protocol_version = "HTTP/1.1"

                def do_GET(self) -> None:
                    node.answer(self)

            nodes.append(node)
            return stack.enter_context(serving(Handler)).removeprefix("http://").rstrip("/")

        yield start
        for node in nodes:
            node.ended.set()


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long enough for a node that answers, on a busy machine."""
    monkeypatch.setattr(peers, "TIMEOUTS", Timeouts(3, 3, 2))


def fetch(
    client: PeerClient, threads: TransferThreads, target: Path, *addresses: str, file: RemoteFile = FILE
) -> RemoteFile | None:
    """What the client returns, called as a job of the threads."""
    found: list[RemoteFile | None] = []
    done = threading.Event()

    def run() -> None:
        try:
            found.append(client.fetch(FetchTask(file, target, lambda count: None, Digest()), addresses))
        finally:
            done.set()

    threads.submit(TransferJob(run, file.size))
    assert done.wait(20)
    return found[0]


@pytest.mark.parametrize("how", [*FAILURES, "has another size", "has another version", "has it not"])
def test_where_a_node_misbehaves_the_next_one_gives_the_file(serve: Serve, tmp_path: Path, how: str) -> None:
    bad, good = Node(how), Node()
    addresses = serve(bad), serve(good)
    threads = TransferThreads()
    client = PeerClient(TOKEN, threads)
    for _ in range(2):
        assert fetch(client, threads, tmp_path / "x", *addresses) is not None
        assert (tmp_path / "x").read_bytes() == DATA
    assert (bad.requests < 4 if how in FAILURES else bad.requests >= 2, good.requests) == (True, 2)
    assert fetch(client, threads, tmp_path / "x", addresses[0]) is None, "the remote has to be read"


def test_nodes_that_come_and_go_leave_neither_threads_nor_connections(serve: Serve, tmp_path: Path) -> None:
    threads = TransferThreads()
    client = PeerClient(TOKEN, threads)
    addresses = [serve(Node("fails" if number % 2 else "")) for number in range(6)]
    fetch(client, threads, tmp_path / "x", addresses[0])
    before = set(threading.enumerate())
    for address in addresses:
        fetch(client, threads, tmp_path / "x", address)
    watching = [thread.name for thread in set(threading.enumerate()) - before if "_watch" in thread.name]
    assert watching == [], "the first node's watches the connections to all"
    assert len(client._downloader._connections) == 1


def test_a_node_that_failed_long_ago_is_forgotten(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PAUSE_S", 0.0)
    threads = TransferThreads()
    client = PeerClient(TOKEN, threads)
    addresses = [serve(Node("fails")) for _ in range(3)]
    fetch(client, threads, tmp_path / "x", *addresses)
    assert list(client._paused_until) == addresses[-1:]


def test_a_file_without_a_version_is_never_fetched_from_a_node(serve: Serve, tmp_path: Path) -> None:
    node = Node()
    task = FetchTask(RemoteFile(FILE.path, len(DATA), None, ""), tmp_path / "x", lambda count: None, Digest())
    assert PeerClient(TOKEN, TransferThreads()).fetch(task, [serve(node)]) is None
    assert node.requests == 0


@contextmanager
def serving_cached(cached: ServedFile, bytes_per_s: float) -> Iterator[str]:
    """The address of a real node that has this file, and sends so much to all others together."""

    def answer(message: Any) -> None:
        if isinstance(message, OpenCached):
            server._answers[message.request].put(CachedOpened(message.request, cached))

    def serve() -> None:
        with suppress(ValueError):  # in the end
            server._server.serve_forever(0.01)

    server = PeerServer(("127.0.0.1", 0), TOKEN, bytes_per_s, "node", answer)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield join_address("127.0.0.1", server._server.server_address[1])
    finally:
        server._server._poll.close()
        thread.join()
        server._server.server_close()


def test_a_node_with_little_bandwidth_lets_no_stream_starve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream gets more than a megabyte. If it came at once, the last stream would then wait for 0.77 s."""
    part = (1 << 20) + (4 << 10)
    monkeypatch.setattr("growfs.remote.http.threads.SEGMENT_BYTES_MIN", part)
    monkeypatch.setattr("growfs.remote.http.threads.SEGMENT_BYTES_MAX", part)
    monkeypatch.setattr(peers, "TIMEOUTS", Timeouts(3, 0.6, 2))
    local = tmp_path / "cached"
    local.write_bytes(bytes(range(256)) * (THREADS_DEFAULT * part // 256))
    file = RemoteFile("large.bin", THREADS_DEFAULT * part, 5, "v1")
    threads = TransferThreads()
    with serving_cached(ServedFile(1, local, file, digest.of(local)), 4_800_000) as address:
        assert fetch(PeerClient(TOKEN, threads), threads, tmp_path / "x", address, file=file) == file
    assert (tmp_path / "x").read_bytes() == local.read_bytes()
