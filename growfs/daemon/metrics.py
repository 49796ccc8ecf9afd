"""The figures of the status as metrics: rendered for .growfs/metrics, and served over HTTP (`--metrics-addr`)."""

from __future__ import annotations

import http.client
import io
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import trio

from growfs.daemon.status_fields import FIELDS, LABELLED
from growfs.errors import GrowfsError

log = logging.getLogger(__name__)

OPENMETRICS = "application/openmetrics-text"
CONNECTIONS_MAX = 128
"""Connections at a time; another one is closed. Each takes a descriptor, and readers need those."""
CONNECTION_S = 5.0
"""How long a connection may take in all, so that clients that send or read nothing do not add up."""
HEAD_BYTES_MAX = 1 << 16
FRESH_S = 1.0
"""A status is as old as that before it is taken again: its sums take a thread some time if there are many files."""

Snapshot = Callable[[], Awaitable[dict[str, Any]]]


def openmetrics(status: dict[str, Any]) -> bytes:
    """The metrics in the OpenMetrics text format."""
    content, _ = encode(status, OPENMETRICS)
    return content


def encode(status: dict[str, Any], accept: str) -> tuple[bytes, str]:
    """(the metrics, their content type) in the format that a client accepts: OpenMetrics or Prometheus' own."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(_Families(status))
    try:
        encoder, content_type = choose_encoder(accept)
    except TypeError:  # a version that is no number
        encoder, content_type = choose_encoder("")
    return encoder(registry), content_type


class _Families:
    """A collector, as prometheus_client defines it."""

    def __init__(self, status: dict[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Any]:
        """All metrics."""
        return families(self._status)


def families(status: dict[str, Any]) -> Iterator[Any]:
    """All metrics, as prometheus_client has them, those of single fields first."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
    for field in FIELDS:
        if field.metric and field.kind:
            value: Any = status
            for name in field.path.split("."):
                value = value and value[name]
            if value is not None:
                yield kinds[field.kind](field.metric, field.text, float(value))
    for metric in LABELLED:
        family = kinds[metric.kind](metric.metric, metric.text, labels=metric.labels)
        for labels, value in metric.samples(status):
            family.add_metric(labels, value)
        if family.samples:
            yield family


class MetricsServer:
    """Owns the listening socket. Answers GET of /metrics and /healthz, one request a connection.

    It runs among the tasks of the thread that answers the kernel, and waits for no client there: a task for each
    connection, of limited number and time, and the text is rendered on a thread.
    """

    def __init__(self, address: tuple[str, int], snapshot: Snapshot) -> None:
        """address: (host, port); port 0 is any free one. Raises GrowfsError if it cannot be listened on."""
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening("--metrics-addr", *address)))
        self._snapshot = snapshot
        self._connections = trio.Semaphore(CONNECTIONS_MAX)
        self._status: dict[str, Any] = {}
        self._stale_at = 0.0
        self._taking = trio.Lock()

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host, port, *_ = self._listener.socket.getsockname()
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    async def run(self) -> None:
        """Answer requests until cancelled."""
        await trio.serve_listeners(self._answer, [self._listener])

    async def _answer(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                self._connections.acquire_nowait()
            except trio.WouldBlock:
                return
            try:
                with trio.move_on_after(CONNECTION_S), suppress(trio.BrokenResourceError):
                    await stream.send_all(await self._response(await _head(stream)))
            finally:
                self._connections.release()

    async def _response(self, head: bytes) -> bytes:
        try:
            return await self._response_to(head)
        except Exception:
            log.exception("the metrics could not be served")  # which is no reason to end the mount
            return _message(HTTPStatus.INTERNAL_SERVER_ERROR, b"the log of the mount has the reason\n")

    async def _response_to(self, head: bytes) -> bytes:
        line, _, rest = head.partition(b"\r\n")
        try:
            method, path, _ = line.decode("latin-1").split(" ")
            accept = http.client.parse_headers(io.BytesIO(rest)).get("Accept", "")
        except (ValueError, http.client.HTTPException):
            return _message(HTTPStatus.BAD_REQUEST, b"this is no HTTP request\n")
        if method not in ("GET", "HEAD"):
            return _message(HTTPStatus.METHOD_NOT_ALLOWED, b"GET and HEAD are allowed\n")
        path = path.partition("?")[0]
        if path == "/metrics":
            status = await self._fresh_status()
            response = _message(HTTPStatus.OK, *await trio.to_thread.run_sync(encode, status, accept))
        elif path == "/healthz":
            response = _message(HTTPStatus.OK, b"ok\n")
        else:
            response = _message(HTTPStatus.NOT_FOUND, b"there are /metrics and /healthz\n")
        return response if method == "GET" else response.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    async def _fresh_status(self) -> dict[str, Any]:
        async with self._taking:
            if trio.current_time() >= self._stale_at:
                self._status = await self._snapshot()
                self._stale_at = trio.current_time() + FRESH_S
            return self._status


def listening(flag: str, host: str, port: int) -> socket.socket:
    """A socket that listens at the address of an option. Raises GrowfsError if it cannot be listened on."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(
            address[:2], family=family, backlog=CONNECTIONS_MAX, dualstack_ipv6=family == socket.AF_INET6
        )
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise GrowfsError(
            f"{flag}: cannot listen on {host} port {port}: {reason}; choose another address or port"
        ) from None


async def _head(stream: trio.SocketStream) -> bytes:
    """The request line and headers; cut short where the client sends no more, or too many."""
    head = bytearray()
    while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES_MAX:
        part = await stream.receive_some(HEAD_BYTES_MAX)
        if not part:
            break
        head += part
    return bytes(head)


def _message(status: HTTPStatus, content: bytes, content_type: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content
