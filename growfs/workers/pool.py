"""The daemon's side of the worker processes: the fork server that forks them, and a channel to each worker."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from growfs.errors import GrowfsError
from growfs.remote.names import redact
from growfs.remote.protocol import RemoteSpec
from growfs.remote.rate_limits import SharedLimits
from growfs.workers import messages
from growfs.workers.messages import Done, Failed

log = logging.getLogger(__name__)

STALL_S = 120.0
"""A worker that sends nothing for this long is given up. The timeouts of the client libraries are shorter."""


class WorkerPool:
    """Owns the fork server process. If it died, it is started again when the next worker is needed.

    limits: shared with the workers. The spec is sent over the socket, because it may hold secrets and command lines
    are public.
    """

    def __init__(self, spec: RemoteSpec, limits: SharedLimits) -> None:
        self.url = redact(spec.url)
        self._spec = spec
        self.limits = limits
        self._start_fork_server()

    def _start_fork_server(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            fds = theirs.fileno(), self.limits.fd
            command = [sys.executable, "-m", "growfs.workers.worker", *map(str, fds)]
            self._process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL)
        messages.send(self._control, self._spec)

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
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
            except OSError:
                log.warning("the fork server of the workers died; starting another")
                self._control.close()
                self._process.wait()
                self._start_fork_server()
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
        return Channel(ours)

    def stop(self) -> None:
        """End the fork server. Each worker ends when its channel is closed."""
        self._control.close()
        self._process.wait()


class WorkerLost(Exception):
    """The worker died, or hangs."""

    def __str__(self) -> str:
        return "its worker process died, or hangs"


class Channel:
    """The daemon's end of the connection to one worker."""

    def __init__(self, end: socket.socket) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self._received = bytearray()

    async def call(self, request: Any, on_message: Callable[[Any], Awaitable[None]] | None = None) -> Any:
        """Send a request and return its result. One call at a time.

        on_message: called with each message before the result. Raises the worker's GrowfsError, or WorkerLost.
        """
        await self.send(request)
        while True:
            try:
                with trio.fail_after(STALL_S):
                    message = await self.receive()
            except trio.TooSlowError as error:
                raise WorkerLost from error
            if isinstance(message, Done):
                return message.result
            if isinstance(message, Failed):
                raise message.error
            if on_message:
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
