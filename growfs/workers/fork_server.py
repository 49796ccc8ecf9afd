"""`ForkServer`: the daemon's side of the process that forks the workers.

It imports next to nothing, because the daemon starts it before everything else.
"""

from __future__ import annotations

import socket
import subprocess

from growfs import own_code

WORKER, GUARD = b"w", b"g"
"""What the process does with a descriptor that it gets."""


class ForkServer:
    """Owns the process."""

    def __init__(self, scheme: str) -> None:
        """scheme: of the remote's URL. Determines the imports before the spec is known."""
        self._scheme = scheme
        self.start()

    def start(self) -> None:
        """Start the process. It serves once its spec is sent to `control` (workers/worker.py)."""
        self.control, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            command, code = own_code.command("growfs.workers.worker", str(fd), self._scheme)
            self._process = subprocess.Popen(
                command, pass_fds=[fd, *code], stdin=subprocess.DEVNULL, start_new_session=True
            )

    def fork(self, connection: socket.socket) -> None:
        """Fork a worker that serves the other end of a connection. Raises OSError if the process is gone."""
        socket.send_fds(self.control, [WORKER], [connection.fileno()])

    def guard(self, switch: int) -> None:
        """Make the process guard a mount (workers/guard.py). Raises OSError if the process is gone."""
        socket.send_fds(self.control, [GUARD], [switch])

    def stop(self) -> None:
        """End the process. Each worker ends when its connection is closed."""
        self.control.close()
        self._process.kill()  # it may be importing, or stopped
        self._process.wait()
