"""Messages between the daemon and its workers arrive unchanged."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs import errors
from growfs.cache.listing_diff import ListingDiff
from growfs.extensions.peers.client import PeerClient
from growfs.extensions.peers.messages import Token
from growfs.extensions.peers.server import serve
from growfs.workers import messages
from growfs.workers.messages import Done, Failed, FetchFiles, ListRemote, SizeExceeded
from growfs.workers.pool import Channel, WorkerLost


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


SERVE = """
import socket, sys
from growfs.remote.interface import RemoteSpec
from growfs.remote.rate_limits import SharedLimits
from growfs.workers.worker import serve

serve(RemoteSpec("/"), SharedLimits(), socket.socket(fileno=int(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def other(): ...", "AttributeError"),
        ("raise OSError(5, 'Input/output error')", "Input/output error; if a package was upgraded or removed"),
    ],
)
def test_a_worker_answers_a_message_that_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    """The code of an extension is imported with the first message that names it."""
    folders = tmp_path / "here", tmp_path / "there"
    for folder, text in zip(folders, ("def compute(beat): ...", code), strict=True):
        folder.mkdir()
        (folder / "of_another_version.py").write_text(text)
    monkeypatch.syspath_prepend(folders[0])
    monkeypatch.setenv("PYTHONPATH", str(folders[1]), prepend=os.pathsep)
    monkeypatch.delitem(sys.modules, "of_another_version", raising=False)
    compute = import_module("of_another_version").compute
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = subprocess.Popen([sys.executable, "-c", SERVE, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        try:
            messages.send(ours, messages.Compute(compute))
            ours.settimeout(30)
            error = messages.receive(ours).error
        finally:
            worker.kill()
            worker.wait()
    assert type(error) is not errors.DiskFailed
    assert why in str(error)


def test_messages_do_not_show_the_token_of_the_peers() -> None:
    peers = partial(serve, ("host", 1), Token("secret"), 0.0, "node")
    requests = FetchFiles([], [], False, open_other=partial(PeerClient, Token("secret")))
    assert "secret" not in f"{messages.Serve(peers)} {requests}"
    assert messages.unpack(messages.pack(Token("secret"))[messages.LENGTH.size :]) == "secret"
