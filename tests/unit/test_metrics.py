"""The metrics: their figures and formats, and a server that no client can hold up."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from growfs.daemon.option_parsers import listening
from growfs.errors import GrowfsError
from growfs.extensions.metrics import server as metrics_server
from growfs.extensions.metrics.server import MetricsServer, openmetrics
from growfs.status_and_metrics import MountStatus, status_fields
from tests.unit.test_status_text import PEERS, READER, STATUS, status

GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"


def samples(text: str, parse: Callable[[str], Any] = parse_openmetrics) -> dict[str, float]:
    """The samples without labels, by name."""
    return {sample.name: sample.value for family in parse(text) for sample in family.samples if not sample.labels}


def test_metrics_equal_the_figures_of_the_status_but_for_those_that_are_null() -> None:
    null = samples(openmetrics(status(fetch__eta_s=None)).decode())
    figures = samples(openmetrics(status(peers=PEERS)).decode())
    assert figures.keys() - null.keys() == {
        "growfs_fetch_eta_seconds",
        *(f"growfs_peers_{name}" for name in ("nodes", "serving", "answering", "waiting", "sent_bytes_total")),
    }
    assert figures["growfs_generation"] == 3
    assert figures["growfs_remote_listed"] == 1
    assert figures["growfs_fetch_bytes_total"] == STATUS["fetch"]["bytes_total"]
    assert figures["growfs_miss_wait_seconds_total"] == 1.25
    for field in status_fields():
        if field.metric and "." in field.path:
            section, name = field.path.split(".")
            assert figures.get(field.metric) == ((STATUS | {"peers": PEERS})[section] or {}).get(name), field.path


def test_metrics_that_are_no_single_field() -> None:
    readers = [READER | {"held_bytes": 5}, READER | {"held_bytes": 7}]
    skipped = [{"reason": "a", "files": 2, "example": "x"}, {"reason": "b", "files": 3, "example": "y"}]
    text = openmetrics(
        status(requests={"OPEN": 3, "READ": 0}, readers=readers, skipped=skipped, last_error_at=9.0)
    ).decode()
    assert 'growfs_requests_total{opcode="OPEN"} 3.0' in text
    assert 'growfs_state{state="filling"} 1.0' in text
    assert 'growfs_state{state="waiting"} 0.0' in text
    assert 'url="s3://bucket/train"' in text
    figures = samples(text)
    assert [figures[f"growfs_{name}"] for name in ("readers", "held_bytes", "skipped_files")] == [2, 7, 5]
    assert figures["growfs_last_error_timestamp_seconds"] == 9
    assert figures["growfs_outage_seconds"] == 0


async def snapshot() -> MountStatus:
    return status()


Taken = Callable[[], Awaitable[MountStatus]]


@asynccontextmanager
async def serving(take: Taken = snapshot, host: str = "127.0.0.1") -> AsyncIterator[MetricsServer]:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            server = MetricsServer(listening("--metrics-addr", host, 0), take)
            nursery.start_soon(server.run)
            yield server
            nursery.cancel_scope.cancel()


async def connect(server: MetricsServer, sent: bytes) -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", int(server.url.split(":")[2].split("/")[0]))
    await stream.send_all(sent)
    return stream


async def receive(stream: trio.SocketStream) -> bytes:
    async with stream:
        with suppress(trio.BrokenResourceError):  # closed with what was sent unread
            return b"".join([part async for part in stream])
    return b""


async def ask(request: bytes, take: Taken = snapshot) -> tuple[bytes, bytes]:
    """(head, content) of the response of a server."""
    async with serving(take) as server:
        head, _, content = (await receive(await connect(server, request))).partition(b"\r\n\r\n")
    return head, content


@pytest.mark.parametrize("accept", [b"", b"*/*", b"text/plain;version=0.0.4", b"text/plain;version=abc", b"\xff;=,;"])
async def test_the_format_is_that_of_prometheus_unless_openmetrics_is_accepted(accept: bytes) -> None:
    head, content = await ask(b"GET /metrics?x=1 HTTP/1.1\r\nAccept: %b\r\n\r\n" % accept)
    assert head.split(b" ")[1] == b"200"
    assert b"Content-Type: text/plain; version=0.0.4" in head
    assert b"Content-Length: %d" % len(content) in head
    assert samples(content.decode(), parse_text)["growfs_cache_files"] == 250


async def test_a_client_may_ask_for_some_by_name() -> None:
    _, content = await ask(b"GET /metrics?name[]=growfs_cache_files&name[]=growfs_state HTTP/1.1\r\n\r\n")
    assert {family.name for family in parse_text(content.decode())} == {"growfs_cache_files", "growfs_state"}


async def test_openmetrics_where_it_is_accepted() -> None:
    accept = b"application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5"
    head, content = await ask(b"GET /metrics HTTP/1.1\r\nAccept: %b\r\n\r\n" % accept)
    assert b"Content-Type: application/openmetrics-text; version=1.0.0" in head
    assert content.endswith(b"# EOF\n")


async def test_probes_are_answered_and_head_is_get_without_the_content() -> None:
    _, content = await ask(GET % b"/healthz")
    assert content == b"ok\n"
    for path in (b"/metrics", b"/healthz"):
        head, content = await ask(b"HEAD %b HTTP/1.1\r\n\r\n" % path)
        assert (head.split(b" ")[1], content) == (b"200", b"")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (GET % b"/", b"404"),
        (GET % b"/metrics/../../etc/passwd", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"x" * 20_000 + b"\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n", b"431"),
        (b"GET /metrics HTTP/1.1\r\nAccept\r\n\r\n", b"200"),
    ],
)
async def test_odd_requests_are_answered(request_: bytes, code: bytes) -> None:
    head, content = await ask(request_)
    assert code in head.split(b"\r\n")[0] + content


async def test_a_status_that_fails_does_not_end_the_mount(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> MountStatus:
        raise OSError(errno.EIO, "Input/output error")

    head, _ = await ask(GET % b"/metrics", fail)
    assert head.split(b" ")[1] == b"500"
    assert "could not be served" in caplog.text


async def test_requests_at_the_same_time_take_one_status() -> None:
    taken = 0

    async def count() -> MountStatus:
        nonlocal taken
        taken += 1
        await trio.sleep(0.01)
        return status()

    async with serving(count) as server:
        streams = [await connect(server, GET % b"/metrics") for _ in range(20)]
        assert all([b"growfs_generation" in await receive(stream) for stream in streams])
    assert taken == 1


async def test_clients_that_send_or_read_nothing_do_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may be connected; the next is refused at once, and after some seconds all of them are gone."""
    monkeypatch.setattr(metrics_server, "CONNECTIONS_MAX", 10)
    monkeypatch.setattr(metrics_server, "CONNECTION_S", 2.0)
    async with serving() as server:
        idle = [await connect(server, b"GET /met") for _ in range(9)]
        assert b"growfs_generation" in await receive(await connect(server, GET % b"/metrics"))
        idle.append(await connect(server, b""))
        began = trio.current_time()
        assert await receive(await connect(server, b"")) == b""
        assert trio.current_time() - began < 1
        assert [await receive(stream) for stream in idle] == [b""] * 10
        assert b"growfs_generation" in await receive(await connect(server, GET % b"/metrics"))


async def test_the_server_ends_at_once_whatever_its_clients_do() -> None:
    async with serving() as server:
        idle = await connect(server, b"GET /met")
        began = trio.current_time()
    assert trio.current_time() - began < 0.4
    await idle.aclose()


@pytest.mark.parametrize("host", ["203.0.113.9", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(GrowfsError, match=f"cannot listen on {host} port 9401: .*; choose another"):
        listening("--metrics-addr", host, 9401)


async def test_the_address_may_be_one_of_ipv6() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    async with serving(host="::1") as server:
        assert server.url.startswith("http://[::1]:")
