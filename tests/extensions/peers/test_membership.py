"""Who the nodes are: what DNS says of a name, what stays when it says nothing, and which nodes are asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

import pytest

from growfs.extensions.peers import membership
from growfs.extensions.peers import server as peer_server
from growfs.extensions.peers.membership import OTHERS, Members, PeerPoll, ip_addresses
from growfs.extensions.peers.messages import Announce, PeersSeen
from growfs.extensions.peers.server import PeerServer
from growfs.remote.names import join_address
from tests.harness import until
from tests.servers import free_port

URL = "dns://growfs.test:7070"
ServerAt = Callable[[str, Callable[[PeersSeen], None]], PeerServer]


class NameServer:
    """Answers with `records`. Each test ends the threads that ask it."""

    def __init__(self, *records: str) -> None:
        self.records = list(records)

    def look_up(
        self, host: str, port: int, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[tuple[int, int, int, str, tuple[Any, ...]]]:
        """As socket.getaddrinfo."""
        of_families = [(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip) for ip in self.records]
        return [(of, type, proto, "", (ip, port)) for of, ip in of_families if family in (0, of)]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look up often. The threads end before the next test, which would have their messages and answers otherwise."""
    monkeypatch.setattr(membership, "LOOK_UP_S", 0.01)
    yield
    for thread in threading.enumerate():
        if "(_follow)" in thread.name:
            thread.join(10)


def test_a_name_stands_for_all_its_addresses_as_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    server = NameServer("10.0.0.2", "10.0.0.1")
    monkeypatch.setattr(socket, "getaddrinfo", server.look_up)
    members, others = Members(7071, socket.AF_INET), Members(7071, socket.AF_INET)
    both = ["10.0.0.9:7072", URL]
    assert members.addresses(both) == ("10.0.0.9:7072", "10.0.0.1:7070", "10.0.0.2:7070")
    server.records = ["10.0.0.3"]
    until(lambda: members.addresses(both) == ("10.0.0.9:7072", "10.0.0.3:7070"))
    assert others.addresses(["dns://growfs.test"]) == ("10.0.0.3:7071",)
    assert others.addresses([]) == ()
    assert members.addresses(["10.0.0.9:7072"]) == ("10.0.0.9:7072",), "a name that is no source any more"
    assert members.addresses(["node1", "node2"]) == ("node1:7071", "node2:7071")


def test_a_name_server_that_hangs_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "FIRST_S", 0.01)
    hung = socket.socketpair()
    with hung[0], hung[1]:
        monkeypatch.setattr(membership, "ip_addresses", lambda *_: [hung[0].recv(20).decode()])
        members = Members(7070, socket.AF_INET)
        assert members.addresses([URL, "10.0.0.9:7070"]) == ("10.0.0.9:7070",)
        hung[1].send(b"10.0.0.1")
        until(lambda: len(members.addresses([URL])) == 1)
        members.addresses([])  # ends the thread


def test_the_resolver_of_the_system_is_used() -> None:
    assert "127.0.0.1" in ip_addresses("localhost", 7070, socket.AF_INET)
    assert ip_addresses("127.0.0.1", 7070, socket.AF_INET) == ["127.0.0.1"]
    assert ip_addresses("127.0.0.1", 7070, socket.AF_INET6) == ["::ffff:127.0.0.1"]


def test_the_first_look_finds_this_node_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"10.0.0.{number}:7070" for number in range(100)]
    asked: list[str] = []

    def ask(peer: str) -> tuple[str, None]:
        asked.append(peer)
        return peer, None

    poll = PeerPoll(names[-1], "token")
    monkeypatch.setattr(poll, "_ask", ask)
    seen = poll.look(names, None)
    assert (seen.own, [*seen.positions]) == (names[-1], names[:-1])
    asked.clear()
    assert poll.look(names, None) == seen
    assert len(asked) == OTHERS


@pytest.fixture
def server_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerAt]:
    """Makes a server, given its host and `send`. It binds no address and serves nobody: that thread would not end."""
    for step in ("server_bind", "server_activate", "serve_forever"):
        monkeypatch.setattr(peer_server._Server, step, lambda self: None)
    with ExitStack() as stack:

        def server_at(host: str, send: Callable[[PeersSeen], None]) -> PeerServer:
            server = PeerServer((host, 0), "token", 0, "node", send)
            stack.callback(server._server.server_close)
            return server

        yield server_at


def run(server: PeerServer, messages: Iterator[Announce]) -> None:
    """Let a server receive these messages."""
    with pytest.raises(StopIteration):
        server.run(messages.__next__)


def test_while_a_node_does_not_answer_only_the_latest_nodes_count(
    server_at: ServerAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "TIMEOUT_S", 20)
    sent = SimpleQueue[PeersSeen]()
    others = (f"127.0.0.1:{free_port()}",)
    with socket.create_server(("127.0.0.1", 0)) as hung:  # in the end, its connections are reset
        first = (join_address(*hung.getsockname()),)
        run(server_at("127.0.0.1", sent.put), iter([*[Announce(None, first)] * 10, Announce(None, others)]))
    before = list(iter(lambda: sent.get(timeout=30).peers, others))
    assert before in ([], [first])


@pytest.mark.parametrize(
    ("records", "family", "nodes"),
    [
        (["fd00::1", "10.0.0.1", "fd00::2"], socket.AF_INET6, ("[fd00::1]:7070", "[fd00::2]:7070")),
        (["10.0.0.1", "fd00::1", "10.0.0.2"], socket.AF_INET, ("10.0.0.1:7070", "10.0.0.2:7070")),
    ],
)
def test_a_server_has_the_family_of_its_name_and_asks_nodes_of_the_same(
    server_at: ServerAt, monkeypatch: pytest.MonkeyPatch, records: list[str], family: int, nodes: tuple[str, ...]
) -> None:
    """A node with an address in each family counts once."""
    monkeypatch.setattr(socket, "getaddrinfo", NameServer(*records).look_up)
    monkeypatch.setattr(PeerPoll, "_ask", lambda self, peer: "it is away")
    sent = SimpleQueue[PeersSeen]()
    server = server_at("growfs.test", sent.put)
    assert server._server.address_family == family

    def messages() -> Iterator[Announce]:
        yield Announce(None, (URL,))
        assert sent.get(timeout=30).peers == nodes
        yield Announce(None, ())  # ends the thread that looks up the name
        assert sent.get(timeout=30).peers == ()

    run(server, messages())
