"""The command line's end of the control socket of a daemon. It imports little: each command waits for that."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from growfs.cache.cache_folder import FORMAT, daemon_of
from growfs.errors import GrowfsError, UsageError
from growfs.status_and_metrics import MountStatus
from growfs.trust import opened_for_its_owner
from growfs.version import __version__

SOCKET = "control.sock"
ANSWER_S = 600.0
"""How long a client waits for the next line of the answer."""
NONSENSE = (ValueError, TypeError, AttributeError, RecursionError)
"""Raised when reading what does not come from growfs."""


class _Answer(dict[str, Any]):
    """An object of an answer. A daemon of this version would have sent any missing key. folder: of the cache."""

    def __init__(self, folder: Path, content: dict[str, Any]) -> None:
        super().__init__(content)
        self._folder = folder

    def __missing__(self, key: str) -> Any:
        raise _other_version(self._folder)


def _connect(connection: socket.socket, folder: Path) -> None:
    """Connect to the daemon of a cache folder. Raises OSError, also if a link leads to another user's daemon."""
    with short_path(folder) as path:
        connection.connect(path)
        owner = os.stat(os.path.dirname(path)).st_uid
        if hasattr(socket, "SO_PEERCRED") and credentials(connection.getsockopt)[1] != owner:
            raise OSError(errno.EPERM, "its socket belongs to another user")


def credentials(getsockopt: Callable[[int, int, int], bytes]) -> tuple[int, int]:
    """Process and user at the other end of a socket, according to the kernel (unix(7), SO_PEERCRED).

    The process is 0 if it is in a pid namespace that is not visible from here.
    """
    pid, uid, _ = struct.unpack("3i", getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid


def daemon_pid(folder: Path) -> int:
    """The process of the daemon of a cache folder; 0 if none has its socket, or it is not visible from here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, suppress(OSError):
        connection.settimeout(0)  # a hung daemon stops accepting connections at some point
        _connect(connection, folder)
        return credentials(connection.getsockopt)[0]
    return 0


@contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """A path of the socket that fits into the 107 bytes of unix(7), however deep the folder is.

    If the system has no O_PATH descriptors, the path as it is. Raises OSError.
    """
    if not hasattr(os, "O_PATH"):
        yield str(folder / SOCKET)
        return
    with opened_for_its_owner(folder) as (fd, _):
        yield f"/proc/self/fd/{fd}/{SOCKET}"


def line_of(message: dict[str, Any]) -> bytes:
    """The encoded form of a message."""
    return json.dumps(message).encode() + b"\n"


def call(
    folder: Path,
    command: str,
    on_progress: Callable[[Any], None] | None = None,
    answer_s: float | None = ANSWER_S,
    **arguments: Any,
) -> Any:
    """Make the daemon of a cache folder run a command; returns its result.

    answer_s: how long its next line may take; None: as long as the daemon lives.

    Raises GrowfsError if the command fails, no daemon answers, or its version has other commands and figures.
    """
    daemon = daemon_of(folder)
    if daemon and daemon.get("format") != FORMAT:
        raise _other_version(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(answer_s)
        try:
            _connect(connection, folder)
            connection.sendall(line_of({"command": command, **arguments}))
            with connection.makefile() as lines:
                # An answer is never longer. The daemon may be another user's.
                while line := lines.readline(1 << 26):
                    message = json.loads(line, object_hook=partial(_Answer, folder))
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
            advice = "check the cache's disk (dmesg)" if error.errno == errno.EIO else f"see {folder}/log"
            raise GrowfsError(f"the daemon of {folder} does not answer ({error.strerror or error}); {advice}") from None
        except NONSENSE:
            raise GrowfsError(f"{folder}: its daemon's answer is not understood; unmount and mount again") from None
    raise GrowfsError(f"the daemon of {folder} closed the connection; see {folder}/log")


def status_of(folder: Path, answer_s: float = ANSWER_S) -> MountStatus:
    """The status of the mount of a cache folder. Raises GrowfsError if its daemon does not answer, or is too old."""
    answer = call(folder, "status", answer_s=answer_s)
    try:
        return MountStatus.parse(answer)
    except NONSENSE:  # a state unknown to this version
        raise _other_version(folder) from None


def _other_version(folder: Path) -> GrowfsError:
    daemon = daemon_of(folder)
    return GrowfsError(
        f"{daemon.get('mountpoint', folder)}: mounted by another version of growfs ({daemon.get('version', 'unknown')};"
        f" this is {__version__}); use that version, or unmount and mount again"
    )
