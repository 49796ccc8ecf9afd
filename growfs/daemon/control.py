"""The control socket: how the verbs of the command line talk to a daemon.

Never through the mount, which hangs just when one needs them.

A request is one line of JSON: {"verb": ..., and what the verb takes}. The answers are lines: any number of {"progress":
...}, then {"result": ...} or {"error": ..., "exit_code": ...}. Only the mounting user and root are heard.
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
"""How long a caller may take to say what it wants."""
ANSWER_S = 600.0
"""How long a caller waits for the next line."""

Command = Callable[..., AsyncIterator[Any]]
"""Yields what to tell as progress, and last the result. Raises GrowfsError."""


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """The socket's name, however deep the folder is: unix(7) allows 107 bytes."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


class Control:
    """The daemon's end. Owns the socket."""

    def __init__(self, folder: Path, verbs: dict[str, Command]) -> None:
        self._verbs = verbs
        disk.unlink("SOCKET", folder / SOCKET)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(folder) as name:
            listening.bind(name)
            os.chmod(name, 0o600)
        listening.listen()
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))

    async def run(self) -> None:
        """Answer until cancelled."""
        await trio.serve_listeners(self._answer, [self._listener])

    async def _answer(self, stream: trio.SocketStream) -> None:
        try:
            credentials = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            _, uid, _ = struct.unpack("3i", credentials)
            with trio.fail_after(REQUEST_S):
                request = await self._request(stream)  # first: a close with something unread would eat the answer
            if uid not in (0, os.getuid()):
                raise GrowfsError("this mount belongs to another user")
            verb = self._verbs.get(request.pop("verb", ""))
            if verb is None:
                raise UsageError(f"no such verb; there are {', '.join(self._verbs)}")
            last: Any = None
            async for last in verb(**request):
                await _tell(stream, {"progress": last})  # a verb goes on to its end, also when its caller left
            await stream.send_all(_line({"result": last}))
        except GrowfsError as error:
            await _tell(stream, {"error": str(error), "exit_code": error.exit_code})
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass  # the caller left
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            await _tell(stream, {"error": f"the daemon does not understand the request: {error}", "exit_code": 2})
        except (OSError, sqlite3.Error) as error:
            log.warning("a verb failed: %s", error)
            await _tell(stream, {"error": f"the daemon failed: {error}", "exit_code": 1})
        finally:
            await stream.aclose()

    @staticmethod
    async def _request(stream: trio.SocketStream) -> dict[str, Any]:
        got = bytearray()
        while not got.endswith(b"\n"):
            more = await stream.receive_some(REQUEST_MAX)
            if not more or len(got) > REQUEST_MAX:
                raise ValueError("it is cut short, or too long")
            got += more
        return dict(json.loads(got))


async def _tell(stream: trio.SocketStream, answer: dict[str, Any]) -> None:
    """Shielded: a verb that has tasks of its own must be cancelled within itself, not between two answers."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(REQUEST_S, shield=True):
        await stream.send_all(_line(answer))


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def ask(folder: Path, verb: str, told: Callable[[Any], None] | None = None, **request: Any) -> Any:
    """The caller's end: a verb's result. told: given the progress. Raises GrowfsError, also where nobody answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(ANSWER_S)
        try:
            with _short(folder) as name:
                line.connect(name)
            line.sendall(_line({"verb": verb, **request}))
            for text in line.makefile():
                answer = json.loads(text)
                if "error" in answer:
                    raise (UsageError if answer["exit_code"] == 2 else GrowfsError)(answer["error"])
                if "result" in answer:
                    return answer["result"]
                if told:
                    told(answer["progress"])
        except PermissionError:
            raise GrowfsError(f"{folder}: this mount belongs to another user; ask as that user, or as root") from None
        except OSError as error:
            raise GrowfsError(
                f"the daemon of {folder} does not answer ({error.strerror or error}); see {folder}/log"
            ) from None
    raise GrowfsError(f"the daemon of {folder} hung up; see {folder}/log")
