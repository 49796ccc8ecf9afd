"""The control socket, over which the command line sends commands to a running daemon.

Commands do not go through the mount, because it may hang when they are needed most.

A request is one line of JSON: {"command": ..., and its arguments}. The answer is lines of JSON: any number of
{"progress": ...}, then {"result": ...} or {"error": ..., "exit_code": ...}. Requests of other users than the one who
mounted and root are refused.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sqlite3
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from growfs import disk
from growfs.errors import GrowfsError, UsageError

log = logging.getLogger(__name__)

SOCKET = "control.sock"
REQUEST_MAX = 1 << 20
REQUEST_S = 10.0
"""How long a client may take to send its request."""
ANSWER_S = 600.0
"""How long a client waits for the next line of the answer."""

Command = Callable[..., AsyncIterator[Any]]
"""Yields its progress any number of times, and then its result. Raises GrowfsError."""


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A path of the socket that fits the 107 bytes of unix(7), however deep the folder is."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


class Control:
    """The daemon's end. Owns the socket."""

    def __init__(self, folder: Path, commands: dict[str, Command]) -> None:
        self._commands = commands
        disk.unlink("SOCKET", folder / SOCKET)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short_path(folder) as path:
            listening.bind(path)
            os.chmod(path, 0o600)
        listening.listen()
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))

    async def run(self) -> None:
        """Answer requests until cancelled."""
        await trio.serve_listeners(self._answer, [self._listener])

    async def _answer(self, stream: trio.SocketStream) -> None:
        try:
            credentials = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            _, uid, _ = struct.unpack("3i", credentials)
            with trio.fail_after(REQUEST_S):
                request = await self._read(stream)  # even if it is refused: a close with unread data drops the answer
            if uid not in (0, os.getuid()):
                raise GrowfsError("this mount belongs to another user")
            command = self._commands.get(request.pop("command", ""))
            if command is None:
                raise UsageError(f"no such command; there are {', '.join(self._commands)}")
            last: Any = None
            async for last in command(**request):
                await _send(stream, {"progress": last})  # the command runs to its end even if the client is gone
            await stream.send_all(_line({"result": last}))
        except GrowfsError as error:
            await _send(stream, {"error": str(error), "exit_code": error.exit_code})
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass  # the client is gone
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            await _send(stream, {"error": f"the daemon does not understand the request: {error}", "exit_code": 2})
        except (OSError, sqlite3.Error) as error:
            log.warning("a command failed: %s", error)
            await _send(stream, {"error": f"the daemon failed: {error}", "exit_code": 1})
        finally:
            await stream.aclose()

    @staticmethod
    async def _read(stream: trio.SocketStream) -> dict[str, Any]:
        line = bytearray()
        while not line.endswith(b"\n"):
            part = await stream.receive_some(REQUEST_MAX)
            if not part or len(line) > REQUEST_MAX:
                raise ValueError("it is cut short, or too long")
            line += part
        return dict(json.loads(line))


async def _send(stream: trio.SocketStream, message: dict[str, Any]) -> None:
    """Shielded from cancellation: a command with tasks of its own must be cancelled where it waits, not at a yield."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(REQUEST_S, shield=True):
        await stream.send_all(_line(message))


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def call(
    folder: Path,
    command: str,
    on_progress: Callable[[Any], None] | None = None,
    answer_s: float = ANSWER_S,
    **arguments: Any,
) -> Any:
    """Have the daemon of a cache folder run a command; returns its result. answer_s: how long its next line may take.

    Raises GrowfsError if the command fails or no daemon answers.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(answer_s)
        try:
            with _short_path(folder) as path:
                connection.connect(path)
            connection.sendall(_line({"command": command, **arguments}))
            for line in connection.makefile():
                message = json.loads(line)
                if "error" in message:
                    raise (UsageError if message["exit_code"] == 2 else GrowfsError)(message["error"])
                if "result" in message:
                    return message["result"]
                if on_progress:
                    on_progress(message["progress"])
        except PermissionError:
            raise GrowfsError(
                f"{folder}: this mount belongs to another user; run the command as that user or as root"
            ) from None
        except OSError as error:
            raise GrowfsError(
                f"the daemon of {folder} does not answer ({error.strerror or error}); see {folder}/log"
            ) from None
    raise GrowfsError(f"the daemon of {folder} closed the connection; see {folder}/log")
