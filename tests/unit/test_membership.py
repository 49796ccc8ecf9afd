"""Who the nodes are: what DNS says of a name, and what stays when it says nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from growfs.workers import membership
from growfs.workers.membership import Members, ip_addresses
from tests.harness import until

URL = "dns://growfs.test:7070"


class NameServer:
    """Answers with `records`, or fails. Each test ends the threads that ask it."""

    def __init__(self, *records: str) -> None:
        self.records = list(records)
        self.is_down = False
        self.queries: list[tuple[str, int]] = []

    def look_up(self, host: str, port: int) -> list[str]:
        self.queries.append((host, port))
        if self.is_down:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self.records


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look up often. The threads end before the next test, which would have their messages and answers otherwise."""
    monkeypatch.setattr(membership, "LOOK_UP_S", 0.01)
    yield
    for thread in threading.enumerate():
        if "(_follow)" in thread.name:
            thread.join(10)


def test_a_name_stands_for_all_its_addresses_as_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    server = NameServer("10.0.0.2", "10.0.0.1", "fd00::1")
    monkeypatch.setattr(membership, "ip_addresses", server.look_up)
    members, others = Members(7071), Members(7071)
    both = ["10.0.0.9:7072", URL]
    assert members.addresses(both) == ("10.0.0.9:7072", "10.0.0.1:7070", "10.0.0.2:7070", "[fd00::1]:7070")
    server.records = ["10.0.0.3"]
    until(lambda: members.addresses(both) == ("10.0.0.9:7072", "10.0.0.3:7070"))
    assert others.addresses(["dns://growfs.test"]) == ("10.0.0.3:7071",)
    assert others.addresses([]) == ()
    assert members.addresses(["10.0.0.9:7072"]) == ("10.0.0.9:7072",), "a name that is no source any more"
    assert members.addresses(["node1", "node2"]) == ("node1:7071", "node2:7071")


def test_the_last_list_stays_while_look_ups_fail(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = NameServer("10.0.0.1")
    monkeypatch.setattr(membership, "ip_addresses", server.look_up)
    members = Members(7070)
    assert members.addresses([URL]) == ("10.0.0.1:7070",)
    server.is_down = True
    before = len(server.queries)
    until(lambda: len(server.queries) > before + 3)
    assert members.addresses([URL]) == ("10.0.0.1:7070",)
    assert [record.getMessage() for record in caplog.records] == [
        "--peers: growfs.test cannot be looked up: Temporary failure in name resolution; keeping the last list"
    ]
    server.records, server.is_down = ["10.0.0.2"], False
    until(lambda: members.addresses([URL]) == ("10.0.0.2:7070",))
    assert members.addresses([]) == ()


def test_a_name_server_that_hangs_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "FIRST_S", 0.01)
    hung = socket.socketpair()
    with hung[0], hung[1]:
        monkeypatch.setattr(membership, "ip_addresses", lambda host, port: [hung[0].recv(20).decode()])
        members = Members(7070)
        assert members.addresses([URL, "10.0.0.9:7070"]) == ("10.0.0.9:7070",)
        hung[1].send(b"10.0.0.1")
        until(lambda: len(members.addresses([URL])) == 1)
        members.addresses([])  # ends the thread


def test_the_resolver_of_the_system_is_used() -> None:
    assert "127.0.0.1" in ip_addresses("localhost", 7070)
    assert ip_addresses("127.0.0.1", 7070) == ["127.0.0.1"]
