"""Tells systemd how a service with Type=notify fares: sd_notify(3), without its library."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

SOCKET_VARIABLE = "NOTIFY_SOCKET"


def is_service() -> bool:
    """Whether a service manager has started this process, and waits to be notified."""
    return SOCKET_VARIABLE in os.environ


def notify(*assignments: str) -> None:
    """Send assignments, such as READY=1, to the service manager, if there is one that listens."""
    if address := os.environ.get(SOCKET_VARIABLE):
        if address.startswith("@"):
            address = "\0" + address[1:]  # an abstract socket (unix(7))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending, suppress(OSError):
            sending.connect(address)
            sending.sendall("\n".join(assignments).encode())
