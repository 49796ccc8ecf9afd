"""The daemon's side of the worker processes: one nursery, and a line to each worker that it forks."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from growfs.errors import GrowfsError
from growfs.remote.limits import SharedLimits
from growfs.remote.names import redact
from growfs.remote.protocol import RemoteSpec
from growfs.workers import messages
from growfs.workers.messages import Done, Failed

log = logging.getLogger(__name__)

STALL_S = 120.0
"""A worker that says nothing for so long is given up. The clients' own timeouts are shorter."""


class WorkerPool:
    """Owns the nursery process. A nursery that died is started again when the next worker is wanted.

    pace: how fast its workers may be. The spec goes through the socket, because it may hold secrets and a process list
    is public.
    """

    def __init__(self, spec: RemoteSpec, limits: SharedLimits) -> None:
        self.url = redact(spec.url)
        self._spec = spec
        self.limits = limits
        self._start()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            fds = theirs.fileno(), self.limits.fd
            command = [sys.executable, "-m", "growfs.workers.worker", *map(str, fds)]
            self._process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL)
        messages.send(self._control, self._spec)

    def spawn(self) -> Channel:
        """A new worker; closing its line dismisses it. Raises GrowfsError where there can be none."""
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
                log.warning("the worker nursery died; starting another")
                self._control.close()
                self._process.wait()
                self._start()
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
        return Channel(ours)

    def stop(self) -> None:
        """Dismiss the nursery; its workers end as their lines are closed."""
        self._control.close()
        self._process.wait()


class WorkerLost(Exception):
    """The worker died, or hangs."""

    def __str__(self) -> str:
        return "its worker process died, or hangs"


class Channel:
    """The daemon's end of the line to one worker."""

    def __init__(self, end: socket.socket) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self._got = bytearray()

    async def ask(self, request: Any, hear: Callable[[Any], Awaitable[None]] | None = None) -> Any:
        """A request's result. One at a time. hear: given what the worker says before it is done.

        Raises the GrowfsError that the worker met, and WorkerLost.
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
            if hear:
                await hear(message)

    async def send(self, message: Any) -> None:
        """Say something; raises WorkerLost."""
        try:
            await self._stream.send_all(messages.pack(message))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise WorkerLost from error

    async def receive(self) -> Any:
        """What the worker says next; raises WorkerLost."""
        try:
            (count,) = messages.length.unpack(await self._exactly(messages.length.size))
            return messages.unpack(await self._exactly(count))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise WorkerLost from error

    async def _exactly(self, count: int) -> bytes:
        while len(self._got) < count:
            more = await self._stream.receive_some(1 << 20)
            if not more:
                raise trio.BrokenResourceError("the worker hung up")
            self._got += more
        taken = bytes(self._got[:count])
        del self._got[:count]
        return taken

    async def aclose(self) -> None:
        """Hang up: the worker ends."""
        await self._stream.aclose()
