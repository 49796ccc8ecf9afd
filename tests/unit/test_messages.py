"""Messages between the daemon and its workers arrive unchanged."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from growfs import errors
from growfs.cache.catalog import ListingDiff
from growfs.remote.interface import Fetched, RemoteFile, RemoteSpec, Skipped
from growfs.rotation.pass_order import Pass
from growfs.workers import messages
from growfs.workers.messages import (
    Done,
    Failed,
    FetchFiles,
    FetchProgress,
    FetchRequest,
    ListRemote,
    MakeOrder,
    OrderReady,
    SizeExceeded,
)
from growfs.workers.pool import Channel, WorkerLost

FILE = RemoteFile("a/ü.jpg", 5, None, "v1")
MESSAGES = [
    ListRemote(Path("/x"), 3),
    MakeOrder(Path("/x"), Pass(1, 2, (0, 8), "{stem}", 5), Path("/y")),
    Done(OrderReady(BitMap64([1]), BitMap64([2, 3]), 4, 5, 6, ("a", "b"), True)),
    FetchFiles([FetchRequest(7, FILE, Path("/y"), 5, True, 3)], [8], True),
    FetchProgress(5, 1, [(7, Fetched(FILE, 5, "abc"))], 0.25),
    ListingDiff(1, new=[FILE], changed=[(7, FILE)], gone=[8], skipped=[Skipped("why", "caf\udce9")]),
    RemoteSpec("s3://b", {"key": "A"}),
]


def same(a: Any, b: Any) -> bool:
    return bool(a == b and type(a) is type(b))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_each_message_arrives_unchanged(message: Any) -> None:
    a, b = socket.socketpair()
    with a, b:
        messages.send(a, message)
        assert same(messages.receive(b), message)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)] + [SizeExceeded],
)
def test_each_error_keeps_its_class(kind: type[errors.GrowfsError]) -> None:
    packed = messages.pack(Failed(kind("what, to what, what to do")))
    error = messages.unpack(packed[messages.LENGTH.size :]).error
    assert (type(error), str(error), error.errno) == (kind, "what, to what, what to do", kind.errno)


@given(st.lists(st.binary(max_size=100_000), max_size=4))
def test_messages_keep_their_order_and_boundaries(sent: list[bytes]) -> None:
    a, b = socket.socketpair()
    with a, b:
        sender = threading.Thread(target=a.sendall, args=(b"".join(map(messages.pack, sent)),))
        sender.start()
        assert [messages.receive(b) for _ in sent] == sent
        sender.join()


def test_the_length_prefix_is_as_documented() -> None:
    packed = messages.pack(b"x")
    assert int.from_bytes(packed[:4], "big") == len(packed) - 4


@pytest.mark.parametrize("cut", [0, 2, 10])
def test_a_truncated_message_is_the_end_of_the_stream(cut: int) -> None:
    a, b = socket.socketpair()
    with b:
        with a:
            a.sendall(messages.pack("a whole message")[:cut])
        with pytest.raises(EOFError):
            messages.receive(b)


async def test_a_call_passes_progress_to_the_callback_and_returns_the_result() -> None:
    ours, theirs = socket.socketpair()
    channel, received = Channel(ours), []
    for message in (
        ListingDiff(1),
        ListingDiff(2),
        Done("result"),
        Failed(errors.RemoteMissing("none")),
        ListingDiff(3),
    ):
        messages.send(theirs, message)

    async def on_message(message: ListingDiff) -> None:
        received.append(message.listing)

    assert await channel.call(ListRemote(Path("/a"), 1), on_message) == "result"
    with pytest.raises(errors.RemoteMissing, match="none"):
        await channel.call(ListRemote(Path("/b"), 1))
    assert [messages.receive(theirs), messages.receive(theirs)] == [
        ListRemote(Path("/a"), 1),
        ListRemote(Path("/b"), 1),
    ]
    theirs.close()
    with pytest.raises(WorkerLost):
        await channel.call(ListRemote(Path("/c"), 1), on_message)
    await channel.aclose()
    assert received[:2] == [1, 2]
