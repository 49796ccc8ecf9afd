"""The metrics: their figures and formats, and a server that no client can hold up."""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from growfs.daemon.metrics import CONNECTION_S, CONNECTIONS_MAX, MetricsServer, encode, openmetrics
from growfs.daemon.status_fields import FIELDS, LABELLED
from growfs.errors import GrowfsError
from tests.unit.test_render import STATUS, status

GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"


def samples(text: str, parse: Callable[[str], Any] = parse_openmetrics) -> dict[str, float]:
    """The samples without labels, by name."""
    return {sample.name: sample.value for family in parse(text) for sample in family.samples if not sample.labels}


def test_metrics_equal_the_figures_of_the_status() -> None:
    figures = samples(openmetrics(STATUS).decode())
    assert figures["growfs_generation"] == 3
    assert figures["growfs_remote_listed"] == 1
    assert figures["growfs_fetch_bytes_total"] == STATUS["fetch"]["bytes_total"]
    assert figures["growfs_miss_wait_seconds_total"] == 1.25
    for field in FIELDS:
        if field.metric and "." in field.path:
            section, name = field.path.split(".")
            assert figures.get(field.metric) == (STATUS[section] or {}).get(name), field.path


def test_the_figures_of_the_other_nodes_are_metrics_where_there_are_any() -> None:
    peers = {"nodes": 4, "serving": True, "answering": 2, "waiting": False, "sent_bytes_total": 10}
    figures = samples(openmetrics({**STATUS, "peers": peers}).decode())
    assert {name: figures[f"growfs_peers_{name}"] for name in peers} == peers


def test_the_names_follow_the_conventions() -> None:
    """See prometheus.io/docs/practices/naming: counters end with _total, and units are whole words."""
    names = {field.metric: field.kind for field in FIELDS if field.metric}
    names |= {metric.metric: metric.kind for metric in LABELLED}
    assert len(names) == sum(field.metric is not None for field in FIELDS) + len(LABELLED)
    for name, kind in names.items():
        assert name.startswith("growfs_")
        assert name.endswith("_total") == (kind == "counter"), name
        assert not name.endswith(("_s", "_ms", "_mb")), name


def test_a_figure_that_is_null_has_no_sample() -> None:
    assert "growfs_fetch_eta_seconds" in samples(openmetrics(STATUS).decode())
    assert "growfs_fetch_eta_seconds" not in samples(openmetrics(status(fetch__eta_s=None)).decode())


def test_metrics_that_are_no_single_field() -> None:
    readers = [{"held_bytes": 5}, {"held_bytes": 7}]
    skipped = [{"files": 2}, {"files": 3}]
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


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=0.0.4", "text/plain;version=abc", "\xff;=,;"])
def test_the_format_is_that_of_prometheus_unless_openmetrics_is_accepted(accept: str) -> None:
    content, content_type = encode(STATUS, accept)
    assert content_type.startswith("text/plain; version=0.0.4")
    assert samples(content.decode(), parse_text)["growfs_cache_files"] == 250


def test_openmetrics_where_it_is_accepted() -> None:
    content, content_type = encode(STATUS, "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert content.endswith(b"# EOF\n")


async def snapshot() -> dict[str, Any]:
    return STATUS


Taken = Callable[[], Awaitable[dict[str, Any]]]


async def ask(request: bytes, take: Taken = snapshot) -> tuple[bytes, bytes]:
    """(head, content) of the response of a server."""
    async with trio.open_nursery() as nursery:
        server = MetricsServer(("127.0.0.1", 0), take)
        nursery.start_soon(server.run)
        with trio.fail_after(20):
            response = await receive(await connect(server, request))
        nursery.cancel_scope.cancel()
    head, _, content = response.partition(b"\r\n\r\n")
    return head, content


async def connect(server: MetricsServer, sent: bytes) -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", int(server.url.split(":")[2].split("/")[0]))
    await stream.send_all(sent)
    return stream


async def receive(stream: trio.SocketStream) -> bytes:
    async with stream:
        return b"".join([part async for part in stream])


async def test_the_server_serves_the_metrics() -> None:
    head, content = await ask(GET % b"/metrics?x=1")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(content)}".encode() in head
    assert samples(content.decode(), parse_text)["growfs_cache_files"] == 250


async def test_head_is_get_without_the_content() -> None:
    head, content = await ask(b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert content == b""


async def test_the_probe_of_a_container_is_answered() -> None:
    head, content = await ask(GET % b"/healthz")
    assert (head.split(b"\r\n")[0], content) == (b"HTTP/1.1 200 OK", b"ok\n")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (GET % b"/", b"404"),
        (GET % b"/metrics/../../etc/passwd", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"x" * 20_000 + b"\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nAccept\r\n\r\n", b"200"),
    ],
)
async def test_odd_requests_are_answered(request_: bytes, code: bytes) -> None:
    head, _ = await ask(request_)
    assert head.split(b" ")[1] == code


async def test_a_status_that_fails_does_not_end_the_mount(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> dict[str, Any]:
        raise OSError(errno.EIO, "Input/output error")

    head, _ = await ask(GET % b"/metrics", fail)
    assert head.split(b" ")[1] == b"500"
    assert "could not be served" in caplog.text


async def test_requests_at_the_same_time_take_one_status() -> None:
    taken = 0

    async def count() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        await trio.sleep(0.01)
        return STATUS

    async with trio.open_nursery() as nursery:
        server = MetricsServer(("127.0.0.1", 0), count)
        nursery.start_soon(server.run)
        streams = [await connect(server, GET % b"/metrics") for _ in range(20)]
        assert all([b"growfs_generation" in await receive(stream) for stream in streams])
        nursery.cancel_scope.cancel()
    assert taken == 1


async def test_clients_that_send_or_read_nothing_do_not_hold_up_others(autojump_clock: trio.testing.MockClock) -> None:
    """As many as may be connected; the next is refused at once, and after some seconds all of them are gone."""
    async with trio.open_nursery() as nursery:
        server = MetricsServer(("127.0.0.1", 0), snapshot)
        autojump_clock.autojump_threshold = 0.2
        nursery.start_soon(server.run)
        idle = [await connect(server, b"GET /met") for _ in range(CONNECTIONS_MAX - 1)]
        assert b"growfs_generation" in await receive(await connect(server, GET % b"/metrics"))
        idle.append(await connect(server, b""))
        await trio.testing.wait_all_tasks_blocked(0.05)
        began = trio.current_time()
        assert await receive(await connect(server, b"")) == b""
        assert trio.current_time() - began < CONNECTION_S
        assert [await receive(stream) for stream in idle] == [b""] * CONNECTIONS_MAX
        assert b"growfs_generation" in await receive(await connect(server, GET % b"/metrics"))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["203.0.113.9", "no-such-host.invalid"])
async def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(GrowfsError, match=f"cannot listen on {host} port 9401: .*; choose another"):
        MetricsServer((host, 9401), snapshot)


async def test_the_address_may_be_one_of_ipv6() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    async with trio.open_nursery() as nursery:
        server = MetricsServer(("::1", 0), snapshot)
        nursery.start_soon(server.run)
        assert server.url.startswith("http://[::1]:")
        nursery.cancel_scope.cancel()
