"""The command line's end of the control socket of a daemon. It imports little: each command waits for it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from growfs.cache.cache_folder import FORMAT, daemon_of
from growfs.errors import GrowfsError, UsageError
from growfs.status import MountStatus

SOCKET = "control.sock"
ANSWER_S = 600.0
"""How long a client waits for the next line of the answer."""


@contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """A path of the socket that fits the 107 bytes of unix(7), however deep the folder is.

    Where the system has no such descriptors, the path as it is.
    """
    if not hasattr(os, "O_PATH"):
        yield str(folder / SOCKET)
        return
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


def line_of(message: dict[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def call(
    folder: Path,
    command: str,
    on_progress: Callable[[Any], None] | None = None,
    answer_s: float = ANSWER_S,
    **arguments: Any,
) -> Any:
    """Have the daemon of a cache folder run a command; returns its result. answer_s: how long its next line may take.

    Raises GrowfsError if the command fails or no daemon answers, or one of a version with other commands and figures.
    """
    daemon = daemon_of(folder)
    if daemon and daemon.get("format") != FORMAT:
        raise GrowfsError(
            f"{daemon['mountpoint']}: mounted by another version of growfs; unmount it, and mount it again"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(answer_s)
        try:
            with short_path(folder) as path:
                connection.connect(path)
            connection.sendall(line_of({"command": command, **arguments}))
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


def status_of(folder: Path, answer_s: float = ANSWER_S) -> MountStatus:
    """The status of the mount of a cache folder. Raises GrowfsError if its daemon does not answer, or is too old."""
    return MountStatus.parse(call(folder, "status", answer_s=answer_s))
