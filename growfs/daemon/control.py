"""The daemon's end of the control socket, over which the command line sends commands (`control_client`).

Commands do not go through the mount, because it may hang when they are needed most.

A request is one line of JSON: {"command": ..., and its arguments}. The answer is lines of JSON: any number of
{"progress": ...}, then {"result": ...} or {"error": ..., "exit_code": ...}. Requests from users other than root and the
one who mounted are refused.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from growfs import disk
from growfs.daemon.control_client import NONSENSE, SOCKET, credentials, line_of, short_path
from growfs.errors import GrowfsError, UsageError

log = logging.getLogger(__name__)

REQUEST_S = 10.0
"""How long a client may take to send its request."""

Command = Callable[..., AsyncIterator[Any]]
"""Yields its progress any number of times, and then its result. Raises GrowfsError."""


class Control:
    """The daemon's end. Owns the socket. commands: their names are those of the functions."""

    def __init__(self, folder: Path, commands: Iterable[Command]) -> None:
        self._folder = folder
        self._commands = {command.__name__: command for command in commands}

    async def run(self) -> None:
        """Answer requests until cancelled."""
        disk.unlink("SOCKET", self._folder / SOCKET)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_path(self._folder) as path:
            listening.bind(path)
            os.chmod(path, 0o600)
        listening.listen()
        await trio.serve_listeners(self._answer, [trio.SocketListener(trio.socket.from_stdlib_socket(listening))])

    async def _answer(self, stream: trio.SocketStream) -> None:
        try:
            _, uid = credentials(stream.socket.getsockopt)
            with trio.fail_after(REQUEST_S):
                request = await self._read(stream)  # even if refused: closing with unread data drops the answer
            if uid not in (0, os.getuid()):
                raise GrowfsError("this mount belongs to another user")
            command = self._commands.get(request.pop("command", ""))
            if command is None:
                raise UsageError(f"no such command; the commands are {', '.join(self._commands)}")
            last: Any = None
            async for last in command(**request):
                await _send(stream, {"progress": last})  # the command runs to its end even if the client is gone
            await stream.send_all(line_of({"result": last}))
        except GrowfsError as error:
            await _send(stream, {"error": str(error), "exit_code": error.exit_code})
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass  # the client is gone
        except NONSENSE as error:
            await _send(stream, {"error": f"the daemon does not understand the request: {error}", "exit_code": 2})
        except (OSError, sqlite3.Error) as error:
            log.warning("a command failed: %s", error)
            await _send(stream, {"error": f"the daemon failed: {error}", "exit_code": 1})
        except Exception as error:
            log.exception("a command failed: a bug in growfs")
            text = f"a bug in growfs: {type(error).__name__}: {error}; see the mount's log"
            await _send(stream, {"error": text, "exit_code": 1})
        finally:
            await stream.aclose()

    @staticmethod
    async def _read(stream: trio.SocketStream) -> dict[str, Any]:
        line = bytearray()
        while not line.endswith(b"\n"):
            chunk = await stream.receive_some()
            if not chunk or len(line) > 1 << 20:
                raise ValueError("it is cut short, or too long")
            line += chunk
        return dict(json.loads(line))


async def _send(stream: trio.SocketStream, message: dict[str, Any]) -> None:
    """Send a message, shielded: a command with its own tasks must be cancelled where it waits, not at a yield."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(REQUEST_S, shield=True):
        await stream.send_all(line_of(message))
