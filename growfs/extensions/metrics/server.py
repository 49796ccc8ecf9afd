"""The metrics of status_and_metrics.py: rendered for .growfs/metrics, and served over HTTP (`--metrics-addr`)."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer, choose_encoder, make_wsgi_app
from prometheus_client.openmetrics.exposition import generate_latest

from growfs.status_and_metrics import MountStatus, metrics

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 128
"""Connections at a time; further ones are closed. Each takes a descriptor, and readers need those."""
CONNECTION_S = 5.0
"""How long a connection may take in total, so that clients that send or read nothing do not accumulate."""
FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class _Collector:
    """A collector for prometheus_client. take: returns a status."""

    def __init__(self, take: Callable[[], MountStatus]) -> None:
        self._take = take

    def collect(self) -> Iterator[Any]:
        """All metrics."""
        status = self._take()
        for metric in metrics():
            family = FAMILIES[metric.kind](metric.name, metric.text, labels=metric.labels)
            for labels, value in metric.samples(status):
                family.add_metric(labels, float(value))
            if family.samples:
                yield family

    def describe(self) -> Iterator[Any]:
        """The metrics without values: a client may ask for some by name (?name[]=growfs_state)."""
        for metric in metrics():
            yield FAMILIES[metric.kind](metric.name, metric.text)


def _registry(take: Callable[[], MountStatus]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Collector(take))
    return registry


def openmetrics(status: MountStatus) -> bytes:
    """The metrics in the OpenMetrics text format."""
    return bytes(generate_latest(_registry(lambda: status)))  # type: ignore[no-untyped-call]


class MetricsServer:
    """Answers GET of /metrics and /healthz on a thread, each client on its own thread.

    The thread that answers the kernel does not wait for clients: it takes a status if the last one is too old, and the
    text is rendered on the thread of the client.
    """

    def __init__(self, listener: socket.socket, snapshot: Callable[[], Awaitable[MountStatus]]) -> None:
        self._server = _MetricsHttp(listener)
        self._server.set_app(self._answer)
        self._metrics = make_wsgi_app(_registry(self._take))
        self._snapshot = snapshot
        self._token = trio.lowlevel.current_trio_token()
        self._taking = trio.Lock()
        self._status: MountStatus | None = None
        self._stale_at = 0.0

    @property
    def url(self) -> str:
        """The URL of the metrics."""
        host, port, *_ = self._server.socket.getsockname()
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    async def run(self) -> None:
        """Answer requests until cancelled."""
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        try:
            await trio.sleep_forever()
        finally:
            self._server.socket.shutdown(socket.SHUT_RDWR)  # otherwise it checks only twice a second whether to end
            self._server.shutdown()
            self._server.server_close()

    def _answer(self, request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """The WSGI application. Called on the thread of a client."""
        path, is_head = request["PATH_INFO"], request["REQUEST_METHOD"] == "HEAD"
        if is_head:
            request["REQUEST_METHOD"] = "GET"
        status, content = HTTPStatus.OK, b"ok\n"
        if path == "/metrics":
            try:
                parts: Iterable[bytes] = self._metrics(request | {"HTTP_ACCEPT": _accepted(request)}, start)
                return () if is_head else parts
            except (Exception, trio.Cancelled):
                log.exception("the metrics could not be served")  # which must not end the mount
                status, content = HTTPStatus.INTERNAL_SERVER_ERROR, b"the log of the mount has the reason\n"
        elif path != "/healthz":
            status, content = HTTPStatus.NOT_FOUND, b"there are /metrics and /healthz\n"
        start(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return () if is_head else (content,)

    def _take(self) -> MountStatus:
        return trio.from_thread.run(self._fresh_status, trio_token=self._token)

    async def _fresh_status(self) -> MountStatus:
        async with self._taking:
            if self._status is None or trio.current_time() >= self._stale_at:
                self._status = await self._snapshot()
                self._stale_at = trio.current_time() + 1.0  # with many files, its sums take a thread some time
            return self._status


def _accepted(request: dict[str, Any]) -> str:
    """The formats that a client accepts; empty if prometheus_client cannot parse them (a version without numbers)."""
    accepted = str(request.get("HTTP_ACCEPT", ""))
    try:
        choose_encoder(accepted)
    except TypeError:
        return ""
    return accepted


class _MetricsHttp(ThreadingWSGIServer):
    """Limits the number of clients, and the time of each."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener.getsockname()[:2], _MetricsRequest, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()[:2]
        self.setup_environ()
        self._since: dict[socket.socket, float] = {}

    def verify_request(self, request: Any, _: Any) -> bool:
        """Whether to answer a new client."""
        self._since[request] = time.monotonic()
        return len(self._since) <= CONNECTIONS_MAX

    def shutdown_request(self, request: Any) -> None:
        """Called when a client ends."""
        self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Disconnect clients that take too long. Called every half second, and after each new client."""
        for client, since in list(self._since.items()):
            if time.monotonic() - since > CONNECTION_S:
                self._since.pop(client, None)  # now: it may connect again before its thread has ended
                with suppress(OSError):  # it has ended
                    client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, _: Any, address: Any) -> None:
        """Ignore exceptions in the thread of a client: most clients have gone."""
        if not isinstance(error := sys.exc_info()[1], OSError):
            log.error("a request for the metrics from %s failed", address, exc_info=error)


class _MetricsRequest(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log no requests."""
