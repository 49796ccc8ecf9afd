"""The daemon's side of the worker processes: how they are started, and a channel to each worker."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio

from growfs.errors import GrowfsError
from growfs.remote.interface import RemoteSpec
from growfs.remote.names import redact
from growfs.remote.rate_limits import SharedLimits
from growfs.workers import messages
from growfs.workers.fork_server import ForkServer
from growfs.workers.messages import Done, Failed, StillWorking

log = logging.getLogger(__name__)

STALL_S = 120.0
"""A worker that sends nothing for this long is given up on. The timeouts of the client libraries are shorter."""


class WorkerPool:
    """Starts workers. If their fork server has died, it is restarted when the next worker is needed.

    limits: shared with the workers. The spec is sent over a socket, because it may hold secrets and command lines are
    public. output: the descriptor that becomes standard output and error of the workers.
    """

    def __init__(self, fork_server: ForkServer, spec: RemoteSpec, output: int) -> None:
        self.url = redact(spec.url)
        self.limits = SharedLimits()
        self._fork_server = fork_server
        self._spec = spec
        self._output = output
        self._switch: int | None = None
        with suppress(OSError):  # it died; see `spawn`
            self._send_spec()

    def _send_spec(self) -> None:
        """Send the spec, the descriptor for output outside of logging, and the limits."""
        messages.send(self._fork_server.control, self._spec)
        socket.send_fds(self._fork_server.control, [b"o"], [self._output, self.limits.fd])
        if self._switch is not None:
            self._fork_server.guard(self._switch)

    def guard(self, switch: int) -> None:
        """Make the fork server abort the connection of the mount if the daemon is killed. switch: `abort_switch`."""
        self._switch = switch
        with suppress(OSError):  # it died; see `spawn`
            self._fork_server.guard(switch)

    def spawn(self) -> Channel:
        """Start a worker. It ends when its channel is closed. Raises GrowfsError if no process can be started."""
        try:
            return self._spawn()
        except OSError as error:
            raise GrowfsError(f"no worker process can be started: {error.strerror}; see ulimit -a") from error

    def _spawn(self) -> Channel:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._fork_server.fork(theirs)
            except OSError:
                log.warning("the fork server of the workers died; starting another")
                self._fork_server.stop()
                self._fork_server.start()
                self._send_spec()
                self._fork_server.fork(theirs)
        return Channel(ours)


class WorkerLost(Exception):
    """The worker died, or hangs."""

    def __str__(self) -> str:
        return "its worker process died, or hangs"


class WorkerSilent(WorkerLost):
    """The worker is alive, but neither computes nor sends anything: whatever it waits for does not answer."""


class Channel:
    """The daemon's end of the connection to one worker."""

    def __init__(self, end: socket.socket) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self._received = bytearray()

    async def call(self, request: Any, on_message: Callable[[Any], Awaitable[None]] | None = None) -> Any:
        """Send a request and return its result. One call at a time.

        on_message: called with each message before the result, except for heartbeats. Raises the worker's GrowfsError,
        WorkerLost, or WorkerSilent after STALL_S without a message.
        """
        await self.send(request)
        while True:
            try:
                with trio.fail_after(STALL_S):
                    message = await self.receive()
            except trio.TooSlowError as error:
                raise WorkerSilent from error
            if isinstance(message, Done):
                return message.result
            if isinstance(message, Failed):
                raise message.error
            if on_message and not isinstance(message, StillWorking):
                await on_message(message)

    async def send(self, message: Any) -> None:
        """Send a message. Raises WorkerLost."""
        try:
            await self._stream.send_all(messages.pack(message))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise WorkerLost from error

    async def receive(self) -> Any:
        """Wait for the worker's next message. Raises WorkerLost."""
        try:
            (count,) = messages.LENGTH.unpack(await self._receive_exactly(messages.LENGTH.size))
            return messages.unpack(await self._receive_exactly(count))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise WorkerLost from error

    async def _receive_exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            more = await self._stream.receive_some(1 << 20)
            if not more:
                raise trio.BrokenResourceError("the worker hung up")
            self._received += more
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    async def aclose(self) -> None:
        """Close the connection. The worker ends."""
        await self._stream.aclose()


async def call_worker(
    workers: WorkerPool, request: Any, on_message: Callable[[Any], Awaitable[None]] | None = None
) -> Any:
    """Call a worker of its own, as Channel.call. Also raises GrowfsError if none can be started."""
    channel = workers.spawn()
    try:
        return await channel.call(request, on_message)
    finally:
        await channel.aclose()
